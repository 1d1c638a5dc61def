"""Spark over streamkit, on a real Spark: it reads the entries of the store, and writes each row once."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_spark import SPACE, both_tiers, entries_of, fill, load, restore_beside_damaged, rows_of, stream

import streamkit
from harness.foreign_engines import optimize, polars_overwrites
from harness.harmed_tables import HARMS
from streamkit import Store

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from streamkit.errors import MissingDependency, Unavailable
from streamkit.spark import read_space, write_space
from streamkit.spark.options import parse
from streamkit.spark.session import check_java

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tmp_path_factory.mktemp("stores").as_uri()


@pytest.fixture(scope="module")
def both(url: str) -> Iterator[Store]:
    """A store of two partitions, half of it archived in several files."""
    with both_tiers(url, 60, 500) as store:
        yield store


# -- reading ---------------------------------------------------------------------------------------------------------


def test_the_source_reads_every_entry_once_from_both_tiers(spark: Any, url: str, both: Store) -> None:
    found = rows_of(load(spark, url, both))
    assert found == entries_of(both)
    assert {row[-1] for row in found} == {"hot", "cold"}


def test_the_native_path_reads_the_same(spark: Any, url: str, both: Store) -> None:
    assert rows_of(read_space(spark, url, both.id, SPACE)) == entries_of(both)


@pytest.mark.parametrize("operation", [optimize, polars_overwrites])
def test_what_other_engines_compacted_is_read_by_both_paths(
    spark: Any, tmp_path: Path, operation: Callable[[Path], None]
) -> None:
    with both_tiers(tmp_path.as_uri(), 30, 500) as store:
        operation(Path(store._archive(SPACE).table.url.removeprefix("file://")))
        entries = entries_of(store)
        assert rows_of(load(spark, tmp_path.as_uri(), store)) == entries
        assert rows_of(read_space(spark, tmp_path.as_uri(), store.id, SPACE)) == entries


def test_each_tier_alone_is_one_part(spark: Any, url: str, both: Store) -> None:
    for tier in ("hot", "cold"):
        wanted = [row for row in entries_of(both) if row[-1] == tier]
        assert rows_of(load(spark, url, both, tier=tier)) == wanted
        assert rows_of(read_space(spark, url, both.id, SPACE, tier=tier)) == wanted


def test_bounds_are_timestamps_or_offsets(spark: Any, url: str, both: Store) -> None:
    entries = list(both.consume_space(SPACE))
    low, high = entries[20].timestamp, entries[-20].timestamp
    wanted = sorted((e.segment, e.sequence) for e in entries if low <= e.timestamp <= high)
    options = {"from": str(low), "until": str(high), "columns": "segment,sequence"}
    assert sorted(map(tuple, load(spark, url, both, **options).collect())) == wanted
    native = read_space(spark, url, both.id, SPACE, columns=["segment", "sequence"], since=low, until=high)
    assert sorted(map(tuple, native.collect())) == wanted
    at = entries[-25]
    after = load(spark, url, both, **{"from": at.space_offset.hex(), "columns": "segment,sequence"})
    rest = [(e.segment, e.sequence) for e in both.consume_space(SPACE, offset=at.space_offset)]
    assert sorted(map(tuple, after.collect())) == sorted(rest)


def test_a_datetime_means_what_spark_shows(spark: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        fill(store, 8)
        wanted = [entry.sequence for entry in store.consume_space(SPACE)]
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        try:
            frame = read_space(spark, url, store.id, SPACE)
            collected = [row.timestamp for row in frame.select("timestamp").collect()]
            moments = [(min(collected), max(collected))]
            shown = frame.select("timestamp").toPandas()["timestamp"]  # in the session's zone, which is UTC
            assert shown.min().to_pydatetime() + timedelta(hours=9) == min(collected)
            moments.append((shown.min(), shown.max()))
            for least, most in moments:
                assert least.tzinfo is None
                assert read_space(spark, url, store.id, SPACE, since=least, until=most).count() == len(wanted)
                assert not read_space(spark, url, store.id, SPACE, since=most + timedelta(seconds=1)).count()
                with pytest.raises(ValueError, match=r"a time without a zone.*write .*Z for UTC"):
                    read_space(spark, url, store.id, SPACE, since=str(least))
        finally:
            monkeypatch.undo()
            time.tzset()


def test_a_table_over_a_space_is_what_the_space_holds(spark: Any, tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    with both_tiers(url, 20, 500) as store:
        name = f"orders_{uuid4().hex}"
        options = f"url '{url}', store '{store.id}', space '{SPACE}'"
        spark.sql(f"CREATE TABLE {name} USING streamkit OPTIONS ({options}) TBLPROPERTIES ('team' = 'a')")
        try:
            assert rows_of(spark.table(name)) == entries_of(store)
            fill(store, 3, start=20)
            assert spark.table(name).count() == len(entries_of(store))
            counted = spark.sql(
                f"SELECT segment, count(*) AS n FROM {name} WHERE sequence > 1 GROUP BY segment"
            ).collect()
            wanted = Counter(row[0] for row in entries_of(store) if row[1] > 1)
            assert {row.segment: row.n for row in counted} == wanted
            some = spark.read.option("segment", "s1").table(name)
            assert rows_of(some) == [row for row in entries_of(store) if row[0] == "s1"]
            with pytest.raises(Exception, match="unknown option 'colour'"):
                spark.sql(f"CREATE TABLE bad_{name} USING streamkit OPTIONS ({options}, colour 'red')")
        finally:
            spark.sql(f"DROP TABLE {name}")


def test_what_a_frame_holds_does_not_change_with_the_store(spark: Any, url: str) -> None:
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        fill(store, 20)
        frame = read_space(spark, url, store.id, SPACE)
        before = entries_of(store)
        store.archive(SPACE)
        fill(store, 10, start=20)
        assert [row[:-1] for row in rows_of(frame)] == [row[:-1] for row in before]


def test_all_tenants_are_told_apart_by_their_column(spark: Any, tmp_path: Path) -> None:
    root = tmp_path.as_uri()
    with streamkit.connect(root) as client:
        ids = [uuid4() for _ in range(3)]
        for at, id in enumerate(ids):
            store = client.store(id)
            fill(store, 5 + at)
            if at:
                store.archive(SPACE)
        wanted = {str(id): sum(1 for _ in client.store(id).consume_space(SPACE)) for id in ids}
    for frame in (
        spark.read.format("streamkit").options(url=root, store="*", space=SPACE).load(),
        read_space(spark, root, "*", "*"),
        read_space(spark, root, ids, SPACE),
    ):
        assert {row.store: row["count"] for row in frame.groupBy("store").count().collect()} == wanted


# -- errors ----------------------------------------------------------------------------------------------------------


def test_options_are_checked_and_named() -> None:
    good = {"url": "file:///x", "store": str(uuid4()), "space": "s"}
    for wrong, says in (
        ({"colums": "x"}, "unknown option 'colums'.*known: .*columns"),
        ({"store": "nobody"}, "'store' is a store's UUID"),
        ({"tier": "warm"}, "'all', 'cold' or 'hot'"),
        ({"columns": "payload,nope"}, "names 'nope'"),
        ({"from": "yesterday"}, "'from'"),
        ({"maxRowsPerTrigger": "-1"}, "whole number"),
        ({"space": ""}, "needs the option 'space'"),
        ({"segments": "s1,s2"}, "JSON array"),
        ({"segments": '["s1", ""]'}, "segment name '' is not legal"),
        ({"segment": "s1", "segments": '["s2"]'}, "'segment' or 'segments', not both"),
        ({"minSequence": "first"}, "whole number"),
        ({"failOnDataLoss": "maybe"}, "'true' or 'false'"),
        ({"from": "1700000000"}, r"in milliseconds, and 1700000000 of them are 1970-01-20.*seconds \(2023-11-14\)"),
        ({"until": "1700000000"}, "write 1700000000000"),
        ({"from": "2026-01-31 08:00:00"}, r"without a zone.*write 2026-01-31 08:00:00Z for UTC"),
    ):
        with pytest.raises(ValueError, match=says):
            parse(good | wrong)


def test_what_does_not_exist_is_said_on_the_driver(spark: Any, url: str, both: Store) -> None:
    for options, says in (
        ({"store": str(uuid4())}, "does not exist"),
        ({"space": "nothing"}, "has no space 'nothing'"),
        ({"colour": "red"}, "unknown option 'colour'"),
    ):
        given = {"url": url, "store": str(both.id), "space": SPACE, **options}
        with pytest.raises(Exception, match=says):
            spark.read.format("streamkit").options(**given).load().count()


def test_a_missing_file_is_an_error_and_never_fewer_rows(spark: Any, tmp_path: Path) -> None:
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        store.create_space(SPACE, archive_grace=0.001)
        fill(store, 20)
        removed = store.archive(SPACE).removed
        while not removed:  # else the log is read in its place
            removed = store.archive(SPACE).removed
        next(tmp_path.glob("archive/*/*/*.parquet")).unlink()
        with pytest.raises(Exception, match=r"missing|FAILED_READ_FILE|does not exist"):
            read_space(spark, tmp_path.as_uri(), store.id, SPACE).count()
        with pytest.raises(Exception, match="missing"):
            load(spark, tmp_path.as_uri(), store).count()


def test_no_java_is_said_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingDependency, match="needs Java 17"):
        check_java()
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(MissingDependency, match="is Java 8"):
        check_java()


# -- writing ---------------------------------------------------------------------------------------------------------


def test_a_frame_is_written_once_and_in_order(spark: Any, url: str) -> None:
    id = uuid4()
    rows = [(f"s{n % 5}", b"%d" % n, {"n": str(n)} if n % 2 else None, n) for n in range(1000, 0, -1)]
    frame = spark.createDataFrame(rows, "segment string, payload binary, metadata map<string,string>, n int")
    for _ in range(2):
        write_space(frame, url, id, SPACE, order="n", idempotency_key="import-1", partitions=2)
    with streamkit.connect(url) as client:
        store = client.store(id)
        for segment in range(5):
            found = [(e.payload, e.metadata) for e in store.consume_segment(SPACE, f"s{segment}")]
            assert found == [(b"%d" % n, {"n": str(n)} if n % 2 else {}) for n in range(1, 1001) if n % 5 == segment]


def test_a_frame_that_cannot_be_written_is_refused_on_the_driver(spark: Any, url: str) -> None:
    options = {"url": url, "store": str(uuid4()), "space": SPACE}
    for frame, more, says in (
        (spark.createDataFrame([(1,)], "x int"), {}, "no column 'segment'"),
        (spark.createDataFrame([("a", 1)], "segment string, payload int"), {}, "must be binary or string"),
        (spark.createDataFrame([("a", "b")], "segment string, payload string"), {"order": "n"}, "'order' names 'n'"),
    ):
        with pytest.raises(Exception, match=says):
            frame.write.format("streamkit").options(**options, **more).mode("append").save()


# -- streams ---------------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_from_its_checkpoint_without_loss_or_double(spark: Any, url: str, tmp_path: Path) -> None:
    source, into = uuid4(), uuid4()
    with streamkit.connect(url) as client:
        store = client.store(source)
        store.create_space(SPACE, 2)
        for round in range(3 if EXHAUSTIVE else 2):
            fill(store, 40, start=round * 40)
            query = stream(spark, url, source, into, tmp_path / "checkpoint", maxRowsPerTrigger="60")
            sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
            assert max(sizes) <= 60
            store.archive(SPACE)
        wanted = {name: [e.payload for e in store.consume_segment(SPACE, name)] for name in store.get_segments(SPACE)}
        copy = client.store(into)
        assert {n: [e.payload for e in copy.consume_segment("out", n)] for n in copy.get_segments("out")} == wanted


def test_a_batch_that_spark_repeats_is_written_once(spark: Any, url: str, tmp_path: Path) -> None:
    """The process ended after the sink had written, and before Spark noted it: the batch comes again."""
    source, into = uuid4(), uuid4()
    checkpoint = tmp_path / "checkpoint"
    with streamkit.connect(url) as client:
        store = client.store(source)
        fill(store, 50)
        stream(spark, url, source, into, checkpoint, maxRowsPerTrigger="50")
        wanted = sum(1 for _ in store.consume_space(SPACE))
        commits = sorted(
            (file for file in (checkpoint / "commits").iterdir() if file.name.isdecimal()),
            key=lambda file: int(file.name),
        )
        assert len(commits) > 1
        for name in (commits[-1].name, f".{commits[-1].name}.crc"):
            (checkpoint / "commits" / name).unlink(missing_ok=True)
        fill(store, 10, start=50)
        store.archive(SPACE)
        stream(spark, url, source, into, checkpoint, maxRowsPerTrigger="50")
        assert (
            sum(1 for _ in client.store(into).consume_space("out"))
            == sum(1 for _ in store.consume_space(SPACE))
            > wanted
        )


# -- jobs ------------------------------------------------------------------------------------------------------------


def test_the_jobs_do_their_work_and_can_be_run_again(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import rollup
    from deltalake import DeltaTable

    from streamkit.spark.jobs import archive, compact, restore, verify

    root, output = (tmp_path / "stores").as_uri(), str(tmp_path / "rollup")
    with streamkit.connect(root) as client:
        store, other = client.store(uuid4()), client.store(uuid4())
        fill(store, 40)
        fill(other, 10)
        before = entries_of(store)
        for _ in range(2):
            assert archive.job(["--url", root, "--target-file-bytes", "300"]) == 0
        with streamkit.connect(root) as fresh:
            assert {row[-1] for row in entries_of(fresh.store(store.id))} == {"cold"}
        assert compact.job(["--url", root, "--retention-hours", "0"]) == 0
        assert len(list((tmp_path / "stores").glob("archive/*/*/*.parquet"))) == 2
        assert [row[:-1] for row in entries_of(store)] == [row[:-1] for row in before]
        fill(store, 10, start=40)
        assert verify.job(["--url", root]) == 0

        sql = "SELECT segment, count(*) AS n FROM entries GROUP BY segment"
        command = ["--url", root, "--store", str(store.id), "--space", SPACE, "--output", output, "--sql", sql]
        assert rollup.job(command) == 0
        assert rollup.job(command) == 0
        fill(store, 5, start=50)
        assert rollup.job(command) == 0
        assert sum(DeltaTable(output).to_pyarrow_table()["n"].to_pylist()) == sum(1 for _ in store.consume_space(SPACE))

        into = uuid4()
        for _ in range(2):
            assert restore.job(["--url", root, "--store", str(store.id), "--into", str(into)]) == 0
        assert [row[:4] for row in entries_of(client.store(into))] == [row[:4] for row in entries_of(store)]
        lost, archived = uuid4(), [row[:4] for row in entries_of(other)]
        shutil.rmtree(tmp_path / "stores" / str(other.id))
    with streamkit.connect(root) as client:
        command = ["--url", root, "--store", str(other.id), "--into", str(lost), "--cold"]
        assert restore.job(command) == 0
        assert [row[:4] for row in entries_of(client.store(lost))] == archived
    assert "archiving: 2 spaces" in capsys.readouterr().out


def test_a_check_of_a_small_space_has_few_tasks(
    spark: Any, both: Store, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from streamkit.spark.jobs import verify

    find, frames = verify.find, []

    def noted(*arguments: Any) -> Any:
        frames.append(find(*arguments))
        return frames[-1]

    monkeypatch.setattr(verify, "find", noted)
    usual = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "40")
    try:
        assert verify.job(["--url", url, "--store", str(both.id)]) == 0
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", usual)
    assert frames[-1].cache().rdd.getNumPartitions() < 40, "as of the cached plan"
    said = capsys.readouterr().out
    assert f"{SPACE!r}: 0 findings\n" in said
    assert said.endswith("\n0 findings\n")


def test_a_damaged_archive_of_one_space_does_not_keep_the_others_from_being_restored(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from streamkit.archive.location import path_name

    def harm(store: Store, space: str) -> None:
        table = tmp_path / "archive" / str(store.id) / path_name(space)
        (table / "_delta_log" / f"{0:020}.json").write_bytes(b'{"add"')

    with streamkit.connect(tmp_path.as_uri()) as client:
        restore_beside_damaged(client, tmp_path.as_uri(), capsys, harm)


def test_verify_finds_what_is_missing(spark: Any, tmp_path: Path) -> None:
    from streamkit.spark.jobs import verify

    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        fill(store, 40)
        store.archive(SPACE, target_file_bytes=300)
    log = sorted(tmp_path.glob("archive/*/*/_delta_log/*.json"))[-1]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    gone = next(line for line in lines if "add" in line)
    log.write_text("\n".join(json.dumps(line) for line in lines if line is not gone))
    assert verify.job(["--url", tmp_path.as_uri()]) == 1


def test_of_two_rollups_at_once_one_counts(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rollup
    from deltalake import DeltaTable

    root, output = tmp_path.as_uri(), str(tmp_path / "rollup")
    with streamkit.connect(root) as client:
        store = client.store(uuid4())
        fill(store, 10)
        options = {"url": root, "store": str(store.id), "space": SPACE}
        sql = "SELECT count(*) AS n FROM entries"
        read = rollup._read

        def overtaken(*arguments: Any) -> Any:
            monkeypatch.setattr(rollup, "_read", read)
            assert rollup.roll_up(spark, options, sql, output).rows == 1
            return read(*arguments)

        for _ in range(2):  # with a table that is new, and with one that is there
            monkeypatch.setattr(rollup, "_read", overtaken)
            with pytest.raises(Unavailable, match="run it again"):
                rollup.roll_up(spark, options, sql, output)
            assert sum(DeltaTable(output).to_pyarrow_table()["n"].to_pylist()) == sum(
                1 for _ in store.consume_space(SPACE)
            )
            fill(store, 5, start=10)
        assert rollup.roll_up(spark, options, sql, output).rows == 1
        assert rollup.roll_up(spark, options, sql, output).rows == 0


@pytest.mark.parametrize("name", ["archive", "compact", "verify", "rollup", "restore"])
def test_a_job_refuses_in_one_line(name: str, both: Store, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    from importlib import import_module

    from streamkit.spark.jobs.command import main

    job = import_module(name if name == "rollup" else f"streamkit.spark.jobs.{name}").job
    more = {"rollup": ["--sql", "SELECT 1", "--output", "x"], "restore": ["--into", str(uuid4())]}.get(name, [])
    for given, says in (
        (["--store", str(nobody := uuid4())], f"the store {nobody} does not exist"),
        (["--store", str(both.id), "--space", "nothing"], "no space 'nothing' in 1 store"),
        (["--store", "me"], "--store takes UUIDs with commas between them, or *, not 'me'"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(lambda _, given=given: job(["--url", url, *given, *more]))
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert says in line


def test_a_job_ends_with_one_line_for_an_error_of_a_library_and_shows_a_fault_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import pyarrow as pa
    from deltalake.exceptions import DeltaError
    from py4j.protocol import Py4JNetworkError
    from pyspark.errors import AnalysisException

    from streamkit.spark.jobs.command import main

    def ended(error: Exception) -> Any:
        def job(_: Any) -> int:
            raise error

        with pytest.raises(SystemExit) as ended:
            main(job)
        return ended.value.code

    for kind in (DeltaError, Py4JNetworkError, pa.ArrowCapacityError, AnalysisException):
        assert ended(kind("it is not there\n\tat a.b.c(File.java:1)")) == 1
        assert capsys.readouterr().err == f"{kind.__name__}: it is not there\n"
    with pytest.raises(KeyError):
        ended(KeyError("a fault"))


@pytest.mark.parametrize(("harm", "says"), [(harm, says) for harm, _, says in HARMS])
def test_a_table_that_was_tampered_with_is_refused_on_the_driver(
    spark: Any, tmp_path: Path, harm: Callable[[Path], None], says: str
) -> None:
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        store.create_space(SPACE, archive_grace=0.001)
        fill(store, 10)
        removed = store.archive(SPACE, target_file_bytes=100).removed
        while not removed:  # else the log is read in its place
            removed = store.archive(SPACE).removed
    (table,) = tmp_path.glob("archive/*/*")
    harm(table)
    with pytest.raises(Exception, match=says):
        load(spark, tmp_path.as_uri(), store).collect()
    # Spark's own reader of files has its own words.
    with pytest.raises(Exception, match=rf"{says}|FAILED_READ_FILE|does not exist"):
        read_space(spark, tmp_path.as_uri(), store.id, SPACE).collect()
