"""Expiry of streams: uses that extend a sliding window, and the removal of streams that are no longer used.

A use is recorded in the log at most four times a window. Until then this process remembers it. Streams that can expire
are listed in a segment of their own, so that their removal reads no other stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ...decoders import json_decoder
from ...errors import SequenceMismatch, StoreClosed, StreamkitError
from ...model import Record
from .state import Refused, State, control

if TYPE_CHECKING:
    from ...aio import AsyncTransaction
    from .streams import Streams

__all__ = ["SCHEDULE", "Expiry"]

SCHEDULE = "__ds/expiry"
"""The segment that lists the streams that can expire."""
_MOST = 100_000
"""The most streams whose use waits to be recorded. The use of one more is recorded at once, so that memory is
bounded."""
_log = logging.getLogger("streamkit.serve")


class _Due(msgspec.Struct, frozen=True, array_like=True):
    segment: str
    base: int
    at: int
    """Time, in milliseconds since 1970, at which the stream expires if it is not used before."""


_decode = json_decoder(_Due).decode


class Expiry:
    """The uses of a store's streams that this process has seen and the log has not."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._uses: dict[str, int] = {}
        self._watched: Counter[str] = Counter()
        """Live readers. A stream that has one does not expire."""
        self._sweeping: asyncio.Task[None] | None = None
        self._recording: dict[str, asyncio.TimerHandle | asyncio.Task[None]] = {}
        """Streams whose use will be recorded: a timer at first, then a task."""

    def last_use(self, segment: str) -> int:
        """Time of the stream's last use in this process, if the log does not have it yet, else 0."""
        return self._streams.clock.now() if segment in self._watched else self._uses.get(segment, 0)

    def watch(self, segment: str, state: State) -> None:
        """A live reader came. `unwatch` when it goes."""
        self._watched[segment] += 1
        self.used(segment, state)

    def unwatch(self, segment: str) -> None:
        """A live reader went."""
        now = self.last_use(segment)
        self._watched[segment] -= 1
        if not self._watched[segment]:
            del self._watched[segment]
            if segment in self._recording:
                self._uses[segment] = now

    def used(self, segment: str, state: State) -> None:
        """The stream was read or written. The log learns of it when a quarter of the window has passed."""
        if state.ttl is None:
            return
        now = self._streams.clock.now()
        if now - state.touched <= 0:
            return
        self._uses[segment] = now
        if segment not in self._recording:
            pause = max(state.touched + state.ttl * 250 - now, 0) / 1000
            if len(self._recording) >= _MOST:
                pause = 0.0
            timer = asyncio.get_running_loop().call_later(pause, self._begin, segment, state.base)
            self._recording[segment] = timer

    def _begin(self, segment: str, base: int) -> None:
        self._recording[segment] = asyncio.create_task(self._record(segment, base))

    def forget(self, segment: str) -> None:
        """Forget the uses of a stream that was deleted or created again."""
        self._uses.pop(segment, None)
        recording = self._recording.pop(segment, None)
        if recording is not None:
            recording.cancel()

    async def _record(self, segment: str, base: int) -> None:
        try:
            while True:
                used = self.last_use(segment)
                known = await self._streams.load(segment)
                state = known.state
                if state is None or state.base != base or state.gone or state.ttl is None:
                    return
                if state.touched < used:
                    touched = control("touch", replace(state, touched=used))
                    try:
                        await self._streams.store.produce(
                            self._streams.space, segment, [touched], expected_sequence=known.sequence
                        )
                    except SequenceMismatch:
                        continue
                    self._streams.forget(segment)
                if segment not in self._watched and self._uses.get(segment, 0) <= used:
                    return
                await asyncio.sleep(state.ttl / 4)
        except (StreamkitError, Refused) as error:
            _log.warning("the use of a stream could not be recorded, so it may expire early: %s", error)
        finally:
            if self._recording.get(segment) is asyncio.current_task():
                del self._recording[segment]
                self._uses.pop(segment, None)

    def schedule(self, trx: AsyncTransaction, segment: str, state: State) -> None:
        """Add to `trx` that the stream can expire, if it can."""
        at = state.expiry()
        if at is not None:
            trx.produce(SCHEDULE, [Record(msgspec.json.encode(_Due(segment, state.base, at)))])

    async def sweep(self) -> int:
        """Remove the streams that have expired; their number. Several processes may do this at once."""
        streams, now = self._streams, self._streams.clock.now()
        removed = last = 0
        later: list[_Due] = []
        entries = streams.store.consume_segment(streams.space, SCHEDULE)
        async for entry in entries:
            last = entry.sequence
            due = _decode(entry.payload)
            if due.at > now:
                later.append(due)
                continue
            known = await streams.load(due.segment)
            state = known.state
            if state is None or state.base != due.base or state.gone:
                continue
            at = state.expiry(self.last_use(due.segment))
            if at is not None and at > now:
                later.append(_Due(due.segment, due.base, at))
                continue
            await streams.delete(due.segment, expired=True)
            removed += 1
        if last == 0 or (not removed and len(later) == last):
            return removed
        try:
            records = [Record(msgspec.json.encode(due)) for due in later]
            await streams.store.produce(streams.space, SCHEDULE, records, expected_sequence=last)
        except SequenceMismatch:
            return removed  # another process wrote meanwhile: the next sweep does it
        await streams.store.trim(streams.space, SCHEDULE, before=last + 1)
        return removed

    def start(self, every: float) -> None:
        """Remove expired streams each `every` seconds (0: never)."""
        if every:
            self._sweeping = asyncio.create_task(self._sweep_for_ever(every))

    async def _sweep_for_ever(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            try:
                await self.sweep()
            except StoreClosed:
                return
            except (StreamkitError, Refused) as error:
                _log.warning("expired streams could not be removed and are tried again: %s", error)

    def close(self) -> None:
        """Stop recording and sweeping."""
        for task in (*self._recording.values(), self._sweeping):
            if task is not None:
                task.cancel()
