"""Presence of members, based on leases, so that no machine's clock is compared with another's."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType

import msgspec

from .arguments import check_seconds, check_texts
from .decoders import json_decoder
from .errors import (
    CorruptData,
    Fenced,
    LeaseLost,
    LeaseNotAcquired,
    SequenceMismatch,
    StreamkitError,
)
from .leases import Lease, LeaseGrant, check_grant, is_held
from .model import Entry, Record
from .names import check_name, internal_name
from .store import Store, inner

__all__ = ["Member", "Members", "Membership"]

_SPACE = internal_name("members")
_LEAST_TTL = 1.0
_ATTEMPTS = 5
"""Attempts to note members as gone while others write too."""
_JOINS = 100
"""One of this many joins tidies, on average."""
_KEPT = 1000
"""Notes before those of present members, after which they are trimmed."""


class Member(msgspec.Struct, frozen=True):
    """A present member. `since`: the time when it joined, in ms."""

    name: str
    metadata: dict[str, str]
    since: int


class _Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of a member that has joined, or has gone."""

    name: str
    metadata: dict[str, str] = {}
    ttl: float = 0.0
    gone: bool = False

    def record(self) -> Record:
        return Record(msgspec.json.encode(self))


class Members:
    """The members of a group, from `store.members(group)`. A group need not be created.

    The log has the names of those that joined. Each member's lease says whether it is still there: it is renewed in the
    background, and ends `ttl` seconds after the last renewal by the service's clock.
    """

    def __init__(self, store: Store, group: str) -> None:
        self.group = check_name(group, "group")
        self._store = store
        self._seen = 0
        self._first = 0
        """The first record that existed."""
        self._noted: dict[str, tuple[_Note, Entry]] = {}
        """The latest note of each member that has neither left nor ended, and its entry."""
        self._ended: set[str] = set()
        """Members whose leases have ended, and whose end is not recorded yet."""
        self._lock = threading.RLock()
        """Guards the fields."""

    def join(self, name: str, metadata: Mapping[str, str] | None = None, ttl: float = 15.0) -> Membership:
        """Join as `name` until `leave()`, the end of a `with`, or `ttl` seconds after the process stopped.

        LeaseNotAcquired if there is a member of that name. One join in a hundred also looks at the leases of all
        members and records those that have ended, so that the log of the group stays short.
        """
        check_name(name, "member")
        check_seconds("ttl", ttl)
        found = _checked(metadata)
        lease = self._store.lease(self._lease_name(name), ttl=max(ttl, _LEAST_TTL))
        try:
            lease.__enter__()
        except LeaseNotAcquired as error:
            raise LeaseNotAcquired(f"a member {name!r} of {self.group!r} exists: join under another name") from error
        try:
            self._store.produce(_SPACE, self.group, [_Note(name, found, ttl).record()], lease=lease)
        except BaseException:
            lease.__exit__(None, None, None)
            raise
        if not random.randrange(_JOINS):
            with suppress(StreamkitError):  # a later join does it
                self._tidy()
        return Membership(self, name, found, lease)

    def enter(self, name: str, metadata: Mapping[str, str] | None = None, ttl: float = 15.0) -> LeaseGrant:
        """Join as `name` for `ttl` seconds (1 to 3600), without a thread that renews.

        The grant renews it (`store.renew_lease`) and ends it (`exit`), in any process. Errors as `join`.
        """
        check_name(name, "member")
        check_seconds("ttl", ttl)
        found = _checked(metadata)
        try:
            grant = self._store.acquire_lease(self._lease_name(name), ttl)
        except LeaseNotAcquired as error:
            raise LeaseNotAcquired(f"a member {name!r} of {self.group!r} exists: join under another name") from error
        try:
            self._store.produce(_SPACE, self.group, [_Note(name, found, ttl).record()], lease=grant)
        except BaseException:
            self._store.release_lease(grant)
            raise
        if not random.randrange(_JOINS):
            with suppress(StreamkitError):
                self._tidy()
        return grant

    def exit(self, name: str, grant: LeaseGrant) -> None:
        """Leave at once, with the grant of `enter`. A second call does nothing. ValueError if the grant is of another
        member."""
        self.check_grant(name, grant)
        with suppress(Fenced, LeaseLost):  # the name may be another's by now
            self._store.renew_lease(grant)
            self._store.produce(_SPACE, self.group, [_Note(name, gone=True).record()], lease=grant)
        self._store.release_lease(grant)

    def check_grant(self, name: str, grant: LeaseGrant) -> None:
        """Refuse a grant that is not of the member `name`: ValueError, or TypeError if it is no grant."""
        if check_grant(grant).key != self._lease_name(check_name(name, "member")):
            raise ValueError(f"the grant is not of the member {name!r} of {self.group!r}: pass the grant of enter()")

    def list(self) -> list[Member]:
        """Return the members, by name. Costs a look at the log and one at each member's lease.

        Writes nothing and takes no lease, so it never refuses a join. TransientError if the storage does not answer.
        """
        self._read()
        found = []
        for name, noted in sorted(self._noted.copy().items()):
            note, entry = noted
            if is_held(inner(self._store).backend, self._lease_name(name)):
                found.append(Member(name, dict(note.metadata), entry.timestamp))
            else:
                self._end(name, entry.sequence)
        return found

    def watch(self, *, timeout: float | None = None, every: float = 1.0) -> Iterator[Sequence[Member]]:
        """Yield the members, now and after each change. It ends after `timeout` seconds without a change.

        A member that stopped without leaving is missed after its ttl, within `every` seconds.
        """
        check_seconds("every", every, positive=True)
        if timeout is not None:
            check_seconds("timeout", timeout, endless=True)
        clock = inner(self._store).clock
        before: Sequence[Member] | None = None
        heard = clock.monotonic()
        while True:
            present = self.list()
            if present != before:
                before, heard = present, clock.monotonic()
                yield present
            if timeout is not None and clock.monotonic() >= heard + timeout:
                return
            rest = every if timeout is None else min(every, heard + timeout - clock.monotonic())
            clock.sleep(max(rest, 0.001))

    def _lease_name(self, name: str) -> str:
        digest = hashlib.blake2b(f"{self.group}\0{name}".encode(), digest_size=16).hexdigest()
        return f"members/{digest}"

    def note_gone(self, name: str, lease: Lease) -> None:
        """Write that a member has left, under its own lease. Fenced or LeaseLost if another one has had the name."""
        self._store.produce(_SPACE, self.group, [_Note(name, gone=True).record()], lease=lease)

    def _read(self) -> None:
        # Trimmed records belong to members that have left, or whose leases have ended.
        for entry in self._store.consume_segment(_SPACE, self.group, min_sequence=self._seen + 1, gaps="skip"):
            try:
                note = json_decoder(_Note).decode(entry.payload)
            except msgspec.DecodeError as error:
                raise CorruptData(f"the members of {self.group!r} cannot be read: {error}") from error
            with self._lock:
                if entry.sequence > self._seen:  # else another thread has read it
                    self._apply(note, entry)

    def _apply(self, note: _Note, entry: Entry) -> None:
        self._ended.discard(note.name)
        if note.gone:
            self._noted.pop(note.name, None)
        else:
            self._noted[note.name] = (note, entry)
        self._first = self._first or entry.sequence
        self._seen = entry.sequence

    def _end(self, name: str, sequence: int) -> None:
        """The lease of the member with this note has ended, for good: a lease that was lost is not renewed again."""
        with self._lock:
            noted = self._noted.get(name)
            if noted is not None and noted[1].sequence == sequence:
                del self._noted[name]
                self._ended.add(name)

    def _tidy(self) -> None:
        """Note the members that have ended, and trim entries that are no longer read."""
        self.list()
        for _ in range(_ATTEMPTS):
            with self._lock:
                ended, seen = sorted(self._ended), self._seen
            if not ended:
                break
            # If a member joins under one of the names meanwhile, it writes first, and this write is refused.
            try:
                gone = [_Note(name, gone=True).record() for name in ended]
                self._store.produce(_SPACE, self.group, gone, expected_sequence=seen)
            except SequenceMismatch:
                pass
            self._read()
        self._trim()

    def _trim(self) -> None:
        with self._lock:
            first = min([entry.sequence for _, entry in self._noted.values()], default=self._seen + 1)
        if first - self._first >= _KEPT:
            self._store.trim(_SPACE, self.group, before=first)
            self._first = first


def _checked(metadata: Mapping[str, str] | None) -> dict[str, str]:
    found = check_texts("a member's metadata", {} if metadata is None else metadata)
    for text in (*found, *found.values()):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError("a member's metadata is UTF-8, which has no lone surrogates")
    return found


class Membership:
    """A membership, from `join`. `lost` is set when the lease has ended without a renewal: others may see it as
    gone."""

    def __init__(self, members: Members, name: str, metadata: Mapping[str, str], lease: Lease) -> None:
        self.name = name
        self.metadata = dict(metadata)
        self._members = members
        self._lease = lease
        self.lost = lease.lost
        self._left = False

    def leave(self) -> None:
        """Leave at once. A second call does nothing."""
        if self._left:
            return
        self._left = True
        try:
            if self._lease.remaining() > 0:  # or the name may be another's by now
                with suppress(Fenced, LeaseLost):  # as it may also be from now on
                    self._members.note_gone(self.name, self._lease)
        finally:
            self._lease.__exit__(None, None, None)

    def __enter__(self) -> Membership:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def __repr__(self) -> str:
        return f"<Membership {self.name!r} of {self._members.group!r}{' left' if self._left else ''}>"
