"""Presence: who is there, told by leases, so that no machine's clock is compared with another's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from .errors import (
    CorruptData,
    Fenced,
    LeaseLost,
    LeaseNotAcquired,
    OutcomeUnknown,
    SequenceMismatch,
    StreamkitError,
    TransientError,
)
from .leases import Lease
from .model import Entry, Record
from .names import check_name, internal_name
from .seconds import check_seconds

if TYPE_CHECKING:
    from .store import Store

__all__ = ["Member", "Members", "Membership"]

_SPACE = internal_name("members")
_LEAST_TTL = 1.0
_ATTEMPTS = 5
"""Attempts to note a member as gone while others write too."""
_KEPT = 1000
"""Records before those of who is there, after which they are removed."""


class Member(msgspec.Struct, frozen=True):
    """Somebody who is there. `since`: when it joined, in ms."""

    name: str
    metadata: dict[str, str]
    since: int


class _Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record: who has joined under which lease, or has gone."""

    name: str
    metadata: dict[str, str] = {}
    ttl: float = 0.0
    gone: bool = False

    def record(self) -> Record:
        return Record(msgspec.json.encode(self))


class Members:
    """From `store.members(group)`. A group needs no making.

    The log says who has joined; a lease for each says who is still there: it is renewed in the background, and ends
    `ttl` seconds after the last renewal by the service's clock.
    """

    def __init__(self, store: Store, group: str) -> None:
        self.group = check_name(group, "group")
        self._store = store
        self._seen = 0
        self._first = 0
        """The first record that was there."""
        self._noted: dict[str, tuple[_Note, Entry]] = {}

    def join(self, name: str, metadata: Mapping[str, str] | None = None, ttl: float = 15.0) -> Membership:
        """Be there as `name` until `leave()`, the end of a `with`, or `ttl` seconds after the process stopped.

        LeaseNotAcquired if someone of that name is there.
        """
        check_name(name, "member")
        check_seconds("ttl", ttl)
        found = _checked(metadata)
        # `list` takes the lease of a member that is gone, and gives it back at once.
        lease = self._store.lease(self._lease_name(name), ttl=max(ttl, _LEAST_TTL), wait=0.5)
        try:
            lease.__enter__()
        except LeaseNotAcquired as error:
            raise LeaseNotAcquired(f"a member {name!r} of {self.group!r} is there: join under another name") from error
        try:
            self._store.produce(_SPACE, self.group, [_Note(name, found, ttl).record()], lease=lease)
        except BaseException:
            lease.__exit__(None, None, None)
            raise
        return Membership(self, name, found, lease)

    def list(self) -> list[Member]:
        """Who is there, by name. Costs a look at the log, and at the lease of each.

        TransientError where that cannot be told, as from all that reads.
        """
        self._read()
        found = []
        for name in sorted(self._noted):
            if self._is_there(name) and (noted := self._noted.get(name)) is not None:  # another thread may read on
                note, entry = noted
                found.append(Member(name, dict(note.metadata), entry.timestamp))
        self._trim()
        return found

    def watch(self, *, timeout: float | None = None, every: float = 1.0) -> Iterator[Sequence[Member]]:
        """Who is there, now and whenever it has changed; ends after `timeout` seconds in which nothing did.

        Somebody who stopped without leaving is missed within its ttl, and `every` seconds.
        """
        check_seconds("every", every, positive=True)
        if timeout is not None:
            check_seconds("timeout", timeout, endless=True)
        from .store import inner

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
        # What was trimmed tells of nobody who is there: who is noted here, and has gone since, is found out to have.
        for entry in self._store.consume_segment(_SPACE, self.group, min_sequence=self._seen + 1, gaps="skip"):
            try:
                note = msgspec.json.decode(entry.payload, type=_Note)
            except msgspec.DecodeError as error:
                raise CorruptData(f"the members of {self.group!r} cannot be read: {error}") from error
            if note.gone:
                self._noted.pop(note.name, None)
            else:
                self._noted[note.name] = (note, entry)
            self._first = self._first or entry.sequence
            self._seen = entry.sequence

    def _trim(self) -> None:
        """What is before the records of who is there is read by nobody any more."""
        first = min([entry.sequence for _, entry in list(self._noted.values())], default=self._seen + 1)
        if first - self._first >= _KEPT:
            with suppress(StreamkitError):  # who looks next does it
                self._store.trim(_SPACE, self.group, before=first)
                self._first = first

    def _is_there(self, name: str) -> bool:
        """Whether someone holds the member's lease. The error says so where that cannot be told."""
        for _ in range(_ATTEMPTS):
            noted = self._noted.get(name)
            if noted is None:  # another thread has read on
                return False
            if self._is_held(name):
                return True
            # No lease is held for this write, so that it keeps nobody from joining. One who joins meanwhile writes
            # first, or after it: then this member is there again.
            with suppress(TransientError, OutcomeUnknown):  # the next one who looks notes it
                try:
                    gone = _Note(name, gone=True).record()
                    self._store.produce(_SPACE, self.group, [gone], expected_sequence=self._seen)
                except SequenceMismatch:
                    self._read()
                    continue
            self._noted.pop(name, None)
            return False
        return self._noted.get(name) is not noted

    def _is_held(self, name: str) -> bool:
        try:
            with self._store.lease(self._lease_name(name), ttl=_LEAST_TTL):
                return False
        except LeaseNotAcquired:
            return True


def _checked(metadata: Mapping[str, str] | None) -> dict[str, str]:
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"a member's metadata maps str to str; it is no {type(metadata).__name__}")
    found = dict(metadata or {})
    for text in (*found, *found.values()):
        if not isinstance(text, str):
            raise TypeError(f"a member's metadata maps str to str; there is a {type(text).__name__} in it")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError("a member's metadata is UTF-8, which has no lone surrogates")
    return found


class Membership:
    """From `join`. `lost` is set when the lease has ended for want of renewals: others may take it for gone."""

    def __init__(self, members: Members, name: str, metadata: Mapping[str, str], lease: Lease) -> None:
        self.name = name
        self.metadata = dict(metadata)
        self._members = members
        self._lease = lease
        self.lost = lease.lost
        self._left = False

    def leave(self) -> None:
        """Be gone at once. Again is fine."""
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
