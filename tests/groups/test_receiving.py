"""Groups as a user meets them: deliveries to consumers, and their outcomes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_stores import Subject

from harness.timers import Timers
from streamkit import Client, DeliveryLost, Entry, GroupExists, OutcomeUnknown, Record, Store, StoreClosed
from streamkit.groups import Consumer, Delivery, Group
from streamkit.groups.events import LaneBatch
from streamkit.groups.lane import LaneState
from streamkit.names import InternalName
from streamkit.store import append_expected
from streamkit.testing import ManualClock
from streamkit_memory import MemoryDriver


def put(store: Store, count: int, segment: str = "a", first: int = 1) -> None:
    store.produce("orders", segment, [Record(b"%d" % number) for number in range(first, first + count)])


def payloads(deliveries: list[Delivery]) -> list[int]:
    return [int(delivery.entry.payload) for delivery in deliveries]


def drain(consumer: Consumer, limit: int = 7) -> Iterator[int]:
    while deliveries := consumer.receive(limit):
        for delivery in deliveries:
            consumer.ack(delivery)
            yield int(delivery.entry.payload)


def test_each_entry_comes_once_and_in_order_to_a_lone_consumer(subject: Subject) -> None:
    put(subject.store, 25)
    group = subject.store.group("orders", "billing")
    with group.consumer("one") as consumer:
        assert list(drain(consumer)) == list(range(1, 26))
        put(subject.store, 5, first=26)
        assert payloads(consumer.receive(3, wait=5)) == [26, 27, 28]


def test_two_consumers_share_the_entries(subject: Subject) -> None:
    put(subject.store, 40)
    group = subject.store.group("orders", "billing")
    other = subject.stranger().group("orders", "billing")
    with group.consumer("one") as one, other.consumer("two") as two:
        first, second = one.receive(10), two.receive(10)
        assert len(first) == 10
        assert second
        assert not set(payloads(first)) & set(payloads(second))
        held = {*payloads(first), *payloads(second)}
        while more := [*one.receive(10), *two.receive(10)]:
            assert not held & set(payloads(more))
            held |= set(payloads(more))
        assert held == set(range(1, 41))
        assert group.status().pending == 40


def test_what_is_released_nacked_and_rejected(subject: Subject) -> None:
    put(subject.store, 4)
    group = subject.store.group("orders", "billing")
    with group.consumer("one", linger=0) as consumer:
        first, second, third, fourth = consumer.receive()
        consumer.release(first)
        consumer.nack(second, delay=0)
        consumer.nack(third, delay=3600)
        consumer.reject(fourth, "it is broken")
        again = consumer.receive()
        assert [(each.entry.sequence, each.attempt) for each in again] == [(1, 1), (2, 2)]
        status = group.status()
        assert (status.pending, status.ready, status.delayed, status.dead) == (2, 0, 1, 1)
        assert (status.unread, status.lag) == (0, 3)
        (letter,) = group.dead_letters()
        assert (letter.reason, letter.attempt, letter.entry.payload) == ("it is broken", 1, b"4")
        assert group.redrive([letter]) == 1
        (redriven,) = consumer.receive()
        assert (redriven.entry, redriven.attempt) == (letter.entry, 1)
        assert group.dead_letters() == []


def test_after_the_last_attempt_it_is_dead_exactly_once(subject: Subject) -> None:
    put(subject.store, 1)
    group = subject.store.group("orders", "billing", max_deliveries=3)
    with group.consumer() as consumer:
        for attempt in (1, 2, 3):
            (delivery,) = consumer.receive()
            assert delivery.attempt == attempt
            consumer.nack(delivery, delay=0)
        assert consumer.receive() == []
    (letter,) = group.dead_letters()
    assert (letter.reason, letter.attempt) == ("max_deliveries", 3)
    assert group.status().acked_to == subject.store.end_offset("orders")


def test_the_handler_that_kills_its_process_uses_up_attempts(subject: Subject) -> None:
    """Nothing is said about the deliveries: the consumers just end."""
    put(subject.store, 1)
    for attempt in (1, 2):
        group = subject.stranger().group("orders", "billing", ack_timeout=0.05, max_deliveries=2)
        (delivery,) = group.consumer().receive(wait=5)
        assert delivery.attempt == attempt
    group = subject.stranger().group("orders", "billing")
    assert group.consumer().receive(wait=0.3) == []
    assert [letter.attempt for letter in group.dead_letters()] == [2]


def test_a_late_ack_is_refused_only_if_another_one_has_it(subject: Subject) -> None:
    put(subject.store, 2)
    group = subject.store.group("orders", "billing", ack_timeout=0.1)
    other = subject.stranger().group("orders", "billing")
    one, two = group.consumer("one", linger=0), other.consumer("two", linger=0)
    first, second = one.receive()
    (taken,) = two.receive(1, wait=5)
    assert (taken.entry, taken.attempt) == (first.entry, 2)
    with pytest.raises(DeliveryLost, match="went to another consumer"):
        one.ack(first)
    one.ack(second)  # its deadline has passed, too, but no consumer has it
    two.ack(taken)
    with pytest.raises(DeliveryLost):
        one.extend(first, 10)
    assert group.status().acked_to == subject.store.end_offset("orders")


def test_an_extended_delivery_stays_where_it_is(subject: Subject) -> None:
    put(subject.store, 2)
    group = subject.store.group("orders", "billing", ack_timeout=0.2)
    with group.consumer("one") as one, group.consumer("two") as two:
        first, second = one.receive()
        extended = one.extend(first, 3600)
        assert extended.deadline > first.deadline
        (taken,) = two.receive(wait=5)
        assert taken.entry == second.entry
        two.extend(taken, 3600)
        assert two.receive(wait=0.3) == []
        one.ack(first)
        assert group.pending()[0].consumer == "two"


def test_acknowledgements_are_written_with_the_next_record(subject: Subject) -> None:
    put(subject.store, 200)
    group = subject.store.group("orders", "billing")
    with group.consumer(linger=3600) as consumer:
        consumer.receive(1)
        before = subject.store.statistics().transactions
        for _ in range(10):
            for delivery in consumer.receive(1):
                consumer.ack(delivery)
        assert subject.store.statistics().transactions - before == 10
        consumer.flush()
        assert subject.stranger().group("orders", "billing").status().acked == 10


def test_what_is_acknowledged_late_and_not_written_yet_does_not_come_again(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    Timers(monkeypatch)
    put(subject.store, 5)
    group = subject.store.group("orders", "billing", ack_timeout=0.3)
    with group.consumer(linger=3600) as consumer:
        for delivery in consumer.receive():
            consumer.ack(delivery)
        time.sleep(0.4)
        assert consumer.receive() == []
    assert group.status().acked == 5


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_interrupt_while_a_record_is_applied_leaves_the_state_as_the_log_says(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    put(subject.store, 6)
    group = subject.store.group("orders", "billing", lanes=1)
    with group.consumer(linger=0) as consumer:
        first = consumer.receive(3)
        apply = LaneState.apply

        def interrupted(state: LaneState, batch: LaneBatch) -> None:
            monkeypatch.setattr(LaneState, "apply", apply)
            if where == "after":
                apply(state, batch)
            raise KeyboardInterrupt

        monkeypatch.setattr(LaneState, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.ack(first[0])
        consumer.ack(first[1])
        assert payloads(consumer.receive(10)) == [4, 5, 6]
    for status in (group.status(), subject.stranger().group("orders", "billing").status()):
        assert (status.acked, status.pending, status.ready) == (2, 0, 4)


def test_a_lost_answer_is_settled_though_others_have_written_a_snapshot_since(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(subject.store, 6)
    group, other = (store.group("orders", "billing", lanes=1) for store in (subject.store, subject.stranger()))
    other.core.lane(0).chain._records = 1

    def lost(store: Store, space: InternalName, segment: str, payload: bytes, expected: int) -> None:
        monkeypatch.undo()
        append_expected(store, space, segment, payload, expected)
        trx = store.peek(space, segment).trx
        with other.consumer(linger=0) as two:
            two.ack(two.receive(1)[0])
        raise OutcomeUnknown("the answer was lost", trx.id)

    with group.consumer(linger=0) as one:
        first, second = one.receive(2)
        monkeypatch.setattr("streamkit.groups.chain.append_expected", lost)
        one.ack(first)
        one.ack(second)
        assert group.status().acked == 3


def test_what_is_acknowledged_in_time_is_written_in_time_however_long_it_lingers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timers, clock, name = Timers(monkeypatch), ManualClock(), uuid4().hex
    clients = [
        Client("memory://", MemoryDriver(name, clock=clock, sleep=clock.sleep), 30.0, None, 64 << 20, clock)
        for _ in range(2)
    ]
    here, there = clients[0].store(UUID(int=1)), clients[1].store(UUID(int=1))
    put(here, 3)
    patient = here.group("orders", "billing", ack_timeout=60.0, lanes=1)
    with patient.consumer(linger=40.0) as one, there.group("orders", "billing").consumer() as two:
        one.ack(one.receive(1)[0])
        patient.configure(ack_timeout=2.0)
        one.ack(one.receive(1)[0])
        one.ack(one.receive(1)[0])
        timers.wait(clock, 3.0)
        assert two.receive() == []
    for client in clients:
        client.close()


@pytest.mark.parametrize("mode", ["shared", "key_shared"])
def test_what_a_killed_consumer_had_comes_while_there_is_more_than_enough_to_do(subject: Subject, mode: str) -> None:
    for segment in "abcdefgh":
        put(subject.store, 40, segment)
    group = subject.store.group("orders", "billing", mode=mode, ack_timeout=0.4, lanes=8)
    killed = group.consumer("killed").receive(3)
    with group.consumer("busy", linger=0) as busy:
        wanted = {(each.entry.segment, each.entry.sequence) for each in killed}
        end, number = time.monotonic() + 20, 0
        while wanted and time.monotonic() < end:
            number += 40
            for segment in "abcdefgh":
                put(subject.store, 40, segment)
            for delivery in busy.receive(10):
                wanted.discard((delivery.entry.segment, delivery.entry.sequence))
                busy.ack(delivery)
        assert not wanted
        assert group.status().lag > 100


def test_what_is_held_at_the_end_is_handed_back(subject: Subject) -> None:
    put(subject.store, 3)
    group = subject.store.group("orders", "billing", retry_delay=0)
    with group.consumer() as consumer:
        consumer.ack(consumer.receive(3)[0])
    with contextlib.suppress(RuntimeError), group.consumer() as consumer:
        assert [(each.entry.sequence, each.attempt) for each in consumer.receive()] == [(2, 1), (3, 1)]
        raise RuntimeError
    with group.consumer() as consumer:
        assert [each.attempt for each in consumer.receive()] == [2, 2]
    with pytest.raises(StoreClosed, match="consumer is closed"):
        consumer.receive()


def test_at_most_once_is_acknowledged_before_it_is_handed_out(subject: Subject) -> None:
    put(subject.store, 3)
    group = subject.store.group("orders", "billing")
    assert payloads(group.consumer().receive(2, auto_ack=True)) == [1, 2]
    other = subject.stranger().group("orders", "billing")
    assert (other.status().acked, other.status().pending) == (2, 0)


def test_one_consumer_has_at_most_max_pending(subject: Subject) -> None:
    put(subject.store, 10)
    group = subject.store.group("orders", "billing", max_pending=3)
    with group.consumer() as consumer:
        held = consumer.receive(10)
        assert len(held) == 3
        assert consumer.receive(10) == []
        consumer.ack(held[0])
        assert payloads(consumer.receive(10)) == [4]


def test_where_a_group_begins_and_is_moved_to(subject: Subject) -> None:
    put(subject.store, 5)
    offset = list(subject.store.consume_space("orders"))[2].space_offset
    assert payloads(subject.store.group("orders", "after", start=offset).consumer().receive()) == [4, 5]
    group = subject.store.group("orders", "end", start="end")
    with group.consumer() as consumer:
        assert consumer.receive() == []
        put(subject.store, 1, first=6)
        (held,) = consumer.receive()
        group.seek(offset)
        with pytest.raises(DeliveryLost):
            consumer.nack(held)
        assert payloads(consumer.receive()) == [4, 5, 6]
        group.seek("end")
        assert consumer.receive() == []
        assert group.status().acked_to == subject.store.end_offset("orders")


def test_a_group_that_begins_at_the_end_misses_nothing_that_is_written_meanwhile(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(subject.store, 3)
    consume = Store.consume_space

    def after(store: Store, space: str, **options: Any) -> Iterator[Entry]:
        yield from consume(store, space, **options)
        put(subject.store, 1, first=4)

    monkeypatch.setattr(Store, "consume_space", after)
    group = subject.store.group("orders", "billing", start=subject.store.end_offset("orders"), segments=["a"])
    assert payloads(group.consumer().receive()) == [4]


def test_how_far_a_group_is(subject: Subject) -> None:
    put(subject.store, 10)
    entries = list(subject.store.consume_space("orders"))
    group = subject.store.group("orders", "billing")
    with group.consumer("one") as consumer:
        held = consumer.receive(6)
        for delivery in (*held[:2], held[4]):
            consumer.ack(delivery)
        status = group.status()
        assert status.acked_to == entries[1].space_offset
        assert status.delivered_to == entries[5].space_offset
        assert (status.lag, status.unread, status.pending, status.acked) == (7, 4, 3, 3)
        assert [(each.name, each.pending) for each in status.consumers] == [("one", 3)]
        assert [each.entry.sequence for each in group.pending()] == [3, 4, 6]
        assert group.pending("two") == []


def test_groups_are_kept_apart_and_listed(subject: Subject) -> None:
    put(subject.store, 3)
    for name in ("b", "a", "ä" * 100):
        assert payloads(subject.store.group("orders", name).consumer().receive()) == [1, 2, 3]
    subject.store.group("other", "c")
    assert subject.stranger().get_groups("orders") == ["a", "b", "ä" * 100]
    assert subject.store.get_groups("nothing") == []
    assert list(subject.store.get_spaces()) == ["orders"]


def test_other_settings_are_refused_and_the_same_are_fine(subject: Subject) -> None:
    group = subject.store.group("orders", "billing", ack_timeout=5.0, max_deliveries=2)
    assert subject.stranger().group("orders", "billing").settings.ack_timeout == 5.0
    subject.stranger().group("orders", "billing", max_deliveries=2)
    with pytest.raises(GroupExists, match=r"max_deliveries is 2, not 3.*configure"):
        subject.stranger().group("orders", "billing", max_deliveries=3)
    group.configure(max_deliveries=3)
    subject.stranger().group("orders", "billing", max_deliveries=3)
    with pytest.raises(ValueError, match="lanes cannot be changed"):
        group.configure(lanes=2)


def test_a_group_that_is_made_again_knows_nothing_of_the_one_before(subject: Subject) -> None:
    put(subject.store, 3)
    group = subject.store.group("orders", "billing", ack_timeout=5.0)
    consumer = group.consumer()
    held = consumer.receive()
    group.delete()
    assert subject.store.get_groups("orders") == []
    with pytest.raises(
        Exception, match=r"the group 'billing' of 'orders' was deleted: .*store\.group\('orders', 'billing'"
    ):
        consumer.receive()
    again = subject.store.group("orders", "billing", ack_timeout=6.0)
    fresh = again.consumer()
    assert [(each.entry.sequence, each.attempt) for each in fresh.receive()] == [(1, 1), (2, 1), (3, 1)]
    with pytest.raises(Exception, match=r"deleted|over"):
        consumer.nack(held[0])
    assert again.status().pending == 3


def test_only_some_segments(subject: Subject) -> None:
    for segment in ("a", "b", "c"):
        put(subject.store, 3, segment)
    group = subject.store.group("orders", "billing", segments=["a", "c"])
    with group.consumer() as consumer:
        got = consumer.receive(100)
        assert sorted((each.entry.segment, each.entry.sequence) for each in got) == [
            (segment, sequence) for segment in ("a", "c") for sequence in (1, 2, 3)
        ]
        assert (group.status().unread, group.status().lag) == (0, 6)


def test_a_space_with_several_partitions(subject: Subject) -> None:
    subject.store.create_space("orders", partitions=4)
    group = subject.store.group("orders", "billing")
    for segment in range(20):
        put(subject.store, 5, str(segment))
    with group.consumer() as consumer:
        seen: dict[str, list[int]] = {}
        while deliveries := consumer.receive(9):
            for delivery in deliveries:
                seen.setdefault(delivery.entry.segment, []).append(delivery.entry.sequence)
                consumer.ack(delivery)
        assert seen == {str(segment): [1, 2, 3, 4, 5] for segment in range(20)}
    assert list(subject.store.consume_space("orders", offset=group.status().acked_to)) == []


def test_a_group_may_be_there_before_its_space(subject: Subject) -> None:
    group = subject.store.group("orders", "billing")
    with group.consumer() as consumer:
        assert consumer.receive() == []
        assert group.status().lag == 0
        threading.Timer(0.1, lambda: put(subject.store, 2)).start()
        assert payloads(consumer.receive(wait=10)) in ([1], [1, 2])


def test_two_consumers_of_one_name_are_two(subject: Subject) -> None:
    put(subject.store, 20)
    group = subject.store.group("orders", "billing", ack_timeout=0.2)
    one, two = group.consumer("same", linger=0), group.consumer("same", linger=0)
    first, second = one.receive(5), two.receive(5)
    assert not set(payloads(first)) & set(payloads(second))
    assert group.status().consumers[0].pending == 10


def test_a_clock_that_was_set_back_stops_nothing(subject: Subject) -> None:
    """Deadlines from a clock that is ahead: time goes on by the monotonic clock of the reader."""
    put(subject.store, 1)
    group = subject.store.group("orders", "billing", ack_timeout=0.2)
    clock = group.core.clock

    class Ahead:
        def now(self) -> int:
            return clock.now() + 3_600_000

        def __getattr__(self, name: str) -> object:
            return getattr(clock, name)

    other = subject.stranger().group("orders", "billing")
    for chain in (other.core.feed, *(lane.chain for lane in other.core.lanes())):
        chain._clock = Ahead()
    (held,) = other.consumer().receive()
    assert held.deadline > clock.now() + 3_000_000
    (again,) = group.consumer().receive(wait=10)
    assert again.attempt == 2
    assert isinstance(group, Group)


def test_consumers_that_begin_at_the_same_moment_take_a_lane_each(subject: Subject) -> None:
    put(subject.store, 20_000)
    subject.store.group("orders", "billing")
    consumers = [subject.stranger().group("orders", "billing").consumer() for _ in range(8)]
    lanes = {consumer.receive(1)[0].lane for consumer in consumers}
    assert lanes == set(range(8))


def test_groups_with_long_names_are_listed_by_them(subject: Subject) -> None:
    space, name = "s" * 200, "g" * 250
    for other in ("s" * 199, space):
        subject.store.produce(other, "a", [Record(b"1")])
        subject.store.group(other, name)
        subject.store.group(other, "short")
    assert subject.store.get_groups(space) == ["g" * 250, "short"]
    subject.stranger().group(space, name).delete()
    assert subject.stranger().get_groups(space) == ["short"]
    assert subject.stranger().get_groups("s" * 199) == ["g" * 250, "short"]


def test_run_ends_when_it_is_told_to_and_hands_back_the_rest(subject: Subject) -> None:
    subject.store.produce("orders", "s", [Record(b"%d" % at) for at in range(3)])
    group, stop = subject.store.group("orders", "billing"), threading.Event()
    assert group.run(lambda delivery: stop.set(), stop=stop).acked == 1
    assert group.run(lambda delivery: None, stop=stop).acked == 0
    assert group.run(lambda delivery: None, drain=True).acked == 2
