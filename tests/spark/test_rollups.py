"""Rollups that end at each of their steps, and run again: every entry is counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_spark import SPACE, fill

import streamkit
from streamkit import Client, Store

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

import deltalake
import deltalake.exceptions

from streamkit.errors import PermanentError, Unavailable
from streamkit.spark.jobs import rollup

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

SQL = "SELECT segment, count(*) AS n FROM entries GROUP BY segment"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "stores").as_uri()


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with streamkit.connect(url) as found:
        yield found


def roll_up(spark: Any, url: str, store: Store, output: str, sql: str = SQL, **options: str) -> int:
    return rollup.roll_up(spark, {"url": url, "store": str(store.id), "space": SPACE, **options}, sql, output)


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
    monkeypatch.setattr(deltalake, "write_deltalake", steps.of("a commit", deltalake.write_deltalake))
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
        at += 1 if EXHAUSTIVE or at > 2 else 2
    covered("rollups that ended at a step", at)
    assert steps.taken[-1] == "after a commit"
    assert at >= 6


def test_an_answer_that_is_lost_is_not_another_rollup(
    spark: Any, url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, output = client.store(uuid4()), str(tmp_path / "rollup")
    fill(store, 10)
    write = deltalake.write_deltalake

    def lost(target: Any, rows: Any, **options: Any) -> None:
        write(target, rows, **options)
        if rows.num_rows:
            raise deltalake.exceptions.CommitFailedError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(deltalake, "write_deltalake", lost)
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
        with pytest.raises(ValueError, match=r"has the columns segment .*the SQL gives .*nothing was appended"):
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


def test_bounds_of_a_rollup_lose_no_part_of_a_transaction(spark: Any, url: str, client: Client, tmp_path: Path) -> None:
    store, output = client.store(uuid4()), str(tmp_path / "rollup")
    fill(store, 20)
    entries = list(store.consume_space(SPACE))
    inside = next(at for at in range(20, len(entries)) if entries[at].trx == entries[at + 1].trx)
    begin = next(at for at, entry in enumerate(entries) if entry.trx == entries[inside].trx)
    roll_up(spark, url, store, output, until=entries[inside].space_offset.hex())
    assert counted(output) == there(store, begin)
    assert roll_up(spark, url, store, output, until=entries[5].space_offset.hex()) == 0
    roll_up(spark, url, store, output)
    assert counted(output) == there(store)
    with pytest.raises(ValueError, match="both tiers"):
        roll_up(spark, url, store, output, tier="cold")
