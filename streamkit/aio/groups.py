"""Groups and queues for coroutines: the same names, awaited. A consumer has a thread only while it looks."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack

from ..arguments import check_seconds, completed
from ..errors import DeliveryLost, StoreClosed, StreamkitError
from ..groups import Consumer, Delivery, Group, GroupChanges, GroupSettings, Queue, RunReport, Settlement
from ..groups.run import Stop, check_run, log_failure, log_loss
from ..warn import warn
from .threads import Calls

__all__ = ["AsyncConsumer", "AsyncGroup", "AsyncQueue"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_S = TypeVar("_S")
_SLICE = 0.5
"""Seconds after which `run` sees that it is time to stop."""
Handler = Callable[[Delivery], Awaitable[object] | object]


class _Wrapped(Generic[_S]):
    """A consumer, group or queue for coroutines, around the one for threads."""

    def __init__(self, sync: _S, calls: Calls) -> None:
        self.sync = sync
        """The same for threads."""
        self.calls = calls

    def __repr__(self) -> str:
        return f"<Async{repr(self.sync)[1:]}"


def _awaited(
    method: Callable[Concatenate[_S, _P], _T],
) -> Callable[Concatenate[_Wrapped[_S], _P], Coroutine[Any, Any, _T]]:
    """`method` in a thread."""

    @wraps(method)
    async def call(self: _Wrapped[_S], /, *args: _P.args, **options: _P.kwargs) -> _T:
        return await self.calls.call(partial(method, self.sync, *args, **options))

    return call


async def _look_until(
    calls: Calls,
    consumer: Consumer,
    wait: float,
    look: Callable[[], list[Delivery]],
    give_back: Callable[[list[Delivery]], object] | None,
) -> list[Delivery]:
    """Call `look` now and after each change until it finds something, for `wait` seconds at most.

    A cancelled call returns its deliveries to the group.
    """
    loop = calls.check()
    end = loop.time() + wait
    pause, most = consumer.poll
    with calls.bell(consumer.notifier).waiting() as told:
        while True:
            told.clear()
            seen = consumer.seen()
            found = await _shielded(calls, look, give_back)
            rest = end - loop.time()
            if found or rest <= 0:
                return found
            change = await calls.call(consumer.until_change)
            if consumer.seen() == seen:
                try:
                    async with asyncio.timeout(min(rest, pause, change)):
                        await told.wait()
                except TimeoutError:
                    pass
                calls.check()
            pause = min(pause * 2, most)


async def _shielded(
    calls: Calls, look: Callable[[], list[Delivery]], give_back: Callable[[list[Delivery]], object] | None
) -> list[Delivery]:
    looking = calls.submit(look)
    try:
        return await asyncio.shield(asyncio.wrap_future(looking))
    except asyncio.CancelledError:
        if give_back is not None:
            # In a thread: a second cancellation, or the end of the loop, does not stop it.
            back = calls.start(calls.threads.read, _give_back, looking, give_back)
            await asyncio.shield(asyncio.wrap_future(back))
        raise


def _give_back(looking: Future[list[Delivery]], give_back: Callable[[list[Delivery]], object]) -> None:
    try:
        give_back(looking.result())
    except StreamkitError as error:  # it must not take the place of the cancellation
        warn("deliveries of a cancelled call could not be handed back, and wait for their deadline: %s", error)


class AsyncConsumer(_Wrapped[Consumer]):
    """A consumer, from `group.consumer(name)`, to be used with `async with`. See `streamkit.groups.Consumer`."""

    @property
    def name(self) -> str:
        return self.sync.name

    async def receive(self, limit: int = 10, wait: float = 0.0, *, auto_ack: bool = False) -> list[Delivery]:
        """Return at most `limit` deliveries. Waits up to `wait` seconds (infinity: for ever) for the first.

        A cancelled call returns its deliveries to the group.
        """
        check_seconds("wait", wait, endless=True)
        look = partial(self.sync.receive, limit, auto_ack=auto_ack)
        return await _look_until(self.calls, self.sync, wait, look, None if auto_ack else self._release_all)

    def _release_all(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            if self.is_held(delivery):  # else given back with one before it of its key
                self.sync.release(delivery)

    async def __aiter__(self) -> AsyncGenerator[Delivery, None]:
        """Yield deliveries, one after the other, until the consumer is closed."""
        while not self.sync.closed:
            try:
                found = await self.receive(1, wait=60.0)
            except StoreClosed:
                if self.sync.closed:  # meanwhile, by another task
                    return
                raise
            for delivery in found:
                yield delivery

    ack = _awaited(Consumer.ack)
    nack = _awaited(Consumer.nack)
    reject = _awaited(Consumer.reject)
    release = _awaited(Consumer.release)
    extend = _awaited(Consumer.extend)
    flush = _awaited(Consumer.flush)
    close = _awaited(Consumer.close)

    @property
    def closed(self) -> bool:
        """See `Consumer.closed`."""
        return self.sync.closed

    def is_held(self, delivery: Delivery) -> bool:
        """See `Consumer.is_held`."""
        return self.sync.is_held(delivery)

    async def __aenter__(self) -> AsyncConsumer:
        self.calls.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.calls.call(partial(self.sync.__exit__, kind, error, trace))


class AsyncGroup(_Wrapped[Group]):
    """A group, from `await store.group(space, name, …)`. See `streamkit.groups.Group`."""

    @property
    def space(self) -> str:
        return self.sync.space

    @property
    def name(self) -> str:
        return self.sync.name

    @property
    def settings(self) -> GroupSettings:
        return self.sync.settings

    def consumer(self, name: str | None = None, *, linger: float = 0.1, prefetch: int = 1) -> AsyncConsumer:
        """See `Group.consumer`."""
        self.calls.check()
        return AsyncConsumer(self.sync.consumer(name, linger=linger, prefetch=prefetch), self.calls)

    async def run(
        self,
        handler: Handler,
        consumer: str | None = None,
        concurrency: int = 1,
        batch: int = 10,
        *,
        seconds: float | None = None,
        drain: bool = False,
        stop: Stop | None = None,
    ) -> RunReport:
        """Call `handler(delivery)`, an async function or a plain one, for each entry. See `Group.run`.

        It ends when `stop` (an Event, of asyncio too) is set, after `seconds`, with `drain`, or when it is cancelled.
        A cancellation gives up the deliveries that were begun, and hands the others back.
        """
        check_run(handler, concurrency, batch, seconds, awaited=True)
        worker = self.consumer(consumer)
        failure: BaseException | None = None
        try:
            return await _Run(worker, handler, concurrency, drain, stop).work(batch, seconds)
        except BaseException as error:
            failure = error
            raise
        finally:
            # Each delivery whose handler began has been settled. The others were not handled, also after an error.
            await self.calls.call(partial(worker.sync.leave, failure, give_back=True))

    async def receive(
        self, limit: int = 10, wait: float = 0.0, *, consumer: str | None = None, auto_ack: bool = False
    ) -> list[Delivery]:
        """Return at most `limit` deliveries, without a consumer object. See `Group.receive`.

        A cancelled call returns its deliveries to the group.
        """
        check_seconds("wait", wait, endless=True)
        reception = await self.calls.call(lambda: self.sync.reception)
        claimant = reception.claimant(consumer)
        look = partial(reception.look, claimant, limit, auto_ack)
        return await _look_until(self.calls, reception.waiter, wait, look, None if auto_ack else self.hand_back)

    async def deliveries(self, limit: int = 10, *, consumer: str | None = None) -> AsyncGenerator[list[Delivery], None]:
        """Yield deliveries as they come, without end. At most `limit` of them are unsettled at a time, in any process.

        At its end (`aclose()`, or a cancellation) unsettled deliveries go back to the group.
        """
        held: list[Delivery] = []
        reception = await self.calls.call(lambda: self.sync.reception)
        try:
            while True:
                held = await self.calls.call(self.sync.still_pending, held)
                if len(held) >= limit:
                    ended = partial(self._ended, held)
                    await _look_until(self.calls, reception.waiter, float("inf"), ended, None)
                    continue
                found = await self.receive(limit - len(held), float("inf"), consumer=consumer)
                held += found
                yield found
        finally:
            if held and not self.calls.closed:
                back = self.calls.start(self.calls.threads.read, self._hand_back, held)
                await asyncio.shield(asyncio.wrap_future(back))

    def _ended(self, deliveries: list[Delivery]) -> list[Delivery]:
        pending = self.sync.still_pending(deliveries)
        return [delivery for delivery in deliveries if delivery not in pending]

    def _hand_back(self, deliveries: list[Delivery]) -> None:
        try:
            self.hand_back(deliveries)
        except StreamkitError as error:
            message = "deliveries could not be handed back, and wait for their deadline: %s"
            warn(message, error, store=self.sync.store.id, space=self.space)

    def hand_back(self, deliveries: Iterable[Delivery]) -> None:
        """Release those that were not settled; their attempts do not count. Blocks: for threads."""
        self.sync.settle([Settlement(receipt=each.receipt, action="release") for each in deliveries])

    status = _awaited(Group.status)
    receipts = _awaited(Group.receipts)
    unfinished = _awaited(Group.unfinished)
    still_pending = _awaited(Group.still_pending)
    pending = _awaited(Group.pending)
    delivery = _awaited(Group.delivery)
    settle = _awaited(Group.settle)
    dead_letters = _awaited(Group.dead_letters)
    redrive = _awaited(Group.redrive)
    seek = _awaited(Group.seek)

    async def configure(self, **settings: Unpack[GroupChanges]) -> None:
        """See `Group.configure`."""
        await self.calls.call(partial(self.sync.configure, **settings))

    delete = _awaited(Group.delete)


class AsyncQueue(_Wrapped[Queue]):
    """A queue, from `await store.queue(name, …)`. See `streamkit.groups.Queue`."""

    def __init__(self, sync: Queue, calls: Calls) -> None:
        super().__init__(sync, calls)
        self.name = sync.name
        self.group = AsyncGroup(sync.group, calls)

    put = _awaited(Queue.put)
    put_many = _awaited(Queue.put_many)

    async def receive(
        self, limit: int = 10, wait: float = 0.0, *, consumer: str | None = None, auto_ack: bool = False
    ) -> list[Delivery]:
        """See `AsyncGroup.receive`."""
        return await self.group.receive(limit, wait, consumer=consumer, auto_ack=auto_ack)

    settle = _awaited(Queue.settle)

    def consumer(self, name: str | None = None, *, linger: float = 0.1, prefetch: int = 1) -> AsyncConsumer:
        """See `Group.consumer`."""
        return self.group.consumer(name, linger=linger, prefetch=prefetch)

    async def run(
        self,
        handler: Handler,
        consumer: str | None = None,
        concurrency: int = 1,
        batch: int = 10,
        *,
        seconds: float | None = None,
        drain: bool = False,
        stop: Stop | None = None,
    ) -> RunReport:
        """See `AsyncGroup.run`."""
        return await self.group.run(handler, consumer, concurrency, batch, seconds=seconds, drain=drain, stop=stop)

    status = _awaited(Queue.status)
    pending = _awaited(Queue.pending)
    dead_letters = _awaited(Queue.dead_letters)
    redrive = _awaited(Queue.redrive)


class _Run:
    """The state of one call of `run`."""

    def __init__(
        self, consumer: AsyncConsumer, handler: Handler, concurrency: int, drain: bool, stop: Stop | None
    ) -> None:
        self._consumer = consumer
        self._handler = handler
        self._concurrency = concurrency
        self._drain = drain
        self._stop = stop
        self._acked = self._failed = self._lost = self._dead = 0

    async def work(self, batch: int, seconds: float | None) -> RunReport:
        loop = asyncio.get_running_loop()
        end = None if seconds is None else loop.time() + seconds
        free = asyncio.Semaphore(self._concurrency)
        running: set[asyncio.Task[None]] = set()

        def ended() -> bool:
            return (end is not None and loop.time() >= end) or (self._stop is not None and self._stop.is_set())

        try:
            while not ended():
                if len(running) >= self._concurrency:
                    running = await self._wait(running)
                    continue
                rest = 0.0 if self._drain or running else _SLICE
                if end is not None:
                    rest = max(0.0, min(rest, end - loop.time()))
                found = await self._consumer.receive(batch, rest)
                keys: dict[Any, list[Delivery]] = {}
                for delivery in found:
                    keys.setdefault(delivery.key or delivery.ticket, []).append(delivery)
                for deliveries in keys.values():
                    running.add(asyncio.create_task(self._handle_all(deliveries, free, ended)))
                if not found and running:
                    running = await self._wait(running)
                elif not found and self._drain:
                    break
            for task in running:
                await task
        except BaseException:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise
        return RunReport(self._acked, self._failed, self._lost, self._dead)

    async def _wait(self, running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        """Wait until one of them is done, and return the others. Raises the error of the one that is done."""
        done, others = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return others

    async def _handle_all(
        self, deliveries: Iterable[Delivery], free: asyncio.Semaphore, ended: Callable[[], bool]
    ) -> None:
        async with free:
            for delivery in deliveries:
                if ended():
                    return
                if self._consumer.is_held(delivery):  # else taken back with an earlier one of its key
                    await self._handle(delivery)

    async def _handle(self, delivery: Delivery) -> None:
        consumer = self._consumer
        try:
            try:
                result = self._handler(delivery)
                completed("handler", await result if inspect.isawaitable(result) else result)
            except Exception as error:
                log_failure(consumer.sync, delivery, error)
                self._failed += 1
                if consumer.is_held(delivery):
                    self._dead += await consumer.nack(delivery, error=error)
            except BaseException as error:
                with contextlib.suppress(StreamkitError):  # it must not take the place of a cancellation
                    if consumer.is_held(delivery):
                        await asyncio.shield(consumer.nack(delivery, error=error))
                raise
            else:
                if consumer.is_held(delivery):
                    await consumer.ack(delivery)
                    self._acked += 1
        except DeliveryLost as error:
            self._lost += 1
            log_loss(consumer.sync, delivery, error)
