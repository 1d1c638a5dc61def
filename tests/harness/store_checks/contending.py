"""Many writers and readers at once, in threads: half of them share one store, the others have their own."""

from __future__ import annotations

import threading
from functools import partial

from streamkit.errors import SequenceMismatch
from streamkit.model import Entry, Record
from streamkit.store import Store
from streamkit.testing.backend_checks.subject import hold, same, together

from .subject import StoreSubject, numbered

__all__ = ["Contending"]

THREADS = 8


class Contending(StoreSubject):
    def runners(self) -> list[Store]:
        return [self.store] * (THREADS // 2) + [self.stranger() for _ in range(THREADS // 2)]

    def test_exactly_one_of_many_producers_wins(self) -> None:
        """Several producers with one expectation were all told that they had won, or none was."""
        for space in self.spaces():
            runners = self.runners()
            for turn in range(self.rounds):

                def attempt(at: int, turn: int = turn, space: str = space, runners: list[Store] = runners) -> bool:
                    record = Record(b"%d" % at)
                    try:
                        runners[at].produce(space, "s", [record, record], expected_sequence=2 * turn)
                        return True
                    except SequenceMismatch as error:
                        same((error.expected, error.actual), (2 * turn, 2 * turn + 2), "expected and actual")
                        return False

                won = together(*(partial(attempt, at) for at in range(THREADS)), timeout=self.patience)
                same(won.count(True), 1, f"winners of {THREADS} producers with one expectation")
                same(self.payloads(space, "s")[-2:], [b"%d" % won.index(True)] * 2, "the winner's entries")
            same(len(self.agree(space)), 2 * self.rounds, "the entries after all rounds")

    def test_concurrent_producers_lose_nothing(self) -> None:
        """An acknowledged entry was lost, doubled or misplaced among those of other writers."""
        for space in self.spaces():
            runners = self.runners()

            def work(at: int, space: str = space, runners: list[Store] = runners) -> list[tuple[str, int, bytes]]:
                done = []
                for turn in range(self.rounds):
                    segment = f"own {at}" if turn % 2 else "shared"
                    payloads = [b"%d.%d.%d" % (at, turn, part) for part in range(1 + turn % 3)]
                    status = runners[at].produce(space, segment, [Record(payload) for payload in payloads])
                    first = status.last_sequence - len(payloads) + 1
                    done += [(segment, first + part, payload) for part, payload in enumerate(payloads)]
                return done

            done = together(*(partial(work, at) for at in range(THREADS)), timeout=self.patience)
            wanted = sorted(item for part in done for item in part)
            entries = self.agree(space)
            found = sorted((entry.segment, entry.sequence, entry.payload) for entry in entries)
            same(found, wanted, "the entries, against what was acknowledged")
            if space == "one partition":
                self.check_log(entries)
            same(self.agree(space, self.stranger()), entries, "what a stranger reads")

    def test_a_neighbours_mismatch_is_not_ones_own(self) -> None:
        """A producer was refused because another one, which wrote at the same time, was refused."""

        def right(at: int) -> None:
            for number in range(self.rounds):
                self.store.produce("space", f"s{at}", [Record(b"x")], expected_sequence=number)

        def wrong() -> None:
            refused = 0
            for _ in range(self.rounds):
                try:
                    self.store.produce("space", "s0", [Record(b"x")], expected_sequence=1 << 40)
                except SequenceMismatch:
                    refused += 1
            same(refused, self.rounds, "refusals of an expectation that never holds")

        together(*(partial(right, at) for at in range(THREADS - 1)), wrong, timeout=self.patience)
        same(len(self.agree("space")), self.rounds * (THREADS - 1), "the entries")

    def test_a_reader_never_sees_part_of_a_transaction(self) -> None:
        """A reader saw some segments of a transaction with its entries and others without."""
        for space in self.spaces():
            segments = [f"{{t}}{at}" for at in range(4)]
            ended = threading.Event()
            reader = self.stranger()

            def write(space: str = space, ended: threading.Event = ended, segments: list[str] = segments) -> None:
                try:
                    for turn in range(self.rounds * 3):
                        with self.store.transaction(space) as trx:
                            for segment in segments:
                                trx.produce(segment, [Record(b"%d" % turn)])
                finally:
                    ended.set()

            def by_space(space: str = space, ended: threading.Event = ended, reader: Store = reader) -> None:
                while True:
                    last = ended.is_set()
                    entries = list(reader.consume_space(space))
                    same(len(entries) % 4, 0, "entries beyond whole transactions")
                    self.whole(entries)
                    if last:
                        return

            def by_segment(space: str = space, ended: threading.Event = ended, segments: list[str] = segments) -> None:
                while True:
                    last, before = ended.is_set(), 0
                    for segment in segments:
                        sequence = self.store.peek(space, segment).sequence
                        hold(sequence >= before, f"{segment} is at {sequence}, one that was read earlier at {before}")
                        before = sequence
                    if last:
                        same(before, self.rounds * 3, "the last sequence")
                        return

            together(write, by_space, by_segment, timeout=self.patience)
            same(len(self.agree(space)), self.rounds * 3 * 4, "the entries")

    def whole(self, entries: list[Entry]) -> None:
        parts: dict[int, list[Entry]] = {}
        for entry in entries:
            parts.setdefault(entry.trx.number, []).append(entry)
        for number, part in parts.items():
            same(len({entry.segment for entry in part}), 4, f"the segments of transaction {number}")
            same(len({entry.payload for entry in part}), 1, f"the payloads of transaction {number}")

    def test_paging_while_others_write_misses_nothing(self) -> None:
        """A reader that paged by offset while others wrote missed an entry, saw one twice, or out of order."""
        for space in self.spaces():
            runners = self.runners()[2:6]
            ended = threading.Event()

            def write(at: int, space: str = space, runners: list[Store] = runners) -> None:
                for turn in range(self.rounds * 2):
                    self.put(space, f"{at}.{turn % 3}", numbered(turn, turn + turn % 3), runners[at])

            def write_all(ended: threading.Event = ended) -> None:
                try:
                    together(*(partial(write, at) for at in range(4)), timeout=self.patience)
                finally:
                    ended.set()

            def read(store: Store, space: str = space, ended: threading.Event = ended) -> list[Entry]:
                found: list[Entry] = []
                while True:
                    last = ended.is_set()
                    offset = found[-1].space_offset if found else None
                    page = list(store.consume_space(space, offset=offset, limit=8))
                    found += page
                    if last and not page:
                        return found

            _, *readings = together(
                write_all, partial(read, self.store), partial(read, self.stranger()), timeout=2 * self.patience
            )
            entries = self.agree(space)
            wanted = sorted((entry.segment, entry.sequence) for entry in entries)
            for reading in readings:
                same(sorted((entry.segment, entry.sequence) for entry in reading or ()), wanted, "what a reader saw")
                last: dict[str, int] = {}
                for entry in reading or ():
                    same(entry.sequence, last.get(entry.segment, 0) + 1, f"the next sequence of {entry.segment!r}")
                    last[entry.segment] = entry.sequence
