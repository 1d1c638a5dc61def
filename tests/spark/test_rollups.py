"""Rollups that end at each of their steps, and run again: every entry is counted once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_spark import SPACE, fill

import streamkit
from streamkit import Client, Record, Store

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

import deltalake
import deltalake.exceptions
import rollup
from rollup import Layout, Output

from streamkit.errors import EntriesRemoved, PermanentError, Unavailable

pytestmark = pytest.mark.spark

SQL = "SELECT segment, count(*) AS n FROM entries GROUP BY segment"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "stores").as_uri()


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with streamkit.connect(url) as found:
        yield found


def roll_up(spark: Any, url: str, store: Store, output: str, sql: str = SQL, **options: str) -> int:
    return asked(spark, url, store, output, sql, options).rows


def asked(
    spark: Any, url: str, store: Store, output: str, sql: str = SQL, options: dict[str, str] | None = None, **more: Any
) -> rollup.RollupReport:
    given = {"url": url, "store": str(store.id), "space": SPACE, **(options or {})}
    return rollup.roll_up(spark, given, sql, output, **more)


def counted(output: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for row in deltalake.DeltaTable(output).to_pyarrow_table().to_pylist():
        total[row["segment"]] += row["n"]
    return total


def there(store: Store, until: int | None = None) -> Counter[str]:
    return Counter(entry.segment for entry in list(store.consume_space(SPACE))[:until])


class Killed(BaseException):
    """The process has ended there."""


class Steps:
    """Counts what a rollup does to the world, and ends it before or after one of these steps."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.last: int | None = None

    def of(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            self._take(f"before {name}")
            done = work(*arguments, **named)
            self._take(f"after {name}")
            return done

        return step

    def _take(self, name: str) -> None:
        if len(self.taken) == self.last:
            raise Killed(name)
        self.taken.append(name)


@pytest.mark.parametrize("new", [True, False], ids=["a new output", "an output that is there"])
def test_a_rollup_that_ends_at_any_step_counts_each_entry_once(
    spark: Any, url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: bool,
    covered: Callable[[str, int], None],
) -> None:  # fmt: skip
    steps = Steps()
    monkeypatch.setattr(rollup, "spans", steps.of("the look at the store", rollup.spans))
    monkeypatch.setattr(rollup, "_read", steps.of("the query", rollup._read))
    monkeypatch.setattr(Output, "_files", steps.of("the files", Output._files))
    monkeypatch.setattr(deltalake, "write_deltalake", steps.of("a commit", deltalake.write_deltalake))
    commit = deltalake.DeltaTable.create_write_transaction
    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", steps.of("a commit", commit))
    at = 0
    while True:
        store, output = client.store(uuid4()), str(tmp_path / f"rollup-{at}")
        store.create_space(SPACE, 2)
        fill(store, 10)
        if not new:
            steps.last = None
            roll_up(spark, url, store, output)
            fill(store, 10, start=10)
        steps.taken, steps.last = [], at
        try:
            roll_up(spark, url, store, output)
        except Killed:
            fill(store, 3, start=20)
        else:
            break
        steps.last = None
        roll_up(spark, url, store, output)
        assert counted(output) == there(store)
        assert roll_up(spark, url, store, output) == 0
        at += 1 if EXHAUSTIVE or (new and at > 2) else 3
    covered("rollups that ended at a step", at)
    assert steps.taken[-1] == "after a commit"
    assert at >= 6


def test_an_answer_that_is_lost_is_not_another_rollup(
    spark: Any, url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, output = client.store(uuid4()), str(tmp_path / "rollup")
    fill(store, 10)
    write = deltalake.DeltaTable.create_write_transaction

    def lost(*arguments: Any, **options: Any) -> None:
        write(*arguments, **options)
        raise deltalake.exceptions.CommitFailedError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(deltalake.DeltaTable, "create_write_transaction", lost)
        with pytest.raises(Unavailable, match="run it again"):
            roll_up(spark, url, store, output)
    assert roll_up(spark, url, store, output) == 0
    assert counted(output) == there(store)


def test_rows_that_do_not_fit_the_output_are_told_so(spark: Any, url: str, client: Client, tmp_path: Path) -> None:
    store, output = client.store(uuid4()), str(tmp_path / "rollup")
    fill(store, 10)
    roll_up(spark, url, store, output)
    fill(store, 5, start=10)
    for sql in (
        "SELECT segment, count(*) AS n, max(sequence) AS last FROM entries GROUP BY segment",
        "SELECT segment, cast(count(*) AS string) AS n FROM entries GROUP BY segment",
        "SELECT segment, count(*) / 2 AS n FROM entries GROUP BY segment",
        "SELECT segment FROM entries",
    ):
        with pytest.raises(ValueError, match=r"has the columns segment .*the SQL gives .*nothing was written"):
            roll_up(spark, url, store, output, sql)
    roll_up(spark, url, store, output)
    assert counted(output) == there(store)


def test_an_output_of_a_store_that_was_made_again_is_refused(
    spark: Any, url: str, client: Client, tmp_path: Path
) -> None:
    id, output = uuid4(), str(tmp_path / "rollup")
    fill(client.store(id), 10)
    roll_up(spark, url, client.store(id), output)
    client.delete_store(id)
    fill(client.store(id), 20)
    with pytest.raises(PermanentError, match="made of another space"):
        roll_up(spark, url, client.store(id), output)


@pytest.mark.parametrize("archived", [False, True])
def test_bounds_of_a_rollup_lose_no_part_of_a_transaction(
    spark: Any, url: str, client: Client, tmp_path: Path, archived: bool
) -> None:
    store, output = client.store(uuid4()), str(tmp_path / "rollup")
    fill(store, 20)
    entries = list(store.consume_space(SPACE))
    if archived:
        store.archive(SPACE)
    inside = next(at for at in range(20, len(entries)) if entries[at].trx == entries[at + 1].trx)
    begin = next(at for at, entry in enumerate(entries) if entry.trx == entries[inside].trx)
    roll_up(spark, url, store, output, until=entries[inside].space_offset.hex())
    assert counted(output) == there(store, begin)
    assert roll_up(spark, url, store, output, until=entries[5].space_offset.hex()) == 0
    roll_up(spark, url, store, output)
    assert counted(output) == there(store)
    with pytest.raises(ValueError, match="both tiers"):
        roll_up(spark, url, store, output, tier="cold")


# -- how it is laid down ---------------------------------------------------------------------------------------------


def rows_of(output: str, *columns: str) -> list[tuple[Any, ...]]:
    table = deltalake.DeltaTable(output).to_pyarrow_table().select(columns)
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_batches_are_commits_of_their_own(spark: Any, url: str, client: Client, tmp_path: Path) -> None:
    store, output = client.store(uuid4()), str(tmp_path / "rollup")
    store.create_space(SPACE, 2)
    fill(store, 12)
    store.archive(SPACE)
    fill(store, 12, start=12)
    entries = sum(there(store).values())
    report = asked(spark, url, store, output, "SELECT segment, 1L AS n FROM entries", batch_rows=entries // 3)
    assert report.batches >= 3
    assert report.rows == entries
    assert counted(output) == there(store)
    # As many rows as they may have, in whole transactions.
    table = deltalake.DeltaTable(output)
    assert max(json.loads(row["stats"])["numRecords"] for row in added(table)) <= entries // 3
    assert asked(spark, url, store, output, batch_rows=1).batches == 0
    fill(store, 1, start=5)
    assert asked(spark, url, store, output, batch_rows=1).batches == 1
    assert counted(output) == there(store)


def added(table: Any) -> Iterator[dict[str, Any]]:
    """Return the rows that each version added, by the table's log."""
    for path in sorted((Path(table.table_uri.removeprefix("file://")) / "_delta_log").glob("*.json")):
        for line in path.read_text().splitlines():
            if "add" in (action := json.loads(line)):
                yield action["add"]


def test_rows_are_written_by_partition(spark: Any, url: str, client: Client, tmp_path: Path) -> None:
    store, output = client.store(uuid4()), str(tmp_path / "rollup")
    fill(store, 10)
    sql = "SELECT segment, sequence % 2 AS half, sequence > 1 AS late, count(*) AS n FROM entries GROUP BY ALL"
    asked(spark, url, store, output, sql, layout=Layout(partition_by=("segment", "late")))
    fill(store, 5, start=10)
    asked(spark, url, store, output, sql)  # it is partitioned already
    table = deltalake.DeltaTable(output)
    assert table.metadata().partition_columns == ["segment", "late"]
    assert counted(output) == there(store)
    only = table.to_pyarrow_table(partitions=[("segment", "=", "s3"), ("late", "=", "true")])
    assert sum(only["n"].to_pylist()) == there(store)["s3"] - 1
    fill(store, 2, start=20)
    with pytest.raises(ValueError, match="is partitioned by segment, late, and not by segment"):
        asked(spark, url, store, output, sql, layout=Layout(partition_by=("segment",)))
    with pytest.raises(ValueError, match=r"partition-by 'at' is timestamp.*CAST"):
        asked(spark, url, store, str(tmp_path / "x"), "SELECT timestamp AS at FROM entries", layout=Layout(("at",)))


def test_rows_are_merged_and_late_entries_counted(spark: Any, url: str, client: Client, tmp_path: Path) -> None:
    store, output = client.store(uuid4()), str(tmp_path / "rollup")
    layout = Layout(merge_on=("segment",), add=("n",))
    sql = "SELECT segment, count(*) AS n, max(sequence) AS last FROM entries GROUP BY segment"
    for turn in range(2):
        fill(store, 9, start=turn * 9)
        assert asked(spark, url, store, output, sql, layout=layout).rows == 7
        assert asked(spark, url, store, output, sql, layout=layout).batches == 0
    wanted = sorted((segment, count, count) for segment, count in there(store).items())
    assert rows_of(output, "segment", "n", "last") == wanted
    fill(store, 3, start=30)
    for wrong, says in (
        ("SELECT segment, 1L AS n, sequence AS last FROM entries", "several rows for one segment"),
        ("SELECT if(sequence > 0, NULL, segment) AS segment, 1L AS n, 1L AS last FROM entries", "null in a row"),
    ):
        with pytest.raises(ValueError, match=says):
            asked(spark, url, store, output, wrong, layout=layout)
    assert rows_of(output, "segment", "n", "last") == wanted
    # A batch of which nothing is left moves on as well.
    assert asked(spark, url, store, output, f"{sql} HAVING false", layout=layout).rows == 0
    assert asked(spark, url, store, output, sql, layout=layout).batches == 0


def test_a_merge_whose_answer_is_lost_adds_nothing_twice(
    spark: Any, url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, output = client.store(uuid4()), str(tmp_path / "rollup")
    layout = Layout(merge_on=("segment",), add=("n",))
    fill(store, 9)
    asked(spark, url, store, output, layout=layout)
    fill(store, 9, start=9)
    execute = deltalake.table.TableMerger.execute

    def lost(merger: Any) -> Any:
        execute(merger)
        raise deltalake.exceptions.CommitFailedError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(deltalake.table.TableMerger, "execute", lost)
        with pytest.raises(Unavailable, match="run it again"):
            asked(spark, url, store, output, layout=layout)
    assert asked(spark, url, store, output, layout=layout).batches == 0
    assert counted(output) == there(store)


def test_columns_come_to_an_output_where_that_is_allowed(spark: Any, url: str, client: Client, tmp_path: Path) -> None:
    store, output = client.store(uuid4()), str(tmp_path / "rollup")
    fill(store, 5)
    roll_up(spark, url, store, output)
    fill(store, 5, start=5)
    more = "SELECT segment, count(*) AS n, max(sequence) AS last FROM entries GROUP BY segment"
    with pytest.raises(ValueError, match="--evolve"):
        asked(spark, url, store, output, more)
    asked(spark, url, store, output, more, layout=Layout(evolve=True))
    fill(store, 5, start=10)
    asked(spark, url, store, output, layout=Layout(evolve=True))  # without the new one
    assert counted(output) == there(store)
    lasts = deltalake.DeltaTable(output).to_pyarrow_table()["last"]
    assert 0 < lasts.null_count < len(lasts)
    fill(store, 1, start=20)
    with pytest.raises(ValueError, match="has the columns"):
        asked(spark, url, store, output, "SELECT segment, 'x' AS n FROM entries", layout=Layout(evolve=True))


def test_rows_do_not_come_to_the_driver(
    spark: Any, url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.classic.dataframe import DataFrame

    store, output = client.store(uuid4()), str(tmp_path / "rollup")
    fill(store, 40)
    collect, brought = DataFrame.collect, []

    def counting(frame: Any) -> Any:
        brought.append(collect(frame))
        return brought[-1]

    monkeypatch.setattr(DataFrame, "collect", counting)
    for name in ("toArrow", "toPandas", "toLocalIterator"):
        monkeypatch.setattr(DataFrame, name, None)
    sql = "SELECT segment, sequence, payload, 1L AS n FROM entries"
    assert roll_up(spark, url, store, output, sql) == sum(there(store).values())
    assert counted(output) == there(store)
    assert sum(map(len, brought)) < 10


# -- payloads of a schema --------------------------------------------------------------------------------------------


def test_entries_that_are_not_of_the_schema_are_set_aside_once(
    spark: Any, url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, output, bad = client.store(uuid4()), str(tmp_path / "rollup"), str(tmp_path / "bad")
    good = [b'{"item":"a","price":2.5}', b'{"item":"b","price":1,"more":[]}', b'{"item":null}']
    wrong = [b"", b"nonsense", b'{"item":"c","price":"dear"}', b"\xff\xfe", b"[]"]
    for at, payload in enumerate([*good, *wrong] * 2):
        store.produce(SPACE, f"s{at % 3}", [Record(payload)])
    sql = "SELECT item, sum(price) AS total, count(*) AS n FROM entries GROUP BY item"
    schema = "item string, price double"
    with pytest.raises(ValueError, match=rf"{2 * len(wrong)} payloads are not of the schema.*--bad"):
        asked(spark, url, store, output, sql, schema=schema)
    assert not Path(output).exists()
    # It ends between the two tables.
    write = Output.write

    def killed(self: Output, *arguments: Any) -> int:
        if self.url == output:
            raise Killed
        return write(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Output, "write", killed)
        with pytest.raises(Killed):
            asked(spark, url, store, output, sql, schema=schema, bad=bad)
    assert asked(spark, url, store, output, sql, schema=schema, bad=bad).bad == 0
    assert asked(spark, url, store, output, sql, schema=schema, bad=bad).batches == 0
    rows = deltalake.DeltaTable(output).to_pyarrow_table().to_pylist()
    assert {row["item"]: (row["total"], row["n"]) for row in rows} == {"a": (5.0, 2), "b": (2.0, 2), None: (None, 2)}
    found = deltalake.DeltaTable(bad).to_pyarrow_table().to_pylist()
    assert Counter(row["payload"] for row in found) == Counter(wrong * 2)
    assert {row["segment"] for row in found} == {"s0", "s1", "s2"}
    store.produce(SPACE, "s", [Record(b"worse")])
    assert asked(spark, url, store, output, sql, schema=schema, bad=bad).bad == 1
    # Another output keeps there what is not of its own schema.
    sql, schema, other = "SELECT price FROM entries", "price string", str(tmp_path / "other")
    report = asked(spark, url, store, other, sql, schema=schema, bad=bad)
    assert (report.rows, report.bad) == (2 * len(good) + 2, 2 * len(wrong) - 2 + 1)
    assert deltalake.DeltaTable(bad).to_pyarrow_table().num_rows == len(found) + 1 + report.bad


def test_spaces_of_any_names_have_marks_of_their_own(spark: Any, url: str, client: Client, tmp_path: Path) -> None:
    store, output = client.store(uuid4()), str(tmp_path / "rollup")
    spaces = ("a", "a/incarnation", "a/incarnation/0", "0/a")
    for round in (1, 2):
        for at, space in enumerate(spaces, 1):
            store.produce(space, space, [Record(b"x")] * at)
        report = asked(spark, url, store, output, options={"space": "*"})
        assert (report.rows, report.batches) == (len(spaces), 1)
        assert counted(output) == {space: round * at for at, space in enumerate(spaces, 1)}


def test_a_rollup_that_went_on_while_the_store_was_looked_at_is_no_damage(
    spark: Any, url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, output = client.store(uuid4()), str(tmp_path / "rollup")
    fill(store, 5)
    look = rollup.spans

    def overtaken(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(rollup, "spans", look)
        found = look(*arguments, **named)
        fill(store, 5, start=5)
        roll_up(spark, url, store, output)
        return found

    monkeypatch.setattr(rollup, "spans", overtaken)
    assert roll_up(spark, url, store, output) == 0
    assert counted(output) == there(store)


def test_what_was_trimmed_before_it_was_rolled_up_is_told(spark: Any, url: str, client: Client, tmp_path: Path) -> None:
    store, output = client.store(uuid4()), str(tmp_path / "rollup")
    for at in range(10):
        store.produce(SPACE, "s", [Record(b"x")])
        if at == 4:
            roll_up(spark, url, store, output)
    offsets = [entry.space_offset for entry in store.consume_space(SPACE)]
    store.trim(SPACE, before=offsets[3])  # all of it was rolled up
    first = {"from": offsets[0].hex()}
    assert asked(spark, url, store, output, options=first).rows == 1
    for _ in range(5):
        store.produce(SPACE, "s", [Record(b"x")])
    offsets = [entry.space_offset for entry in store.consume_space(SPACE)]
    store.trim(SPACE, before=offsets[-3])
    with pytest.raises(EntriesRemoved, match=r"were trimmed before they were rolled up.*--go-on"):
        roll_up(spark, url, store, output)
    assert counted(output) == {"s": 10}
    assert roll_up(spark, url, store, output, failOnDataLoss="false") == 1
    assert counted(output) == {"s": 12}


def test_threads_of_one_session_roll_up_their_own_entries(
    spark: Any, url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [client.store(uuid4()) for _ in range(2)]
    for store, count in zip(stores, (3, 50), strict=True):
        store.produce(SPACE, "s", [Record(b"x")] * count)
    outputs = [str(tmp_path / f"rollup-{at}") for at in range(2)]
    other = Thread(target=lambda: roll_up(spark, url, stores[1], outputs[1]))
    here, done = Event(), Event()
    frames, read = type(spark.range(0)), rollup._read
    name = frames.createOrReplaceTempView

    def naming(frame: Any, view: str) -> None:
        name(frame, view)
        if current_thread() is other:
            done.set()
        else:
            other.start()
            assert here.wait(60)
            done.wait(1)  # the other one has a second to take the name; it gets it when this one is done with it

    def reading(*arguments: Any) -> Any:
        found = read(*arguments)
        if current_thread() is other:
            here.set()
        return found

    monkeypatch.setattr(frames, "createOrReplaceTempView", naming)
    monkeypatch.setattr(rollup, "_read", reading)
    roll_up(spark, url, stores[0], outputs[0])
    other.join()
    assert [counted(output) for output in outputs] == [{"s": 3}, {"s": 50}]
