"""Operations that take long: maintain, verify, archive, compact. Any process tells how far one is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal
from uuid import UUID, uuid4

import msgspec

from ...aio import AsyncStore
from ...decoders import json_decoder
from ...errors import StreamkitError
from ...model import Record
from ...names import internal_name
from ...store import Store
from .. import sse
from ..problems import Problem, problem_of
from ..request import Request
from ..responses import Answer, json_answer
from .parameters import number
from .records import body_of

__all__ = ["get_operation", "list_operations", "start_operation"]

_SPACE = internal_name("operations")
_NOTED = 2.0
"""Seconds between two notes of the progress."""
_LOOK = 1.0
"""Seconds between two looks at an operation for a stream."""
_LOST = 60_000
"""Milliseconds without a note after which the process that ran it has ended."""
Kind = Literal["maintain", "verify", "archive", "compact"]
_running: set[asyncio.Task[None]] = set()


class OperationIn(msgspec.Struct, forbid_unknown_fields=True):
    """An operation on one space, or on all (maintain and verify only)."""

    kind: Kind
    space: str | None = None


class OperationOut(msgspec.Struct):
    """An operation. `state` is "running", "done", "failed" or "lost" (its process has ended)."""

    id: str
    kind: str
    space: str | None
    state: str
    done: int
    of: int
    started: int
    updated: int
    href: str
    error: str | None = None
    result: Any = None


class OperationsOut(msgspec.Struct):
    """The latest operations, the newest first."""

    operations: list[OperationOut]


_stored = json_decoder(OperationOut)


class _Running:
    """Notes the progress of one operation in the store."""

    def __init__(self, store: AsyncStore, state: OperationOut) -> None:
        self._store = store
        self.state = state

    def tell(self, done: int, of: int) -> None:
        self.state.done, self.state.of = done, of

    async def note(self) -> None:
        self.state.updated = int(time.time() * 1000)
        await self._store.produce(_SPACE, self.state.id, [Record(msgspec.json.encode(self.state))])

    async def run(self, work: Callable[[], Awaitable[Any]]) -> None:
        task = asyncio.ensure_future(work())
        try:
            while not (await asyncio.wait([task], timeout=_NOTED))[0]:
                await self.note()
            self.state.state, self.state.result = "done", msgspec.to_builtins(task.result(), enc_hook=str)
        except StreamkitError as error:
            self.state.state, self.state.error = "failed", problem_of(error).detail
        finally:
            task.cancel()
        await self.note()


def _work(store: AsyncStore, given: OperationIn, tell: Callable[[int, int], None]) -> Callable[[], Awaitable[Any]]:
    space = given.space
    if given.kind == "maintain":
        return lambda: store.maintain(space)
    if given.kind == "verify":
        return lambda: store.verify(space, progress=tell)
    if space is None:
        raise Problem("invalid-argument", f"{given.kind} is of one space: name it with `space`")
    if given.kind == "archive":
        return lambda: store.archive(space, progress=tell)
    return lambda: store.compact(space, progress=tell)


def _check_access(request: Request, space: str | None) -> None:
    """Raise a Problem unless the key is for all of the space, or of the store if it is None."""
    if space is None:
        request.access.check_all_spaces()
    else:
        request.access.check_space(space)
        request.access.check_all_segments()


async def start_operation(request: Request) -> Answer:
    """Begin an operation. The answer's `Location` tells how far it is."""
    request.query(())
    given = await body_of(request, OperationIn)
    _check_access(request, given.space)
    store, id, now = request.store(), str(uuid4()), int(time.time() * 1000)
    href = f"/v1/stores/{store.id}/operations/{id}"
    running = _Running(store, OperationOut(id, given.kind, given.space, "running", 0, 0, now, now, href))
    work = _work(store, given, running.tell)
    await running.note()
    task = asyncio.ensure_future(running.run(work))
    _running.add(task)
    task.add_done_callback(_ended)
    return json_answer(running.state, 202, ((b"location", href.encode()),))


def _ended(task: asyncio.Task[None]) -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # its last note could not be written: it is reported as lost


async def get_operation(request: Request) -> Answer | None:
    """Show an operation's progress, or its result; as text/event-stream, each change until it has ended."""
    request.query(())
    try:
        id = str(UUID(request.name(1)))
    except ValueError:
        raise Problem("not-found", "an operation is named by its UUID") from None
    found = await _find(request, id)
    _check_access(request, found.space)
    if not request.accepts(b"text/event-stream"):
        return json_answer(found)
    await _watch(request, found)
    return None


async def _find(request: Request, id: str) -> OperationOut:
    entry = await request.store().peek(_SPACE, id)
    if not entry.sequence:
        raise Problem("not-found", "the store has no such operation")
    return _read(entry.payload)


async def _watch(request: Request, found: OperationOut) -> None:
    """Write the operation, now and after each note of it, until it has ended."""
    stream = await request.stream(200, sse.HEADERS)
    loop = asyncio.get_running_loop()
    told: OperationOut | None = None
    reason = "end"
    while not (request.service.is_draining or stream.is_over):
        if found != told:
            told = found
            await stream.write(sse.event("operation", msgspec.json.encode(found)))
        elif stream.is_silent:
            await stream.write(sse.HEARTBEAT)
        if found.state != "running":
            break
        await stream.wait_until(loop.time() + _LOOK)
        try:
            found = await _find(request, found.id)
        except StreamkitError:
            reason = "error"
            break
    else:
        reason = "rotate" if stream.is_over else "drain"
    await stream.write(sse.goodbye(reason))


def _read(payload: bytes) -> OperationOut:
    found = _stored.decode(payload)
    if found.state == "running" and time.time() * 1000 - found.updated > _LOST:
        found.state = "lost"
    return found


async def list_operations(request: Request) -> Answer:
    """The latest operations of a store; those of spaces that the key is for."""
    limit = number(request.query(("limit",)), "limit", 20, 100, 1)
    request.access.check_all_segments()
    prefixes = request.access.spaces

    def read(store: Store) -> list[OperationOut]:
        found: list[OperationOut] = []
        latest = sorted(store.segment_statuses(_SPACE), key=lambda status: status.last_timestamp, reverse=True)
        for status in latest:
            entry = store.peek(_SPACE, status.segment)
            each = _read(entry.payload) if entry.sequence else None
            if each is not None and (not prefixes or (each.space is not None and each.space.startswith(prefixes))):
                found.append(each)
                if len(found) == limit:
                    break
        return sorted(found, key=lambda each: each.started, reverse=True)

    store = request.store()
    return json_answer(OperationsOut(await store.calls.call(read, store.sync)))
