"""The repository: loads aggregates, saves their new events, and keeps snapshots in an internal space."""

from __future__ import annotations

import copy
import pickle
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from datetime import datetime
from glob import escape
from typing import Any, Generic, TypeVar

from ..arguments import check_count, check_function, check_subclass, check_type, completed
from ..errors import (
    CorruptData,
    EntriesRemoved,
    PermanentError,
    SequenceMismatch,
    StreamkitError,
    TransactionIdMismatch,
)
from ..exact import difference
from ..gaps import Gap
from ..leases import Lease
from ..model import Entry, Record, SegmentStatus
from ..names import check_name
from ..removing.erasures import Seen, is_erasing, seen_of
from ..removing.snapshots import VERSION, snapshots_of
from ..store import Store, inner
from ..warn import warn
from ..writing import check_key
from .aggregate import Aggregate, saved
from .codecs import Codec, JsonCodec
from .events import EventFormat, check_codec
from .executed import AggregateNotFound, Executed

__all__ = ["Repository"]

A = TypeVar("A", bound=Aggregate)
R = TypeVar("R")
_ANNOTATE = "annotate the attributes in the body of the class, as in `lines: list[Line]`, or write __setstate__"
_SNAPSHOT = "streamkit-snapshot"
_PAUSE, _PAUSE_REMOTE, _LONGEST_PAUSE = 0.02, 0.05, 0.5
"""Seconds to wait at most after the first defeat, of a store here and of a service; doubled with each; never longer."""
_ABSENT = object()
_OWN = ("id", "version", "_pending", "_depth", "_seen")


def _check_begins_empty(aggregate: type[Aggregate]) -> None:
    """Raise TypeError for a class whose objects cannot be made without arguments."""
    import inspect

    parameters = inspect.signature(aggregate).parameters.values()
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each.name for each in parameters if each.default is each.empty and each.kind not in open_ended]
    if needed:
        raise TypeError(
            f"{aggregate.__name__}.__init__ needs {', '.join(needed)}, and a repository calls it without arguments: an "
            "aggregate begins empty. Give its first values to a method with @event"
        )


class Repository(Generic[A]):
    """The aggregates of one kind: each is a segment of `space`, each of its events an entry. Safe to share between
    threads.

    `codec`: the encoding of arguments, JSON by default. `snapshot_every`: after so many events a snapshot of the state
    is written to an internal space, and a load begins from it; 0 for never. The codec writes the attributes, and reads
    them by their annotations in the body of the class. A state that would not be read back the same is not written, and
    a warning says why. Methods `__getstate__` and `__setstate__` may do it in another way. `schema`: raise it when the
    attributes change; snapshots of others are not used. `cache`: aggregates that are kept in memory. A load
    reads their new events alone.
    """

    def __init__(
        self,
        store: Store,
        space: str,
        aggregate: type[A],
        *,
        snapshot_every: int = 0,
        codec: Codec | None = None,
        cache: int = 1000,
        schema: int = 1,
    ) -> None:
        check_name(space, "space")
        check_type(store, Store, "Repository takes a Store, or the `sync` of an AsyncStore")
        check_subclass("Repository takes", aggregate, Aggregate)
        _check_begins_empty(aggregate)
        for name, value in (("snapshot_every", snapshot_every), ("cache", cache)):
            check_count(name, value, 0)
        self.space = space
        self.aggregate = aggregate
        self._store = store
        self._every = snapshot_every
        self._codec: Codec = codec or JsonCodec()
        check_codec(self._codec)
        self._format = EventFormat(aggregate, self._codec)
        self._schema = f"{aggregate.__name__}/{schema}"
        self._snapshots = snapshots_of(space)
        self._most = cache
        self._cache: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = threading.Lock()
        self._warned = False

    @property
    def store(self) -> Store:
        """The store of the aggregates."""
        return self._store

    @property
    def codec(self) -> Codec:
        """The codec of its events."""
        return self._codec

    # -- loading ------------------------------------------------------------------------------------------------

    def load(self, id: str, *, at: int | datetime | None = None, must_exist: bool = False) -> A:
        """Load the aggregate as it is now, or as it was `at` a version or a moment.

        An aggregate that does not exist has the version 0; with `must_exist` it is an AggregateNotFound. Erased events
        are skipped, and count for the version; after a deletion the aggregate starts again. CorruptData for an event
        that the class does not know; UnsupportedVersion for a later version of one; EntriesRemoved if events were
        trimmed or have expired, and no snapshot includes them.
        """
        check_name(id, "segment")
        check_type(must_exist, bool, "must_exist is a bool")
        aggregate = self._as_of(id, at) if at is not None else self._now(id)
        if must_exist and not aggregate.version:
            when = "" if at is None else f" at {at}"
            raise AggregateNotFound(f"there is no {self.aggregate.__name__} {id!r} in the space {self.space!r}{when}")
        return aggregate

    def _now(self, id: str) -> A:
        aggregate = self._cached(id)
        if aggregate is not None:
            try:
                self._replay(aggregate)
                if not self._outdated(aggregate):
                    self._keep(aggregate)
                    return aggregate
            except EntriesRemoved:
                pass
        self._forget(id)
        aggregate = self._replayed(id)
        self._keep(aggregate)
        return aggregate

    def _replayed(self, id: str, most: int | None = None, last: int = 0) -> A:
        """Replay an aggregate up to the event `last`, from a snapshot if there is one. Missing events require a
        snapshot."""
        aggregate = self._begin(id, most) if self._every else self._new(id)
        try:
            self._replay(aggregate, last=last)
        except EntriesRemoved:
            if self._every:
                raise
            aggregate = self._begin(id, most)
            self._replay(aggregate, last=last)
        return aggregate

    def _replay(self, aggregate: A, *, last: int = 0, latest: int = 0) -> None:
        """Apply the events after its version. A version is a sequence, also if events are missing."""
        lost: Gap | None = None
        found: Iterator[Entry | Gap] = self._store.consume_segment(
            self.space,
            aggregate.id,
            min_sequence=aggregate.version + 1,
            max_sequence=last,
            max_timestamp=latest,
            gaps="yield",
        )
        for one in found:
            if isinstance(one, Entry):
                if lost is not None:
                    break
                self._format.apply(aggregate, one)
                continue
            if one.reason == "deleted":
                lost = None
                self._reset(aggregate)
            elif one.reason != "erased":
                lost = lost or one
            aggregate.version = one.last_sequence
        if lost is not None:
            raise EntriesRemoved(
                f"{lost}, and no snapshot of {aggregate.id!r} includes them, so its state is lost. Before events are "
                "trimmed or expire, write a snapshot: repository.snapshot(id) or snapshot_every=…. To start again, "
                "delete the segment, or take another id if it has no events any more",
                lost,
            )

    def _reset(self, aggregate: A) -> None:
        new = self._new(aggregate.id)
        vars(aggregate).clear()
        vars(aggregate).update(vars(new))

    def _as_of(self, id: str, at: int | datetime) -> A:
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise ValueError("at has no time zone: write datetime.now(UTC), or at.replace(tzinfo=UTC)")
            version, last, latest = None, 0, max(int(at.timestamp() * 1000), 1)
        else:
            check_type(at, int, "at is a version or a datetime")
            version, last, latest = check_count("a version", at, 0), at, 0
        if version:
            return self._replayed(id, version, last)
        aggregate = self._new(id)
        if version is None:
            self._replay(aggregate, latest=latest)
        return aggregate

    def __contains__(self, id: str) -> bool:
        return self._store.segment_status(self.space, id).last_sequence > 0

    def ids(self) -> Iterator[str]:
        """Ids of the aggregates that exist, in code-point order."""
        return self._store.get_segments(self.space)

    def events(self, id: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (name, arguments) of each event, in the order in which they happened."""
        for entry in self._store.consume_segment(self.space, id):
            yield self.event(entry)

    def event(self, entry: Entry) -> tuple[str, dict[str, Any]]:
        """Return (name, arguments) of an entry of the space, typed and in the present version, for projections.

        CorruptData for an event that the class does not know; UnsupportedVersion for a later version of one.
        """
        check_type(entry, Entry, "entry is an Entry")
        type, values = self._format.event(entry)
        return type.name, values

    def _new(self, id: str) -> A:
        aggregate = self.aggregate()
        if not hasattr(aggregate, "_pending"):
            raise TypeError(f"{self.aggregate.__name__}.__init__ does not call super().__init__()")
        aggregate.id = id
        aggregate._seen = self._seen(id)
        return aggregate

    def _seen(self, id: str) -> Seen:
        return seen_of(self._store, self.space, id)

    def _outdated(self, aggregate: A) -> bool:
        """True if an event of the aggregate may have been erased or deleted since; as of the last look at the log."""
        return self._seen(aggregate.id).outdates(aggregate._seen)

    # -- the cache ----------------------------------------------------------------------------------------------

    def _cached(self, id: str) -> A | None:
        with self._lock:
            found = self._cache.get(id)
            if found is None:
                return None
            self._cache.move_to_end(id)
        aggregate = self.aggregate.__new__(self.aggregate)
        vars(aggregate).update(found.copy())
        if self._outdated(aggregate):
            self._forget(id)
            return None
        return aggregate

    def _keep(self, aggregate: A) -> None:
        if self._most == 0 or aggregate.version == 0 or aggregate.pending:
            return
        with self._lock:
            known = self._cache.get(aggregate.id)
            if known is not None and known.version >= aggregate.version:
                return
        try:
            kept = _Kept(aggregate)
        except Exception:  # it holds a value that cannot be copied, such as a lock: it is loaded each time
            return
        with self._lock:
            self._cache[aggregate.id] = kept
            self._cache.move_to_end(aggregate.id)
            while len(self._cache) > self._most:
                self._cache.popitem(last=False)

    def _forget(self, id: str) -> None:
        with self._lock:
            self._cache.pop(id, None)

    # -- saving -------------------------------------------------------------------------------------------------

    def save(
        self,
        aggregate: A,
        *,
        metadata: dict[str, str] | None = None,
        idempotency_key: str | None = None,
        lease: Lease | None = None,
    ) -> SegmentStatus:
        """Append the events recorded since the load, as one transaction, with `metadata` on each event.

        SequenceMismatch if someone was faster, and nothing is written: load it again and decide again, as `execute`
        does. An `idempotency_key` belongs to this aggregate alone: others may use the same text. If it was used before
        with the same events, nothing is written: the first status is returned, and the aggregate is loaded again.
        Errors of the store are raised too.
        """
        check_type(aggregate, self.aggregate, f"this repository saves {self.aggregate.__name__}")
        if not aggregate.id:
            raise ValueError(
                "an aggregate has the id that it was loaded with: use the object that repository.load(id) returns"
            )
        pending = aggregate.pending
        before = aggregate.version - len(pending)
        records = self._format.records(pending, metadata)
        status = self._store.produce(
            self.space,
            aggregate.id,
            records,
            expected_sequence=before,
            idempotency_key=_key(aggregate.id, idempotency_key),
            lease=lease,
        )
        if status.last_sequence != aggregate.version:
            # The key was used before, so the aggregate differs from the log: its events were written earlier.
            self._forget(aggregate.id)
            loaded = vars(self.load(aggregate.id))
            vars(aggregate).clear()
            vars(aggregate).update(loaded)
            return status
        saved(aggregate)
        if self._outdated(aggregate):
            self._forget(aggregate.id)
        else:
            self._keep(aggregate)
        if self._every and before // self._every != aggregate.version // self._every:
            self._snapshot(aggregate)
        return status

    def execute(
        self,
        id: str,
        command: Callable[[A], R],
        *,
        retries: int = 5,
        idempotency_key: str | None = None,
        metadata: dict[str, str] | None = None,
    ) -> R:
        """Load the aggregate, call `command(aggregate)`, save, and return the command's result.

        If another process saves first, it waits for a moment and begins again, at most `retries` times; then it raises
        SequenceMismatch. If `command` raises, nothing is written. A command with an `idempotency_key` that this
        aggregate has executed before is not executed again: it returns None. `perform` also returns the offset, and on
        such a replay the first answer.
        """
        result: R = self._execute(id, command, retries, idempotency_key, metadata)[0]  # type: ignore[assignment]
        return result

    def perform(
        self,
        id: str,
        command: Callable[[A], R],
        *,
        retries: int = 5,
        idempotency_key: str | None = None,
        metadata: dict[str, str] | None = None,
    ) -> Executed[R]:
        """Execute a command as `execute` does; returns its result with the offset, the version and the events.

        If it was executed before with this `idempotency_key`, it returns the status, the offset and the events of the
        first execution.
        """
        result, status, replayed = self._execute(id, command, retries, idempotency_key, metadata)
        if status is None:
            return Executed(result, self._store.segment_status(self.space, id), (), replayed)
        return Executed(result, status, self._events_of(id, status), replayed)

    def _events_of(self, id: str, status: SegmentStatus) -> tuple[tuple[str, dict[str, Any]], ...]:
        """The events of the transaction that a status is of."""
        last, found = status.last_sequence, []
        for entry in self._store.consume_segment(self.space, id, max_sequence=last, reverse=True, gaps="skip"):
            if status.trx is None or entry.trx != status.trx:
                break
            found.append(self.event(entry))
        return tuple(reversed(found))

    def _execute(
        self,
        id: str,
        command: Callable[[A], R],
        retries: int,
        idempotency_key: str | None,
        metadata: dict[str, str] | None,
    ) -> tuple[R | None, SegmentStatus | None, bool]:
        """Return (the command's result, the status of its write, whether it was executed before)."""
        if type(retries) is not int or retries < 0:
            raise ValueError(f"retries is 0 or more, not {retries!r}")
        check_name(id, "segment")
        check_function("command", command, "the aggregate")
        key = _key(id, idempotency_key)
        if key is not None and (before := self._store.lookup(self.space, key, id)) is not None:
            return None, before.get(id), True
        # Optimism: the cached state is mostly current. If it is not, the commit fails.
        aggregate, fresh, defeats = self._cached(id), False, 0
        while True:
            if aggregate is None:
                aggregate, fresh = self.load(id), True
            try:
                result = completed("command", command(aggregate))
            except StreamkitError:
                raise
            except Exception:
                if fresh or not self._is_stale(aggregate):
                    raise
                aggregate = None  # the decision used an outdated state
                continue
            if not aggregate.pending:
                if fresh or not self._is_stale(aggregate):
                    return result, None, False
                aggregate = None
                continue
            try:
                status = self.save(aggregate, metadata=metadata, idempotency_key=idempotency_key)
                return result, status, False
            except TransactionIdMismatch as mismatch:
                return None, mismatch.statuses.get(id), True
            except SequenceMismatch:
                self._forget(id)
                if fresh:  # else it was the cache that was behind
                    if defeats == retries:
                        raise
                    self._pause(defeats)
                    defeats += 1
                aggregate = None

    def _pause(self, defeats: int) -> None:
        """Sleep for a random back-off."""
        shared = inner(self._store)
        first = _PAUSE_REMOTE if shared.backend.limits.remote else _PAUSE
        shared.clock.sleep(random.uniform(0.1, 1.0) * min(first * 2**defeats, _LONGEST_PAUSE))

    def _is_stale(self, aggregate: A) -> bool:
        """True if the log has newer events than the aggregate."""
        last = self._store.segment_status(self.space, aggregate.id).last_sequence
        if last == aggregate.version - len(aggregate.pending) and not self._outdated(aggregate):
            return False
        self._forget(aggregate.id)
        return True

    # -- snapshots ----------------------------------------------------------------------------------------------

    def snapshot(self, id: str) -> None:
        """Write a snapshot of an aggregate now, also if `snapshot_every` is 0."""
        aggregate = self.load(id)
        if aggregate.version:
            self._write_snapshot(aggregate)

    def _snapshot(self, aggregate: A) -> None:
        """A snapshot only saves work, so a failure to write it is no error of `save`."""
        try:
            self._write_snapshot(self.load(aggregate.id) if self._outdated(aggregate) else aggregate)
        except Exception as error:  # also errors of its state, or of its __getstate__
            if not self._warned:
                self._warned = True
                warn("no snapshot of %s %r: %s", type(aggregate).__name__, aggregate.id, error)

    def _write_snapshot(self, aggregate: A) -> None:
        data = self._checked_snapshot(aggregate, self._state(aggregate))
        marks = {_SNAPSHOT: self._schema, VERSION: str(aggregate.version), "mark": self._mark(aggregate.id)}
        self._store.produce(self._snapshots, aggregate.id, [Record(data, marks)])
        self._store.segment_status(self.space, aggregate.id)  # looks at the log
        if self._outdated(aggregate):  # an erasure may have searched the snapshots before this one existed
            self._store.erase(self._snapshots, escape(aggregate.id), metadata=marks)

    def _state(self, aggregate: A) -> Any:
        """The state for a snapshot: the result of `__getstate__`, or the attributes."""
        state = aggregate.__getstate__()
        return {name: value for name, value in state.items() if name not in _OWN} if isinstance(state, dict) else state

    def _checked_snapshot(self, aggregate: A, state: Any) -> bytes:
        """The state as bytes. TypeError if the aggregate would not be the same again."""
        again = self._new(aggregate.id)
        try:
            data = self._codec.encode(state)
            self._restore(again, self._codec.decode(data))
        except Exception as error:
            raise TypeError(f"its state cannot be read again ({error}): {_ANNOTATE}") from error
        restored = self._state(again)
        if not isinstance(state, dict) or not isinstance(restored, dict):
            state, restored = {"its state": state}, {"its state": restored}
        wrong = {}
        for name in {**state, **restored}:
            found = difference(state.get(name, _ABSENT), restored.get(name, _ABSENT), equivalent=True)
            if found is not None:
                wrong[name] = found
        if wrong:
            raise TypeError(
                f"{', '.join(wrong)} would not be the same again ({'; '.join(wrong.values())}): {_ANNOTATE}"
            )
        return data

    def _mark(self, id: str) -> str:
        """Return the space's incarnation as text, so that a snapshot of a deleted space is not used for its
        successor."""
        position = self._store.segment_status(self.space, id).position
        return position.incarnation.hex() if position is not None else ""

    def _begin(self, id: str, most: int | None = None) -> A:
        """The aggregate as of its newest usable snapshot that is not later than version `most`; else an empty one."""
        aggregate = self._new(id)
        try:
            entries = self._store.consume_segment(self._snapshots, id, reverse=True, limit=20)
            for entry in entries:
                version = int(entry.metadata.get(VERSION, "0"))
                if entry.metadata.get(_SNAPSHOT) != self._schema or (most is not None and version > most):
                    continue
                if entry.metadata.get("mark") != self._mark(id):
                    break
                if is_erasing(self._store, self.space, id, version) or self._seen(id).deleted >= version:
                    continue
                try:
                    self._restore(aggregate, self._codec.decode(entry.payload))
                except Exception as error:  # of a codec, or of a __setstate__ of the user's
                    raise CorruptData(f"{type(error).__name__}: {error}") from error
                aggregate.version = version
                return aggregate
        except (PermanentError, ValueError) as error:
            warn("a snapshot of %s %r is passed over: %s", self.aggregate.__name__, id, error)
        return self._new(id)

    def _restore(self, aggregate: A, state: Any) -> None:
        if hasattr(aggregate, "__setstate__"):
            aggregate.__setstate__(state)
            return
        hints = _hints(self.aggregate)
        for name, value in state.items():
            before = getattr(aggregate, name, None)
            wanted = hints.get(name) or (type(before) if type(before) not in (type(None), dict, list, int) else None)
            setattr(aggregate, name, self._codec.convert(value, wanted) if wanted is not None else value)


def _key(id: str, key: str | None) -> str | None:
    """An idempotency key of one aggregate. No id has a control character, so different pairs give different keys."""
    return f"{key}\x1f{id}" if check_key(key) is not None else None


class _Kept:
    """A copy of an aggregate's attributes, which later changes do not reach."""

    def __init__(self, aggregate: Aggregate) -> None:
        self.version = aggregate.version
        self._values: dict[str, Any] = {}
        self._pickled: bytes | None = None
        try:
            self._pickled = pickle.dumps(vars(aggregate), pickle.HIGHEST_PROTOCOL)  # faster than a deep copy
        except Exception:  # it may hold anything
            self._values = copy.deepcopy(vars(aggregate))

    def copy(self) -> dict[str, Any]:
        if self._pickled is None:
            return copy.deepcopy(self._values)
        values: dict[str, Any] = pickle.loads(self._pickled)
        return values


def _hints(kind: type) -> dict[str, Any]:
    from typing import get_type_hints

    try:
        return get_type_hints(kind)
    except NameError:
        return {}
