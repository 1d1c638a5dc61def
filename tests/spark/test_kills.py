"""Jobs and streams that are killed with SIGKILL, JVM and workers and all, and run again: the result is right."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_spark import SPACE, Doomed, entries_of, fill

import streamkit
from harness import spark_stream
from streamkit import Record, Store

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

import rollup

from streamkit.spark.jobs import archive, compact, restore, verify

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KILLS = 8 if EXHAUSTIVE else 1
one_of_many = pytest.mark.skipif(not EXHAUSTIVE, reason="a sample kills one of them; STREAMKIT_EXHAUSTIVE=1 kills each")
Doom = Callable[..., Doomed]
Covered = Callable[[str, int], None]


class World:
    """One root on disk, and one store with several spaces in it."""

    def __init__(self, path: Path) -> None:
        self.path = path / "stores"
        self.url = self.path.as_uri()
        self.spaces = [f"{SPACE} {at}" for at in range(4)]
        self.client = streamkit.connect(self.url)
        self.store = self.client.store(uuid4())
        for at, space in enumerate(self.spaces):
            self.store.create_space(space, 1 + at % 2)
            fill(self.store, 60, space=space)

    def job(self, name: str, *more: str) -> list[str]:
        program = [str(rollup.__file__)] if name == "rollup" else ["-m", f"streamkit.spark.jobs.{name}"]
        return [*program, *self.arguments(*more)]

    def arguments(self, *more: str) -> list[str]:
        return ["--url", self.url, "--store", str(self.store.id), *more]

    def look(self, store: UUID | None = None) -> list[Any]:
        """The entries of the space as a new process reads them, without the tiers."""
        with streamkit.connect(self.url) as client:
            found = client.store(store or self.store.id)
            return [[row[:-1] for row in entries_of(found, space)] for space in self.spaces]

    def cold(self) -> list[Any]:
        """The rows of the tables, one table after the other."""
        from deltalake import DeltaTable

        found = []
        for space in self.spaces:
            rows = DeltaTable(self.store._archive(space).table.url).to_pyarrow_table()
            found.append(sorted(zip(rows["segment"].to_pylist(), rows["sequence"].to_pylist(), strict=True)))
        return found

    def files(self, pattern: str) -> int:
        return sum(1 for _ in self.path.glob(pattern))

    def close(self) -> None:
        self.client.close()


@pytest.fixture
def world(tmp_path: Path) -> Any:
    found = World(tmp_path)
    yield found
    found.close()


def kill_midway(doomed: Doom, arguments: list[str], begun: Callable[[str], bool], covered: Covered, seed: int) -> None:
    """Kill it `begun` and a random while later; once it ran to its end, there is nothing left to kill."""
    chance = random.Random(seed)
    for _ in range(KILLS):
        job = doomed(*arguments)
        if job.wait_until(lambda job=job: begun(job.said())):
            time.sleep(chance.choice([0, 0, 0.05, 0.2, 0.5, 1.0]))
        if not job.kill():
            return
        covered("killed Spark jobs", 1)


def test_an_archive_job_that_is_killed_goes_on(spark: Any, world: World, doomed: Doom, covered: Covered) -> None:
    before = world.look()
    small = ["--target-file-bytes", "1000"]
    kill_midway(
        doomed,
        world.job("archive", *small),
        lambda said: world.files("archive/*/*/*.parquet") > 3,
        covered,
        1,
    )
    assert world.look() == before
    assert archive.job(world.arguments(*small)) == 0
    assert world.look() == before
    assert world.cold() == [sorted(row[:2] for row in rows) for rows in before]
    assert verify.job(world.arguments()) == 0


@one_of_many
def test_a_compact_job_that_is_killed_goes_on(spark: Any, world: World, doomed: Doom, covered: Covered) -> None:
    for space in world.spaces:
        world.store.archive(space, target_file_bytes=1000)
    before, cold, many = world.look(), world.cold(), world.files("archive/*/*/*.parquet")
    kill_midway(
        doomed,
        world.job("compact", "--retention-hours", "0"),
        lambda said: world.files("archive/*/*/*.parquet") != many,
        covered,
        2,
    )
    assert world.look() == before
    assert world.cold() == cold
    assert compact.job(world.arguments("--retention-hours", "0")) == 0
    assert world.look() == before
    assert world.cold() == cold
    assert sum(len(world.store._archive(space).table.snapshot().files) for space in world.spaces) == 6  # type: ignore[union-attr]


@one_of_many
def test_a_verify_job_that_is_killed_changes_nothing(spark: Any, world: World, doomed: Doom, covered: Covered) -> None:
    for space in world.spaces[:2]:
        world.store.archive(space)
    before = world.look()
    kill_midway(doomed, world.job("verify"), lambda said: "checking" in said, covered, 3)
    assert world.look() == before
    assert verify.job(world.arguments()) == 0


@one_of_many
def test_a_rollup_that_is_killed_counts_each_entry_once(
    spark: Any, world: World, doomed: Doom, covered: Covered, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    output = tmp_path / "rollup"
    arguments = ["--output", str(output), "--sql", "SELECT space, segment, count(*) AS n FROM entries GROUP BY ALL"]
    assert rollup.job(world.arguments(*arguments)) == 0
    for space in world.spaces:
        fill(world.store, 20, start=60, space=space)
    began = len(list(output.glob("**/*")))
    kill_midway(
        doomed,
        world.job("rollup", *arguments),
        lambda said: len(list(output.glob("**/*"))) != began,
        covered,
        4,
    )
    assert rollup.job(world.arguments(*arguments)) == 0
    counted: Counter[tuple[str, str]] = Counter()
    for row in DeltaTable(str(output)).to_pyarrow_table().to_pylist():
        counted[row["space"], row["segment"]] += row["n"]
    wanted: Counter[tuple[str, str]] = Counter()
    for space, rows in zip(world.spaces, world.look(), strict=True):
        wanted.update((space, row[0]) for row in rows)
    assert counted == wanted


@one_of_many
def test_a_restore_that_is_killed_goes_on(spark: Any, world: World, doomed: Doom, covered: Covered) -> None:
    for space in world.spaces[:2]:
        world.store.archive(space)
    into = uuid4()
    kill_midway(
        doomed,
        world.job("restore", "--into", str(into)),
        lambda said: (world.path / str(into)).exists(),
        covered,
        5,
    )
    assert restore.job(world.arguments("--into", str(into))) == 0
    assert [[row[:4] for row in rows] for rows in world.look(into)] == [
        [row[:4] for row in rows] for rows in world.look()
    ]


# -- streams ---------------------------------------------------------------------------------------------------------

ROWS = 10_000
ROUNDS = 50
AHEAD = 4
"""Batches that wait when a stream is started."""


def grow(store: Store, rows: int, start: int) -> None:
    """`rows` more entries in transactions of 1,000, of 20 segments."""
    for begin in range(start, start + rows, 1000):
        with store.transaction(spark_stream.SPACE) as trx:
            for segment in range(20):
                numbers = range(begin + segment, begin + 1000, 20)
                trx.produce(f"s{segment}", [Record(b'{"at":%d}' % number) for number in numbers])


def planned(checkpoint: Path) -> int:
    """The batches that were begun so far."""
    return sum(1 for _ in checkpoint.glob("offsets/[0-9]*"))


def once_each(source: Store, copy: Store) -> int:
    """Check that every entry is there once, each segment in its order. Returns their number."""
    count = 0
    segments = sorted(source.get_segments(spark_stream.SPACE))
    assert sorted(copy.get_segments(spark_stream.OUT)) == segments
    for segment in segments:
        wanted = [entry.payload for entry in source.consume_segment(spark_stream.SPACE, segment)]
        found = [entry.payload for entry in copy.consume_segment(spark_stream.OUT, segment)]
        assert found == wanted, f"{segment}: {len(found)} instead of {len(wanted)}"
        count += len(found)
    return count


@one_of_many
def test_a_stream_that_is_killed_again_and_again_writes_every_row_once(
    doomed: Doom, tmp_path: Path, covered: Covered
) -> None:
    """Some kills end all processes, most end the workers. The query then begins at its checkpoint again."""
    killed = kill_streams(doomed, tmp_path, ROUNDS, int(os.environ.get("STREAMKIT_SEED", "7")))
    for name, count in killed.items():
        covered(name, count)


def kill_streams(doomed: Doom, path: Path, kills: int, seed: int) -> Counter[str]:
    chance = random.Random(seed)
    url, source, into, checkpoint = (path / "stores").as_uri(), uuid4(), uuid4(), path / "checkpoint"
    arguments = [spark_stream.__file__ or "", url, str(source), str(into), str(checkpoint), str(ROWS)]
    killed: Counter[str] = Counter()
    sizes: list[int] = []
    query: Doomed | None = None
    with streamkit.connect(url) as client:
        store, copy = client.store(source), client.store(into)
        rows = 0
        while killed.total() < kills:
            # Enough for the one that is killed to be in the middle of something.
            more = (planned(checkpoint) + AHEAD) * ROWS - rows
            grow(store, more, rows)
            rows += more
            if killed.total() % 3 == 1:
                store.archive(spark_stream.SPACE)
            if query is None or query.process.poll() is not None:
                query = doomed(*arguments)
            enough = planned(checkpoint) + chance.randrange(1, 3)
            if not query.wait_until(lambda enough=enough: planned(checkpoint) >= enough):  # type: ignore[misc]
                sizes += told(query)
                query = None
                continue
            time.sleep(chance.choice([0, 0, 0.1, 0.3, 0.6]))
            if killed.total() % 5 == 0:
                killed["killed streams, JVM and all"] += query.kill()
                sizes += told(query)
                query = None
            else:
                killed["killed streams, their workers"] += query.kill_workers() > 0
        if query is not None and query.process.poll() is None:
            query.wait_until(lambda: query.process.poll() is not None)
            sizes += told(query)
        query = doomed(*arguments)
        assert query.wait_until(lambda: "ended" in query.said())
        assert query.process.wait() == 0
        sizes += told(query)
        assert once_each(store, copy) == rows
    assert max(sizes) <= ROWS
    return killed


def told(query: Doomed) -> list[int]:
    """The rows of each batch that it told of."""
    assert "Traceback" not in query.said(), query.said()
    return [json.loads(line)["rows"] for line in query.said().splitlines() if line.startswith("{")]
