"""A route: entries of one space, copied into another one as they come."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from ..arguments import check_function, check_seconds, check_type
from ..errors import (
    InvalidOffset,
    PermanentError,
    StoreClosed,
    TransactionIdMismatch,
    UnsupportedVersion,
)
from ..lexkey import LexKey
from ..log.offsets import Offset
from ..model import Entry, Record
from ..names import check_name, partition_of
from ..removing.erasures import forget_late_failures
from ..run.failure import described
from ..run.reading import (
    SpacePosition,
    after,
    chunks,
    decode_offset,
    is_loss,
    reached,
    same_space,
    seconds_behind,
)
from ..run.rounds import Stop, check_stop, run_rounds
from ..store import Store, inner
from ..warn import warn, warn_of
from .copying import FROM, Copies, Failed, Rules, Segment, Transform, Where, place_of
from .state import FORMAT, CopyBatch, Register, RouteFailure, RouteState, RouteStatus, status_of

if TYPE_CHECKING:
    from ..store import AnyOffset

__all__ = ["Route", "open_route"]

_BYTES = 8 << 20
_PAUSE = 0.005
_LONGEST_PAUSE = 0.25


def open_route(
    store: Store,
    name: str,
    source: str,
    target: str,
    where: Where | None,
    segment: Segment | None,
    transform: Transform | None,
    target_store: Store | None,
    start: AnyOffset,
) -> Route:
    """See `Store.route`."""
    check_name(name, "route")
    check_name(source, "space")
    check_name(target, "space")
    for what, function in (("where", where), ("transform", transform)):
        if function is not None:
            check_function(what, function, "an Entry")
    if isinstance(segment, str):
        check_name(segment, "segment")
    elif segment is not None:
        check_function("segment", segment, "an Entry, or a name")
    check_type(target_store, Store, "target_store is a store", optional=True)
    if target == source and (target_store is None or target_store.id == store.id):
        raise ValueError(f"a route from {source!r} to itself is refused: name another target or another target_store")
    if isinstance(start, str) and start in ("beginning", "end"):
        begin = str(start)
    else:
        try:
            Offset.decode(start, source)
        except InvalidOffset as error:
            raise InvalidOffset(f'start is "beginning", "end", or an offset of {source!r}: {error}') from error
        begin = bytes(LexKey.from_hex(start) if isinstance(start, str) else start).hex()
    inner(store)
    return Route(store, name, source, target_store or store, target, where, segment, transform, begin)


class Route:
    """A route, from `store.route`. Safe to share between threads; any number of processes may run the same route.

    Its position and its current batch are in the source's store. Only `catch_up`, `run` and `wait_for` copy entries.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        source: str,
        target_store: Store,
        target: str,
        where: Where | None,
        segment: Segment | None,
        transform: Transform | None,
        start: str,
    ) -> None:
        self.name = name
        self.source = source
        self.target = target
        self._store = store
        self._target_store = target_store
        self._functions = (where, segment, transform)
        self._start = start
        self._register = Register(store, name)
        self._mutex = threading.Lock()
        self._stops: set[Stop] = set()
        self._closed = False
        self._warned: RouteFailure | None = None
        """The failure that the log of the program names already."""
        self._was_there = False
        """True if the route's state was seen. If it is missing later, the route was deleted."""

    @property
    def store(self) -> Store:
        """The store of the source, which also keeps the state of the route."""
        return self._store

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the route {self.name!r} is closed; open it again with store.route(…)")
        inner(self._store)

    # -- its state ----------------------------------------------------------------------------------------------

    def _peek(self) -> RouteState | None:
        """Read the stored state without the lock."""
        return Register(self._store, self.name).read()

    def _read(self, register: Register | None = None) -> RouteState:
        """Read the stored state; create it if the route is new. Raises PermanentError if the route has other rules, and
        StoreClosed if it was deleted since: a recreated route would copy everything a second time. Call it under the
        lock, or with a register of your own."""
        register = register or self._register
        while True:
            # Asked before the read: another thread may make the route between the two, which is no deletion.
            was_there = self._was_there
            state = register.read()
            if state is None:
                if was_there:
                    self.close()
                    raise StoreClosed(f"the route {self.name!r} was deleted; store.route(…) creates it again")
                state = self._new(self._start, register.deleted)
                if not register.write(state):
                    continue
            theirs = (state.source, state.target, state.target_store)
            if theirs != (self.source, self.target, str(self._target_store.id)):
                raise PermanentError(
                    f"the route {self.name!r} exists, from {state.source!r} to {state.target!r} of the store "
                    f"{state.target_store}: give this one another name, or delete() that one"
                )
            self._was_there = True
            return state

    def _new(self, start: str, before: RouteState | None) -> RouteState:
        offset = "" if start == "beginning" else start
        if start == "end":
            offset = self._store.end_offset(self.source).hex()
        return RouteState(
            FORMAT,
            self.source,
            self.target,
            str(self._target_store.id),
            os.urandom(6).hex(),
            SpacePosition(offset),
            earlier=() if before is None else tuple(sorted({*before.earlier, before.source})),
        )

    def _change(self, change: Callable[[RouteState], RouteState]) -> RouteState:
        """Write the state that `change` makes of the present one, also while other processes write or copy."""
        register = Register(self._store, self.name)
        while True:
            state = change(self._read(register))
            if register.write(state):
                return state

    # -- copying ------------------------------------------------------------------------------------------------

    def catch_up(self, *, progress: Callable[[int], None] | None = None) -> RouteStatus:
        """Copy all entries that are committed by now, and return the route's status. A paused route copies nothing.

        A function that raises, or a target that refuses, pauses the route there: see `status().error`; nothing is lost.
        A transient error is raised, and the call may be repeated. `progress(entries)` is called after each batch.
        """
        self._round(lambda: False, progress)
        return self.status()

    def _round(self, stop: Callable[[], bool], progress: Callable[[int], None] | None = None) -> bool:
        """Copy one round. True if it read anything."""
        self._check_open()
        with self._mutex:
            try:
                before = self._read().position
                state = self._copy(stop, progress or (lambda entries: None))
                return state.position != before
            except InvalidOffset as error:
                state = self._read()
                end = Offset.decode(self._store.end_offset(self.source), self.source)
                if same_space(state.batch.end if state.batch is not None else state.position, end):
                    raise InvalidOffset(
                        f"the route {self.name!r} is ahead of its source: {error}. If this store was set back, "
                        f"delete() the route and create it again"
                    ) from error
                warn("the route %r starts again: its source was deleted and created again", self.name)
                self._register.write(self._new("beginning", state))
                self._copy(stop, progress or (lambda entries: None))
                return True

    def _copy(self, stop: Callable[[], bool], progress: Callable[[int], None]) -> RouteState:
        while True:
            state = self._read()
            if state.paused or state.failure is not None:
                if state.failure is not None:
                    self._warn_paused(state.failure)
                return state
            if state.batch is not None:
                # InvalidOffset if the source was created again since the batch began: these are not the entries to
                # copy.
                next(self._store.consume_space(self.source, offset=state.batch.end.key, limit=1, gaps="skip"), None)
                entries = _within(self._store, state.position, state.batch.end, self.source)
                if not self._commit(state, list(entries)):
                    return self._read()
                state = _done(state)
            written, at = self._register.sequence, state
            lost = False
            lost_entries = 0
            for chunk, gaps in chunks(self._store, {self.source: state.position}):
                lost_entries += sum(map(is_loss, gaps))
                if not chunk:
                    continue
                if lost_entries:
                    state = msgspec.structs.replace(state, missing=state.missing + lost_entries)
                    lost_entries = 0
                found = self._passed_on(state, chunk)
                if found is None:
                    return self._read()
                done = self._pass_on(state, chunk, found)
                if done is None:
                    lost = True
                    break
                state = done
                progress(state.position.entries)
                if stop():
                    break
            if not lost and (state == at and self._register.sequence == written and self._register.state == state):
                return state
            if not lost and self._register.write(state):
                return state
            # Another process runs the route too, and was faster; or it is paused now.

    def _batch(self, end: SpacePosition, copied: int) -> CopyBatch:
        target = self._target_store
        exists = inner(target).look_up(self.target)[0] is not None
        began = inner(self._store).clock.now()
        return CopyBatch(end, copied, began, target.end_offset(self.target).hex() if exists else "")

    def _rules(self, state: RouteState) -> Rules:
        source, target = place_of(self._store.id, self.source), place_of(self._target_store.id, self.target)
        most = inner(self._target_store).most_bytes
        return Rules(source, target, f"{self.name}.{state.generation}", *self._functions, most)

    def _passed_on(self, state: RouteState, entries: list[Entry]) -> Copies | None:
        """Return the copies of `entries`; None if the route is paused, before the entry that failed."""
        try:
            return self._rules(state).copies(entries)
        except Failed as failed:
            at = next(at for at, entry in enumerate(entries) if entry is failed.entry)
            if at:
                # Earlier entries are copied first.
                done = self._pass_on(state, entries[:at], self._rules(state).copies(entries[:at]))
                if done is None:
                    return None
                state = done
            entry = failed.entry
            said = described(failed.cause)
            failure = RouteFailure(said, entry.segment, entry.sequence, entry.timestamp)
            self._pause(state, failure, failed.cause)
            return None

    def _pause(self, state: RouteState, failure: RouteFailure, error: BaseException) -> None:
        self._register.write(msgspec.structs.replace(state, failure=failure))
        self._warn_paused(failure, error)
        if failure.sequence and not self._is_there(failure):
            # It was erased while the functions had it, and the erasure may have searched this record's segment before.
            forget_late_failures(self._store, self.source)

    def _is_there(self, failure: RouteFailure) -> bool:
        at = failure.sequence
        found = self._store.consume_segment(self.source, failure.segment, min_sequence=at, max_sequence=at, gaps="skip")
        return next(found, None) is not None

    def _warn_paused(self, failure: RouteFailure, error: BaseException | None = None) -> None:
        """Name a failure in the log of the program once: a caller that does not look at the status would not know."""
        if error is None and failure == self._warned:
            return
        self._warned = failure
        message = "the route %r is paused%s: %s. Correct it and resume()"
        place = f" at segment {failure.segment!r}, sequence {failure.sequence}" if failure.sequence else ""
        if error is None:
            warn(message, self.name, place, failure.error, store=self._store.id, space=self.source)
        else:
            warn_of(error, message, self.name, place, failure.error, store=self._store.id, space=self.source)

    def _pass_on(self, state: RouteState, entries: list[Entry], copies: Copies) -> RouteState | None:
        """Write `copies`, those of `entries`; where the route is then. None if another process was faster, or it is
        paused.

        Each partition of the target gets one transaction for a batch, whole or not at all. After a crash, that tells
        which part of a batch was copied, even if some of its source was removed meanwhile.
        """
        most = min(_BYTES, inner(self._target_store).most_bytes)
        for part, found in _pieces(self._rules(state), entries, copies, most):
            end = after({self.source: state.position}, part)[self.source]
            if not found:
                state = msgspec.structs.replace(state, position=end)
                continue
            begun = msgspec.structs.replace(state, batch=self._batch(end, len(found)))
            if not self._register.write(begun) or not self._commit(begun, part, found):
                return None
            state = _done(begun)
        return state

    def _commit(self, state: RouteState, entries: list[Entry], copies: Copies | None = None) -> bool:
        """Write a batch to the target, each partition's part as transactions with keys of their own. False: paused."""
        try:
            found = self._rules(state).copies(entries) if copies is None else copies
        except Failed as failed:  # it did not, before the crash
            entry = failed.entry
            said = described(failed.cause)
            failure = RouteFailure(said, entry.segment, entry.sequence, entry.timestamp)
            self._pause(state, failure, failed.cause)
            return False
        there = self._already_there(state) if self._is_old(state) else frozenset[str]()
        for key, part in self._parts(state, found):
            # Any of them, as others may have been removed since: it was written as a whole, or not at all.
            if there and not there.isdisjoint([(record.metadata or {})[FROM] for _, record, _ in part]):
                continue
            try:
                self._write(key, part)
            except TransactionIdMismatch as error:
                # It was committed then; the functions, or the remaining entries of the source, have changed since.
                warn("the route %r: a batch that was copied before a crash is another one now: %s", self.name, error)
            except (StoreClosed, UnsupportedVersion):
                raise
            except PermanentError as error:
                self._pause(state, RouteFailure(described(error)), error)
                return False
        return True

    def _parts(self, state: RouteState, copies: Copies) -> Iterator[tuple[str, Copies]]:
        """The transactions of a batch, each of one partition of the target and not too large, with their keys."""
        known = inner(self._target_store).look_up(self.target)[0]
        partitions = known.settings.partitions if known is not None else 1
        by_partition: dict[int, Copies] = {}
        for copy in copies if partitions > 1 else ():
            by_partition.setdefault(partition_of(copy[0], partitions), []).append(copy)
        prefix = f"streamkit.route/{self._store.id}/{self.name}.{state.generation}/{state.position.offset}"
        for partition, part in by_partition.items() if partitions > 1 else [(0, copies)]:
            if part and sum([copy[2] for copy in part]) <= _BYTES:
                yield f"{prefix}/{partition}.0", part
                continue
            # One record that is larger, or a batch that an earlier release began.
            begin = size = number = 0
            for at, copy in enumerate(part):
                if size and size + copy[2] > _BYTES:
                    yield f"{prefix}/{partition}.{number}", part[begin:at]
                    begin, size, number = at, 0, number + 1
                size += copy[2]
            if begin < len(part):
                yield f"{prefix}/{partition}.{number}", part[begin:]

    def _write(self, key: str, copies: Copies) -> None:
        by_segment: dict[str, list[Record]] = {}
        for segment, record, _ in copies:
            found = by_segment.get(segment)
            if found is None:
                by_segment[segment] = [record]
            else:
                found.append(record)
        with self._target_store.transaction(self.target, idempotency_key=key) as trx:
            for segment, records in by_segment.items():
                trx.produce(segment, records)

    def _is_old(self, state: RouteState) -> bool:
        """True if the target may have forgotten the idempotency keys of the batch that was begun."""
        known = inner(self._target_store).look_up(self.target)[0]
        if known is None or state.batch is None:
            return False
        age = inner(self._store).clock.now() - state.batch.began
        # The value at creation, because this process may not know of a change. No window is less than a tenth of it.
        return not 0 <= age < known.settings.idempotency_window * 1000 / 20

    def _already_there(self, state: RouteState) -> frozenset[str]:
        """The sources of this route's copies that came into the target since the batch was begun."""
        assert state.batch is not None
        suffix = f"?route={self.name}.{state.generation}"
        offset = LexKey.from_hex(state.batch.target) if state.batch.target else None
        # Entries that were trimmed from the target meanwhile are not known. A target that was created again has none.
        found = self._target_store.consume_space(self.target, offset=offset, gaps="skip")
        try:
            return frozenset(said for entry in found if (said := entry.metadata.get(FROM, "")).endswith(suffix))
        except InvalidOffset:
            return frozenset()

    def new_stop(self) -> Stop:
        """Return an event that ends a `run` when it is set."""
        return Stop(self._store)

    def run(self, stop: Stop | None = None, *, seconds: float | None = None) -> None:
        """Keep copying until `stop` is set, the route or its store is closed, or `seconds` are over.

        It waits while the route is paused. `resume()` may be called from anywhere.
        """
        check_stop(stop)
        stop = stop or Stop(self._store)
        self._stops.add(stop)

        def round() -> bool:
            if self._closed:
                stop.set()
                return False
            return self._round(stop.is_set)

        try:
            run_rounds(self._store, [self.source], round, stop, seconds, f"route {self.name!r}")
        finally:
            self._stops.discard(stop)

    def wait_for(self, offset: LexKey | bytes | str, timeout: float = 10.0) -> RouteStatus:
        """Return when all entries before `offset` of the source are copied; copy them if no other process does.

        TimeoutError after `timeout` seconds; PermanentError if the route is paused before it.
        """
        check_seconds("timeout", timeout, endless=True)
        wanted = decode_offset(offset, [self.source])
        clock = inner(self._store).clock
        end = clock.monotonic() + timeout
        while True:
            state = self._peek()
            if state is not None and reached(state.position, wanted):
                return status_of(self.name, state, 0.0)
            if state is not None and (state.paused or state.failure is not None):
                why = state.failure.error if state.failure is not None else "by pause()"
                raise PermanentError(f"the route {self.name!r} is paused: {why}. resume() lets it go on")
            pause = _PAUSE
            while self._mutex.locked() and (rest := end - clock.monotonic()) > 0:  # another thread runs it
                clock.sleep(min(pause, rest))
                pause = min(pause * 2, _LONGEST_PAUSE)
            if not self._mutex.locked():
                self._round(lambda: clock.monotonic() >= end)
            state = self._peek()
            if state is not None and not (state.paused or state.failure) and not self._is_behind(state):
                if not reached(state.position, wanted):
                    next(self._store.consume_space(self.source, offset=wanted.encode(), limit=1, gaps="skip"), None)
                return status_of(self.name, state, 0.0)
            if clock.monotonic() >= end:
                raise TimeoutError(f"the route {self.name!r} has not come as far within {timeout:g} seconds")

    # -- control and status -----------------------------------------------------------------------------------------

    def _is_behind(self, state: RouteState) -> bool:
        end = Offset.decode(self._store.end_offset(self.source), self.source)
        return seconds_behind(self._store, state.position, end) > 0

    def status(self) -> RouteStatus:
        """Return the route's position, its failure if it is paused, and its lag."""
        self._check_open()
        state = self._peek()
        if state is None:
            state = self._read(Register(self._store, self.name))
        end = Offset.decode(self._store.end_offset(self.source), self.source)
        return status_of(self.name, state, seconds_behind(self._store, state.position, end))

    def pause(self) -> None:
        """Pause the route in all processes, until `resume()`. A batch that was begun may be completed."""
        self._change(lambda state: msgspec.structs.replace(state, paused=True))

    def resume(self, *, skip: bool = False) -> None:
        """Continue a paused route at the entry that failed; with `skip`, leave that entry out.

        An entry may also be left out after an earlier `resume()`, if it has not been copied since.
        """

        def change(state: RouteState) -> RouteState:
            failure = state.failure or state.resumed
            if skip and failure is not None and failure.sequence and state.batch is None:
                entry = next((chunk for chunk, _ in chunks(self._store, {self.source: state.position}, 1) if chunk), [])
                if entry and (entry[0].segment, entry[0].sequence) == (failure.segment, failure.sequence):
                    position = after({self.source: state.position}, entry)[self.source]
                    state = msgspec.structs.replace(state, position=position, skipped=state.skipped + 1)
                    failure = None
            return msgspec.structs.replace(state, paused=False, failure=None, resumed=failure)

        self._change(change)

    def delete(self) -> None:
        """Forget the route. Its copies stay. A route that is created again begins where `start` says."""
        with self._mutex:
            while (state := self._register.read()) is not None:
                if self._register.write(msgspec.structs.replace(state, deleted=True, failure=None, resumed=None)):
                    break
        self.close()

    @property
    def closed(self) -> bool:
        """True after `close` or `delete`."""
        return self._closed

    def close(self) -> None:
        """End `run`. Again is fine."""
        self._closed = True
        for stop in list(self._stops):
            stop.set()

    def __enter__(self) -> Route:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Route {self.name!r} from {self.source!r} to {self.target!r}{' closed' if self._closed else ''}>"


def _done(state: RouteState) -> RouteState:
    """The state after its batch."""
    batch = state.batch
    assert batch is not None
    return msgspec.structs.replace(state, position=batch.end, batch=None, copied=state.copied + batch.copied)


def _pieces(rules: Rules, entries: list[Entry], copies: Copies, most: int) -> Iterator[tuple[list[Entry], Copies]]:
    """Entries that follow each other with their copies, together at most `most` bytes if they are several."""
    if sum([copy[2] for copy in copies]) <= most:
        yield entries, copies
        return
    begin = first = at = size = 0
    for number, entry in enumerate(entries):
        if at == len(copies) or (copies[at][1].metadata or {})[FROM] != rules.mark(entry):
            continue  # it is left out
        if size and size + copies[at][2] > most:
            yield entries[begin:number], copies[first:at]
            begin, first, size = number, at, 0
        size += copies[at][2]
        at += 1
    yield entries[begin:], copies[first:]


def _within(store: Store, position: SpacePosition, end: SpacePosition, source: str) -> Iterator[Entry]:
    """The entries from `position` to `end`, without later ones, which may come in between in several partitions."""
    places = Offset.decode(end.offset, source).positions
    left = {partition for partition, _ in enumerate(places)}
    for chunk, _ in chunks(store, {source: position}):
        for entry in chunk:
            origin = entry.origin
            here = (entry.trx.number, origin.index + entry.sequence - origin.first_sequence)
            if here < places[origin.partition]:
                yield entry
            else:
                left.discard(origin.partition)
                if not left:
                    return
