"""Calling a handler for each delivery, until it is time to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ..arguments import check_count, check_function, check_seconds, completed
from ..errors import DeliveryLost, StreamkitError
from ..signals import on_signals
from ..warn import warn, warn_of
from .values import Delivery

if TYPE_CHECKING:
    from .consumer import Consumer
    from .group import Group

__all__ = ["RunReport", "Stop", "check_run", "log_failure", "log_loss", "run"]

_SLICE = 0.5
"""Seconds after which it is seen that it is time to stop."""


class RunReport(msgspec.Struct, frozen=True):
    """Report of `group.run`: how its deliveries ended."""

    acked: int
    failed: int
    """Times that the handler raised."""
    lost: int
    """Handled, but too late: another consumer has the entry."""
    dead: int = 0
    """Entries that became dead letters here: the handler raised at their last attempt."""


class Stop(Protocol):
    """Tells that it is time to stop: a `threading.Event`, or the `Stop` of a view or route."""

    def is_set(self) -> bool:
        """Return True if it is time to stop."""
        ...


class _Count:
    def __init__(self) -> None:
        self.acked = self.failed = self.lost = self.dead = 0
        self.lock = threading.Lock()


def check_run(handler: object, concurrency: int, batch: int, seconds: float | None, *, awaited: bool = False) -> None:
    """Check the arguments of `run`. TypeError or ValueError. `awaited`: an async handler is accepted."""
    check_function("handler", handler, "a delivery", awaited=awaited)
    check_count("concurrency", concurrency)
    check_count("batch", batch)
    if seconds is not None:
        check_seconds("seconds", seconds)


def run(
    group: Group,
    handler: Callable[[Delivery], Any],
    name: str | None,
    concurrency: int,
    batch: int,
    seconds: float | None,
    drain: bool,
    stop: Stop | None,
) -> RunReport:
    check_run(handler, concurrency, batch, seconds)
    clock = group.core.clock
    end = None if seconds is None else clock.monotonic() + seconds
    terminated, count = threading.Event(), _Count()

    def ended() -> bool:
        return (
            terminated.is_set()
            or (stop is not None and stop.is_set())
            or (end is not None and clock.monotonic() >= end)
        )

    with contextlib.ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            stack.enter_context(on_signals(terminated.set, signal.SIGTERM))
        consumer = group.consumer(name)
        # Each delivery whose handler began has been settled. The others were not handled, also after an error.
        stack.push(lambda kind, error, trace: consumer.leave(error, give_back=True))
        if concurrency == 1:
            _alone(consumer, handler, batch, drain, ended, count, end)
        else:
            pool = stack.enter_context(ThreadPoolExecutor(concurrency, "streamkit-handler"))
            _together(consumer, handler, concurrency, batch, drain, ended, count, end, pool)
    return RunReport(count.acked, count.failed, count.lost, count.dead)


def _rest(consumer: Consumer, drain: bool, end: float | None) -> float:
    if drain:
        return 0.0
    return _SLICE if end is None else max(0.0, min(_SLICE, end - consumer.clock.monotonic()))


def _alone(
    consumer: Consumer,
    handler: Callable[[Delivery], Any],
    batch: int,
    drain: bool,
    ended: Callable[[], bool],
    count: _Count,
    end: float | None,
) -> None:
    while not ended():
        deliveries = consumer.receive(batch, _rest(consumer, drain, end))
        if not deliveries and drain:
            return
        for delivery in deliveries:
            if ended():
                return
            _handle(consumer, handler, delivery, count)


def _together(
    consumer: Consumer,
    handler: Callable[[Delivery], Any],
    concurrency: int,
    batch: int,
    drain: bool,
    ended: Callable[[], bool],
    count: _Count,
    end: float | None,
    pool: ThreadPoolExecutor,
) -> None:
    running: set[Future[None]] = set()
    while not ended():
        found = consumer.receive(batch, _rest(consumer, drain, end) if not running else 0.0)
        queues: dict[Any, list[Delivery]] = {}
        for delivery in found:
            queues.setdefault(delivery.key or delivery.ticket, []).append(delivery)
        for queue in queues.values():
            running.add(pool.submit(_handle_all, consumer, handler, queue, ended, count))
        if not found and not running and drain:
            break
        if len(running) >= concurrency or (running and not found):
            done, running = wait(running, 0.05 if not found else None, FIRST_COMPLETED)
            for future in done:
                future.result()
    for future in running:
        future.result()


def _handle_all(
    consumer: Consumer,
    handler: Callable[[Delivery], Any],
    deliveries: list[Delivery],
    ended: Callable[[], bool],
    count: _Count,
) -> None:
    for delivery in deliveries:
        if ended():
            return
        _handle(consumer, handler, delivery, count)


def log_failure(consumer: Consumer, delivery: Delivery, error: BaseException) -> None:
    """Log the handler's error with its traceback: the place of the entry, and nothing of its content."""
    group, entry = consumer.group, delivery.entry
    message = "the handler of group %r failed: store %s, space %r, segment %r, sequence %d, attempt %d of %d"
    place = group.store.id, group.space, entry.segment, entry.sequence
    attempts = delivery.attempt, group.settings.max_deliveries
    fields: dict[str, Any] = {"store": group.store.id, "space": group.space, "transaction": entry.trx.id}
    warn_of(error, message, group.name, *place, *attempts, **fields)


def log_loss(consumer: Consumer, delivery: Delivery, error: DeliveryLost) -> None:
    """Log the loss of a delivery that was handled."""
    group = consumer.group
    warn("%s", error, store=group.store.id, space=group.space, transaction=delivery.entry.trx.id)


def _handle(consumer: Consumer, handler: Callable[[Delivery], Any], delivery: Delivery, count: _Count) -> None:
    if not consumer.is_held(delivery):
        return  # taken back with an earlier one of its key
    try:
        try:
            completed("handler", handler(delivery))
        except Exception as error:
            log_failure(consumer, delivery, error)
            with count.lock:
                count.failed += 1
            if consumer.is_held(delivery) and consumer.nack(delivery, error=error):
                with count.lock:
                    count.dead += 1
            return
        except BaseException as error:
            with contextlib.suppress(StreamkitError):  # it must not take the place of the interrupt
                consumer.nack(delivery, error=error)
            raise
        if consumer.is_held(delivery):
            consumer.ack(delivery)
            with count.lock:
                count.acked += 1
    except DeliveryLost as error:
        with count.lock:
            count.lost += 1
        log_loss(consumer, delivery, error)
