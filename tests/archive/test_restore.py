"""Restoring a space into another store, and compaction, by the store's own calls: neither needs Spark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pytest
from fix_azurite import Azurite

import streamkit
from harness.worlds import PATIENCE
from streamkit import Record, Store
from streamkit.archive import CompactReport
from streamkit.archive.location import path_name
from streamkit.errors import CorruptData, PermanentError, SpaceExists, TransactionIdMismatch

pytest.importorskip("deltalake")

SPACE = "orders/ü"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[streamkit.Client]:
    with streamkit.connect((tmp_path / "stores").as_uri()) as client:
        yield client


@pytest.fixture
def store(client: streamkit.Client) -> Store:
    """Two partitions, three archive runs and a tail."""
    store = client.store(uuid4())
    store.create_space(SPACE, 2)
    for turn in range(4):
        for at in range(10):
            with store.transaction(SPACE) as trx:
                trx.produce(f"{{{at % 4}}}/a", [Record(b"%d.%d" % (turn, at), {"at": str(at)})])
                trx.produce(f"{{{at % 4}}}/b", [Record(b"")] * (at % 3))
        if turn < 3:
            store.archive(SPACE, target_file_bytes=10)
    return store


def content(store: Store, tier: str | None = None) -> dict[str, Any]:
    return {
        segment: [
            (entry.sequence, entry.payload, dict(entry.metadata))
            for entry in store.consume_segment(SPACE, segment)
            if tier in (None, entry.tier)
        ]
        for segment in store.get_segments(SPACE)
    }


def table(client: streamkit.Client, store: Store) -> Path:
    return Path(unquote(client._archive_root()[0].removeprefix("file://")), str(store.id), path_name(SPACE))


def test_a_space_is_restored_with_its_segments_and_sequences(client: streamkit.Client, store: Store) -> None:
    target = client.store(uuid4())
    steps: list[tuple[int, int]] = []
    report = target.restore(SPACE, store, progress=lambda *counts: steps.append(counts))
    assert content(target) == content(store)
    assert (report.space, report.transactions, report.present) == (SPACE, 40, 0)
    assert [sum(counts) for counts in zip(*steps, strict=True)] == [report.transactions, report.entries]
    assert report.entries == len(list(store.consume_space(SPACE)))
    again = target.restore(SPACE, store)
    assert (again.transactions, again.entries, again.present) == (0, 0, 40)
    assert content(target) == content(store)


def test_what_is_archived_is_restored_without_the_log(client: streamkit.Client, store: Store, tmp_path: Path) -> None:
    with streamkit.connect((tmp_path / "empty").as_uri(), archive=client._archive_root()[0]) as lost:
        target = client.store(uuid4())
        with pytest.raises(PermanentError, match="has no space"):
            target.restore(SPACE, lost.store(store.id))
        assert target.restore(SPACE, lost.store(store.id), tier="cold").transactions == 30
    assert content(target) == content(store, "cold")


def test_up_to_a_time(client: streamkit.Client, store: Store) -> None:
    entries = list(store.consume_space(SPACE))
    until = entries[len(entries) // 2].timestamp
    target = client.store(uuid4())
    target.restore(SPACE, store, until=until)
    assert sum(map(len, content(target).values())) == sum(entry.timestamp <= until for entry in entries)


def test_a_target_that_holds_something_else_is_refused(client: streamkit.Client, store: Store) -> None:
    other = client.store(uuid4())
    other.create_space(SPACE, 2)
    for segment, entries in content(store).items():
        other.produce(SPACE, segment, [Record(b"of its own")] * len(entries))
    before = content(other)
    with pytest.raises(CorruptData, match="something else"):
        other.restore(SPACE, store)
    assert content(other) == before
    part = client.store(uuid4())
    part.create_space(SPACE, 2)
    part.produce(SPACE, "{2}/b", [Record(b"")])
    with pytest.raises(CorruptData, match="something else than transaction"):
        part.restore(SPACE, store)


def test_a_target_that_holds_more_is_refused(client: streamkit.Client, store: Store) -> None:
    """The target goes on after the source, has as many entries in other segments, or the same ones in another order."""
    target = client.store(uuid4())
    target.restore(SPACE, store)
    target.produce(SPACE, "of its own", [Record(b"1")])
    with pytest.raises(CorruptData, match="continues at transaction"):
        target.restore(SPACE, store)
    turned = client.store(uuid4())
    turned.create_space(SPACE, 2)
    for segment, entries in reversed(content(store).items()):
        turned.produce(SPACE, segment, [Record(payload, metadata or None) for _, payload, metadata in entries])
    assert content(turned) == content(store)
    with pytest.raises(CorruptData, match="something else"):
        turned.restore(SPACE, store)


def test_the_order_over_partitions_is_kept(client: streamkit.Client) -> None:
    """The order is restored, also of transactions of one millisecond in partitions with the opposite order."""
    store = client.store(uuid4())
    store.create_space(SPACE, 7)
    for at in range(150):
        store.produce(SPACE, f"s{-at % 11}", [Record(b"%d" % at)])
        if at == 70:
            store.archive(SPACE)
    order = [entry.payload for entry in store.consume_space(SPACE)]
    assert len({entry.origin.partition for entry in store.consume_space(SPACE)}) > 3
    target = client.store(uuid4())
    target.restore(SPACE, store, until=next(store.consume_space(SPACE, limit=50, reverse=True)).timestamp)
    assert [entry.payload for entry in target.consume_space(SPACE)] == order
    assert target.restore(SPACE, store).transactions == 0


@pytest.mark.parametrize("tier", ["all", "cold"])
def test_settings_are_those_of_the_source(client: streamkit.Client, tier: Any) -> None:
    store, target = client.store(uuid4()), client.store(uuid4())
    store.create_space(SPACE, 3, "buffered", idempotency_window=1234.0, archive_grace=77.0)
    store.produce(SPACE, "s", [Record(b"1")])
    store.archive(SPACE)
    target.restore(SPACE, store, tier=tier)
    target.create_space(SPACE, 3, "buffered", idempotency_window=1234.0, archive_grace=77.0)
    with pytest.raises(SpaceExists, match="archive_grace is 77"):
        target.create_space(SPACE, 3, "buffered", idempotency_window=1234.0)


def test_idempotency_keys_go_on_counting(client: streamkit.Client) -> None:
    store, target = client.store(uuid4()), client.store(uuid4())
    records = [Record(b"paid", {"by": "card"}), Record(b"twice?")]
    store.create_space(SPACE, 2)
    first = store.produce(SPACE, "order-1", records, idempotency_key="pay 1")
    with store.transaction(SPACE, idempotency_key="both") as trx:
        trx.produce("{2}/a", [Record(b"a")])
        trx.produce("{2}/b", [Record(b"b")])
    store.archive(SPACE)
    store.produce(SPACE, "order-1", [Record(b"without a key")])
    store.produce(SPACE, "order-1", [Record(b"3")], idempotency_key="pay 3")
    report = target.restore(SPACE, store)
    assert (report.transactions, report.keys, report.keys_left) == (4, 3, 0)
    again = target.produce(SPACE, "order-1", records, idempotency_key="pay 1")
    assert (again.first_sequence, again.last_sequence) == (first.first_sequence, first.last_sequence)
    with pytest.raises(TransactionIdMismatch):
        target.produce(SPACE, "order-1", [Record(b"other")], idempotency_key="pay 3")
    with target.transaction(SPACE, idempotency_key="both") as trx:
        trx.produce("{2}/a", [Record(b"a")])
        trx.produce("{2}/b", [Record(b"b")])
    assert {name: status.last_sequence for name, status in trx.statuses.items()} == {"{2}/a": 1, "{2}/b": 1}
    assert content(target) == content(store)
    assert target.restore(SPACE, store).present == 4


def test_wrong_arguments_of_restore_are_named(client: streamkit.Client, store: Store) -> None:
    target = client.store(uuid4())
    with pytest.raises(ValueError, match="are the same store"):
        store.restore(SPACE, store)
    with pytest.raises(TypeError, match="source is a store"):
        target.restore(SPACE, str(store.id))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="until"):
        target.restore(SPACE, store, until="now")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tier"):
        target.restore(SPACE, store, tier="hot")  # type: ignore[arg-type]
    with pytest.raises(PermanentError, match="no space 'other'"):
        target.restore("other", store)
    assert list(target.get_spaces()) == []


def test_compaction_brings_small_files_together_and_removes_the_old(client: streamkit.Client, store: Store) -> None:
    before, files = content(store), len(list(table(client, store).glob("*.parquet")))
    steps: list[tuple[int, int]] = []
    report = store.compact(SPACE, retention_hours=0.9, progress=lambda *at: steps.append(at))
    assert (report.space, report.before, report.after, report.removed) == (SPACE, files, 1, 0)
    assert steps[-1] == (files, files)
    assert store.compact(SPACE, retention_hours=0).removed == files
    assert content(store) == before
    assert content(client.store(store.id)) == before
    assert store.compact(SPACE) == type(report)(SPACE, 1, 1, 0)
    assert store.compact("nothing here").before == 0
    for error, arguments in (
        (TypeError, {"target_file_bytes": 1.5}),
        (ValueError, {"target_file_bytes": 0}),
        (TypeError, {"retention_hours": "week"}),
        (ValueError, {"retention_hours": -1}),
    ):
        with pytest.raises(error, match=next(iter(arguments))):
            store.compact(SPACE, **arguments)  # type: ignore[arg-type]


@pytest.mark.azure
def test_nothing_is_compacted_where_there_is_no_archive(azurite: Azurite, tmp_path: Path) -> None:
    """On Azure the store has no container either, until something is put into it."""
    for url in (azurite.url("nothing" + uuid4().hex[:8]), tmp_path.as_uri()):
        with streamkit.connect(url, timeout=PATIENCE) as client:
            store = client.store(uuid4())
            store.produce(SPACE, "a", [Record(b"")])
            assert store.compact(SPACE) == CompactReport(SPACE)


def test_an_archive_that_is_kept_elsewhere_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkit.log.partition.still_in_log_from", lambda *_: None)  # it has left the log
    url, place = (tmp_path / "stores").as_uri(), (tmp_path / "else where").as_uri()
    with streamkit.connect(url, archive=place) as client:
        store = client.store(uuid4())
        store.produce(SPACE, "s", [Record(b"1")])
        store.archive(SPACE)
    with streamkit.connect(url) as client:
        unaware, says = client.store(store.id), r"say where they are kept.*archive=URL.*STREAMKIT_ARCHIVE"
        for ask in (
            lambda: list(unaware.consume_space(SPACE)),
            lambda: unaware.archive(SPACE),
        ):
            with pytest.raises(PermanentError, match=says) as found:
                ask()
            assert not isinstance(found.value, CorruptData)
        assert not list((tmp_path / "stores").glob("archive/*/*"))
    with streamkit.connect(url, archive=place) as client:
        client.store(store.id).produce("other", "s", [Record(b"1")])
        client.store(store.id).archive("other")
        shutil.rmtree(tmp_path / "else where" / str(store.id) / path_name(SPACE))
        with pytest.raises(CorruptData, match="restore the table"):
            list(client.store(store.id).consume_space(SPACE))


def test_runs_that_are_merged_while_a_space_is_restored() -> None:
    """The index is read at the end, for the segments of which nothing is left: others have gone on by then."""
    url = f"memory://{uuid4().hex}?remote=1"
    with streamkit.connect(url) as client, streamkit.connect(url) as other, streamkit.connect("memory://") as new:
        source = client.store(uuid4())

        def write(store: Store, transactions: int, segments: int) -> None:
            for _ in range(transactions):
                with store.transaction(SPACE) as trx:
                    for at in range(segments):
                        trx.produce(f"s{at}", [Record(os.urandom(2000))])

        write(source, 70, 8)
        source.trim(SPACE, "s7", keep_entries=0)
        source.maintain()
        busy, steps = other.store(source.id), list[int]()

        def go_on(transactions: int, _: int) -> None:
            steps.append(transactions)
            if len(steps) == 70:
                write(busy, 70, 7)
                busy.maintain()

        target = new.store(uuid4())
        target.restore(SPACE, client.store(source.id), progress=go_on)
        assert target.produce(SPACE, "s7", [Record(b"")]).last_sequence == 71
        assert [entry.payload for entry in target.consume_segment(SPACE, "s1")] == [
            entry.payload for entry in busy.consume_segment(SPACE, "s1", max_sequence=70)
        ]
