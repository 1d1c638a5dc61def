"""The stream's reader by itself: its batches, their beginnings, their costs, and refused gaps."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_spark import SPACE, fill, stream

import streamkit
from streamkit import Client, Record, Store

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from streamkit.errors import InvalidOffset, PermanentError
from streamkit.spark.options import parse
from streamkit.spark.stream import StreamReader

pytestmark = pytest.mark.spark

Row = tuple[int, int, int]
"""(partition, number, index)"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "stores").as_uri()


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with streamkit.connect(url) as found:
        yield found


def reader(url: str, store: Store | UUID | str, **options: Any) -> StreamReader:
    given = {"url": url, "store": str(getattr(store, "id", store)), "space": SPACE}
    return StreamReader(parse({**given, **{name: str(value) for name, value in options.items()}}))


def noted(offset: Any) -> Any:
    """The offset in the form in which Spark keeps it."""
    return json.loads(json.dumps(offset))


def tasks(source: StreamReader, start: Any, end: Any) -> list[tuple[int, int, int]]:
    return [(p.piece.partition, p.piece.first, p.piece.last) for p in source.partitions(start, end)]  # type: ignore[attr-defined]


def rows(source: StreamReader, start: Any, end: Any) -> list[list[Row]]:
    """The rows of each task, as they come."""
    found: list[list[Row]] = []
    for task in source.partitions(start, end):
        found.append([])
        for batch in source.read(task):
            names = ("partition", "number", "index")
            found[-1] += zip(*(batch[name].to_pylist() for name in names), strict=True)
    return found


def everything(source: StreamReader, limit: ReadLimit | None = None, start: Any = None) -> tuple[list[list[Row]], Any]:
    """The batches until nothing is left, and the last offset."""
    start = noted(source.initialOffset()) if start is None else start
    batches = []
    while (end := noted(source.latestOffset(start, limit or source.getDefaultReadLimit()))) != start:
        batches.append([row for task in rows(source, start, end) for row in task])
        start = end
    return batches, start


def of(store: Store) -> list[Row]:
    return sorted(
        (e.origin.partition, e.trx.number, e.origin.index + e.sequence - e.origin.first_sequence)
        for e in store.consume_space(SPACE)
    )


# -- batches ---------------------------------------------------------------------------------------------------------


def test_the_tasks_of_a_batch_follow_from_the_data_and_not_from_the_tier(url: str, client: Client) -> None:
    store = client.store(uuid4())
    store.create_space(SPACE, 2, archive_grace=0.001)
    fill(store, 60)
    first = reader(url, store, segmentSplit=20)
    start = noted(first.initialOffset())
    end = noted(first.latestOffset(start, ReadAllAvailable()))
    before, hot = tasks(first, start, end), rows(first, start, end)
    assert len(before) >= 6
    assert sorted(row for task in hot for row in task) == of(store)
    for round in range(3):
        store.archive(SPACE, target_file_bytes=300)  # the second time what is archived leaves the log
        if round == 1:
            store.compact(SPACE)
        fill(store, 10, start=60 + 10 * round)
        again = reader(url, store, segmentSplit=7)  # the batch is noted, and has its tasks from then
        assert tasks(again, start, end) == before
        assert rows(again, start, end) == hot


@pytest.mark.parametrize("partitions", [1, 8])
def test_a_trigger_takes_no_more_rows_than_it_may(url: str, client: Client, partitions: int) -> None:
    store = client.store(uuid4())
    store.create_space(SPACE, partitions)
    for at in range(40):
        store.produce(SPACE, f"s{at}", [Record(b"")] * (1 + at % 50))
    store.produce(SPACE, "large", [Record(b"")] * 300)
    store.archive(SPACE, target_file_bytes=1000)
    for at in range(40):
        store.produce(SPACE, f"t{at}", [Record(b"")] * (1 + at % 50))
    source = reader(url, store, maxRowsPerTrigger=100)
    batches, _ = everything(source)
    assert sorted(row for batch in batches for row in batch) == of(store)
    larger = [batch for batch in batches if len(batch) > 100]
    assert [len(batch) for batch in larger] == [300]
    assert len({row[:2] for row in larger[0]}) == 1, "a transaction that is larger by itself is read alone"
    # And not much less either.
    assert len(batches) <= 2 * sum(map(len, batches)) / 100


def test_a_partition_with_large_transactions_does_not_wait_for_ever(url: str, client: Client) -> None:
    store = client.store(uuid4())
    store.create_space(SPACE, 2)
    names = [f"s{at}" for at in range(20)]
    partition = {name: store.produce(SPACE, name, [Record(b"")]) and 0 for name in names}
    for entry in store.consume_space(SPACE):
        partition[entry.segment] = entry.origin.partition
    small, large = (next(name for name in names if partition[name] == at) for at in (0, 1))
    source = reader(url, store, maxRowsPerTrigger=100)
    _, at = everything(source)
    store.produce(SPACE, large, [Record(b"")] * 90)
    waiting_since = store.peek(SPACE, large).timestamp
    while time.time_ns() // 1_000_000 <= waiting_since:
        pass  # entries of one millisecond may come in any order
    for _ in range(4):
        for _ in range(20):
            store.produce(SPACE, small, [Record(b"")] * 10)
        end = noted(source.latestOffset(at, ReadMaxRows(100)))
        batch = [row for task in rows(source, at, end) for row in task]
        assert len(batch) <= 100
        at = end
        if any(row[0] == 1 for row in batch):
            return
    pytest.fail("the large transaction was never taken")


def test_available_now_ends_at_what_was_there(url: str, client: Client) -> None:
    store = client.store(uuid4())
    store.create_space(SPACE, 2)
    fill(store, 20)
    wanted = of(store)
    source = reader(url, store, maxRowsPerTrigger=10)
    source.prepareForTriggerAvailableNow()
    fill(store, 20, start=20)
    batches, _ = everything(source)
    assert sorted(row for batch in batches for row in batch) == wanted


def test_an_idle_trigger_asks_each_partition_once() -> None:
    url = f"memory://{uuid4().hex}?remote=1"
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        store.create_space(SPACE, 8)
        fill(store, 20)
        source = reader(url, store)
        _, at = everything(source)
        counted = source._client.store(store.id)  # type: ignore[union-attr]

        def requests() -> int:
            asked = counted.statistics().requests
            return sum(count for kind, count in asked.items() if "bytes" not in kind)

        before = requests()
        for _ in range(10):
            assert noted(source.latestOffset(at, ReadAllAvailable())) == at
            assert noted(source.reportLatestOffset()) == at
        assert requests() - before == 80
        source.stop()


# -- where a stream begins -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_stream_begins_where_it_is_told(url: str, client: Client, partitions: int) -> None:
    store = client.store(uuid4())
    store.create_space(SPACE, partitions)
    fill(store, 20)
    store.archive(SPACE, target_file_bytes=300)
    fill(store, 20, start=20)
    entries = list(store.consume_space(SPACE))
    places = [
        (e.origin.partition, e.trx.number, e.origin.index + e.sequence - e.origin.first_sequence) for e in entries
    ]
    inside = next(at for at in range(30, len(entries)) if entries[at].trx == entries[at + 1].trx)
    moment = entries[25].timestamp
    for begin, wanted in (
        ("earliest", places),
        (moment, [place for place, e in zip(places, entries, strict=True) if e.timestamp >= moment]),
        (entries[inside].space_offset.hex(), places[inside + 1 :]),
        (entries[-1].space_offset.hex(), []),
        ("2999-01-01", []),
        ("latest", []),
    ):
        source = reader(url, store, **{"from": begin})
        batches, at = everything(source)
        assert sorted(row for batch in batches for row in batch) == sorted(wanted), begin
    store.produce(SPACE, "later", [Record(b"")] * 3)
    batches, _ = everything(source, start=at)
    assert sum(map(len, batches)) == 3
    other = client.store(uuid4())
    fill(other, 5)
    elsewhere = reader(url, store, **{"from": other.end_offset(SPACE).hex()})
    with pytest.raises(InvalidOffset):
        elsewhere.initialOffset()


def test_what_makes_no_sense_for_a_stream_is_refused(url: str, client: Client) -> None:
    store = client.store(uuid4())
    for options, says in (
        ({"tier": "hot"}, "both tiers"),
        ({"tier": "cold"}, "both tiers"),
        ({"until": "2030-01-01"}, "no end"),
    ):
        with pytest.raises(ValueError, match=says):
            reader(url, store, **options)


# -- a checkpoint of something else ----------------------------------------------------------------------------------


def test_a_stream_does_not_go_on_in_a_store_that_was_made_in_its_place(url: str, client: Client) -> None:
    id = uuid4()
    store = client.store(id)
    fill(store, 20)
    source = reader(url, store)
    begin = noted(source.initialOffset())
    _, at = everything(source)
    client.delete_store(id)
    store = client.store(id)
    fill(store, 40)
    for source in (reader(url, id), reader(url, "*")):
        with pytest.raises(PermanentError, match=r"another space .* made in its place.*new checkpoint"):
            source.latestOffset(at, ReadAllAvailable())
        with pytest.raises(PermanentError, match="made in its place"):
            source.partitions(begin, at)
    batches, _ = everything(reader(url, store, failOnDataLoss="false"), start=at)
    assert sorted(row for batch in batches for row in batch) == of(store)


def test_a_stream_does_not_pass_over_a_store_that_is_gone(url: str, client: Client) -> None:
    first, second = client.store(uuid4()), client.store(uuid4())
    fill(first, 10)
    fill(second, 10)
    _, at = everything(reader(url, "*"))
    client.delete_store(second.id)
    fill(first, 10, start=10)
    with pytest.raises(PermanentError, match="does not exist any more"):
        reader(url, "*").latestOffset(at, ReadAllAvailable())
    batches, _ = everything(reader(url, "*", failOnDataLoss="false"), start=at)
    assert sum(map(len, batches)) == sum(1 for e in first.consume_space(SPACE) if e.trx.number > 10)


def produce(store: Store, *payloads: bytes) -> None:
    """A transaction of one segment."""
    store.produce(SPACE, "s", [Record(payload) for payload in payloads])


def payloads(source: StreamReader, start: Any) -> list[bytes]:
    end = noted(source.latestOffset(start, ReadAllAvailable()))
    found = [batch["payload"].to_pylist() for task in source.partitions(start, end) for batch in source.read(task)]
    return [payload for some in found for payload in some]


def test_what_was_trimmed_after_it_was_read_is_no_loss(url: str, client: Client) -> None:
    """The records of the trims, which hold no entries, are not reported as missing."""
    store = client.store(uuid4())
    produce(store, b"1", b"2")
    _, read = everything(reader(url, store))
    told = reader(url, store, **{"from": store.end_offset(SPACE).hex()})
    start = noted(told.initialOffset())
    for _ in range(3):
        store.trim(SPACE, before=store.end_offset(SPACE))
    produce(store, b"3")
    for source, place in ((reader(url, store), read), (told, start)):
        assert payloads(source, place) == [b"3"]


def test_what_was_trimmed_before_it_was_read_is_a_loss(url: str, client: Client) -> None:
    store = client.store(uuid4())
    produce(store, b"1", b"2")
    at = next(iter(store.consume_space(SPACE))).space_offset  # in the middle of a transaction
    middle = noted(reader(url, store, **{"from": at.hex()}).initialOffset())
    _, read = everything(reader(url, store))
    produce(store, b"3")
    store.trim(SPACE, before=store.end_offset(SPACE))
    produce(store, b"4")
    for place in (middle, read):
        with pytest.raises(PermanentError, match="were removed"):
            payloads(reader(url, store), place)
        assert payloads(reader(url, store, failOnDataLoss="false"), place) == [b"4"]


def test_a_stream_that_begins_behind_what_was_trimmed_has_lost_nothing(url: str, client: Client) -> None:
    store = client.store(uuid4())
    produce(store, b"1")
    store.trim(SPACE, before=store.end_offset(SPACE))
    produce(store, b"2")
    for begin in ("earliest", "2000-01-01"):
        source = reader(url, store, **{"from": begin})
        assert payloads(source, noted(source.initialOffset())) == [b"2"]


def test_a_stream_that_began_when_nothing_was_there_is_told_what_it_lost(url: str, client: Client) -> None:
    store = client.store(uuid4())
    store.create_space(SPACE)
    start = noted(reader(url, store).initialOffset())
    produce(store, b"1")
    store.trim(SPACE, before=store.end_offset(SPACE))
    produce(store, b"2")
    with pytest.raises(PermanentError, match="were removed"):
        payloads(reader(url, store), start)
    # A checkpoint of an earlier release does not say whether a partition was empty, or was not read.
    del start["named"]
    assert payloads(reader(url, store), start) == [b"2"]


def test_a_space_that_comes_later_has_lost_nothing_though_its_beginning_was_trimmed(url: str, client: Client) -> None:
    store = client.store(uuid4())
    store.produce("first", "s", [Record(b"1")])
    options = {"space": "*", "maxRowsPerTrigger": 1}
    _, place = everything(reader(url, store, **options))
    store.produce("first", "s", [Record(b"2")])
    client._clock.sleep(0.002)  # the oldest entries come first
    produce(store, b"3")
    store.trim(SPACE, before=store.end_offset(SPACE))
    produce(store, b"4")
    batches, place = everything(reader(url, store, **options), start=place)
    assert [len(batch) for batch in batches] == [1, 1]
    # Told again after a restart, and not of a partition that is known.
    assert everything(reader(url, store, **options), start=place)[0] == []


def test_what_is_trimmed_while_a_batch_is_read_is_a_loss(url: str, client: Client) -> None:
    store = client.store(uuid4())
    produce(store, b"1")
    _, start = everything(reader(url, store))
    produce(store, b"2")
    produce(store, b"3")
    planned = []
    for loss in ("true", "false"):
        source = reader(url, store, failOnDataLoss=loss)
        planned.append((source, source.partitions(start, noted(source.latestOffset(start, ReadAllAvailable())))))
    store.trim(SPACE, keep_entries=1)
    (strict, tasks), (lenient, same) = planned
    with pytest.raises(PermanentError, match="were removed"):
        list(strict.read(tasks[0]))
    assert [value for batch in lenient.read(same[0]) for value in batch["payload"].to_pylist()] == [b"3"]


def test_a_checkpoint_beyond_the_end_is_of_something_else(url: str, client: Client) -> None:
    store = client.store(uuid4())
    fill(store, 10)
    source = reader(url, store)
    _, at = everything(source)
    (place,) = at["spaces"].values()
    place["read"] = [99]
    with pytest.raises(PermanentError, match="ends at transaction 10, and the checkpoint is at 99"):
        source.latestOffset(at, ReadAllAvailable())


def test_a_checkpoint_of_an_earlier_release_is_gone_on_with(url: str, client: Client) -> None:
    store = client.store(uuid4())
    store.create_space(SPACE, 2)
    fill(store, 20)
    old = {"version": 1, json.dumps([str(store.id), SPACE, 0]): 3, json.dumps([str(store.id), SPACE, 1]): 0}
    batches, at = everything(reader(url, store), start=old)
    assert sorted(row for batch in batches for row in batch) == [r for r in of(store) if r[0] == 1 or r[1] > 3]
    assert at["version"] == 2
    with pytest.raises(ValueError, match="version 3"):
        reader(url, store).latestOffset({"version": 3}, ReadAllAvailable())


def test_a_space_that_comes_later_is_read_from_its_beginning(url: str, client: Client) -> None:
    first = client.store(uuid4())
    fill(first, 5)
    source = reader(url, "*", **{"from": "latest"})
    _, at = everything(source)
    second = client.store(uuid4())
    fill(second, 5)
    batches, _ = everything(source, start=at)
    assert sorted(row for batch in batches for row in batch) == of(second)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_task_keeps_its_place_if_transactions_before_it_were_trimmed(
    url: str, client: Client, partitions: int
) -> None:
    """A sink knows the rows that it has written by the places of their tasks."""
    store = client.store(uuid4())
    store.create_space(SPACE, partitions)
    first = reader(url, store, segmentSplit=10)
    start = noted(first.initialOffset())
    fill(store, 60)
    end = noted(first.latestOffset(start, ReadAllAvailable()))
    before = rows(first, start, end)
    assert len(before) > 10
    for kept in (50, 20, 0):
        store.trim(SPACE, keep_entries=kept)
        left = {*of(store)}
        again = reader(url, store, failOnDataLoss="false")
        assert rows(again, start, end) == [[row for row in task if row in left] for task in before]


def test_a_task_keeps_its_place_if_a_space_before_it_was_deleted(url: str, client: Client) -> None:
    store = client.store(uuid4())
    options = {"space": "*", "segmentSplit": 10, "failOnDataLoss": "false"}
    for space in ("first", SPACE):
        fill(store, 20, space=space)
    first = reader(url, store, **options)
    start = noted(first.initialOffset())
    end = noted(first.latestOffset(start, ReadAllAvailable()))
    before = rows(first, start, end)
    for made_again in (False, True):
        store.delete_space("first")
        if made_again:
            fill(store, 1, space="first")
        after = rows(reader(url, store, **options), start, end)
        assert after == [[]] * (len(before) // 2) + before[len(before) // 2 :]


# -- into a sink -----------------------------------------------------------------------------------------------------


def test_a_batch_that_is_repeated_after_it_was_archived_is_written_once(
    spark: Any, url: str, client: Client, tmp_path: Path
) -> None:
    """The process ended after some tasks had written. Their source entries were archived, and have left the log."""
    store, into = client.store(uuid4()), uuid4()
    store.create_space(SPACE, 2, archive_grace=0.001)
    checkpoint = tmp_path / "checkpoint"
    for round in range(2 if EXHAUSTIVE else 1):  # each of its four streams starts a process of Spark
        fill(store, 60, start=60 * round)
        stream(spark, url, store.id, into, checkpoint, segmentSplit="50")
        commit = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        commit.unlink()
        commit.with_name(f".{commit.name}.crc").unlink(missing_ok=True)
        for _ in range(2):
            store.archive(SPACE, target_file_bytes=500)
        fill(store, 5, start=1000 + 10 * round)
        stream(spark, url, store.id, into, checkpoint, segmentSplit="50")
        # Tasks run in parallel: only the rows of one task are in order.
        wanted = sorted((e.segment, e.payload) for e in store.consume_space(SPACE))
        assert sorted((e.segment, e.payload) for e in client.store(into).consume_space("out")) == wanted
