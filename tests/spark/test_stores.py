"""Spark over stores on S3 and Azure, against their emulators: batch, streams, sinks and jobs.

Spark's own Parquet reader has no connector for them here, so the source reads both tiers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_spark import SPACE, both_tiers, entries_of, fill, load, restore_beside_damaged, rows_of, stream

import streamkit
from streamkit import Record, Store

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from streamkit.spark import read_space, register, write_space

pytestmark = [pytest.mark.spark, pytest.mark.sampled(2)]


@pytest.fixture(
    params=[pytest.param("s3", marks=pytest.mark.s3), pytest.param("azure", marks=pytest.mark.azure)],
    scope="module",
)
def root(request: pytest.FixtureRequest) -> str:
    if request.param == "s3":
        request.getfixturevalue("s3_credentials")
        return str(request.getfixturevalue("s3_server").bucket().url("spark"))
    return str(request.getfixturevalue("azurite").url("spark" + uuid4().hex[:12]))


@pytest.fixture(scope="module")
def both(root: str) -> Iterator[Store]:
    """A store of two partitions, half of it archived in several files."""
    with both_tiers(root, 24, 200) as store:
        yield store


def test_both_paths_read_every_entry_once_from_both_tiers(spark: Any, root: str, both: Store) -> None:
    wanted = entries_of(both)
    assert {row[-1] for row in wanted} == {"hot", "cold"}
    assert rows_of(load(spark, root, both)) == wanted
    assert rows_of(read_space(spark, root, both.id, SPACE)) == wanted
    found = load(spark, root, both).where("segment = 's3' and sequence > 1").select("sequence").collect()
    assert sorted(row.sequence for row in found) == [row[1] for row in wanted if row[0] == "s3" and row[1] > 1]


@pytest.mark.exhaustive_only
def test_a_stream_goes_on_from_its_checkpoint_without_loss_or_double(spark: Any, root: str, tmp_path: Path) -> None:
    source, into = uuid4(), uuid4()
    with streamkit.connect(root) as client:
        store = client.store(source)
        store.create_space(SPACE, 2)
        for round in range(2):
            fill(store, 8, start=round * 8)
            if round == 1:
                # A batch that was written, and not noted: it comes again.
                commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
                commits[-1].unlink()
                commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
            query = stream(spark, root, source, into, tmp_path / "checkpoint", maxRowsPerTrigger="20")
            assert max(progress.numInputRows for progress in query.recentProgress) <= 20
            store.archive(SPACE)
        wanted = {name: [e.payload for e in store.consume_segment(SPACE, name)] for name in store.get_segments(SPACE)}
        copy = client.store(into)
        assert {n: [e.payload for e in copy.consume_segment("out", n)] for n in copy.get_segments("out")} == wanted


def test_a_frame_is_written_once_and_in_order(spark: Any, root: str) -> None:
    id = uuid4()
    rows = [(f"s{n % 3}", b"%d" % n, n) for n in range(60, 0, -1)]
    frame = spark.createDataFrame(rows, "segment string, payload binary, n int")
    for _ in range(2):
        write_space(frame, root, id, SPACE, order="n", idempotency_key="import-1", partitions=2)
    with streamkit.connect(root) as client:
        for segment in range(3):
            found = [e.payload for e in client.store(id).consume_segment(SPACE, f"s{segment}")]
            assert found == [b"%d" % n for n in range(1, 61) if n % 3 == segment]


@pytest.mark.exhaustive_only
def test_the_jobs_do_their_work_and_can_be_run_again(spark: Any, root: str, tmp_path: Path) -> None:
    import rollup
    from deltalake import DeltaTable

    from streamkit.spark.jobs import archive, compact, restore, verify

    into, output = uuid4(), str(tmp_path / "rollup")
    with streamkit.connect(root) as client:
        store = client.store(uuid4())
        fill(store, 30)
        only = ["--url", root, "--store", str(store.id)]
        before = entries_of(store)
        assert archive.job([*only, "--target-file-bytes", "300"]) == 0
        with streamkit.connect(root) as stranger:
            assert {row[-1] for row in entries_of(stranger.store(store.id))} == {"cold"}
        assert compact.job([*only, "--retention-hours", "0"]) == 0
        assert [row[:-1] for row in entries_of(store)] == [row[:-1] for row in before]
        fill(store, 6, start=30)
        assert verify.job(only) == 0
        sql = "SELECT segment, count(*) AS n FROM entries GROUP BY segment"
        for _ in range(2):
            assert rollup.job([*only, "--space", SPACE, "--output", output, "--sql", sql]) == 0
        rows = entries_of(store)
        assert sum(DeltaTable(output).to_pyarrow_table()["n"].to_pylist()) == len(rows)
        assert restore.job([*only, "--into", str(into)]) == 0
        assert [row[:4] for row in entries_of(client.store(into))] == [row[:4] for row in rows]
        cold = uuid4()
        assert restore.job([*only, "--into", str(cold), "--cold"]) == 0
        assert [row[:4] for row in entries_of(client.store(cold))] == [row[:4] for row in before]


def test_a_damaged_archive_of_one_space_does_not_keep_the_others_from_being_restored(
    spark: Any, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from streamkit.store import inner

    def harm(store: Store, space: str) -> None:
        inner(store).archive(space).table.filesystem.delete_file(f"_delta_log/{0:020}.json")

    with streamkit.connect(root) as client:
        restore_beside_damaged(client, root, capsys, harm)


@pytest.mark.s3
def test_executors_without_credentials_say_so_on_the_driver(
    spark: Any, s3_bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = s3_bucket.url("spark")
    with streamkit.connect(root) as client:
        store = client.store(uuid4())
        store.produce(SPACE, "s", [Record(b"1")])
        frame = spark.createDataFrame([("s", b"2")], "segment string, payload binary")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setitem(spark.sparkContext.environment, name, "")
        register(spark)
        try:
            with pytest.raises(Exception, match="credentials"):
                load(spark, root, store).count()
            with pytest.raises(Exception, match="credentials"):
                write_space(frame, root, store.id, SPACE)
        finally:
            monkeypatch.undo()
            register(spark)
        assert load(spark, root, store).count() == 1


def test_a_store_that_is_deleted_in_the_middle_is_an_error(spark: Any, tmp_path: Path) -> None:
    root = (tmp_path / "stores").as_uri()
    with streamkit.connect(root) as client:
        deleted_in_the_middle(spark, root, client, tmp_path)


def deleted_in_the_middle(spark: Any, root: str, client: streamkit.Client, path: Path) -> None:
    from streamkit.spark.jobs import archive, compact, restore, verify
    from streamkit.spark.jobs.command import targets

    def store_of(transactions: int) -> Store:
        store = client.store(uuid4())
        fill(store, transactions)
        return store

    def there() -> list[UUID]:
        return sorted(client.stores())

    others = there()
    # A frame that was planned before, of both tiers.
    store = store_of(6)
    store.archive(SPACE)
    fill(store, 6, start=6)
    frame = read_space(spark, root, store.id, SPACE)
    client.delete_store(store.id)
    with pytest.raises(Exception, match=r"gone|deleted|missing|does not exist"):
        frame.count()
    # A stream between two runs.
    store, into = store_of(6), uuid4()
    stream(spark, root, store.id, into, path / "checkpoint")
    client.delete_store(store.id)
    with pytest.raises(Exception, match="does not exist"):
        stream(spark, root, store.id, into, path / "checkpoint")
    client.delete_store(into)
    # Jobs, between the plan and the work.
    for module, more in ((archive, []), (compact, []), (verify, []), (restore, ["--into", str(uuid4())])):
        store = store_of(6)

        def planned(options: Any, store: Store = store) -> list[tuple[str, str]]:
            found = targets(options)
            client.delete_store(store.id)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "targets", planned)
            assert module.job(["--url", root, "--store", str(store.id), *more]) == 1
    assert there() == others
