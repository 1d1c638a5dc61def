"""Receiving and settling the deliveries of groups and queues. A receipt is settled at any process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import msgspec

from ...aio.groups import AsyncGroup
from ...errors import StreamkitError
from ...groups import Delivery, Settled, Settlement
from .. import sse
from ..encoding import EntryOut, entry_out, name_of_transaction
from ..problems import Problem, problem_of
from ..request import Request
from ..responses import Answer, Gone, json_answer
from ..streams import OpenStream
from .groups import found_group, group_of
from .parameters import number
from .records import body_of, optional_body_of

__all__ = ["push", "receive", "settle"]

T = TypeVar("T")
_MOST = 1_000
"""Deliveries of one answer."""


class SettlementIn(Settlement, frozen=True, forbid_unknown_fields=True):
    """The settlement of one delivery. `delay` and `error` are for nack, `seconds` for extend, `reason` for reject."""


class SettleIn(msgspec.Struct, forbid_unknown_fields=True):
    """Settlements: one commit for each lane that they are of."""

    settle: list[SettlementIn]


class SettledOut(msgspec.Struct):
    """The results, in the order of the settlements. `lost`: the delivery had ended, and nothing was changed."""

    settled: list[Settled]


class ReceiveIn(msgspec.Struct, forbid_unknown_fields=True):
    """A request for deliveries. `wait`: seconds, at most 30. `consumer` names the receiver. `auto_ack`: at most once.

    `settle` is done first, so that a worker needs one request for each round.
    """

    limit: int = 10
    wait: float = 0.0
    consumer: str | None = None
    auto_ack: bool = False
    settle: list[SettlementIn] = []


class DeliveryOut(msgspec.Struct):
    """An entry that is the receiver's until `deadline`, in milliseconds. `receipt` settles it."""

    receipt: str
    attempt: int
    deadline: int
    consumer: str
    entry: EntryOut


class ReceivedOut(msgspec.Struct):
    """Deliveries, and the results of the settlements of the request."""

    deliveries: list[DeliveryOut]
    settled: list[Settled]


def _out(delivery: Delivery, line: bool = False) -> DeliveryOut:
    entry = delivery.entry
    out = entry_out(entry, name_of_transaction(entry.trx), line)
    return DeliveryOut(delivery.receipt, delivery.attempt, delivery.deadline, delivery.consumer, out)


def _check_count(request: Request, given: list[SettlementIn]) -> None:
    most = request.service.limits.records
    if most and len(given) > most:
        raise Problem("invalid-argument", f"{len(given)} settlements in one request; the server takes {most}")


async def settle(request: Request) -> Answer:
    """Acknowledge, give up, extend, reject or release deliveries by their receipts."""
    request.query(())
    given = await body_of(request, SettleIn)
    _check_count(request, given.settle)
    return json_answer(SettledOut(await _using(request, lambda group: group.settle(given.settle))))


async def _using(request: Request, work: Callable[[AsyncGroup], Awaitable[T]]) -> T:
    return await request.service.groups.use(request.store(), *group_of(request), work)


async def receive(request: Request) -> Answer:
    """Receive deliveries, and settle earlier ones before."""
    request.query(())
    request.access.check("write")
    given = await optional_body_of(request, ReceiveIn)
    if not 0 <= given.wait <= 30:
        raise Problem("invalid-argument", "wait is a number of seconds from 0 to 30")
    if not 1 <= given.limit <= _MOST:
        raise Problem("invalid-argument", f"limit is a number from 1 to {_MOST}")
    _check_count(request, given.settle)

    async def work(group: AsyncGroup) -> tuple[list[Settled], list[Delivery]]:
        settled = await group.settle(given.settle) if given.settle else []
        receiving = group.receive(given.limit, given.wait, consumer=given.consumer, auto_ack=given.auto_ack)
        return settled, await (_until_gone(request, group, receiving, given.auto_ack) if given.wait else receiving)

    settled, deliveries = await _using(request, work)
    return json_answer(ReceivedOut([_out(each) for each in deliveries], settled))


async def _until_gone(
    request: Request, group: AsyncGroup, receiving: Awaitable[list[Delivery]], auto_ack: bool
) -> list[Delivery]:
    """Wait for a long-poll's deliveries. Empty if the process is about to end; the deliveries go back if the client
    leaves."""
    waiter = await request.waiter()
    task = asyncio.ensure_future(receiving)
    task.add_done_callback(lambda _: waiter.wake())
    request.service.waiters.add(waiter)
    try:
        while not (task.done() or request.service.is_draining):
            await waiter.wait()
        if task.done():
            return task.result()
        return []
    finally:
        request.service.waiters.discard(waiter)
        await _end(task)
        if waiter.gone and not task.cancelled() and task.exception() is None and not auto_ack:
            await group.calls.call(group.hand_back, task.result())


async def _end(task: asyncio.Future[T]) -> None:
    """Cancel the running call, and wait until its deliveries have gone back."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])


async def push(request: Request) -> None:
    """Deliveries as they come, as text/event-stream.

    At most `limit` are unsettled at a time. When the connection ends, the unsettled ones are handed back."""
    query = request.query(("limit", "consumer"))
    request.access.check("write")
    limit = number(query, "limit", 10, _MOST, 1)
    if not request.accepts(b"text/event-stream"):
        raise Problem("not-acceptable", "deliveries come as text/event-stream; POST …/receive gives them as JSON")
    group = await found_group(request)
    (await group.calls.call(lambda: group.sync.reception)).claimant(query.get("consumer"))  # checks it
    stream = await request.stream(200, sse.HEADERS)
    deliveries = group.deliveries(limit, consumer=query.get("consumer"))
    try:
        await _push(request, stream, deliveries)
    finally:
        await deliveries.aclose()


async def _push(request: Request, stream: OpenStream, deliveries: AsyncGenerator[list[Delivery], None]) -> None:
    service = request.service
    following = asyncio.ensure_future(anext(deliveries))
    try:
        while True:
            following.add_done_callback(lambda _: stream.wake())
            while not (following.done() or service.is_draining or stream.is_over):
                if stream.is_silent:
                    await stream.write(sse.HEARTBEAT)
                await stream.wait()
            if not following.done():
                await stream.write(sse.goodbye("drain" if service.is_draining else "rotate"))
                return
            data = msgspec.json.encode([_out(each, True) for each in following.result()])
            await stream.write(sse.event("deliveries", data))
            following = asyncio.ensure_future(anext(deliveries))
    except StreamkitError as error:
        problem = problem_of(error)
        await stream.write(sse.goodbye("error", type=f"urn:streamkit:{problem.code}", detail=problem.detail))
    except Gone:
        return
    finally:
        await _end(following)
