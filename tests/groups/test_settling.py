"""What is said of deliveries whose acknowledgements are not written yet: by others, by threads, out of order."""

from __future__ import annotations

import threading

import pytest
from fix_stores import Subject

from streamkit import DeliveryLost, Record, Store
from streamkit.groups import Consumer, Delivery
from streamkit.groups.core import Core


def put(store: Store, count: int, segment: str = "a") -> None:
    store.produce("orders", segment, [Record(b"%d" % number) for number in range(1, count + 1)])


def sequences(deliveries: list[Delivery]) -> list[int]:
    return [delivery.entry.sequence for delivery in deliveries]


def counted(store: Store) -> tuple[int, int, int, int]:
    status = store.group("orders", "billing").status()
    return status.acked, status.pending, status.ready + status.delayed, status.lag


@pytest.mark.parametrize("settle", [Consumer.nack, Consumer.release])
def test_in_key_shared_what_was_acknowledged_is_not_taken_back_with_what_is_before_it(
    subject: Subject, settle: object
) -> None:
    put(subject.store, 3)
    group = subject.store.group("orders", "billing", mode="key_shared", retry_delay=0)
    with group.consumer(linger=3600) as consumer:
        first, second, _ = consumer.receive()
        consumer.ack(second)
        settle(consumer, first)  # type: ignore[operator]
        assert counted(subject.stranger()) == (1, 0, 2, 0)
        again = consumer.receive()
        assert sequences(again) == [1, 3]
        for delivery in again:
            consumer.ack(delivery)
    assert counted(subject.stranger()) == (3, 0, 0, 0)


def test_what_one_consumer_acknowledged_another_one_of_the_process_cannot_settle(subject: Subject) -> None:
    put(subject.store, 2)
    group = subject.store.group("orders", "billing")
    one, two = group.consumer("one", linger=3600), group.consumer("two")
    for settle in (two.ack, two.nack, two.release, two.reject, lambda delivery: two.extend(delivery, 10)):
        put(subject.store, 1)
        (delivery,) = one.receive(1)
        one.ack(delivery)
        with pytest.raises(DeliveryLost):
            settle(delivery)
    assert counted(subject.stranger()) == (5, 0, 0, 2)


def test_threads_that_acknowledge_the_same_delivery_acknowledge_it_once(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(subject.store, 2)
    group = subject.store.group("orders", "billing")
    consumer, later = group.consumer(linger=3600), Core.acknowledge_later
    first, second = consumer.receive()

    def another(core: Core, delivery: Delivery, linger: float) -> None:
        monkeypatch.undo()
        thread = threading.Thread(target=consumer.ack, args=(delivery,))
        thread.start()
        thread.join()
        later(core, delivery, linger)

    monkeypatch.setattr(Core, "acknowledge_later", another)
    consumer.ack(first)
    consumer.flush()
    assert counted(subject.stranger()) == (1, 1, 0, 0)
    consumer.ack(second)
    consumer.close()
    assert counted(subject.stranger()) == (2, 0, 0, 0)
