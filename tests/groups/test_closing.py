"""The end of consumers, groups and signal handlers: the remaining state, and the waits of others meanwhile."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject

import streamkit
from streamkit import Record, Store, StoreClosed, Unavailable
from streamkit.groups import Consumer, Delivery
from streamkit.groups import consumer as consumer_module
from streamkit.groups.core import Core
from streamkit.run import Program
from streamkit.store import append_expected, inner


def put(store: Store, count: int) -> None:
    store.produce("orders", "a", [Record(b"%d" % number) for number in range(1, count + 1)])


def test_an_ack_may_be_repeated_after_many_others(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkit.groups.consumer._KEPT", 10)
    put(subject.store, 35)
    with subject.store.group("orders", "billing").consumer(linger=0) as consumer:
        acked: list[Delivery] = []
        for delivery in consumer.receive(35):
            consumer.ack(delivery)
            acked.append(delivery)
            for again in acked[-10:]:
                consumer.ack(again)


def test_a_close_that_failed_is_repeated(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    put(subject.store, 3)
    group = subject.store.group("orders", "billing")
    consumer = group.consumer(linger=0)
    assert len(consumer.receive()) == 3

    def fails(*args: Any) -> None:
        raise Unavailable("not now")

    monkeypatch.setattr("streamkit.groups.chain.append_expected", fails)
    with pytest.raises(Unavailable):
        consumer.close()
    monkeypatch.setattr("streamkit.groups.chain.append_expected", append_expected)
    consumer.close()
    consumer.close()
    status = group.status()
    assert (status.pending, status.ready) == (0, 3)
    assert [each.attempt for each in group.consumer().receive()] == [1, 1, 1]


def test_a_consumer_is_closed_while_another_thread_releases_a_delivery(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(subject.store, 3)
    group = subject.store.group("orders", "billing")
    waits, go, settle, by_lane = threading.Event(), threading.Event(), Core.settle, consumer_module._by_lane

    def slowly(core: Core, delivery: Delivery, decide: Any) -> Any:
        waits.set()
        assert go.wait(30)
        return settle(core, delivery, decide)

    def meanwhile(deliveries: Iterable[Delivery]) -> Iterator[Delivery]:
        for delivery in deliveries:
            yield delivery
            go.set()
            releases.join()

    consumer = group.consumer(linger=0)
    last = consumer.receive()[-1]
    monkeypatch.setattr(Core, "settle", slowly)
    monkeypatch.setattr(consumer_module, "_by_lane", lambda deliveries: by_lane(meanwhile(deliveries)))
    releases = threading.Thread(target=consumer.release, args=(last,))
    releases.start()
    assert waits.wait(30)
    consumer.close()
    status = group.status()
    assert (status.pending, status.ready) == (0, 3)


def test_an_iteration_ends_when_another_thread_closes_the_consumer(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(subject.store, 1)
    consumer = subject.store.group("orders", "billing").consumer(linger=0)
    wait, closes = Consumer._wait, threading.Thread(target=consumer.close)

    def waits(consumer: Consumer, seen: tuple[int, ...], seconds: float) -> None:
        closes.start()
        monkeypatch.setattr(Consumer, "_wait", wait)
        closes.join()

    monkeypatch.setattr(Consumer, "_wait", waits)
    for delivery in consumer:
        consumer.ack(delivery)
    assert consumer.closed
    assert not closes.is_alive()
    status = subject.store.group("orders", "billing").status()
    assert (status.acked, status.pending) == (1, 0)


def test_an_iteration_over_a_closed_store_raises(subject: Subject) -> None:
    put(subject.store, 1)
    consumer = subject.store.group("orders", "billing").consumer(linger=0)
    deliveries = iter(consumer)
    consumer.ack(next(deliveries))
    subject.store.close()
    with pytest.raises(StoreClosed, match="store"):
        next(deliveries)


def test_a_store_that_opened_a_group_is_freed() -> None:
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        store = client.store(uuid4())
        put(store, 1)
        with store.group("orders", "billing").consumer() as consumer:
            consumer.receive()
        shared = weakref.ref(inner(store))
        store.close()
        del store, consumer
        gc.collect()
        assert shared() is None


def test_a_group_is_opened_while_another_one_waits_for_the_storage(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("slow", "fast"):
        subject.store.group("orders", name)
    other = subject.stranger()
    waits, go, init = threading.Event(), threading.Event(), Core.__init__

    def slowly(core: Core, store: Store, space: str, internal: Any) -> None:
        if "slow" in internal:
            waits.set()
            assert go.wait(30)
        init(core, store, space, internal)

    monkeypatch.setattr(Core, "__init__", slowly)
    slow = threading.Thread(target=other.group, args=("orders", "slow"))
    slow.start()
    assert waits.wait(30)
    fast = threading.Thread(target=other.group, args=("orders", "fast"), daemon=True)
    fast.start()
    fast.join(10)
    opened = not fast.is_alive()
    go.set()
    slow.join()
    assert opened


class Part:
    name = "part"

    def run(self, stop: Any = None, *, seconds: float | None = None) -> None:
        pass


@pytest.mark.parametrize("what", ["group", "program"])
def test_a_signal_handler_that_is_not_of_python_is_followed_by_the_default_one(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    install = signal.signal

    def installed(number: int, handler: Any) -> Any:
        return install(number, handler) and None

    monkeypatch.setattr(signal, "signal", installed)
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    try:
        if what == "group":
            subject.store.group("orders", "billing").run(print, drain=True)
        else:
            Program(subject.store, [Part()]).run(seconds=0, signals=True)
        monkeypatch.undo()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        install(signal.SIGTERM, before)
        install(signal.SIGINT, signal.default_int_handler)
