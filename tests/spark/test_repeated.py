"""Streams, frames that are written and frames that are read, ended at any place and begun again, without a JVM: rounds
are cheap, so there are many. What Spark does is done here in its place: it notes offsets, cuts rows into tasks, runs
them in any order, loses some, and repeats what was not noted as done. Others write, archive and compact meanwhile."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fix_covered import EXHAUSTIVE

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadMaxRows

from harness.spark_world import FRAME, FRAMES, OUT, SOURCE, World
from streamkit.spark import rows, sink
from streamkit.spark.options import parse
from streamkit.spark.source import StreamkitSource
from streamkit.spark.stream import StreamReader

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(0)]

ENDS = int(os.environ.get("STREAMKIT_SPARK_ENDS", "1000" if EXHAUSTIVE else "35"))
ENDS_S3 = int(os.environ.get("STREAMKIT_SPARK_ENDS", "100" if EXHAUSTIVE else "3"))


class Ended(Exception):
    """The process is no more."""


class Spark:
    """The part of Spark that matters here."""

    def __init__(self, world: World) -> None:
        self.world, self.chance = world, world.chance
        self.ended: Counter[str] = Counter()
        self.noted: list[Any] = []
        """The offsets of a stream, as in its checkpoint."""
        self.light(calm=True)
        self.done = 0
        """The batches that are noted as done."""

    def write(self, batches: Iterator[pa.RecordBatch], space: str, name: str, task: int, what: str) -> None:
        """A task of a sink. With luck it ends in the middle: before or after any of its transactions."""
        given = {"url": self.world.url, "store": str(self.world.into.id), "space": space}
        if space == OUT:
            given["order"] = "sequence"
        writer = sink._Writer.__new__(sink._Writer)
        writer.options = parse(given, writing=True)
        cut = sink._Transactions.cut

        def until_it_ends(transactions: Any, runs: Any) -> Any:
            for gathered in cut(transactions, runs):
                self._burn(what)
                yield gathered
            self._burn(what)  # all is written, and the answer is lost

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sink._Transactions, "cut", until_it_ends)
            patch.setattr(sink, "_ROWS", 150)
            writer._write(batches, name, task)

    def light(self, calm: bool) -> None:
        """Choose the number of steps after which a round ends. `calm`: let all rounds come to their ends."""
        self.calm = calm
        self.fuse = 10**9 if calm else self.chance.choice((0, 1, 2, 3, 5, 8, 13, 21, 10**9, 10**9))

    def _burn(self, what: str) -> None:
        self.fuse -= 1
        if self.fuse < 0:
            self.ended[what] += 1
            raise Ended

    def options(self, **more: str) -> dict[str, str]:
        return {"url": self.world.url, "store": str(self.world.source.id), "space": SOURCE, **more}

    def stream(self, *, to_the_end: bool = False) -> None:
        """A batch: the one that was noted and is not done, or a new one."""
        self.light(to_the_end)
        split = self.chance.choice(("20", "100", "100000"))
        reader = StreamReader(parse(self.options(segmentSplit=split, columns="segment,payload,sequence")))
        try:
            if not self.noted:
                self.noted.append(_kept(reader.initialOffset()))
            if self.done == len(self.noted) - 1:
                limit = ReadMaxRows(10**9 if to_the_end else self.chance.choice((50, 400, 5000)))
                self.noted.append(_kept(reader.latestOffset(self.noted[-1], limit)))
            start, end = self.noted[self.done], self.noted[self.done + 1]
            tasks = list(enumerate(reader.partitions(start, end)))
            self.chance.shuffle(tasks)
            for number, task in tasks:
                if self.chance.random() < 0.2 and not self.calm:
                    self.beside()
                self.write(iter(reader.read(task)), OUT, f"query/{self.done}", number, "stream")
            self.done += 1
        finally:
            reader.stop()

    def sink(self, *, to_the_end: bool = False) -> None:
        """A frame as `write_space` makes it: buckets, sorted, in any number of tasks."""
        world, tasks = self.world, self.chance.choice((1, 3, 7, 16))
        if not world.frames or not to_the_end:
            world.frames.append(f"frame-{len(world.frames)}")
        name = world.frames[-1]
        numbers = sorted(range(FRAME), key=lambda n: (n % 40 % 16, f"w{n % 40}", n))
        table = pa.table(
            {
                "segment": [f"w{n % 40}" for n in numbers],
                "payload": [f"{name}-{n}" for n in numbers],
                "streamkit_bucket": [n % 40 % 16 for n in numbers],
            }
        )
        while True:
            self.light(to_the_end)
            try:
                for task in self.chance.sample(range(tasks), tasks):
                    own = table.filter(
                        pa.array([each % tasks == task for each in table["streamkit_bucket"].to_pylist()])
                    )
                    batches = own.to_batches(max_chunksize=self.chance.choice((7, 100, 10_000)))
                    self.write(iter(batches), FRAMES, name, task, "sink")
                return
            except Ended:
                to_the_end = to_the_end or self.chance.random() < 0.3
                tasks = self.chance.choice((1, 3, 7, 16))
                if self.chance.random() < 0.5:
                    self.beside()

    def batch(self) -> None:
        """A frame up to an offset, planned before others archive and compact, and read after."""
        until, wanted = self.world.end()
        options = self.options(until=until, segmentSplit=self.chance.choice(("50", "100000")))
        reader = StreamkitSource(options).reader(None)  # type: ignore[arg-type]
        tasks = list(reader.partitions())
        self.beside()
        count = 0
        for task in tasks:
            if self.chance.random() < 0.1:
                rows._forget(parse(options))
            count += sum(batch.num_rows for batch in reader.read(task))
        assert count == wanted[2]
        self.ended["batch (read to its end)"] += 1

    def beside(self) -> None:
        world = self.world
        match self.chance.randrange(4):
            case 0 | 1:
                world.write(self.chance.randrange(12))
            case 2:
                for _ in range(2):
                    world._archives()
            case _:
                world.source.archive(SOURCE, target_file_bytes=1000)
                world.source.compact(SOURCE)
                world.done["compactions"] += 1


def _kept(offset: Any) -> Any:
    return json.loads(json.dumps(offset))


def repeat(world: World, ends: int) -> Counter[str]:
    spark = Spark(world)
    world.write(30)
    while spark.ended.total() < ends:
        work = spark.chance.choice((spark.stream, spark.stream, spark.sink, spark.batch))
        with suppress(Ended):
            work()
        spark.beside()
    while not spark.noted or _numbers(spark.noted[spark.done]) != _end(world):
        before = spark.done
        spark.stream(to_the_end=True)
        assert spark.done > before
    spark.sink(to_the_end=True)
    spark.batch()
    # The last one has written more.
    while _numbers(spark.noted[spark.done]) != _end(world):
        spark.stream(to_the_end=True)
    world.check_copies()
    return spark.ended + world.done


def _numbers(offset: Any) -> list[int]:
    (space,) = offset["spaces"].values()
    return [number if isinstance(number, int) else number[0] for number in space["read"]]


def _end(world: World) -> list[int]:
    reader = StreamReader(parse({"url": world.url, "store": str(world.source.id), "space": SOURCE, "from": "latest"}))
    try:
        return _numbers(reader.initialOffset())
    finally:
        reader.stop()


@pytest.mark.parametrize("seed", range(5 if EXHAUSTIVE else 1))
def test_whatever_ends_in_the_middle_is_repeated_to_the_same(
    tmp_path: Path, covered: Callable[[str, int], None], seed: int
) -> None:
    world = World((tmp_path / "stores").as_uri(), tmp_path, seed, 0.0)
    try:
        for name, count in repeat(world, ENDS).items():
            covered(f"repeated without a JVM: {name}", count)
    finally:
        world.close()


@pytest.mark.s3
def test_whatever_ends_in_the_middle_is_repeated_to_the_same_on_s3(
    tmp_path: Path, covered: Callable[[str, int], None], s3_bucket: Any
) -> None:
    world = World(s3_bucket.url("repeated"), tmp_path, 1, 0.0)
    try:
        for name, count in repeat(world, ENDS_S3).items():
            covered(f"repeated without a JVM, on S3: {name}", count)
    finally:
        world.close()
