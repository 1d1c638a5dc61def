"""One frame and many queries: the frame always holds the entries that the store held when it was made."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_spark import SPACE, both_tiers, entries_of, fill, load, rows_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamkit
from streamkit import Entry, Record, Store

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from streamkit.errors import PermanentError
from streamkit.spark import read_space, register, rows
from streamkit.spark.options import parse
from streamkit.spark.source import StreamkitSource

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
COLUMNS = ["segment", "sequence", "payload", "number", "partition"]
Row = tuple[str, int, bytes, int, int]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tmp_path_factory.mktemp("stores").as_uri()


@pytest.fixture(scope="module")
def both(url: str) -> Iterator[Store]:
    """A store of two partitions, half of it archived in several files."""
    with both_tiers(url, 60, 500) as store:
        yield store


def as_rows(entries: list[Entry]) -> list[Row]:
    return sorted((e.segment, e.sequence, e.payload, e.trx.number, e.origin.partition) for e in entries)


def collected(frame: Any) -> list[Row]:
    return sorted((r[0], r[1], bytes(r[2]), r[3], r[4]) for r in frame.select(*COLUMNS).collect())


def source(spark: Any, url: str, store: Store, **options: Any) -> Any:
    return load(spark, url, store, **{name: str(value) for name, value in options.items()})


def native(spark: Any, url: str, store: Store, **options: Any) -> Any:
    names = {"from": "since", "minSequence": "min_sequence", "maxSequence": "max_sequence"}
    given = {names.get(name, name): value for name, value in options.items()}
    if "segments" in given:
        given["segments"] = json.loads(given["segments"])
    return read_space(spark, url, store.id, SPACE, **given)


@pytest.fixture(params=[source, native])
def read(request: pytest.FixtureRequest) -> Any:
    return request.param


# -- a frame that is used more than once -----------------------------------------------------------------------------


@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_a_filter_of_one_query_is_not_one_of_the_next(
    spark: Any, url: str, both: Store, read: Any, pushdown: str
) -> None:
    entries = as_rows(list(both.consume_space(SPACE)))
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, pushdown)
    try:
        frame = read(spark, url, both)
        of_one = frame.where("segment = 's1'")
        assert collected(of_one) == [row for row in entries if row[0] == "s1"]
        assert collected(frame) == entries
        joined = of_one.alias("a").join(frame.alias("b"), ["segment", "sequence"])
        assert joined.count() == sum(row[0] == "s1" for row in entries)
        assert frame.where("sequence > 3").unionByName(frame).count() == len(entries) + sum(r[1] > 3 for r in entries)
    finally:
        spark.conf.set(PUSHDOWN, before)


def test_registering_changes_no_setting_of_the_session(spark: Any) -> None:
    before = dict(spark.conf.getAll)
    register(spark)
    assert dict(spark.conf.getAll) == before
    assert spark.conf.get(PUSHDOWN) == "false"


def test_a_rollup_that_looks_twice_at_the_entries_counts_all(spark: Any, tmp_path: Path) -> None:
    import rollup
    from deltalake import DeltaTable

    root, output = (tmp_path / "stores").as_uri(), str(tmp_path / "rollup")
    with streamkit.connect(root) as client:
        store = client.store(uuid4())
        fill(store, 30)
        sql = (
            "SELECT 'one' AS what, count(*) AS n FROM entries WHERE segment = 's1' "
            "UNION ALL SELECT 'all' AS what, count(*) AS n FROM entries"
        )
        options = {"url": root, "store": str(store.id), "space": SPACE}
        assert rollup.roll_up(spark, options, sql, output).rows == 2
        entries = list(store.consume_space(SPACE))
    counted = {row["what"]: row["n"] for row in DeltaTable(output).to_pyarrow_table().to_pylist()}
    assert counted == {"one": sum(e.segment == "s1" for e in entries), "all": len(entries)}


# Conditions of queries: in SQL for Spark, and the same in Python.
_SEGMENTS = st.sampled_from([f"s{n}" for n in range(8)])


def conditions(entries: list[Row]) -> st.SearchStrategy[tuple[str, Any]]:
    numbers = st.integers(0, 12)
    simple = st.one_of(
        _SEGMENTS.map(lambda s: (f"segment = '{s}'", lambda r: r[0] == s)),
        _SEGMENTS.map(lambda s: (f"segment >= '{s}'", lambda r: r[0] >= s)),
        st.lists(_SEGMENTS, min_size=1, max_size=3).map(
            lambda names: ("segment in ({})".format(",".join(f"'{s}'" for s in names)), lambda r: r[0] in names)
        ),
        numbers.map(lambda n: (f"sequence > {n}", lambda r: r[1] > n)),
        numbers.map(lambda n: (f"number <= {n * 4}", lambda r: r[3] <= n * 4)),
        numbers.map(lambda n: (f"partition = {n % 2}", lambda r: r[4] == n % 2)),
        st.just(("payload is not null", lambda r: True)),
        st.just(("false", lambda r: False)),
    )
    return st.recursive(
        simple,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(
                lambda p: (f"({p[0][0]}) and ({p[1][0]})", lambda r: p[0][1](r) and p[1][1](r))
            ),
            st.tuples(inner, inner).map(lambda p: (f"({p[0][0]}) or ({p[1][0]})", lambda r: p[0][1](r) or p[1][1](r))),
            inner.map(lambda c: (f"not ({c[0]})", lambda r: not c[1](r))),
        ),
        max_leaves=3,
    )


def questions(entries: list[Row]) -> st.SearchStrategy[list[tuple[str, tuple[str, Any], tuple[str, Any]]]]:
    kinds = st.sampled_from(["rows", "count", "union", "join", "except", "group", "cache", "limit", "exists"])
    return st.lists(st.tuples(kinds, conditions(entries), conditions(entries)), min_size=2, max_size=5)


def ask(frame: Any, entries: list[Row], kind: str, first: tuple[str, Any], second: tuple[str, Any]) -> None:
    """Compare Spark's answer with Python's."""
    from pyspark.sql import functions as F

    one, other = [r for r in entries if first[1](r)], [r for r in entries if second[1](r)]
    left, right = frame.where(first[0]), frame.where(second[0])
    match kind:
        case "rows":
            assert collected(left) == one
        case "count":
            assert (left.count(), frame.count(), right.count()) == (len(one), len(entries), len(other))
        case "union":
            assert collected(left.unionByName(right)) == sorted(one + other)
        case "join":
            keys = {r[:2] for r in other}
            joined = left.join(right.select("segment", "sequence"), ["segment", "sequence"])
            assert collected(joined) == [r for r in one if r[:2] in keys]
        case "except":
            keys = {r[:2] for r in other}
            found = left.join(right.select("segment", "sequence"), ["segment", "sequence"], "left_anti")
            assert collected(found) == [r for r in one if r[:2] not in keys]
        case "group":
            grouped = left.groupBy("segment").agg(F.count("*"), F.max("sequence")).collect()
            wanted = Counter(r[0] for r in one)
            most = {r[0]: r[1] for r in one}
            assert {r[0]: (r[1], r[2]) for r in grouped} == {s: (n, most[s]) for s, n in wanted.items()}
        case "cache":
            kept = left.cache()
            try:
                assert kept.count() == len(one)
                assert collected(kept.where(second[0])) == [r for r in one if second[1](r)]
                assert frame.count() == len(entries)
            finally:
                kept.unpersist()
        case "limit":
            found = left.orderBy("segment", "sequence").limit(3).select(*COLUMNS).collect()
            assert [(r[0], r[1]) for r in found] == [r[:2] for r in one][:3]
        case "exists":
            frame.createOrReplaceTempView("asked")
            (row,) = frame.sparkSession.sql(
                f"SELECT (SELECT count(*) FROM asked WHERE {first[0]}), (SELECT count(*) FROM asked), "
                f"(SELECT count(*) FROM asked WHERE {second[0]})"
            ).collect()
            assert tuple(row) == (len(one), len(entries), len(other))


def frames(entries: list[Entry]) -> st.SearchStrategy[tuple[dict[str, Any], Any]]:
    """Options of a read, and which entries it is of: (options, entries)."""
    some = st.integers(0, len(entries) - 1)

    def of(picked: dict[str, Any]) -> tuple[dict[str, Any], list[Entry]]:
        options: dict[str, Any] = {}
        left = list(range(len(entries)))
        for name, value in picked.items():
            if value is None:
                continue
            match name:
                case "after":
                    options["from"] = entries[value].space_offset.hex()
                    left = [at for at in left if at > value]
                case "since":
                    options["from"] = entries[value].timestamp
                    left = [at for at in left if entries[at].timestamp >= entries[value].timestamp]
                case "to":
                    options["until"] = entries[value].space_offset.hex()
                    left = [at for at in left if at <= value]
                case "until":
                    options["until"] = entries[value].timestamp
                    left = [at for at in left if entries[at].timestamp <= entries[value].timestamp]
                case "segments":
                    options["segments"] = json.dumps(value)
                    left = [at for at in left if entries[at].segment in value]
                case "tier":
                    options["tier"] = value
                    left = [at for at in left if entries[at].tier == value]
                case _:
                    options[name] = value
                    low = name == "minSequence"
                    left = [
                        at for at in left if (entries[at].sequence >= value if low else entries[at].sequence <= value)
                    ]
        return options, [entries[at] for at in left]

    begin = st.one_of(st.just({}), some.map(lambda at: {"after": at}), some.map(lambda at: {"since": at}))
    end = st.one_of(st.just({}), some.map(lambda at: {"to": at}), some.map(lambda at: {"until": at}))
    rest = st.fixed_dictionaries(
        {},
        optional={
            "segments": st.lists(_SEGMENTS, max_size=3),
            "minSequence": st.integers(1, 20),
            "maxSequence": st.integers(1, 20),
            "tier": st.sampled_from(["hot", "cold"]),
        },
    )
    return st.tuples(begin, end, rest).map(lambda parts: of({**parts[0], **parts[1], **parts[2]}))


EXAMPLES = 200 if EXHAUSTIVE else 5


def test_one_frame_answers_every_question_as_the_store_does(spark: Any, url: str, both: Store) -> None:
    entries = list(both.consume_space(SPACE))
    asked = Counter[str]()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize="STREAMKIT_SEED" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(frames(entries), st.sampled_from([source, native]), st.data())
    def check(made: tuple[dict[str, Any], list[Entry]], read: Any, data: st.DataObject) -> None:
        options, wanted = made
        rows = as_rows(wanted)
        frame = read(spark, url, both, **options)
        for kind, first, second in data.draw(questions(rows)):
            ask(frame, rows, kind, first, second)
            asked[kind] += 1
        assert collected(frame) == rows

    check()
    assert asked.total() >= EXAMPLES


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_until_an_offset_is_every_entry_up_to_it_and_no_other(spark: Any, url: str, both: Store, read: Any) -> None:
    """Offsets in both tiers, in the middle of a transaction too, and at the end of the log."""
    entries = list(both.consume_space(SPACE))
    middles = [
        at
        for at in range(1, len(entries) - 1)
        if entries[at].trx == entries[at + 1].trx and entries[at - 1].trx == entries[at].trx
    ]
    cold = [at for at in middles if entries[at].tier == "cold"]
    hot = [at for at in middles if entries[at].tier == "hot"]
    bounds = [cold[0], cold[len(cold) // 2], hot[1], hot[-1], len(entries) - 1]
    for at in bounds if EXHAUSTIVE else bounds[::2]:
        offset = entries[at].space_offset.hex()
        before = collected(read(spark, url, both, until=offset))
        after = collected(read(spark, url, both, **{"from": offset}))
        assert before == as_rows(entries[: at + 1])
        assert after == as_rows(entries[at + 1 :])
    given = read_space(spark, url, both.id, SPACE, until=entries[hot[1]].space_offset)
    assert collected(given) == as_rows(entries[: hot[1] + 1])
    low, high = cold[1], hot[-2]
    options = {"from": entries[low].space_offset.hex(), "until": entries[high].space_offset.hex()}
    assert collected(read(spark, url, both, **options)) == as_rows(entries[low + 1 : high + 1])
    for tier in ("cold", "hot"):
        wanted = [entry for entry in entries[low + 1 : high + 1] if entry.tier == tier]
        assert collected(read(spark, url, both, tier=tier, **options)) == as_rows(wanted)


def test_two_bounds_within_one_transaction(spark: Any, tmp_path: Path, read: Any) -> None:
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        store.produce(SPACE, "s", [Record(b"%d" % n) for n in range(10)])
        for _ in range(2):
            entries = list(store.consume_space(SPACE))
            options = {"from": entries[2].space_offset.hex(), "until": entries[6].space_offset.hex()}
            assert collected(read(spark, tmp_path.as_uri(), store, **options)) == as_rows(entries[3:7])
            store.archive(SPACE)


@pytest.mark.parametrize("harm", ["cut short", "missing", "trimmed", "erased"])
def test_one_partition_of_which_only_the_reader_of_entries_knows_what_is_there(
    spark: Any, tmp_path: Path, read: Any, harm: str
) -> None:
    """The reader of entries finds a damaged file of the archive whose entries are still in the log, or a removal."""
    root = tmp_path.as_uri()
    with streamkit.connect(root) as client:
        store = client.store(uuid4())
        store.create_space(SPACE, partitions=2)
        for at in range(24):
            store.produce(SPACE, f"s{at % 6}", [Record(b"%d %d" % (at, n)) for n in range(3)])
        store.archive(SPACE)
        for at in range(6):
            store.produce(SPACE, f"s{at}", [Record(b"hot")])
        wanted = list(store.consume_space(SPACE))
        path = next(iter((tmp_path / "archive" / str(store.id)).glob("*/*.parquet")))
        match harm:
            case "cut short":
                path.write_bytes(path.read_bytes()[:-100])
            case "missing":
                path.unlink()
            case "trimmed":
                store.trim(SPACE, "s1", keep_entries=2)
            case "erased":
                store.erase(SPACE, "s2", first=2, last=5)
        if harm in ("trimmed", "erased"):
            wanted = list(store.consume_space(SPACE, gaps="skip"))
            assert 0 < len(wanted) < 78
        assert collected(read(spark, root, store)) == as_rows(wanted)
        tail = [entry for entry in wanted if entry.payload == b"hot"]
        assert collected(read(spark, root, store, tier="hot")) == as_rows(tail)


def test_where_nothing_is_to_be_read_the_frame_is_empty(spark: Any, url: str, tmp_path: Path, read: Any) -> None:
    from pyspark.sql.functions import lit

    root = tmp_path.as_uri()
    with streamkit.connect(root) as client:
        store = client.store(uuid4())
        store.create_space(SPACE)
        assert collected(read(spark, root, store)) == []
        fill(store, 10)
        end = store.end_offset(SPACE).hex()
        bounds: tuple[dict[str, Any], ...] = (
            {"from": "2999-01-01"},
            {"until": "1999-01-01"},
            {"from": end},
            {"from": "latest"},
            {"tier": "cold"},
            {"segments": '["none of them"]'},
            {"segments": "[]"},
            {"minSequence": 1000},
            {"minSequence": 1 << 70},
        )
        every = read(spark, root, store).withColumn("bounds", lit("none"))
        for options in bounds:  # one query, as each has the costs of one
            every = every.unionByName(read(spark, root, store, **options).withColumn("bounds", lit(str(options))))
        rows = every.select(*COLUMNS, "bounds").collect()
        assert {row.bounds for row in rows} == {"none"}
        assert sorted((r[0], r[1], bytes(r[2]), r[3], r[4]) for r in rows) == as_rows(list(store.consume_space(SPACE)))
        store.archive(SPACE)
        assert read(spark, root, store, tier="hot").count() == 0
        assert read(spark, root, store, minSequence=1 << 63).count() == 0
        assert collected(read(spark, root, store, maxSequence=1 << 63)) == as_rows(list(store.consume_space(SPACE)))


def test_an_offset_behind_which_entries_were_trimmed_is_told(spark: Any, tmp_path: Path, read: Any) -> None:
    root = tmp_path.as_uri()
    with streamkit.connect(root) as client:
        store = client.store(uuid4())
        fill(store, 10)
        offsets = [entry.space_offset for entry in store.consume_space(SPACE)]
        store.trim(SPACE, keep_entries=5)
        left = as_rows(list(store.consume_space(SPACE)))
        with pytest.raises(Exception, match="were trimmed: entries after the offset are missing"):
            read(spark, root, store, **{"from": offsets[0].hex()}).count()
        assert collected(read(spark, root, store)) == left
        assert collected(read(spark, root, store, **{"from": offsets[-len(left) - 1].hex()})) == left


def test_the_verify_job_looks_at_an_empty_space(spark: Any, tmp_path: Path) -> None:
    from streamkit.spark.jobs import verify

    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        store.create_space("empty")
        fill(store, 3)
        assert verify.job(["--url", tmp_path.as_uri()]) == 0


# -- where the stores are --------------------------------------------------------------------------------------------


def test_local_paths_of_every_kind_are_read_by_spark_itself(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("with space", "a=b", "c+d", "ü", "100%", "[g]", "{h}", "#i", "j,k"):
        root = (tmp_path / name).as_uri()
        with streamkit.connect(root) as client:
            store = client.store(uuid4())
            fill(store, 5, space=f"{name} {SPACE}")
            store.archive(f"{name} {SPACE}")
            frame = read_space(spark, root, store.id, f"{name} {SPACE}")
            assert rows_of(frame) == entries_of(store, f"{name} {SPACE}")
            assert "PythonDataSource" not in plan_of(frame), name
    assert not caplog.records


def test_a_file_is_not_left_out_because_the_session_ignores_such_files(spark: Any, url: str, both: Store) -> None:
    frame = read_space(spark, url, both.id, SPACE)
    assert frame.count() == both.size(SPACE).entries
    settings = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
    for setting in settings:
        spark.conf.set(setting, "true")
    try:
        file = next(Path(both._archive(SPACE).table.directory or "").glob("*.parquet"))
        file.write_bytes(bytes(file.stat().st_size))
        with pytest.raises(Exception, match="FAILED_READ_FILE"):
            frame.count()
        file.unlink()
        with pytest.raises(Exception, match="FAILED_READ_FILE"):
            frame.count()
    finally:
        for setting in settings:
            spark.conf.unset(setting)


def plan_of(frame: Any) -> str:
    """The parts of it that are read by the source are called so."""
    return str(frame._jdf.queryExecution().executedPlan()).replace("BatchScan streamkit", "PythonDataSource")


def test_why_spark_does_not_read_by_itself_is_logged(
    spark: Any, both: Store, url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamkit.spark import native as module

    monkeypatch.setattr(module, "_hadoop", lambda table: "nowhere://x")
    with caplog.at_level(logging.WARNING, "streamkit"):
        assert rows_of(read_space(spark, url, both.id, SPACE)) == entries_of(both)
    assert "slower source" in caplog.text
    assert "nowhere" in caplog.text


def test_an_endpoint_is_the_same_with_a_slash_at_its_end(
    spark: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamkit.spark import native as module

    class Table:
        url = "s3://bucket/archive"
        directory = None
        options = MappingProxyType({"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"})

    configuration = spark._jsc.hadoopConfiguration()
    asked = []
    monkeypatch.setattr(module, "_hadoop", lambda table: asked.append(table) or "file:///")
    try:
        for endpoint, reads in (("http://127.0.0.1:9000/", True), ("http://127.0.0.1:9001", False)):
            configuration.set("fs.s3a.endpoint", endpoint)
            assert module._can_read(spark, "", Table()) is reads  # type: ignore[arg-type]
    finally:
        configuration.unset("fs.s3a.endpoint")
    assert "9001" in caplog.text


# -- stores that are not what they were ------------------------------------------------------------------------------


def pieces_of(url: str, store: Store) -> tuple[Any, list[Any]]:
    options = {"url": url, "store": str(store.id), "space": SPACE}
    reader = StreamkitSource(options).reader(None)  # type: ignore[arg-type]
    return parse(options), [piece for task in reader.partitions() for piece in task.pieces]  # type: ignore[attr-defined]


def test_a_worker_whose_client_was_closed_opens_it_again(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        fill(store, 10)
        store.archive(SPACE, target_file_bytes=100)
        fill(store, 5, start=10)
        options, pieces = pieces_of(url, store)
        count = sum(1 for _ in store.consume_space(SPACE))
        for _ in range(2):
            assert sum(batch.num_rows for batch in rows.read_pieces(pieces, options, ())) == count
            rows._clients[url, None].close()


def test_a_frame_is_not_read_from_a_store_that_was_made_in_its_place(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    with streamkit.connect(url) as client:
        id: UUID = uuid4()
        fill(client.store(id), 10)
        options, pieces = pieces_of(url, client.store(id))
        assert sum(batch.num_rows for batch in rows.read_pieces(pieces[:1], options, ()))
        client.delete_store(id)
        fill(client.store(id), 20)
        with pytest.raises(PermanentError, match="another one was made in its place"):
            list(rows.read_pieces(pieces[:1], options, ()))
        # And the worker goes on with the new one.
        options, pieces = pieces_of(url, client.store(id))
        assert sum(batch.num_rows for batch in rows.read_pieces(pieces[:1], options, ()))
