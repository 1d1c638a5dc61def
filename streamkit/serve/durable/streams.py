"""The streams of one store: creation, appends, deletion, forks. Each change is one conditional transaction."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from ...errors import InvalidName, SequenceMismatch
from ...names import check_name
from .decide import Answer, is_live, matches
from .expiry import Expiry
from .forks import fork_of, source_segment
from .requests import DEFAULT_TYPE, Append, Create, split_json
from .state import Foreign, Refused, State, control, message, state_of
from .writer import Writer

if TYPE_CHECKING:
    from ...aio import AsyncStore, AsyncTransaction
    from ...clock import Clock

__all__ = ["RESERVED", "SPACE", "Known", "Streams", "check_path"]

SPACE = "streams"
"""The space that holds the streams of a store."""
RESERVED = "__ds"
"""First part of the paths that are no streams: the protocol's own resources and the records of this interface."""
_CACHED = 10_000


class Known(NamedTuple):
    """A segment's last entry: its sequence, and the state of the stream (None: there was never one)."""

    sequence: int
    state: State | None


class Streams:
    """The streams of one store. Any number of processes may have one for the same store."""

    def __init__(self, store: AsyncStore, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.space = SPACE
        self.expiry = Expiry(self)
        self._writers: dict[str, Writer] = {}
        self._cache: OrderedDict[str, Known] = OrderedDict()

    # -- state --------------------------------------------------------------------------------------------------

    async def load(self, segment: str) -> Known:
        """The stream's state as it is committed now, in any process, for a write."""
        # The last entries may have been removed by something else: the sequences go on.
        sequence = (await self.store.segment_status(self.space, segment)).last_sequence
        entry = await self.store.peek(self.space, segment)
        known = Known(max(sequence, entry.sequence), state_of(entry))
        self.remember(segment, *known)
        return known

    def remember(self, segment: str, sequence: int, state: State | None) -> None:
        """Keep a state for the next write, which the log checks."""
        self._cache[segment] = Known(sequence, state)
        self._cache.move_to_end(segment)
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)

    def forget(self, segment: str) -> None:
        """The state that is kept of the stream was overtaken."""
        self._cache.pop(segment, None)

    def recall(self, segment: str) -> Known | None:
        """The state that is kept; it may be old."""
        return self._cache.get(segment)

    def live(self, segment: str, known: Known) -> State:
        """The state of a stream that clients can reach. Refused with 404 or 410 if they cannot."""
        state = known.state
        if not is_live(state, self.clock.now(), self.expiry.last_use(segment)):
            raise Refused(404, "there is no such stream", code="not_found")
        assert state is not None
        return state

    async def find(self, segment: str) -> State:
        """The state of the stream. Refused with 404 or 410 if clients cannot reach it."""
        entry = await self.store.peek(self.space, segment)
        return self.live(segment, Known(entry.sequence, state_of(entry)))

    async def producer(self, segment: str, base: int, id: str) -> tuple[int, int] | None:
        """Epoch and sequence of a producer whose state was moved out of the stream's state; None if there is none."""
        entry = await self.store.peek(self.space, self.producer_segment(segment, base, id))
        if entry.sequence == 0:
            return None
        epoch, _, seq = entry.payload.partition(b" ")
        return int(epoch), int(seq)

    def producer_segment(self, segment: str, base: int, id: str) -> str:
        """The segment that holds the state of a producer that has not written to the stream for long."""
        return f"{RESERVED}/producers/{_digest(segment)}/{base}/{_digest(id)}"

    # -- changes ------------------------------------------------------------------------------------------------

    async def create(self, segment: str, request: Create) -> tuple[int, State]:
        """Create the stream, or find it: the status and the state. Refused with 409 if it differs."""
        check_path(segment)
        while True:
            known = await self.load(segment)
            now = self.clock.now()
            try:
                live = is_live(known.state, now, self.expiry.last_use(segment))
            except Refused as refused:
                raise Refused(409, refused.reason, code="gone") from None
            if live:
                assert known.state is not None
                if matches(known.state, request):
                    return 200, known.state
                raise Refused(409, "the stream exists with another configuration", code="exists")
            try:
                state = await self._write_new(segment, known, request, now)
            except SequenceMismatch:
                continue
            return 201, state

    async def _write_new(self, segment: str, known: Known, request: Create, now: int) -> State:
        base = known.sequence + 1
        if request.fork is None:
            content_type = request.content_type or DEFAULT_TYPE
            state = State(content_type, base, base, ttl=request.ttl, expires=request.expires)
            state = replace(state, expires_text=request.expires_text)
            source = None
            messages: list[bytes] = []
        else:
            state, source, messages = await fork_of(self, segment, base, request)
        state = replace(state, touched=now if state.ttl is not None else 0, closed=request.closed)
        if request.body:
            messages = messages + (split_json(request.body, request.most) if state.is_json else [request.body])
        state = replace(state, tail=state.tail + len(messages))
        async with self.store.transaction(self.space) as trx:
            records = [control("create", None if messages else state), *map(message, messages[:-1])]
            records += [message(body, state) for body in messages[-1:]]
            trx.produce(segment, records, expected_sequence=known.sequence)
            if source is not None:
                assert source[1].state is not None
                taken = replace(source[1].state, forks=source[1].state.forks + 1)
                trx.produce(source[0], [control("fork", taken)], expected_sequence=source[1].sequence)
            if known.state is not None and known.state.gone == 0:
                await self._release(trx, known.state)  # it has expired
            self.expiry.schedule(trx, segment, state)
        self.expiry.forget(segment)
        self.remember(segment, known.sequence + len(records), state)
        if source is not None:
            self.forget(source[0])
        return state

    async def append(self, segment: str, request: Append) -> Answer:
        """Append to the stream, in one transaction with other requests that arrive meanwhile."""
        check_path(segment)
        writer = self._writers.get(segment)
        if writer is None:
            writer = self._writers[segment] = Writer(self, segment, lambda: self._writers.pop(segment, None))
        return await writer.append(request)

    async def delete(self, segment: str, *, expired: bool = False) -> None:
        """Delete the stream, or keep it for its forks only. Refused with 404 or 410 if it is not there.

        `expired`: only if it has expired.
        """
        check_path(segment)
        while True:
            try:
                known = await self.load(segment)
            except Foreign:
                if not expired:
                    await self._clear(segment)
                return
            state = known.state
            if not expired:
                state = self.live(segment, known)
            elif state is None or state.gone or self._is_fresh(segment, state):
                return
            try:
                async with self.store.transaction(self.space) as trx:
                    removed = await self._remove(trx, segment, known.sequence, state)
            except SequenceMismatch:
                continue
            break
        self.expiry.forget(segment)
        for name, before in removed.items():
            self.forget(name)
            await self.store.trim(self.space, name, before=before)

    async def _clear(self, segment: str) -> None:
        """Remove the entries of another program."""
        sequence = (await self.store.segment_status(self.space, segment)).last_sequence
        gone = State(DEFAULT_TYPE, sequence + 1, sequence + 1, gone=2)
        await self.store.produce(self.space, segment, [control("delete", gone)], expected_sequence=sequence)
        await self.store.trim(self.space, segment, before=sequence + 1)

    def _is_fresh(self, segment: str, state: State) -> bool:
        expiry = state.expiry(self.expiry.last_use(segment))
        return expiry is None or expiry > self.clock.now()

    async def _remove(self, trx: AsyncTransaction, segment: str, sequence: int, state: State) -> dict[str, int]:
        """Add the deletion of a stream to `trx`. Returns the streams that lose entries, with their remaining
        sequences."""
        gone = replace(state, gone=1 if state.forks else 2)
        trx.produce(segment, [control("delete", gone)], expected_sequence=sequence)
        if gone.gone == 1:
            self.forget(segment)
            return {}
        return {segment: sequence + 1, **await self._release(trx, state)}

    async def _release(self, trx: AsyncTransaction, state: State) -> dict[str, int]:
        """Add the end of a fork to `trx`. A source that was kept for its last fork is removed as well, and so on."""
        if state.fork is None:
            return {}
        name = source_segment(state.fork.source)
        known = await self.load(name)
        source = known.state
        if source is None or source.base != state.fork.base or source.gone == 2:
            return {}
        source = replace(source, forks=max(source.forks - 1, 0))
        if source.forks == 0 and source.gone == 1:
            return await self._remove(trx, name, known.sequence, source)
        trx.produce(name, [control("fork", source)], expected_sequence=known.sequence)
        self.forget(name)
        return {}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def check_path(segment: str) -> None:
    """Refused with 400 if the path cannot name a stream."""
    if segment == RESERVED or segment.startswith(RESERVED + "/"):
        raise Refused(404, "paths that begin with __ds are reserved for the protocol", code="not_found")
    try:
        check_name(segment, "segment")
    except InvalidName as error:
        raise Refused(400, str(error), code="invalid_path") from None
