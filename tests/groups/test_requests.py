"""Requests of a group, counted where each call is a request; and nothing is missed for want of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest
from fix_stores import Subject

from harness.source_reads import SourceReads
from streamkit import Client, Record, Store
from streamkit.groups import Consumer, Group
from streamkit.testing import ManualClock
from streamkit_memory import MemoryDriver

HOUR = 3600.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def opened(clock: ManualClock) -> Iterator[Callable[[], Store]]:
    """The same store, each time as another process opens it; it looks every 10 s where nothing happens."""
    name, store = uuid4().hex, uuid4()
    with ExitStack() as stack:

        def open_() -> Store:
            driver = MemoryDriver(name, remote=True, clock=clock, sleep=clock.sleep)
            client = Client("memory://", driver, 30.0, (0.25, 10.0), 64 << 20, clock)
            return stack.enter_context(client).store(store)

        yield open_


def put(store: Store, count: int, segment: str = "a") -> None:
    store.produce("orders", segment, [Record(b"%d" % number) for number in range(1, count + 1)])


def requests(store: Store) -> int:
    return sum(count for name, count in store.statistics().requests.items() if "bytes" not in name)


def done(consumer: Consumer, limit: int = 100) -> int:
    count = 0
    while deliveries := consumer.receive(limit):
        for delivery in deliveries:
            consumer.ack(delivery)
        count += len(deliveries)
    return count


@pytest.mark.parametrize("kind", ["group", "queue"])
def test_an_idle_consumer_asks_for_no_more_than_it_is_told_to(opened: Callable[[], Store], kind: str) -> None:
    store = opened()
    if kind == "queue":
        store.queue("orders").put_many([b"x"] * 50)
    else:
        put(store, 50)
    made = store.queue("orders").group if kind == "queue" else store.group("orders", "billing")
    with made.consumer() as consumer:
        assert done(consumer) == 50
        consumer.flush()
        before = requests(store)
        assert consumer.receive(wait=HOUR) == []
        assert 350 <= requests(store) - before <= 720 + 10


@pytest.mark.parametrize("kind", ["group", "queue"])
def test_a_process_that_finds_nothing_asks_the_log_and_the_feed_only(opened: Callable[[], Store], kind: str) -> None:
    def begun(store: Store) -> Group:
        return store.queue("orders").group if kind == "queue" else store.group("orders", "billing")

    store = opened()
    if kind == "queue":
        store.queue("orders").put_many([b"x"] * 5000)
    else:
        put(store, 5000)
    with begun(store).consumer() as one, begun(opened()).consumer() as two:
        assert len(one.receive(10)) == len(two.receive(10)) == 10
        one.close()
        two.close()
        assert begun(opened()).run(lambda delivery: None, drain=True).acked == 5000
    other = opened()
    assert begun(other).run(lambda delivery: None, drain=True).acked == 0
    assert requests(other) <= 50
    for lane in range(8):  # whichever it takes
        store.produce("orders", "jobs/0/0", [Record(b"more")])
        assert begun(opened()).run(lambda delivery: None, f"worker-{lane}", drain=True).acked == 1


def test_what_is_brought_back_is_found_in_a_lane_that_was_done_with(opened: Callable[[], Store]) -> None:
    store = opened()
    put(store, 20)
    group = store.group("orders", "billing")
    with group.consumer(linger=0) as consumer:
        consumer.reject(consumer.receive(1)[0])
        assert done(consumer) == 19
    assert group.run(lambda delivery: None, drain=True).acked == 0
    assert opened().group("orders", "billing").redrive() == 1
    assert opened().group("orders", "billing").run(lambda delivery: None, drain=True).acked == 1


def test_what_is_fresh_in_the_lane_of_one_that_vanished_is_done_by_others(subject: Subject) -> None:
    put(subject.store, 400)
    group = subject.store.group("orders", "billing")
    gone = group.consumer("gone", linger=0)
    for delivery in gone.receive(10):
        gone.ack(delivery)
    with subject.stranger().group("orders", "billing").consumer("other", linger=0) as consumer:
        assert done(consumer, 20) == 390


def test_what_another_one_gives_back_is_found_in_a_part_of_its_time(
    opened: Callable[[], Store], clock: ManualClock
) -> None:
    store = opened()
    put(store, 1)
    one = store.group("orders", "billing", ack_timeout=40.0).consumer("one", linger=0)
    two = opened().group("orders", "billing").consumer("two", linger=0)
    (delivery,) = one.receive()
    assert two.receive(wait=15.0) == []
    one.release(delivery)
    before = clock.monotonic()
    assert len(two.receive(wait=30.0)) == 1
    assert clock.monotonic() - before <= 20.0


def test_the_feed_of_keys_forgets_what_the_lanes_have(subject: Subject) -> None:
    group = subject.store.group("orders", "billing", mode="key_shared", lanes=2)
    with group.consumer() as consumer:
        for _ in range(12):
            for segment in "abcd":
                put(subject.store, 5, segment)
            assert done(consumer) == 20
    state = group.core.feed.state
    assert state.tickets == 240
    assert all(len(blocks) <= 3 for blocks in state.lanes.values())


def test_a_large_transaction_is_read_once(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    put(subject.store, 6000)
    reads = SourceReads(monkeypatch)
    with subject.store.group("orders", "billing").consumer() as consumer:
        assert done(consumer) == 6000
    assert 6000 <= reads.count <= 12_000


def test_where_little_is_left_one_hands_out_for_all(opened: Callable[[], Store]) -> None:
    store = opened()
    put(store, 8000)
    store.group("orders", "billing", lanes=4)
    groups = [opened().group("orders", "billing") for _ in range(4)]
    consumers = [group.consumer(linger=60) for group in groups]
    left = set(range(4))
    count = [0] * 4
    while left:
        for number in sorted(left):
            deliveries = consumers[number].receive(10)
            for delivery in deliveries:
                consumers[number].ack(delivery)
            count[number] += len(deliveries)
            if not deliveries:
                left.discard(number)
    assert sum(count) == 8000
    feed = groups[0].core.feed
    assert store.segment_status(feed.space, feed.segment).last_sequence < 40
    assert max(count) - min(count) < 800


def test_an_acknowledgement_is_written_alone_only_if_no_claim_takes_it_along(
    opened: Callable[[], Store], clock: ManualClock
) -> None:
    store = opened()
    put(store, 10)
    group = store.group("orders", "billing", lanes=1)
    consumer = group.consumer(linger=10.0)
    chain = group.core.lane(0).chain
    consumer.ack(consumer.receive(1)[0])
    clock.sleep(9.0)
    consumer.ack(consumer.receive(1)[0])
    written = chain.sequence
    clock.sleep(5.0)
    group.core._flush_later()  # the timer of the first one
    assert chain.sequence == written
    clock.sleep(6.0)
    group.core._flush_later()
    assert chain.sequence == written + 1
    assert chain.state.acked == 2


def test_opening_a_group_reads_no_more_than_what_it_is(opened: Callable[[], Store]) -> None:
    """Requests for two heads and the group's own log. Only receivers and writers read the source's log."""
    store = opened()
    for number in range(15):
        put(store, 10, f"s{number}")
    with store.group("orders", "billing").consumer() as consumer:
        assert done(consumer, 10) == 150
    fresh = opened()
    group = fresh.group("orders", "billing")
    assert requests(fresh) <= 2 + 21
    assert fresh.statistics().requests["get"] == 2
    put(fresh, 1)
    assert fresh.statistics().conflicts == 0
    with group.consumer() as consumer:
        assert [delivery.entry.segment for delivery in consumer.receive()] == ["a"]
