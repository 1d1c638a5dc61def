"""Readers, followers, a Spark stream and an archiver go on while segments and the space are trimmed and erased: each
reader gets each remaining entry once, in order, and a report of all others if it asks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from streamkit import Client, EntriesRemoved, Entry, Gap, Record, Store
from streamkit.testing import ManualClock
from streamkit_memory import MemoryDriver

SEGMENTS = [f"s{number}" for number in range(4)]
SEEDS = range(40 if EXHAUSTIVE else 1)


class Reader:
    """The entries and gaps of one reader so far. `turn` reads a little, `finish` all."""

    told_all = False

    def __init__(self, store: Store) -> None:
        self.store = store
        self.read: list[tuple[str, int]] = []
        self.gaps: list[Gap] = []

    def take(self, one: Entry | Gap) -> None:
        if isinstance(one, Gap):
            self.gaps.append(one)
        else:
            self.read.append((one.segment, one.sequence))

    def turn(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        before = -1
        while before < len(self.read):
            before = len(self.read)
            for _ in range(20):
                self.turn()


class Pager(Reader):
    """Pages of a few entries, from the last one's offset."""

    def __init__(self, store: Store, gaps: Any) -> None:
        super().__init__(store)
        self.mode = gaps
        self.told_all = gaps == "yield"
        self.offset: Any = None

    def turn(self) -> None:
        try:
            self._page(self.mode)
        except EntriesRemoved as error:
            self.take(error.gap)
            self._page("skip")

    def _page(self, gaps: Any) -> None:
        for one in self.store.consume_space("a", offset=self.offset, limit=5, gaps=gaps):
            self.take(one)
            if isinstance(one, Entry):
                self.offset = one.space_offset


class Slow(Reader):
    """One iterator, which is in the middle of the space for long."""

    told_all = True

    def __init__(self, store: Store, open: Callable[[Any], Iterator[Any]]) -> None:
        super().__init__(store)
        self.open = open
        self.last: Any = None
        self.iterator: Iterator[Any] | None = None

    def turn(self) -> None:
        if self.iterator is None:
            self.iterator = self.open(self.last)
        for _ in range(3):
            one = next(self.iterator, None)
            if one is None:
                self.iterator = None
                return
            self.take(one)
            if isinstance(one, Entry):
                self.last = one


class Stream(Reader):
    """The stream of Spark, told to go on where entries are gone."""

    def __init__(self, store: Store, url: str) -> None:
        super().__init__(store)
        from streamkit.spark.options import parse
        from streamkit.spark.stream import StreamReader

        given = {"url": url, "store": str(store.id), "space": "a", "failOnDataLoss": "false"}
        self.source = StreamReader(parse(given))
        self.at = self._noted(self.source.initialOffset())

    @staticmethod
    def _noted(offset: Any) -> Any:
        return json.loads(json.dumps(offset))

    def turn(self) -> None:
        from pyspark.sql.streaming.datasource import ReadMaxRows

        end = self._noted(self.source.latestOffset(self.at, ReadMaxRows(7)))
        for task in self.source.partitions(self.at, end):
            for batch in self.source.read(task):
                self.read += zip(batch["segment"].to_pylist(), batch["sequence"].to_pylist(), strict=True)
        self.at = end


class World:
    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.dice = random.Random(seed)
        self.numbers: dict[tuple[str, int], int] = {}
        """The transaction of each entry."""
        self.removals = 0

    def write(self) -> None:
        with self.store.transaction("a") as trx:
            for segment in self.dice.sample(SEGMENTS, self.dice.randint(1, 3)):
                trx.produce(segment, [Record(b"x" * self.dice.choice((3, 3000)))] * self.dice.randint(1, 3))
        for segment, status in trx.statuses.items():
            assert trx.trx is not None
            for sequence in range(1, status.last_sequence + 1):
                self.numbers.setdefault((segment, sequence), trx.trx.number)

    def remove(self) -> None:
        segment, dice, store = self.dice.choice(SEGMENTS), self.dice, self.store
        last = store.segment_status("a", segment).last_sequence
        what = dice.randrange(4)
        if what == 0:
            self.removals += store.trim("a", segment, keep_entries=dice.randint(3, 9)).entries
        elif what == 1:
            entries = list(store.consume_space("a"))
            if len(entries) > 12:
                self.removals += store.trim("a", before=entries[dice.randrange(len(entries) // 2)].space_offset).entries
        elif last:
            first = dice.randint(1, last)
            self.removals += store.erase("a", segment, first=first, last=min(last, first + 2)).entries

    def archive(self) -> None:
        self.store.archive("a", target_file_bytes=2000)
        if self.dice.random() < 0.3:
            self.store.compact("a")

    def check(self, name: str, reader: Reader) -> None:
        assert len(reader.read) == len(set(reader.read)), f"{name} was given some twice"
        for segment in SEGMENTS:
            own = [sequence for found, sequence in reader.read if found == segment]
            assert own == sorted(own), f"{name} was given {segment} in another order"
        only = ["s0"] if name == "a segment's follower" else SEGMENTS
        left = {(entry.segment, entry.sequence) for entry in self.store.consume_space("a")}
        wanted = {place for place in left if place[0] in only}
        assert wanted <= set(reader.read), f"{name} was not given {sorted(wanted - set(reader.read))}"
        if reader.told_all:
            places = {place: number for place, number in self.numbers.items() if place[0] in only}
            silent = {
                place: number
                for place, number in places.items()
                if place not in reader.read and not self._is_told(reader.gaps, place)
            }
            assert not silent, f"{name} was not told of {silent}, but of {reader.gaps}"

    def _is_told(self, gaps: list[Gap], place: tuple[str, int]) -> bool:
        segment, sequence = place
        number = self.numbers[place]
        return any(
            one.first_sequence <= (sequence if one.segment else number) <= one.last_sequence
            for one in gaps
            if one.segment in ("", segment)
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_every_reader_gets_what_stays_once_and_is_told_of_the_rest(
    seed: int, tmp_path: Path, covered: Callable[[str, int], None]
) -> None:
    pytest.importorskip("deltalake")
    pytest.importorskip("pyspark")
    url = f"file://{tmp_path / 'store'}"
    with streamkit.connect(url) as client, streamkit.connect(url) as elsewhere:
        store = client.store(uuid4())
        store.create_space("a", archive_grace=0.001)
        reading = elsewhere.store(store.id)
        world = World(store, seed)
        for _ in range(3):
            world.write()

        def space(last: Entry | None) -> Iterator[Any]:
            return reading.consume_space("a", offset=last and last.space_offset, gaps="yield")

        def follower(last: Entry | None) -> Iterator[Any]:
            return reading.follow_space("a", offset=last and last.space_offset, timeout=0, gaps="yield")

        def segment(last: Entry | None) -> Iterator[Any]:
            return reading.follow_segment("a", "s0", after=last.sequence if last else 0, timeout=0, gaps="yield")

        readers: dict[str, Reader] = {
            "a pager that is stopped": Pager(reading, "raise"),
            "a pager that skips": Pager(reading, "skip"),
            "a pager that is told": Pager(reading, "yield"),
            "a slow reader": Slow(reading, space),
            "a follower": Slow(reading, follower),
            "a segment's follower": Slow(reading, segment),
            "a Spark stream": Stream(reading, url),
        }
        for reader in readers.values():
            reader.turn()
        steps: list[tuple[int, Callable[[], None]]] = [
            (4, world.write),
            (3, world.remove),
            (1, world.archive),
            (1, store.maintain),
            *((2, reader.turn) for reader in readers.values()),
        ]
        weights, works = zip(*steps, strict=True)
        steps_made = 0
        while steps_made < 120 or world.removals <= 20:  # some seeds remove little at first
            world.dice.choices(works, weights)[0]()
            steps_made += 1
        for name, reader in readers.items():
            reader.finish()
            world.check(name, reader)
        covered("entries that were removed beside readers of all kinds", world.removals)


@pytest.mark.parametrize("per", ["space", "segment"])
@pytest.mark.parametrize("remote", [False, True])
def test_upkeep_makes_expiry_final_also_if_the_clock_is_set_back(per: Any, remote: bool) -> None:
    name, id = uuid4().hex, uuid4()

    def at(hours: int) -> Store:
        clock = ManualClock(1_800_000_000.0 + hours * 3600)
        driver = MemoryDriver(name, remote=remote, clock=clock, sleep=clock.sleep)
        return Client("memory://", driver, 30.0, None, 64 << 20, clock, None).store(id)

    for number in range(3):
        at(0).produce("a", f"s{number % 2}", [Record(b"%d" % number)])
    at(0).set_retention("a", streamkit.Retention(max_age=3600.0, per=per))
    at(2).produce("a", "s0", [Record(b"new")])
    assert [entry.payload for entry in at(2).consume_space("a")] == [b"new"]
    assert len(list(at(0).consume_space("a"))) == 4
    at(2).maintain()
    assert [entry.payload for entry in at(0).consume_space("a")] == [b"new"]
    assert list(at(0).consume_segment("a", "s1")) == []
