"""Writes of frames and batches happen exactly once, also when they are cut into other tasks after a failure."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_spark import SPACE, fill, stream

import streamkit
from streamkit import Client, Record, Store

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

import pyarrow as pa
from pyspark.sql.functions import lit

from streamkit.errors import TransactionIdMismatch
from streamkit.spark import read_space, sink, write_space
from streamkit.spark.options import parse

pytestmark = pytest.mark.spark


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "stores").as_uri()


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with streamkit.connect(url) as found:
        yield found


def contents(store: Store, space: str = SPACE) -> dict[str, list[bytes]]:
    return {name: [e.payload for e in store.consume_segment(space, name)] for name in store.get_segments(space)}


# -- one task, without Spark -----------------------------------------------------------------------------------------


class Died(Exception):
    pass


def table(rows: int, segments: int, buckets: int = 4) -> pa.Table:
    """Batches as `write_space` hands them over: sorted by bucket and segment."""
    found = sorted((n % segments % buckets, f"s{n % segments}", n) for n in range(rows))
    return pa.table(
        {
            "segment": pa.array([segment for _, segment, _ in found]),
            "payload": pa.array([b"%d" % n for _, _, n in found]),
            "streamkit_bucket": pa.array([bucket for bucket, _, _ in found]),
        }
    )


def write(url: str, store: UUID, rows: pa.Table, size: int = 10_000, dies_after: int = 10**9) -> None:
    """One task's write of `rows`, in batches of `size`; it dies after so many transactions."""
    options = parse({"url": url, "store": str(store), "space": SPACE, "idempotencyKey": "k"}, writing=True)
    writer = sink._Writer.__new__(sink._Writer)
    writer.options = options
    cut = sink._Transactions.cut

    def until_it_dies(self: Any, runs: Any) -> Any:
        for at, gathered in enumerate(cut(self, runs)):
            if at >= dies_after:
                raise Died
            yield gathered

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink._Transactions, "cut", until_it_dies)
        writer._write(iter(rows.to_batches(max_chunksize=size)), "k", 0)


@pytest.mark.parametrize(("partitions", "most"), [(1, 100), (3, 100), (1, 10_000)], ids=["bytes", "spread", "rows"])
def test_where_transactions_are_cut_follows_from_the_rows(
    url: str, client: Client, partitions: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "_ROWS", 40)
    monkeypatch.setattr(sink, "_SEGMENTS", 5)
    monkeypatch.setattr(sink, "_BYTES", most)
    monkeypatch.setattr(sink, "_HELD", most + 50)
    store = client.store(uuid4())
    store.create_space(SPACE, partitions)
    rows = table(1000, 9 if most > 100 else 30)
    for dies_after, size in ((3, 10_000), (0, 7), (17, 1), (40, 1000), (10**9, 13), (10**9, 10_000)):
        try:
            write(url, store.id, rows, size, dies_after)
        except Died:
            assert dies_after < 10**9
    wanted: dict[str, list[bytes]] = {}
    for segment, payload in zip(rows["segment"].to_pylist(), rows["payload"].to_pylist(), strict=True):
        wanted.setdefault(segment, []).append(payload)
    assert contents(store) == dict(sorted(wanted.items()))


@pytest.mark.parametrize("sorted_before", [True, False], ids=["write_space", "frame.write"])
def test_a_large_segment_is_not_held_more_than_once(
    url: str, client: Client, pool: pa.MemoryPool, sorted_before: bool
) -> None:
    """A task holds a few MiB of sorted rows, and all rows of an unsorted frame, because it sorts them."""
    size, count = 1 << 20, 96

    def batches() -> Iterator[pa.RecordBatch]:
        for begin in range(0, count, 4):
            numbers = range(begin, begin + 4) if sorted_before else range(count - begin - 1, count - begin - 5, -1)
            columns: dict[str, Any] = {
                "segment": ["s"] * 4,
                "payload": [b"%08d" % number * (size // 8) for number in numbers],
                "at": list(numbers),
            }
            if sorted_before:
                columns["streamkit_bucket"] = [0] * 4
            yield pa.RecordBatch.from_pydict(columns)

    writer = sink._Writer.__new__(sink._Writer)
    store = client.store(uuid4())
    writer.options = parse({"url": url, "store": str(store.id), "space": SPACE, "order": "at"}, writing=True)
    tracemalloc.start()
    try:
        assert writer._write(batches(), "k", 0).rows == count
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [entry.payload[:8] for entry in store.consume_segment(SPACE, "s")] == [b"%08d" % at for at in range(count)]
    assert most < 80 * size
    assert pool.max_memory() < (24 if sorted_before else count + 40) * size


def test_rows_that_come_in_any_order_are_put_in_that_of_their_segments(url: str, client: Client) -> None:
    store, chance = client.store(uuid4()), random.Random(3)
    rows = [(f"s{n % 7}", b"%d" % n * (n % 5), n // 14) for n in range(1000)]
    chance.shuffle(rows)
    frame = pa.table(dict(zip(("segment", "payload", "at"), map(list, zip(*rows, strict=True)), strict=True)))
    writer = sink._Writer.__new__(sink._Writer)
    writer.options = parse({"url": url, "store": str(store.id), "space": SPACE, "order": "at"}, writing=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink, "_TAKEN", 64)
        patch.setattr(sink, "_BYTES", 300)
        writer._write(iter(frame.to_batches(max_chunksize=33)), "k", 0)
    wanted: dict[str, list[bytes]] = {}
    for segment, payload, _ in sorted(rows, key=lambda row: (row[0], row[2])):  # stable, as Arrow's sort
        wanted.setdefault(segment, []).append(payload)
    assert contents(store) == wanted


def test_the_buckets_of_a_write_may_be_spread_over_any_tasks(url: str, client: Client) -> None:
    store = client.store(uuid4())
    rows = table(1000, 30)
    with pytest.raises(Died):
        write(url, store.id, rows, dies_after=2)
    for bucket in range(4):
        alone = rows.filter(pa.array([at == bucket for at in rows["streamkit_bucket"].to_pylist()]))
        write(url, store.id, alone)
    assert sum(map(len, contents(store).values())) == 1000


def test_rows_that_are_gone_from_a_repetition_make_no_others_be_written_twice(url: str, client: Client) -> None:
    """The source's entries were erased meanwhile. The other partitions of the target keep their keys."""
    store = client.store(uuid4())
    store.create_space(SPACE, 4)
    rows = table(100, 10, buckets=1)
    write(url, store.id, rows)
    before = contents(store)
    for segment in before:
        kept = rows.filter(pa.array([name != segment for name in rows["segment"].to_pylist()]))
        with suppress(TransactionIdMismatch):
            write(url, store.id, kept)
        assert contents(store) == before, segment


def test_large_payloads_make_transactions_that_fit(url: str, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_BYTES", 10_000)
    store = client.store(uuid4())
    sizes = [1, 9_999, 1, 30_000, 5, 9_996, 10_000, 1]
    rows = pa.table({"segment": ["s"] * len(sizes), "payload": [b"x" * size for size in sizes]})
    write(url, store.id, rows)
    assert [len(payload) for payload in contents(store)["s"]] == sizes
    spent = Counter[int]()
    for entry in store.consume_space(SPACE):
        spent[entry.trx.number] += len(entry.payload)
    assert sorted(spent.values()) == [1, 1, 5, 9_996, 10_000, 10_000, 30_000]


@pytest.mark.parametrize("column", ["segment", "payload", "space", "store"])
def test_a_null_is_refused_before_its_task_writes(url: str, client: Client, column: str) -> None:
    store = client.store(uuid4())
    rows = {"segment": ["a", "b"], "payload": [b"1", b"2"], "space": [SPACE] * 2, "store": [str(store.id)] * 2}
    rows[column] = [rows[column][0], None]  # type: ignore[list-item]
    with pytest.raises(ValueError, match=f"row 1 of a task: the column '{column}' is null"):
        write(url, store.id, pa.table(rows))
    assert contents(store) == {}


# -- frames ----------------------------------------------------------------------------------------------------------

ROWS = 600


def frame_of(spark: Any, parts: int, segments: int = 40) -> Any:
    from pyspark.sql import functions as F

    numbers = spark.range(ROWS, numPartitions=parts)
    return numbers.select(
        F.concat(F.lit("s"), F.col("id") % segments).alias("segment"),
        F.col("id").cast("string").alias("payload"),
        (F.col("id") / 7).cast("int").alias("n"),
    )


@pytest.mark.parametrize("order", ["", "n"])
def test_a_write_that_lost_a_task_is_finished_with_any_number_of_tasks(
    spark: Any, url: str, client: Client, order: str
) -> None:
    from pyspark.sql import functions as F

    store = client.store(uuid4())
    store.create_space(SPACE, 2)
    names = ("spark.sql.adaptive.enabled", "spark.sql.shuffle.partitions")
    before = {name: spark.conf.get(name) for name in names}
    counts = []
    try:
        for adaptive, shuffled, parts in (("false", 8, 4), ("true", 8, 4), ("true", 3, 1), ("false", 2, 3)):
            spark.conf.set(names[0], adaptive)
            spark.conf.set(names[1], str(shuffled))
            frame = frame_of(spark, parts)
            frame = frame if order else frame.drop("n")
            if not counts:
                # A row of the last task cannot be written: by then others have written theirs.
                task = F.expr("pmod(hash(pmod(xxhash64(segment), 16)), 8)")
                (last,) = frame.orderBy(task.desc(), "payload").select("payload").first()
                frame = frame.withColumn("payload", F.when(F.col("payload") != last, F.col("payload")))
                with pytest.raises(Exception, match="null"):
                    write_space(frame, url, store.id, SPACE, order=order, idempotency_key="import")
            else:
                write_space(frame, url, store.id, SPACE, order=order, idempotency_key="import")
            counts.append(sum(1 for _ in store.consume_space(SPACE)))
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert 0 < counts[0] < ROWS
    assert counts[1:] == [ROWS] * 3
    wanted: dict[str, list[int]] = {}
    for n in range(ROWS):
        wanted.setdefault(f"s{n % 40}", []).append(n)
    found = contents(store)
    assert {s: sorted(map(int, p)) for s, p in found.items()} == dict(sorted(wanted.items()))
    if order:
        assert all(sorted(p, key=lambda each: int(each) // 7) == p for p in found.values())


def test_without_a_key_rows_stay_as_the_frame_has_them(spark: Any, url: str, client: Client) -> None:
    store = client.store(uuid4())
    rows = [(f"s{n % 3}", str(n)) for n in range(99, -1, -1)]
    write_space(spark.createDataFrame(rows, "segment string, payload string"), url, store.id, SPACE)
    wanted = {f"s{at}": [b"%d" % n for n in range(99, -1, -1) if n % 3 == at] for at in range(3)}
    assert contents(store) == wanted


def test_a_key_is_refused_where_tasks_decide_what_it_names(spark: Any, url: str, client: Client) -> None:
    store = client.store(uuid4())
    writer = frame_of(spark, 2).drop("n").write.format("streamkit").mode("append")
    with pytest.raises(Exception, match=r"write_space\(frame"):
        writer.options(url=url, store=str(store.id), space=SPACE, idempotencyKey="k").save()
    assert contents(store) == {}


def test_a_copy_of_a_space_goes_to_the_target_and_not_into_its_source(
    spark: Any, url: str, client: Client, tmp_path: Path
) -> None:
    source, target = client.store(uuid4()), client.store(uuid4())
    fill(source, 10)
    before = contents(source)
    frame = read_space(spark, url, source.id, SPACE)
    with pytest.raises(ValueError, match=r"not written: partition, number,.*frame.select\('segment', 'payload'"):
        write_space(frame, url, target.id, "copy", order="sequence")
    kept = ["segment", "payload", "metadata", "sequence"]
    for columns in (["store", *kept], ["space", *kept], ["store", "space", *kept]):
        named = frame.select(*columns)
        with pytest.raises(Exception, match=rf"a row has ({columns[0]}|space) = .*frame.drop\('store', 'space'\)"):
            write_space(named, url, target.id, "copy", order="sequence")
        options = {"url": url, "store": str(target.id), "space": "copy", "order": "sequence"}
        with pytest.raises(Exception, match=rf"a row has ({columns[0]}|space) = .*frame.drop\('store', 'space'\)"):
            named.write.format("streamkit").options(**options).mode("append").save()
    assert (contents(source), contents(target, "copy")) == (before, {})
    # A column that says the same is no contradiction.
    write_space(frame.select(*kept).withColumn("space", lit("copy")), url, target.id, "copy", order="sequence")
    assert (contents(source), contents(target, "copy")) == (before, before)


def test_a_contradicting_row_is_refused_before_any_other_is_written(spark: Any, url: str, client: Client) -> None:
    store, other = client.store(uuid4()), uuid4()
    rows = [("s", "1", str(store.id))] * 50 + [("s", "2", str(other))]
    frame = spark.createDataFrame(rows, "segment string, payload string, store string")
    with pytest.raises(Exception, match=f"a row has store = {other}"):
        write_space(frame, url, store.id, SPACE)
    assert contents(store) == {}


def test_a_misspelled_column_is_refused(spark: Any, url: str, client: Client) -> None:
    store = client.store(uuid4())
    frame = spark.createDataFrame(
        [("s", "1", {"k": "v"})], "segment string, payload string, metdata map<string,string>"
    )
    with pytest.raises(ValueError, match="not written: metdata"):
        write_space(frame, url, store.id, SPACE)
    options = {"url": url, "store": str(store.id), "space": SPACE}
    with pytest.raises(Exception, match="not written: metdata"):
        frame.write.format("streamkit").options(**options).mode("append").save()
    with pytest.raises(ValueError, match="not written: metdata"):
        sink.StreamWriter(parse(options, writing=True), frame.schema)
    assert contents(store) == {}


def test_a_stream_of_a_space_does_not_write_into_its_source(
    spark: Any, url: str, client: Client, tmp_path: Path
) -> None:
    source, target = client.store(uuid4()), client.store(uuid4())
    fill(source, 10)
    before = contents(source)
    given = {"url": url, "store": str(source.id), "space": SPACE, "columns": "store,space,segment,payload"}
    frame = spark.readStream.format("streamkit").options(**given).load()
    query = frame.writeStream.format("streamkit").trigger(availableNow=True)
    query = query.options(url=url, store=str(target.id), space="copy", checkpointLocation=str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match="the write decides"):
        query.start().awaitTermination()
    assert (contents(source), contents(target, "copy")) == (before, {})


def test_a_batch_that_is_repeated_long_after_the_window_is_written_once(
    spark: Any, url: str, client: Client, tmp_path: Path
) -> None:
    """The target remembers the batches of a query that still matter, also after everything moved to the archive."""
    store, into = client.store(uuid4()), client.store(uuid4())
    into.create_space("out", 2, idempotency_window=0.001, archive_grace=0.001)
    checkpoint = tmp_path / "checkpoint"
    fill(store, 30)
    stream(spark, url, store.id, into.id, checkpoint)
    commit = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commit.unlink()
    commit.with_name(f".{commit.name}.crc").unlink(missing_ok=True)
    for at in range(3):
        into.produce("out", "of others", [Record(b"%d" % at)])
        into.maintain("out")
        into.archive("out")
    stream(spark, url, store.id, into.id, checkpoint)
    wanted = sorted((e.segment, e.payload) for e in store.consume_space(SPACE))
    found = [(e.segment, e.payload) for e in into.consume_space("out") if e.segment != "of others"]
    assert sorted(found) == wanted
