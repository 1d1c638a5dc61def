"""Leases: a blob each, `<store>/leases/<name>`, whose metadata holds the token, the holder and the ttl.

The token is moved forward by a conditional write, so only one of two processes gets a lease. A process may take it as
follows:

- With a ttl of 15 to 60 seconds the holder has a native lease of Azure, and Azure ends it.
- Any other ttl runs from the blob's Last-Modified, which each renewal moves, and is over when the Date of an answer
  lies more than the ttl behind it. Both are the service's clock, in whole seconds, so one second is added.

The blob stays when the lease is released: it holds the token that the next grant must exceed.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError

from streamkit.backend import Grant, first_token
from streamkit.errors import CorruptData, LeaseLost, StreamkitError, Unavailable

from .blobs import make_container
from .errors import code_of, foreign
from .service import Clients

__all__ = ["Leases"]

_NATIVE = (15, 60)
_LONGEST = 600
_PART = 250
"""A part of a path may have 255 characters where the account has a hierarchical namespace."""


class _Held(NamedTuple):
    """The metadata of a lease blob."""

    token: int
    holder: str
    ttl: float
    """Seconds for which it was taken; 0: it was released."""

    @property
    def native(self) -> bool:
        """True if Azure itself ends the lease. Otherwise the blob's age ends it."""
        return _NATIVE[0] <= self.ttl <= _NATIVE[1]


class _Seen(NamedTuple):
    """A lease blob as the service showed it."""

    etag: str
    held: _Held
    age: float
    """Seconds since it was last written, by the service's clock."""
    locked: bool
    """True if the blob has a native lease now."""
    now: float
    """Seconds since the epoch, by the service's clock."""

    @property
    def next_token(self) -> int:
        return self.held.token + 1 if self.held.token else first_token(self.now)

    @property
    def free(self) -> bool:
        return not self.locked and (self.held.native or not self.held.ttl or self.age >= self.held.ttl + 1)


class Leases:
    def __init__(self, clients: Callable[[], Clients], where: str, store: UUID) -> None:
        self._clients = clients
        self._where = where
        self._path = f"{store}/leases/"

    def acquire(self, name: str, ttl: float) -> Grant | None:
        if not 0 < ttl < 1e9:
            raise ValueError(f"the ttl of a lease is more than 0 seconds, not {ttl}")
        blob = self._blob(name)
        seen = self._look(blob) or self._make(blob)
        if seen is None or not seen.free:
            return None
        held = _Held(seen.next_token, str(uuid4()), ttl)
        if held.native and not self._lock(blob, held, seen.etag):
            return None
        etag = self._settled(blob, held, seen.etag)
        return Grant(name, held.token, ttl, f"{held.holder} {etag}") if etag else None

    def renew(self, grant: Grant) -> Grant:
        blob = self._blob(grant.name)
        holder, _, etag = grant.handle.partition(" ")
        held = _Held(grant.token, holder, grant.ttl)
        if held.native:
            if not self._native(blob, holder, "renew"):
                raise _lost(grant)
            return grant
        renewed = self._write(blob, held, etag)
        if renewed is None:
            now = self._look(blob)
            if now is None or now.locked or now.held != held:
                raise _lost(grant)
            # An earlier renewal went through and its answer was lost.
            renewed = self._write(blob, held, now.etag)
        if renewed is None:
            raise _lost(grant)
        return grant._replace(handle=f"{holder} {renewed}")

    def release(self, grant: Grant) -> None:
        blob = self._blob(grant.name)
        holder, _, etag = grant.handle.partition(" ")
        held = _Held(grant.token, holder, grant.ttl)
        if held.native:
            self._native(blob, holder, "release")
            return
        over = held._replace(ttl=0.0)
        if self._write(blob, over, etag) is None:
            now = self._look(blob)
            if now is not None and now.held == held:
                self._write(blob, over, now.etag)

    def is_held(self, name: str) -> bool:
        seen = self._look(self._blob(name))
        return seen is not None and not seen.free

    def _blob(self, name: str) -> Any:
        text = name.encode()
        if not 0 < len(text) <= _LONGEST:
            raise ValueError(f"the name of a lease has 1 to {_LONGEST} bytes of UTF-8, not {len(text)}")
        path = base64.b32hexencode(text).decode().rstrip("=").lower()
        if len(path) > _PART:
            path = f"z{hashlib.blake2b(text, digest_size=32).hexdigest()}"  # base32hex has no z
        return self._clients().container.get_blob_client(self._path + path)

    def _look(self, blob: Any) -> _Seen | None:
        """The lease as it is now; None if there never was one."""
        headers: dict[str, str] = {}
        with foreign(self._where):
            try:
                found = blob.get_blob_properties(raw_response_hook=lambda r: headers.update(r.http_response.headers))
            except ResourceNotFoundError as error:
                if code_of(error) not in ("BlobNotFound", "ContainerNotFound"):
                    raise
                return None
        dates = {name.lower(): value for name, value in headers.items()}
        try:
            held = _Held(int(found.metadata["token"]), found.metadata["holder"], float(found.metadata["ttl"]))
            now = parsedate_to_datetime(dates["date"])
            age = now - found.last_modified
        except (KeyError, TypeError, ValueError):
            raise CorruptData(f"the blob {self._path}{blob.blob_name} is no lease of streamkit; remove it") from None
        return _Seen(found.etag, held, age.total_seconds(), found.lease.status == "locked", now.timestamp())

    def _make(self, blob: Any) -> _Seen | None:
        """The lease, made free; as it is if someone else made it; None if its container is removed meanwhile."""
        free = _Held(0, "", 0.0)
        for _ in range(2):
            with foreign(self._where):
                try:
                    made = blob.upload_blob(b"", metadata=_metadata(free), overwrite=False)
                    return _Seen(made["etag"], free, 0.0, False, made["date"].timestamp())
                except ResourceExistsError as error:
                    if code_of(error) != "BlobAlreadyExists":
                        raise
                    return self._look(blob)
                except ResourceNotFoundError as error:
                    if code_of(error) != "ContainerNotFound":
                        raise
            make_container(self._clients(), self._where)
        return None

    def _lock(self, blob: Any, held: _Held, etag: str) -> bool:
        """Take the native lease; False if someone was faster."""
        options = {"etag": etag, "match_condition": MatchConditions.IfNotModified}

        def acquire() -> object:
            return self._done(lambda: blob.acquire_lease(math.ceil(held.ttl), lease_id=held.holder, **options))

        try:
            return acquire() is not None
        except Unavailable:
            return acquire() is not None  # the same holder again: it cannot stand in its own way

    def _native(self, blob: Any, holder: str, verb: str) -> bool:
        """Renew or release the native lease; False if it is someone else's by now."""
        from azure.storage.blob import BlobLeaseClient

        return self._done(lambda: getattr(BlobLeaseClient(blob, holder), verb)()) is not None

    def _write(self, blob: Any, held: _Held, etag: str) -> str | None:
        """Write the metadata if the lease is still ours to write; the new etag, or None."""
        options = {"etag": etag, "match_condition": MatchConditions.IfNotModified}
        answer = self._done(
            lambda: blob.set_blob_metadata(_metadata(held), **{"lease": held.holder} if held.native else options)
        )
        return str(answer["etag"]) if answer else None

    def _settled(self, blob: Any, held: _Held, etag: str) -> str | None:
        """`_write`, where an answer that is lost, or a refusal that may be due to one's own first try, is looked up."""
        failure: StreamkitError | None = None
        try:
            written = self._write(blob, held, etag)
            if written is not None:
                return written
        except StreamkitError as error:
            failure = error
        try:
            now = self._look(blob)
            if now is not None and now.held == held:
                return now.etag
        except StreamkitError as error:
            failure = failure or error
        if held.native:
            with suppress(StreamkitError):
                self._native(blob, held.holder, "release")
        if failure is not None:
            raise failure
        return None

    def _done(self, call: Callable[[], Any]) -> Any:
        """Make a conditional request. Returns its result, or None if the lease does not meet the condition."""
        with foreign(self._where):
            try:
                return call() or True
            except HttpResponseError as error:
                if error.status_code not in (404, 409, 412) or code_of(error).endswith("BeingDeleted"):
                    raise
                return None


def _metadata(held: _Held) -> dict[str, str]:
    return {"token": str(held.token), "holder": held.holder, "ttl": repr(float(held.ttl))}


def _lost(grant: Grant) -> LeaseLost:
    return LeaseLost(f"the lease {grant.name!r} was taken or released; acquire it again")
