"""Removed entries are in no answer: every question, after every kind of removal, through every door.

The readers of the store are the oracle. Most doors need no JVM: Spark calls their planner and their reader, and so does
this. A few questions go through Spark itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count, product
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE, sample
from fix_spark import patiently

import streamkit
from harness.removals import REMOVALS, SPACE, RemovalWorld
from streamkit import Entry

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from deltalake import DeltaTable
from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import ReadAllAvailable
from rollup import roll_up

from streamkit.errors import CorruptData, StoreClosed
from streamkit.spark import read_space, rows
from streamkit.spark.options import Options, parse
from streamkit.spark.plan import spans
from streamkit.spark.source import StreamkitSource
from streamkit.spark.stream import StreamReader

pytestmark = pytest.mark.spark

Row = tuple[str, int, bytes, str]
COLUMNS = ["segment", "sequence", "payload", "tier"]
PARTITIONS = (1, 4, 64)


class Question(NamedTuple):
    options: dict[str, str]
    keeps: Callable[[Entry], bool]


def questions(world: RemovalWorld, entries: list[Entry]) -> dict[str, Question]:
    """Questions to the source, and the entries that the answers hold."""
    one, other, third = world.segments[:3]
    middle = entries[len(entries) // 2].timestamp if entries else 0
    return {
        "all": Question({}, lambda entry: True),
        "a segment": Question({"segment": one}, lambda entry: entry.segment == one),
        "segments": Question({"segments": json.dumps([other, third])}, lambda entry: entry.segment in (other, third)),
        "the first sequences": Question({"maxSequence": "3"}, lambda entry: entry.sequence <= 3),
        "the later sequences": Question({"minSequence": "4"}, lambda entry: entry.sequence >= 4),
        "from a time": Question({"from": str(middle)}, lambda entry: entry.timestamp >= middle),
        "until a time": Question({"until": str(max(1, middle))}, lambda entry: entry.timestamp <= middle),
        "cold": Question({"tier": "cold"}, lambda entry: entry.tier == "cold"),
        "hot": Question({"tier": "hot"}, lambda entry: entry.tier == "hot"),
        "small tasks": Question({"segmentSplit": "5"}, lambda entry: True),
    }


def as_rows(entries: list[Entry]) -> list[Row]:
    return sorted((entry.segment, entry.sequence, entry.payload, entry.tier) for entry in entries)


def collected(batches: Iterator[Any]) -> list[Row]:
    found = []
    for batch in batches:
        found += [tuple(row[name] for name in COLUMNS) for row in batch.to_pylist()]
    return sorted(found)  # type: ignore[type-var]


class Doors:
    """The ways to read a space, without a JVM. One of them lives through the whole story, others are new each time."""

    def __init__(self, world: RemovalWorld, options: dict[str, str]) -> None:
        self.world, self._given = world, options
        self._clients: dict[Any, Any] = {}
        """The clients of the workers of a long session."""
        self._arrow = streamkit.connect(world.url)
        self._streams: dict[str, tuple[StreamReader, dict[str, Any]]] = {}

    def close(self) -> None:
        for client in [*self._clients.values(), self._arrow]:
            client.close()
        for stream, _ in self._streams.values():
            stream.stop()

    def ask(self, question: Question, fresh: bool) -> dict[str, list[Row]]:
        """The answer of each door that takes the question."""
        given = {**self._given, **question.options, "columns": ",".join(COLUMNS)}
        with pytest.MonkeyPatch.context() as patch:
            clients: dict[Any, Any] = {} if fresh else self._clients
            patch.setattr(rows, "_clients", clients)
            try:
                found = {"source": self._source(given), "planned before": self._planned(given)}
                if not {"tier", "until"} & question.options.keys():
                    found["stream"] = self._stream(given, fresh)
                # A client that was there before the archiver's last run may take an entry for hot.
                if not question.options or (fresh and "tier" in question.options):
                    found["to_arrow"] = self._to_arrow(question.options.get("tier", "all"), fresh)
            finally:
                if fresh:
                    for client in clients.values():
                        client.close()
        return found

    def _source(self, given: dict[str, str]) -> list[Row]:
        reader = StreamkitSource(given).reader(None)  # type: ignore[arg-type]
        return collected(batch for task in reader.partitions() for batch in reader.read(task))

    def _planned(self, given: dict[str, str]) -> list[Row]:
        """Plan as read_space and a roll-up do: take the look first, and give it to the source."""
        options: Options = parse(given)
        with options.client() as client:
            pinned = json.dumps([[str(span.store), *span[1:]] for span in spans(client, options)])
        return self._source({**given, "snapshot": pinned})

    def _stream(self, given: dict[str, str], fresh: bool) -> list[Row]:
        reader, start = self._begun(given, fresh)
        try:
            end = reader.latestOffset(start, ReadAllAvailable())
            return collected(batch for task in reader.partitions(start, end) for batch in reader.read(task))
        finally:
            if fresh:
                reader.stop()

    def _begun(self, given: dict[str, str], fresh: bool) -> tuple[StreamReader, dict[str, Any]]:
        """A query that begins now, or one that has run for long, with its first offset."""
        found = None if fresh else self._streams.get(json.dumps(given))
        if found is None:
            reader = StreamReader(parse({**given, "failOnDataLoss": "false"}))
            found = reader, reader.initialOffset()
        if not fresh:
            self._streams[json.dumps(given)] = found
        return found

    def _to_arrow(self, tier: Any, fresh: bool) -> list[Row]:
        if fresh:
            with streamkit.connect(self.world.url) as client:
                return collected(client.store(self.world.store.id).to_arrow(SPACE, columns=COLUMNS, tier=tier))
        try:
            return collected(self._arrow.store(self.world.store.id).to_arrow(SPACE, columns=COLUMNS, tier=tier))
        except (StoreClosed, CorruptData):
            # A handle is told once that its space was deleted. The next one begins anew.
            return collected(self._arrow.store(self.world.store.id).to_arrow(SPACE, columns=COLUMNS, tier=tier))


def told(url: str, world: RemovalWorld) -> list[Entry]:
    """Read all entries as a new reader."""
    with streamkit.connect(url) as client:
        return list(client.store(world.store.id).consume_space(SPACE))


CASES = [(partitions, removal) for removal in REMOVALS for partitions in PARTITIONS]


@pytest.mark.parametrize(("partitions", "removal"), list(sample(CASES, 9)))
def test_every_door_answers_every_question_as_the_readers_of_the_store(
    tmp_path: Path, partitions: int, removal: str, covered: Callable[[str, int], None]
) -> None:
    url = tmp_path.as_uri()
    world = RemovalWorld.make(url, partitions)
    doors = Doors(world, {"url": url, "store": str(world.store.id), "space": SPACE})
    wrong, cells = [], 0
    turns = count()

    def ask(phase: str) -> None:
        nonlocal cells
        entries = told(url, world)
        asked = questions(world, entries)
        names = list(asked) if EXHAUSTIVE else ["all", list(asked)[1 + next(turns) % (len(asked) - 1)]]
        for name, session in product(names, ("long", "fresh")):
            question = asked[name]
            wanted = as_rows([entry for entry in entries if question.keeps(entry)])
            for door, found in doors.ask(question, session == "fresh").items():
                cells += 1
                if (door, session) == ("to_arrow", "long"):
                    found, wanted_here = [row[:3] for row in found], [row[:3] for row in wanted]
                else:
                    wanted_here = wanted
                if found != wanted_here:
                    wrong.append(f"{phase}, {name}, {door}, {session}: {len(found)}, not {len(wanted)}")

    ask("before")
    for turn in range(2):
        before = told(url, world)
        REMOVALS[removal](world, turn)
        assert turn or before != told(url, world)
        ask(f"removal {turn}")
        world.store.maintain(SPACE)
        world.write(1)
        # The files of all partitions become one, and the ones before are gone.
        world.store.compact(SPACE, retention_hours=0)
        ask(f"maintained {turn}")
    world.store.archive(SPACE)
    ask("archived")
    doors.close()
    world.client.close()
    covered("answers compared with the store's", cells)
    assert not wrong, f"{len(wrong)} of {cells}: " + "; ".join(wrong[:12])


def test_a_planner_plans_no_task_for_what_was_trimmed_since_its_look(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    world = RemovalWorld.make(url, 4)
    given = {"url": url, "store": str(world.store.id), "space": SPACE}
    with streamkit.connect(url) as client:
        planned = spans(client, parse(given))
    world.store.trim(SPACE, keep_entries=5)
    with streamkit.connect(url) as client:
        floors = {span.partition: span.first for span in spans(client, parse(given))}
    pinned = json.dumps([[str(span.store), *span[1:]] for span in planned])
    reader = StreamkitSource({**given, "snapshot": pinned}).reader(None)  # type: ignore[arg-type]
    pieces = [piece for task in reader.partitions() for piece in task.pieces]
    assert any(span.first < floors[span.partition] for span in planned if span.partition)
    assert pieces
    assert [piece for piece in pieces if piece.first < floors[piece.partition]] == []
    world.client.close()


# -- through Spark itself ----------------------------------------------------------------------------------------------

SHOWN = ["erase a range"]


class SparkDoors:
    """The ways to read a space through Spark. The URL decides the clients, those of the workers too."""

    def __init__(self, spark: Any, url: str, world: RemovalWorld, folder: Path) -> None:
        self._spark, self._url, self._store = spark, url, world.store.id
        self._folder = folder
        folder.mkdir()
        self._given = {"url": url, "store": str(world.store.id), "space": SPACE}
        self._asked: list[str] = []
        self._table = f"entries_{uuid4().hex}"
        options = ", ".join(f"{name} '{value}'" for name, value in self._given.items())
        spark.sql(f"CREATE TABLE {self._table} USING streamkit OPTIONS ({options})")

    def close(self) -> None:
        self._spark.sql(f"DROP TABLE {self._table}")

    def ask(self, questions: dict[str, Question]) -> dict[tuple[str, str], list[Row]]:
        """The rows by question and door. A door answers all questions as one query: a question is a query of Spark."""
        doors: dict[str, Callable[[dict[str, str]], Any]] = {
            "read_space": self._read_space,
            "typed": self._typed,
            "source": lambda given: self._spark.read.format("streamkit").options(**self._given, **given).load(),
            "table": lambda given: self._spark.read.options(**given).table(self._table),
        }
        found: dict[tuple[str, str], list[Row]] = {(name, door): [] for name in questions for door in doors}
        for door, frame_of in doors.items():
            whole = None
            for name, question in questions.items():
                frame = frame_of(question.options).select(F.lit(name).alias("question"), *COLUMNS)
                whole = frame if whole is None else whole.unionByName(frame)
            for name, *row in whole.collect() if whole is not None else ():
                found[name, door].append((row[0], row[1], bytes(row[2]), row[3]))
        # A query or a job for each question: one in turn, beginning with the whole space; an exhaustive run asks both.
        can = [name for name, question in questions.items() if not {"tier", "until"} & question.options.keys()]
        for name in dict.fromkeys([*can[:EXHAUSTIVE], can[len(self._asked) % len(can)]]):
            self._asked.append(name)
            found[name, "stream"] = self._stream(questions[name].options)
            found[name, "roll-up"] = self._roll_up(questions[name].options)
        return {key: sorted(rows) for key, rows in found.items()}

    def _read_space(self, given: dict[str, str], **more: Any) -> Any:
        arguments = {
            "tier": given.get("tier", "all"),
            "since": int(given.get("from", 0)) or "",
            "until": int(given.get("until", 0)) or "",
            "min_sequence": int(given.get("minSequence", 0)),
            "max_sequence": int(given.get("maxSequence", 0)),
        }
        if (
            names := given.get("segments") or (json.dumps([given["segment"]]) if "segment" in given else None)
        ) is not None:
            arguments["segments"] = json.loads(names)
        return read_space(self._spark, self._url, self._store, SPACE, **arguments, **more)

    def _typed(self, given: dict[str, str]) -> Any:
        """No payload is a document, so all of them are kept whole."""
        frame = self._read_space(given, schema="item string NOT NULL", columns=COLUMNS)
        return frame.withColumnRenamed("bad_payload", "payload")

    def _stream(self, given: dict[str, str]) -> list[Row]:
        options = {**self._given, **given, "failOnDataLoss": "false"}

        def run() -> str:
            name = f"found_{uuid4().hex}"
            frame = self._spark.readStream.format("streamkit").options(**options).load().select(*COLUMNS)
            query = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
            query.awaitTermination()
            return name

        return [(row[0], row[1], bytes(row[2]), row[3]) for row in self._spark.table(patiently(run)).collect()]

    def _roll_up(self, given: dict[str, str]) -> list[Row]:
        output = str(self._folder / uuid4().hex)
        roll_up(self._spark, {**self._given, **given}, f"SELECT {', '.join(COLUMNS)} FROM entries", output)
        found = DeltaTable(output).to_pyarrow_table().to_pylist() if Path(output).exists() else []
        return [tuple(row[name] for name in COLUMNS) for row in found]  # type: ignore[misc]


@pytest.mark.timeout(1800)  # dozens of queries of Spark
@pytest.mark.parametrize("partitions", PARTITIONS if EXHAUSTIVE else [4])
@pytest.mark.parametrize("removal", REMOVALS if EXHAUSTIVE else SHOWN)
def test_every_door_of_spark_and_other_engines_answer_as_the_readers_of_the_store(
    spark: Any, tmp_path: Path, partitions: int, removal: str, covered: Callable[[str, int], None]
) -> None:
    world = RemovalWorld.make((tmp_path / "stores").as_uri(), partitions)
    long = SparkDoors(spark, world.url, world, tmp_path / "long")
    wrong, cells = [], 0
    turns = count(len(removal) + partitions)

    def ask(phase: str) -> None:
        nonlocal cells
        entries = told(world.url, world)
        asked = questions(world, entries)
        names = [name for name in asked if name != "all"]
        # In turn: a run over all removals asks each question in each phase several times.
        some = [names[next(turns) % len(names)] for _ in range(3 if EXHAUSTIVE else 1)]
        asked = {name: asked[name] for name in ("all", *some)}
        # Another path to the same place: no client knows it.
        link = tmp_path / f"link-{phase}"
        link.symlink_to(tmp_path / "stores")
        fresh = SparkDoors(spark, link.as_uri(), world, tmp_path / f"fresh-{phase}")
        for session, doors in (("long", long), ("fresh", fresh)):
            for (name, door), found in doors.ask(asked).items():
                cells += 1
                wanted = as_rows([entry for entry in entries if asked[name].keeps(entry)])
                if found != wanted:
                    wrong.append(f"{phase}, {name}, {door}, {session}: {len(found)}, not {len(wanted)}")
        fresh.close()
        # Trimmed rows leave the table later. Erased rows have left it.
        cold = {(entry.segment, entry.sequence, entry.payload) for entry in entries if entry.tier == "cold"}
        for engine, others in engines(world).items():
            cells += 1
            if not cold <= others:
                wrong.append(f"{phase}, {engine}: lacks {len(cold - others)} rows")
            if "erase" in removal and others != cold:
                wrong.append(f"{phase}, {engine}: {len(others - cold)} erased rows")

    for turn in range(2):
        if turn:
            # The files of the partitions become one.
            world.store.compact(SPACE, retention_hours=0)
        REMOVALS[removal](world, turn)
        if EXHAUSTIVE or turn:
            ask(f"removal-{turn}")
        world.store.maintain(SPACE)
    world.write(1)
    world.store.archive(SPACE)
    world.store.compact(SPACE)
    world.write(1)
    ask("compacted")
    long.close()
    world.client.close()
    covered("answers of Spark and other engines compared with the store's", cells)
    assert not wrong, f"{len(wrong)} of {cells}: " + "; ".join(wrong[:12])


def engines(world: RemovalWorld) -> dict[str, set[tuple[str, int, bytes]]]:
    """The rows with a payload that other engines find in the Delta table."""
    import duckdb
    import polars

    with streamkit.connect(world.url) as client:
        store = client.store(world.store.id)
        url = store._archive(SPACE).table.url if any(e.tier == "cold" for e in store.consume_space(SPACE)) else ""
    if not url:
        return {}
    table = DeltaTable(url).to_pyarrow_table(columns=["segment", "sequence", "payload"])
    by_duckdb = duckdb.from_arrow(table).project("segment, sequence, payload").fetchall()
    by_polars = polars.read_delta(url).select("segment", "sequence", "payload").rows()
    return {
        name: {tuple(row) for row in rows_ if row[2] is not None}
        for name, rows_ in (("polars", by_polars), ("duckdb", by_duckdb))
    }
