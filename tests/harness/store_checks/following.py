"""Following and subscribing: history, then new entries of any process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from streamkit.lexkey import LexKey
from streamkit.model import Entry, Record
from streamkit.testing.backend_checks.subject import hold, same, together

from .subject import StoreSubject, numbered

__all__ = ["Following"]

T = TypeVar("T")


class Following(StoreSubject):
    def alongside(self, read: Callable[[], T], write: Callable[[], None]) -> T:
        """Return what `read` finds while another thread does `write`. Broken if it hangs."""
        found, _ = together(read, write, timeout=self.patience)
        return found  # type: ignore[return-value]

    def test_following_a_segment_brings_history_and_news(self) -> None:
        """A follower of a segment missed an entry, saw one twice, or saw another segment's."""
        for space in self.spaces():
            other = self.stranger()
            self.put(space, "s", numbered(1, 3))

            def write() -> None:
                for number in range(4, 13):
                    writer = other if number % 2 else self.store  # noqa: B023
                    self.put(space, "t", [b"-"], writer)  # noqa: B023
                    self.put(space, "s", [b"%d" % number], writer)  # noqa: B023

            def read() -> list[bytes]:
                return _until(self.store.follow_segment(space, "s", after=1), 11)  # noqa: B023

            same(self.alongside(read, write), numbered(2, 12), "what a follower of a segment saw")

    def test_following_a_space_brings_history_and_news(self) -> None:
        """A follower of a space missed an entry, saw one twice, or saw them in another order than the space has."""
        for space in self.spaces():
            other = self.stranger()
            self.put(space, "s", numbered(1, 3))
            # Of a reading of the space: one of a segment alone knows no more than the time of what it is after.
            *_, start = self.store.consume_space(space)

            def write() -> None:
                for number in range(12):
                    self.put(space, f"s{number % 5}", [b"%d" % number], other if number % 2 else self.store)  # noqa: B023

            reader = self.stranger()

            def read() -> list[bytes]:
                return _until(reader.follow_space(space, offset=start.space_offset), 12)  # noqa: B023

            found = self.alongside(read, write)
            wanted = sorted(b"%d" % number for number in range(12))
            same(sorted(found), wanted, "what a follower of a space saw")

    def test_following_begins_before_there_is_anything(self) -> None:
        """A follower of a space or segment that did not exist yet never saw its first entry."""
        reader, waiting = self.stranger(), threading.Barrier(3)

        def write() -> None:
            waiting.wait(self.patience)
            self.put("space", "s", [b"1"])

        def of_segment() -> bytes:
            waiting.wait(self.patience)
            return next(self.store.follow_segment("space", "s")).payload

        def of_space() -> bytes:
            waiting.wait(self.patience)
            return next(reader.follow_space("space")).payload

        first, second, _ = together(of_segment, of_space, write, timeout=self.patience)
        same((first, second), (b"1", b"1"), "the first entry of what was not there")

    def test_following_several_spaces_brings_history_and_news_of_each(self) -> None:
        """A follower of several spaces missed an entry, saw one twice, or saw a space in another order than it has."""
        spaces = [*self.spaces(), "not there yet"]
        for space in spaces[:-1]:
            self.put(space, "s", numbered(1, 3))
        other = self.stranger()
        total = 9 * len(spaces) - 3

        def write() -> None:
            for number in range(4, 10):
                for space in spaces:
                    self.put(space, "s", [b"%d" % number], other if number % 2 else self.store)

        def read() -> list[Entry]:
            found: list[Entry] = []
            cursor: dict[str, LexKey | None] = dict.fromkeys(spaces)
            while len(found) < total:
                for entry in islice(self.store.follow(cursor), min(7, total - len(found))):  # and on from its cursor
                    found.append(entry)
                    cursor[entry.space] = entry.space_offset
            return found

        found = self.alongside(read, write)
        for space in spaces:
            wanted = numbered(1 if space in spaces[:-1] else 4, 9)
            same([entry.payload for entry in found if entry.space == space], wanted, f"what was seen of {space!r}")
        same(list(self.store.follow({})), [], "what a follower of no space saw")
        again = list(self.store.follow(dict.fromkeys(spaces), timeout=0))
        same(len(again), total, "the number of entries of a follower that does not wait")
        same(again, list(self.store.consume(dict.fromkeys(spaces))), "what a follower that does not wait saw")

    def test_following_ends_after_silence(self) -> None:
        """A follower with a timeout never ended, or ended before the real end."""
        for space in self.spaces():
            self.put(space, "s", numbered(1, 5))
            for timeout in (0, 0.05):
                found = [entry.payload for entry in self.store.follow_segment(space, "s", timeout=timeout)]
                same(found, numbered(1, 5), f"follow_segment with timeout={timeout}")
                found = [entry.payload for entry in self.store.follow_space(space, timeout=timeout)]
                same(found, numbered(1, 5), f"follow_space with timeout={timeout}")
                statuses = list(self.store.subscribe_to_segment(space, "s", timeout=timeout))
                same([status.last_sequence for status in statuses], [5], "subscribe_to_segment")
                statuses = list(self.store.subscribe_to_space(space, timeout=timeout))
                same([(status.segment, status.last_sequence) for status in statuses], [("s", 5)], "subscribe_to_space")

    def test_a_subscription_to_a_segment_tells_the_latest(self) -> None:
        """A subscriber of a segment was told nothing, something old, or the same twice, or never the last."""
        for space in self.spaces():
            other = self.stranger()

            def write() -> None:
                for number in range(1, 11):
                    self.put(space, "s", [b"%d" % number], other if number % 2 else self.store)  # noqa: B023

            def read() -> list[int]:
                told = []
                for status in self.store.subscribe_to_segment(space, "s"):  # noqa: B023
                    told.append(status.last_sequence)
                    if status.last_sequence == 10:
                        break
                return told

            told = self.alongside(read, write)
            same(told, sorted(set(told)), "the sequences that a subscriber was told")
            status = next(self.store.subscribe_to_segment(space, "s"))
            same(status, self.store.segment_status(space, "s"), "the first status that is told")

    def test_a_subscription_to_a_space_tells_the_latest_of_each(self) -> None:
        """A subscriber of a space missed a segment, was told something old, or never the last."""
        for space in self.spaces():
            self.put(space, "old", numbered(1, 3))
            reader = self.stranger()

            def write() -> None:
                for number in range(1, 31):
                    self.store.produce(space, f"s{number % 3}", [Record(b"%d" % number)])  # noqa: B023

            def read() -> dict[str, list[int]]:
                told: dict[str, list[int]] = {}
                for status in reader.subscribe_to_space(space):  # noqa: B023
                    told.setdefault(status.segment, []).append(status.last_sequence)
                    if all(told.get(name, [0])[-1] == 10 for name in ("s0", "s1", "s2")):
                        break
                return told

            told = self.alongside(read, write)
            same(sorted(told), ["old", "s0", "s1", "s2"], "the segments that a subscriber was told of")
            same(told["old"], [3], "what was told of a segment that did not change")
            for name, sequences in told.items():
                same(sequences, sorted(set(sequences)), f"the sequences that were told of {name!r}")

    def test_a_slow_subscriber_never_holds_up_a_writer(self) -> None:
        """A writer waited for a subscriber, or the subscriber was not told the latest when it came back."""
        subscription = self.store.subscribe_to_space("space")
        one = self.store.subscribe_to_segment("space", "s")
        self.put("space", "s", [b"1"])
        same(next(subscription).last_sequence, 1, "the first status of the space")
        same(next(one).last_sequence, 1, "the first status of the segment")
        for number in range(2, 101):
            self.put("space", "s", [b"%d" % number])
        same(next(one).last_sequence, 100, "the next status that a slow subscriber of the segment is told")
        status = next(subscription)
        hold(status.last_sequence == 100, f"a slow subscriber of the space is told {status.last_sequence}, not 100")


def _until(entries: Iterator[object], count: int) -> list[bytes]:
    return [next(entries).payload for _ in range(count)]  # type: ignore[attr-defined]
