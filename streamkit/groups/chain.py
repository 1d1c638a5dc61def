"""A state that is kept as records in a segment of an internal space: this process's copy of it.

A record is written with the sequence that its writer expects. A writer with an older state is refused, reads the new
records, and decides again. Snapshots keep loading short; records before a snapshot are trimmed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from os import urandom
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from ..clock import Clock
from ..decoders import msgpack_decoder
from ..errors import (
    CorruptData,
    EntriesRemoved,
    OutcomeUnknown,
    PermanentError,
    SequenceMismatch,
    StreamkitError,
    UnsupportedVersion,
)
from ..model import Entry, Record
from ..names import InternalName, partition_of
from ..places import entries_after, look_at
from ..store import Store, append_expected, inner
from ..warn import warn
from .events import NEWEST

__all__ = ["Chain", "ChainDeleted", "segment_on"]

B = TypeVar("B", bound="_ChainBatch")
_SNAPSHOT_BYTES = 64 << 10


class _ChainBatch(Protocol):
    @property
    def at(self) -> int: ...
    @property
    def by(self) -> bytes: ...


class _State(Protocol):
    now: int

    def apply(self, batch: Any, /) -> None: ...


S = TypeVar("S", bound=_State)
T = TypeVar("T")


class _Snapshot(msgspec.Struct, array_like=True):
    version: int
    sequence: int
    state: bytes


_encoder = msgspec.msgpack.Encoder()
_snapshots = msgpack_decoder(_Snapshot)
_VERSION = 2
"""The version of new snapshots. Version 1 lacks the sets `alone` and `doubted` and the error texts; both are read."""


def segment_on(name: str, partition: int, partitions: int) -> str:
    """A name in braces that lives on `partition`: segments whose names begin with it are on one chain."""
    for salt in range(100_000):
        found = f"{{{name}~{salt}}}"
        if partition_of(found, partitions) == partition:
            return found
    raise AssertionError("a hash that never gives a partition")


def _newest_tag(data: bytes) -> int:
    """The highest tag of the events of a record; 0 if it is none."""
    try:
        _, _, events = msgspec.msgpack.decode(data)
        return max(int(event[0]) for event in events)
    except (msgspec.DecodeError, ValueError, TypeError, LookupError):
        return 0


class ChainDeleted(PermanentError):
    """The group was deleted, and the segments of its lanes were removed, or its internal space was."""

    def __init__(self, message: str = "the group was deleted: create it again") -> None:
        super().__init__(message)


class Chain(Generic[S, B]):
    """`lock` guards the state: a thread holds it while it decides and writes, so that threads do not refuse each other.
    The sequence refuses other processes."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        space: InternalName,
        prefix: str,
        batch: type[B],
        make: Callable[[bytes | None], S],
        save: Callable[[S], bytes],
        records: int,
    ) -> None:
        self.lock = threading.RLock()
        self.space = space
        self.segment = prefix + "/log"
        self.loaded = False
        self.sequence = 0
        self.state: S = make(None)
        self._store = store
        self._clock = clock
        self._snapshots = prefix + "/snapshots"
        self._batch = batch
        self._decoder = msgpack_decoder(batch)
        self._make = make
        self._save = save
        self._records = records
        """A snapshot is written after so many records, at the latest."""
        self._since = self._bytes = self._saved = 0
        self._snapshot_at = 0
        """The sequence of the latest snapshot, as far as is known."""
        self._heard = clock.monotonic()
        self._applying = False
        """Under the lock: True if a thread was stopped while it applied a record."""
        self._incarnation: bytes | None = None
        """The internal space's, when it was first read; empty if it did not exist."""

    def renew(self) -> None:
        """Reload the state if a thread was stopped while it applied a record. Call it under the lock, before a
        decision."""
        if self._applying:
            self.catch_up()

    def now(self) -> int:
        """The time in ms since the epoch, never before a timestamp in the log. If a clock was set back, or another
        process's clock is ahead, the time advances by the monotonic clock of this process."""
        known = self.state.now
        wall = self._clock.now()
        if wall >= known or not known:
            return wall
        return max(wall, known + int((self._clock.monotonic() - self._heard) * 1000))

    def catch_up(self) -> bool:
        """Apply the records of other processes. True if there were any. Asks the storage."""
        with self.lock:
            if self._applying:
                self.loaded = False
            before: int | None = self.sequence if self.loaded else None
            while True:
                last, self._snapshot_at = look_at(self._store, self.space, (self.segment, self._snapshots))
                if not self.is_there():
                    raise ChainDeleted
                try:
                    if not self.loaded:
                        self._load(self._snapshot_at)
                    if before is None:
                        before = self.sequence
                    if last > self.sequence:
                        self._read()
                    return self.sequence > before
                except EntriesRemoved:
                    self.loaded = False  # other processes are further, and the records in between are in their snapshot

    def is_there(self) -> bool:
        """False if the internal space was deleted since it was first read, as far as is known, and perhaps made again.
        Then a record must not be written: it would make the space, or go into another one."""
        found, _ = inner(self._store).look_up(self.space, None)
        incarnation = found.settings.incarnation if found is not None else b""
        if self._incarnation is None:
            self._incarnation = incarnation
        return incarnation == self._incarnation

    def _load(self, snapshot: int) -> None:
        state, sequence = self._make(None), 0
        if snapshot:
            entry = next(entries_after(self._store, self.space, self._snapshots, snapshot - 1), None)
            if entry is None:
                raise ChainDeleted
            saved = self._decoded(_snapshots.decode, entry.payload, entry)
            if not 1 <= saved.version <= _VERSION:
                raise self._newer(entry, f"snapshot version {saved.version}")
            state, sequence = self._decoded(self._make, saved.state, entry), saved.sequence
            self._saved = len(entry.payload)
        # Not before it is whole: other threads look at the state without the lock.
        self.state, self.sequence = state, sequence
        self._heard = self._clock.monotonic()
        self._since = self._bytes = 0
        self._applying = False
        self.loaded = True

    def _read(self) -> None:
        for entry in entries_after(self._store, self.space, self.segment, self.sequence):
            batch = self._decoded(self._decoder.decode, entry.payload, entry)
            self._apply(batch, entry.sequence, len(entry.payload))

    def _decoded(self, decode: Callable[[bytes], T], data: bytes, entry: Entry) -> T:
        """UnsupportedVersion or CorruptData, with the place of `entry`."""
        try:
            return decode(data)
        except msgspec.DecodeError as error:
            if (tag := _newest_tag(data)) > NEWEST:
                raise self._newer(entry, f"an event of kind {tag}") from None
            raise CorruptData(
                f"sequence {entry.sequence} of {entry.segment!r} in the internal space {self.space!r} is no record of "
                f"a group ({error}): delete the group and create it again at the offset where it was"
            ) from None

    def _newer(self, entry: Entry, what: str) -> UnsupportedVersion:
        return UnsupportedVersion(
            f"sequence {entry.sequence} of {entry.segment!r} in the internal space {self.space!r} has {what}, which "
            "a newer release of streamkit wrote: upgrade this one"
        )

    def _apply(self, batch: B, sequence: int, size: int) -> None:
        self._applying = True
        self.state.apply(batch)
        self.sequence = sequence
        self._since += 1
        self._bytes += size
        self._heard = self._clock.monotonic()
        self._applying = False

    def commit(self, at: int, events: list[Any]) -> None:
        """Write a record that was decided by the present state, and apply it.

        SequenceMismatch if another process was faster: nothing is written, and the other record has been applied when
        it is raised. OutcomeUnknown if the storage does not tell whether it was written.
        """
        with self.lock:
            if not self.is_there():
                raise ChainDeleted
            batch = self._batch(at, urandom(8), events)  # type: ignore[call-arg]
            payload = _encoder.encode(batch)
            expected = self.sequence
            try:
                append_expected(self._store, self.space, self.segment, payload, expected)
            except SequenceMismatch:
                self.catch_up()
                raise
            except OutcomeUnknown as error:
                self._settle(error, expected, payload)
                return
            self._apply(batch, expected + 1, len(payload))
        self._snapshot()

    def _settle(self, error: OutcomeUnknown, expected: int, payload: bytes) -> None:
        """Returns if the record is in the log after all; SequenceMismatch if it never will be."""
        outcome = self._store.outcome(error.transaction_id)
        if outcome == "unknown":
            raise error
        self.catch_up()
        found = self._store.consume_segment(
            self.space, self.segment, min_sequence=expected + 1, max_sequence=expected + 1
        )
        try:
            written = next((entry.payload for entry in found), b"") == payload
        except EntriesRemoved:  # others have written on, and a snapshot
            written = outcome == "committed"
        if not written:
            raise SequenceMismatch("the record was not written", expected, self.sequence) from error

    def _trim(self, snapshot: int) -> None:
        """Trim the records before a snapshot. A reader that is behind begins at the snapshot."""
        self._store.trim(self.space, self._snapshots, before=snapshot)
        self._store.trim(self.space, self.segment, before=self.sequence + 1)

    def _snapshot(self) -> None:
        """Write a snapshot if enough records or bytes were written since the last one, in proportion to its size."""
        with self.lock:
            if self._since >= self._records or self._bytes >= _SNAPSHOT_BYTES + 4 * self._saved:
                self.try_to_shorten()

    def try_to_shorten(self) -> None:
        """Like `shorten`. If it fails, the next snapshot comes later: the records themselves are written."""
        try:
            self.shorten()
        except SequenceMismatch:
            return
        except StreamkitError as error:
            warn("a snapshot of %s could not be written: %s", self.segment, error)

    def shorten(self) -> None:
        """Write a snapshot, and trim the records before it. SequenceMismatch if another process has written one."""
        with self.lock:
            data = _encoder.encode(_Snapshot(_VERSION, self.sequence, self._save(self.state)))
            self._since = self._bytes = 0
            self._saved = len(data)
            # One that was stopped here must not put its snapshot behind a later one, by which the log was trimmed.
            expected = self._snapshot_at
            try:
                status = self._store.produce(self.space, self._snapshots, [Record(data)], expected_sequence=expected)
            except SequenceMismatch as error:
                self._snapshot_at = error.actual
                raise
            self._snapshot_at = status.last_sequence
            self._trim(self._snapshot_at)
