"""Appends to one stream: requests that wait are decided one after the other and written in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ...errors import SequenceMismatch
from ...model import Record
from .decide import Answer, decide_append, is_live, trimmed
from .requests import Append
from .state import Refused, State, control, message

if TYPE_CHECKING:
    from .streams import Known, Streams

__all__ = ["Writer"]

_BYTES = 8 << 20
_REQUESTS = 1024
"""The upper bound of one transaction. A single request may be larger."""


class _Waiting(NamedTuple):
    request: Append
    answer: asyncio.Future[Answer]


class Writer:
    """The appends of this process to one stream. It ends, and calls `ended`, when no request waits."""

    def __init__(self, streams: Streams, segment: str, ended: Callable[[], object]) -> None:
        self._streams = streams
        self._segment = segment
        self._ended = ended
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def append(self, request: Append) -> Answer:
        """The answer to `request`, once it is durable. Refused, or the store's error."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(request, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = self._take()
                try:
                    await self._write(batch)
                except Exception as error:
                    for waiting in batch:
                        _fail(waiting, error)
        finally:
            self._ended()
            for waiting in self._waiting:
                waiting.answer.cancel()

    def _take(self) -> list[_Waiting]:
        size = count = 0
        for waiting in self._waiting:
            size += len(waiting.request.body)
            if count and (size > _BYTES or count >= _REQUESTS):
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return [waiting for waiting in batch if not waiting.answer.done()]

    async def _write(self, batch: list[_Waiting]) -> None:
        """Decide and write until nothing has overtaken the decisions."""
        known = self._streams.recall(self._segment)
        while batch:
            fresh = known is None
            if known is None:
                known = await self._streams.load(self._segment)
            answers, records, state, moving = await self._decide(batch, known)
            if not fresh and not all(isinstance(answer, Answer) and answer.changed for answer in answers):
                known = None  # a state that is kept may be old: nothing is refused because of it
                continue
            if records:
                try:
                    await self._commit(known, records, state, moving)
                except SequenceMismatch:
                    known = None
                    continue
            for waiting, answer in zip(batch, answers, strict=True):
                if isinstance(answer, Exception):
                    _fail(waiting, answer)
                elif not waiting.answer.done():
                    waiting.answer.set_result(answer)
            return

    async def _decide(
        self, batch: list[_Waiting], known: Known
    ) -> tuple[list[Answer | Refused], list[Record], State | None, dict[str, tuple[int, int]]]:
        streams, now = self._streams, self._streams.clock.now()
        answers: list[Answer | Refused] = []
        bodies: list[bytes | None] = []  # None: a change without a message
        state = known.state
        try:
            if not is_live(state, now, streams.expiry.last_use(self._segment)):
                raise Refused(404, "there is no such stream", code="not_found")
        except Refused as refused:
            return [refused for _ in batch], [], None, {}
        assert state is not None
        for waiting in batch:
            request = waiting.request
            earlier = None
            if state.moved and request.producer is not None and request.producer.id not in state.producers:
                earlier = await streams.producer(self._segment, state.base, request.producer.id)
            try:
                answer = decide_append(state, request, now, earlier, known.sequence + len(bodies))
            except Refused as refused:
                answers.append(refused)
                continue
            answers.append(answer)
            if answer.changed:
                bodies += answer.messages or [None]
                state = answer.state
        if not bodies:
            return answers, [], None, {}
        state, moving = trimmed(state)
        records = [message(body) if body is not None else control("close") for body in bodies[:-1]]
        last = bodies[-1]
        records.append(control("close", state) if last is None else message(last, state))
        return answers, records, state, moving

    async def _commit(
        self, known: Known, records: list[Record], state: State | None, moving: dict[str, tuple[int, int]]
    ) -> None:
        assert state is not None
        streams, segment = self._streams, self._segment
        try:
            async with streams.store.transaction(streams.space) as trx:
                trx.produce(segment, records, expected_sequence=known.sequence)
                for id, (epoch, seq) in moving.items():
                    trx.produce(streams.producer_segment(segment, state.base, id), [Record(b"%d %d" % (epoch, seq))])
        except BaseException:
            streams.forget(segment)
            raise
        streams.remember(segment, known.sequence + len(records), state)
        streams.expiry.used(segment, state)


def _fail(waiting: _Waiting, error: Exception) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
