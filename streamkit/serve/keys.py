"""Keys: `sk_<id>_<secret>`. A file holds the rights of each key and its SHA-256, never the secret."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import msgspec

from ..decoders import json_decoder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from .access import SCOPES, Access
from .problems import Problem

__all__ = ["Key", "KeyFile", "ticket_for"]

_log = logging.getLogger("streamkit.serve")

_LOOK = 1.0
"""Seconds after which the file is looked at again."""
_TICKET_SECONDS = 60


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rights of a key. Empty `stores`, `spaces` and `segments` (prefixes) allow all of them."""

    id: str
    hash: str
    scopes: tuple[str, ...]
    stores: tuple[UUID, ...] = ()
    spaces: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()
    expires: int = 0
    """The time at which the key ends, in seconds since the epoch; 0: never."""
    created: int = 0
    name: str = ""
    priority: int = 0

    @property
    def access(self) -> Access:
        return Access(
            id=self.id,
            scopes=frozenset(self.scopes),
            stores=frozenset(self.stores),
            spaces=self.spaces,
            segments=self.segments,
            priority=self.priority,
            expires=self.expires,
        )


class _Stored(msgspec.Struct):
    version: int
    keys: list[Key]


class KeyFile:
    """The keys of a file. It is read again when it has changed, so a key that is revoked ends within a second."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._keys: dict[str, tuple[Key, Access]] = {}
        self._stamp: tuple[int, int] | None = None
        self._looked = 0.0
        self._changes = 0
        """Changes by this process. A look that began before the latest one does not count."""
        self._looking: asyncio.Future[None] | None = None
        self._lock = threading.Lock()

    def read(self) -> list[Key]:
        """All keys, also the expired ones. ValueError if the file is not a file of keys."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        try:
            stored = json_decoder(_Stored).decode(data)
        except msgspec.DecodeError as error:
            raise ValueError(f"{self.path} is no file of keys ({error}); `streamkit keys create` makes one") from None
        if stored.version != 1:
            raise ValueError(
                f"{self.path} has version {stored.version} of the format; this release reads 1. Upgrade streamkit."
            )
        return stored.keys

    def create(
        self,
        scopes: Iterable[str],
        *,
        stores: Iterable[UUID] = (),
        spaces: Iterable[str] = (),
        segments: Iterable[str] = (),
        ttl: float | None = None,
        name: str = "",
        priority: int = 0,
    ) -> str:
        """Make a key and return it; it is stored nowhere. After `ttl` seconds it is refused."""
        wanted = tuple(scopes)
        if not wanted or not set(wanted) <= set(SCOPES):
            raise ValueError(f"the scopes of a key are some of {', '.join(SCOPES)}, not {', '.join(wanted) or 'none'}")
        if ttl is not None and not 0 < ttl < 1e10:
            raise ValueError(f"ttl is a number of seconds above 0, not {ttl}")
        now = int(time.time())
        secret = secrets.token_urlsafe(32)
        id = secrets.token_hex(6)
        key = Key(
            id=id,
            hash=_digest(secret),
            scopes=wanted,
            stores=tuple(stores),
            spaces=tuple(spaces),
            segments=tuple(segments),
            expires=0 if ttl is None else int(now + ttl),
            created=now,
            name=name,
            priority=priority,
        )
        with self._changing():
            self._write([*self.read(), key])
        return f"sk_{id}_{secret}"

    def revoke(self, id: str) -> None:
        """Remove a key by its id. ValueError if there is none."""
        with self._changing():
            keys = self.read()
            if all(key.id != id for key in keys):
                raise ValueError(f"{self.path} has no key {id!r}; `streamkit keys list` shows the ones that there are")
            self._write([key for key in keys if key.id != id])

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock out other threads and processes between a read and a write, so that no change of theirs is lost."""
        with self._lock:
            handle = os.open(self.path.parent, os.O_RDONLY) if fcntl is not None else -1
            try:
                if fcntl is not None:
                    fcntl.flock(handle, fcntl.LOCK_EX)
                yield
            finally:
                if fcntl is not None:
                    os.close(handle)
                self._changes += 1
                self._stamp = None  # a change by this process holds here at once

    def _write(self, keys: list[Key]) -> None:
        data = msgspec.json.format(msgspec.json.encode(_Stored(1, keys)))
        handle, made = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(made, self.path)
        except BaseException:
            os.unlink(made)
            raise

    # -- asking -------------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read the file in a thread if it is due, so that a slow disk holds up only the requests that need a key.

        Call it before the methods below: each of them reads the file itself if it is still due.
        """
        if self._is_due():
            await asyncio.shield(self._begin())
        while self._stamp is None:  # this process has changed the file meanwhile
            await asyncio.shield(self._begin())

    def _begin(self) -> asyncio.Future[None]:
        """The look at the file that is under way in a thread, or a new one."""
        looking = self._looking
        if looking is None or looking.done() or looking.get_loop() is not asyncio.get_running_loop():
            looking = self._looking = asyncio.ensure_future(asyncio.to_thread(self._look))
        return looking

    def access(self, token: str) -> Access | None:
        """The rights of the key `token`; None if it is not in the file, or has expired."""
        if not token.startswith("sk_"):
            return None
        id, _, secret = token[3:].partition("_")
        found = self._find(id)
        if found is None or not hmac.compare_digest(found[0].hash, _digest(secret)):
            return None
        return found[1]

    def has(self, id: str) -> bool:
        """True if the key with this id was in the file at the latest look, and has not expired. A look that is due is
        begun in a thread of the running event loop, and counts for the next call."""
        if self._is_due():
            self._begin()
        return self._known(id) is not None

    def ticket_access(self, ticket: str, path: bytes) -> Access | None:
        """The rights of a ticket; None if it is not for `path`, or has expired."""
        parts = ticket.split("_")
        if len(parts) != 4 or parts[0] != "tk" or not (parts[2].isascii() and parts[2].isdecimal()):
            return None
        found = self._find(parts[1])
        expires = int(parts[2][:12])
        if found is None or expires < time.time():
            return None
        return found[1] if hmac.compare_digest(parts[3].encode(), _mac(found[0], expires, path).encode()) else None

    def ticket(self, id: str, path: bytes) -> tuple[str, int] | None:
        """A ticket for one path, and when it expires; None if the key is gone."""
        found = self._find(id)
        return None if found is None else ticket_for(found[0], path)

    def session(self, token: str, seconds: float) -> str | None:
        """A session of the key `token`, for so many seconds; None if the key is not valid."""
        access = self.access(token)
        return None if access is None else self.session_of_id(access.id, seconds)

    def session_of_id(self, id: str, seconds: float) -> str | None:
        """A session of the key with this id; None if there is none."""
        found = self._find(id)
        if found is None:
            return None
        expires = int(time.time() + seconds)
        return f"cs_{id}_{expires}_{_session_mac(found[0], expires)}"

    def session_access(self, session: str) -> Access | None:
        """The rights of a session, until it ends; None if it has ended, or its key is gone."""
        parts = session.split("_")
        if len(parts) != 4 or parts[0] != "cs" or not (parts[2].isascii() and parts[2].isdecimal()):
            return None
        found = self._find(parts[1])
        expires = int(parts[2][:12])
        if found is None or expires <= time.time():
            return None
        if not hmac.compare_digest(parts[3].encode(), _session_mac(found[0], expires).encode()):
            return None
        access = found[1]
        return msgspec.structs.replace(access, expires=min(access.expires or expires, expires))

    def _find(self, id: str) -> tuple[Key, Access] | None:
        if self._is_due():
            self._look()
        return self._known(id)

    def _known(self, id: str) -> tuple[Key, Access] | None:
        found = self._keys.get(id)
        if found is not None and found[0].expires and found[0].expires <= time.time():
            return None
        return found

    def _is_due(self) -> bool:
        return self._stamp is None or time.monotonic() - self._looked >= _LOOK

    def _look(self) -> None:
        """Read the file if it has changed."""
        changes = self._changes
        stamp = self._read_if_changed()
        self._looked = time.monotonic()
        self._stamp = stamp if changes == self._changes else None

    def _read_if_changed(self) -> tuple[int, int]:
        """The stamp of the file. Its keys are read if the stamp is a new one."""
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
        except FileNotFoundError:
            stamp = (0, 0)
        if stamp == self._stamp:
            return stamp
        try:
            self._keys = {key.id: (key, key.access) for key in self.read()}
        except (OSError, ValueError) as error:
            _log.error("the file of keys cannot be read, so the keys that were read before go on: %s", error)
        return stamp


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _mac(key: Key, expires: int, path: bytes) -> str:
    return hmac.new(bytes.fromhex(key.hash), b"%d %b" % (expires, path), "sha256").hexdigest()


def _session_mac(key: Key, expires: int) -> str:
    return hmac.new(bytes.fromhex(key.hash), b"session %d" % expires, "sha256").hexdigest()


def ticket_for(key: Key, path: bytes) -> tuple[str, int]:
    """A ticket of a key, for one path, and when it expires. Any process that has the file of keys takes it."""
    expires = int(time.time()) + _TICKET_SECONDS
    return f"tk_{key.id}_{expires}_{_mac(key, expires, path)}", expires


def refused(ticket: bool = False) -> Problem:
    """The problem of a request without a valid key or, with `ticket`, with an invalid one. It does not say why the key
    is invalid."""
    return Problem(
        "unauthenticated",
        "the ticket is not for this path, or its 60 seconds are over; POST the path to /v1/tickets again"
        if ticket
        else "the request has no valid key; send it as `Authorization: Bearer sk_…`",
        headers=((b"www-authenticate", b'Bearer realm="streamkit"'),),
    )
