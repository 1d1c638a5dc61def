"""Groups and queues: work that is shared, acknowledged, and comes again where it was not."""

from __future__ import annotations

from collections import Counter

from streamkit.errors import DeliveryLost, GroupExists
from streamkit.groups import Consumer, Delivery
from streamkit.testing.backend_checks.subject import hold, same

from .subject import StoreSubject, numbered, refusing

__all__ = ["Sharing"]


def _payloads(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.entry.payload for delivery in deliveries]


def _drain(consumer: Consumer) -> list[bytes]:
    found: list[bytes] = []
    while deliveries := consumer.receive(5):
        for delivery in deliveries:
            consumer.ack(delivery)
        found += _payloads(deliveries)
    return found


class Sharing(StoreSubject):
    def test_a_group_delivers_every_entry_once(self) -> None:
        """Consumers of one group got an entry twice, or one not at all."""
        for space in self.spaces():
            for segment in ("a", "b", "c"):
                self.put(space, segment, [f"{segment}{number}".encode() for number in range(4)])
            group = self.store.group(space, "billing")
            with group.consumer("one") as one, self.stranger().group(space, "billing").consumer("two") as two:
                found = [*_drain(one), *_drain(two), *_drain(one)]
            expected = [f"{segment}{number}".encode() for segment in "abc" for number in range(4)]
            same(sorted(found), expected, f"what a group of {space} delivered")
            status = group.status()
            same((status.acked, status.lag, status.pending), (12, 0, 0), "acked, lag and pending afterwards")

    def test_what_was_not_acknowledged_comes_again(self) -> None:
        """A delivery whose deadline passed was lost, came too early, or could still be acknowledged."""
        self.put("space", "a", numbered(1, 1))
        one = self.store.group("space", "billing", ack_timeout=1.0).consumer("one", linger=0)
        two = self.stranger().group("space", "billing").consumer("two", linger=0)
        (first,) = one.receive(wait=self.patience)
        (again,) = two.receive(wait=self.patience)
        same((again.entry, first.attempt, again.attempt), (first.entry, 1, 2), "the entry that came again")
        hold(again.entry.timestamp <= first.deadline <= again.deadline - 1000, "the second came before the deadline")
        with refusing(DeliveryLost, "ack() by the first consumer, after another one got it"):
            one.ack(first)
        two.ack(again)
        same(two.receive(), [], "what comes after it was acknowledged")

    def test_an_entry_dies_after_its_last_attempt(self) -> None:
        """An entry that no consumer could handle was delivered for ever, or vanished."""
        self.put("space", "a", numbered(1, 2))
        group = self.store.group("space", "billing", max_deliveries=2)
        with group.consumer() as consumer:
            for attempt in (1, 2):
                for delivery in consumer.receive(wait=self.patience):
                    same(delivery.attempt, attempt, "the attempt")
                    consumer.nack(delivery, delay=0)
            same(consumer.receive(), [], "what comes after the last attempt")
            letters = self.stranger().group("space", "billing").dead_letters()
            same([(letter.entry.payload, letter.attempt) for letter in letters], [(b"1", 2), (b"2", 2)], "dead letters")
            same(group.redrive(), 2, "how many were brought back")
            same(_drain(consumer), numbered(1, 2), "what was brought back")

    def test_entries_of_a_key_are_with_one_consumer_in_order(self) -> None:
        """key_shared delivered an entry while an earlier one of its key was pending, or in another order."""
        for number in range(6):
            self.put("space", "ab"[number % 2], numbered(number, number))
        group = self.store.group("space", "billing", mode="key_shared", lanes=2)
        consumers = [group.consumer(linger=0), self.stranger().group("space", "billing").consumer(linger=0)]
        seen: dict[str, list[bytes]] = {}
        held: Counter[str] = Counter()
        for turn in range(60):
            deliveries = consumers[turn % 2].receive(1)
            for delivery in deliveries:
                segment = delivery.entry.segment
                hold(not held[segment], f"an entry of {segment!r} came while another one was out")
                held[segment] += 1
                seen.setdefault(segment, []).append(delivery.entry.payload)
            for delivery in deliveries:
                consumers[turn % 2].ack(delivery)
                held[delivery.entry.segment] -= 1
        same(seen, {"a": [b"0", b"2", b"4"], "b": [b"1", b"3", b"5"]}, "what came of each key")

    def test_an_exclusive_group_has_one_consumer(self) -> None:
        """A consumer that stands by received, or did not take over."""
        self.put("space", "a", numbered(1, 3))
        one = self.store.group("space", "billing", mode="exclusive").consumer("one")
        two = self.stranger().group("space", "billing").consumer("two")
        same(_payloads(one.receive(1)), [b"1"], "what the first consumer got")
        same(two.receive(), [], "what the one got that stands by")
        one.close()
        same(_payloads(two.receive(wait=self.patience)), numbered(1, 3), "what its successor got")

    def test_a_queue_keeps_delay_and_priority(self) -> None:
        """A queue delivered in the wrong order, or too early."""
        queue = self.store.queue("emails")
        queue.put_many([b"low", b"low"])
        queue.put(b"much later", delay=3600.0, priority=9)
        queue.put(b"high", priority=1, idempotency_key="once")
        queue.put(b"high", priority=1, idempotency_key="once")
        with self.stranger().queue("emails").consumer() as consumer:
            same(_drain(consumer), [b"high", b"low", b"low"], "what comes at once")
            same(queue.status().delayed, 1, "how many are delayed")
            put = queue.put(b"later", delay=1.0)
            deliveries = consumer.receive(wait=self.patience)
            same(_payloads(deliveries), [b"later"], "what was delayed")
            hold(consumer.clock.now() >= put.last_timestamp + 900, "a delayed job came too early")

    def test_a_group_has_the_settings_that_it_was_made_with(self) -> None:
        """A group was opened with other settings, or shared its state with another one."""
        self.put("space", "a", numbered(1, 2))
        self.store.group("space", "billing", ack_timeout=7.0)
        with refusing(GroupExists, "a group that exists with other settings"):
            self.stranger().group("space", "billing", ack_timeout=8.0)
        same(_drain(self.stranger().group("space", "billing").consumer()), numbered(1, 2), "one group")
        same(_drain(self.store.group("space", "other", start="end").consumer()), [], "another one, from the end")
        same(self.store.get_groups("space"), ["billing", "other"], "the groups")
