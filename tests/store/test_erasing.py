"""Erasure: erased entries are in no file, and no reader gets them. test_erased_bytes kills the processes meanwhile."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest

import streamkit
from harness.deep_search import files_below, found_in, rows_in_memory
from streamkit import LeaseNotAcquired, Record, Store

Stored = Callable[[], Iterator[tuple[str, bytes]]]


class Secrets:
    """Payloads that nothing else has, of many sizes, among others that stay."""

    def __init__(self) -> None:
        self.tag = os.urandom(24)
        self.kept = os.urandom(24)

    def write(self, store: Store, turns: int = 24, large: int = 0) -> None:
        for turn in range(turns):
            size = large if large and turn == 5 else (10, 3000, 40_000)[turn % 3]
            body = os.urandom(size)
            with store.transaction("a") as trx:
                trx.produce("user-1", [Record(self.tag + body, {"who": "user-1"}), Record(b"log in")])
                trx.produce("user-2", [Record(self.kept + body)])
            if turn in (7, 15):
                store.maintain()


def check(store: Store, secrets: Secrets, stored: Stored, turns: int = 24) -> None:
    assert found_in(stored(), secrets.tag) == []
    assert found_in(stored(), secrets.kept), "the search finds nothing at all"
    assert [entry.sequence for entry in store.consume_segment("a", "user-1")] == list(range(2, 2 * turns + 1, 2))
    kept = list(store.consume_segment("a", "user-2"))
    assert len(kept) == turns
    assert all(entry.payload.startswith(secrets.kept) for entry in kept)
    report = store.verify("a")
    assert report.ok, report.findings[:3]


def test_nothing_is_left_on_disk_of_what_was_erased(tmp_path: Path) -> None:
    secrets = Secrets()
    with streamkit.connect(f"file://{tmp_path}") as client, client.store(uuid4()) as store:
        secrets.write(store, large=3 << 20)
        assert len(found_in(files_below(tmp_path), secrets.tag)) >= 2
        report = store.erase("a", metadata={"who": "user-1"})
        assert (report.entries, report.searched) == (24, 72)
        check(store, secrets, lambda: files_below(tmp_path))
    with streamkit.connect(f"file://{tmp_path}") as client:
        check(client.store(store.id), secrets, lambda: files_below(tmp_path))


def test_nothing_is_left_on_disk_of_heads_and_runs_that_were_replaced(tmp_path: Path) -> None:
    secrets = Secrets()
    with streamkit.connect(f"file://{tmp_path}") as client, client.store(uuid4()) as store:
        for _ in range(8):
            store.produce("a", "user-1", [Record(secrets.tag), Record(b"log in")])
            store.produce("a", "user-2", [Record(secrets.kept)])
            store.maintain()
        store.erase("a", "user-1", first=1, last=14)
        store.erase("a", "user-1", first=15, last=15)
        assert found_in(files_below(tmp_path), secrets.tag) == []
        assert [entry.sequence for entry in store.consume_segment("a", "user-1")] == [16]


@pytest.mark.parametrize("seed", range(4))
def test_short_entries_are_erased_one_by_one_from_a_batch_that_hardly_shrinks(seed: int) -> None:
    """The remaining entries must fit the bytes of their frame."""
    dice, url = Random(seed), f"memory://{uuid4().hex}"
    texts = [base64.b64encode(dice.randbytes(dice.choice((75, 2_250, 15_000)))) for _ in range(40)]
    short = {at: b"short-%d." % at for at in range(5, 40, 8)}
    left = {at + 1: short.get(at, text) for at, text in enumerate(texts)}
    with streamkit.connect(url) as client, client.store(uuid4()) as store:
        store.produce("a", "s", [Record(payload) for payload in left.values()])
        for at, payload in short.items():
            assert found_in(rows_in_memory(url), payload)
            assert store.erase("a", "s", first=at + 1, last=at + 1).entries == 1
            del left[at + 1]
            assert found_in(rows_in_memory(url), payload) == []
            assert {entry.sequence: entry.payload for entry in store.consume_segment("a", "s")} == left
        assert store.verify("a").ok


@pytest.mark.parametrize("url", ["memory://erasing", "memory://erasing-remote?remote=1"])
def test_nothing_is_left_in_memory(url: str) -> None:
    secrets = Secrets()
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        secrets.write(store, large=2 << 20)
        store.erase("a", metadata={"who": "user-1"})
        check(store, secrets, lambda: rows_in_memory(url))
        client.delete_store(store.id)


def test_the_archive_and_its_history_lose_it_too(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    import pyarrow.parquet as pq

    secrets = Secrets()
    root, cold = tmp_path / "store", tmp_path / "cold"
    with streamkit.connect(f"file://{root}", archive=f"file://{cold}") as client, client.store(uuid4()) as store:
        secrets.write(store, 12)
        store.archive("a")
        secrets.write(store, 12)
        store.archive("a")
        store.compact("a")  # leaves older versions of the table, and their files
        secrets.write(store, 6)

        def stored() -> Iterator[tuple[str, bytes]]:
            yield from files_below(root, cold)
            for path in cold.rglob("*.parquet"):
                for payload in (
                    pq.read_table(path).column("payload").to_pylist() if "_delta_log" not in str(path) else ()
                ):
                    yield str(path), payload or b""

        store.erase("a", "user-1", first=1, last=1)
        report = store.erase("a", metadata={"who": "user-1"})
        assert report.files >= 1
        check(store, secrets, stored, 30)
        table = store.to_arrow("a").read_all()
        assert table.num_rows == 60
        assert table["payload"].null_count == 0
        store.archive("a")
        check(store, secrets, stored, 30)


def test_a_process_that_has_cached_an_entry_gives_it_out_no_more(tmp_path: Path) -> None:
    with streamkit.connect(f"file://{tmp_path}") as one, streamkit.connect(f"file://{tmp_path}") as other:
        store = one.store(uuid4())
        reader = other.store(store.id)
        store.produce("a", "s", [Record(b"secret")])
        store.maintain()
        assert reader.peek("a", "s").payload == b"secret"
        assert [entry.payload for entry in reader.consume_space("a")] == [b"secret"]
        store.erase("a", "s")
        assert reader.peek("a", "s").sequence == 0
        assert list(reader.consume_segment("a", "s")) == []
        assert list(reader.consume_space("a")) == []


@pytest.mark.parametrize("archived", [False, True])
def test_the_search_by_metadata_finds_what_reading_all_finds(archived: bool, tmp_path: Path) -> None:
    """Small entries are searched as bytes: text of any kind, several pairs, and similar texts."""
    pairs = {"who": "Zoë", "land": "FR"}
    given = [
        {"who": "Zoë", "land": "FR"},
        {"who": "Zoë", "land": "DE"},
        {"who": "FR", "land": "Zoë"},
        {"who": "Zoë", "land": "FR", "more": "x" * 300},
        {"land": "FR"},
        {"who": "Zoë Miller", "land": "FR"},
        None,
    ]
    with streamkit.connect(f"file://{tmp_path}" if archived else "memory://erasing-search") as client:
        store = client.store(uuid4())
        for turn in range(70):
            metadata = given[turn % 7]
            size = (0, 20, 600, 5000)[turn % 4]
            text = (b"who Zo\xc3\xab land FR " + bytes(size)) if turn % 3 else os.urandom(size).hex().encode()
            with store.transaction("a") as trx:
                trx.produce("one", [Record(text, metadata)])
                trx.produce("many", [Record(text), Record(text, metadata), Record(b"", given[(turn + 3) % 7])])
            if turn == 40:
                store.maintain()
            if archived and turn in (20, 50):
                store.archive("a")
        matching = [
            (entry.segment, entry.sequence)
            for entry in store.consume_space("a")
            if all(entry.metadata.get(name) == value for name, value in pairs.items())
        ]
        found = store.erase("a", metadata=pairs, dry_run=True)
        assert (found.entries, found.searched) == (len(matching), 280)
        store.erase("a", "one", first=1, last=30)  # frames with holes are searched too
        store.erase("a", "many", first=2, last=9)
        gone = {"one": range(1, 31), "many": range(2, 10)}
        left = [segment for segment, sequence in matching if sequence not in gone[segment]]
        assert store.erase("a", metadata=pairs).entries == len(left)
        assert not [entry for entry in store.consume_space("a") if entry.metadata == pairs]


@pytest.mark.parametrize("archived", [False, True])
def test_a_glob_of_many_segments_is_one_read_of_the_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archived: bool
) -> None:
    if archived:
        pytest.importorskip("deltalake")
    with streamkit.connect(f"file://{tmp_path}") as client, client.store(uuid4()) as store:
        for _ in range(3):
            with store.transaction("a") as trx:
                for number in range(120):
                    trx.produce(f"user-{number}", [Record(b"1", {"who": str(number % 2)}), Record(b"2")])
                    trx.produce(f"other-{number}", [Record(b"3")])
            if archived:
                store.archive("a")
        store.trim("a", "user-7", before=3)

        def one_by_one(*_: object) -> None:
            raise AssertionError

        monkeypatch.setattr("streamkit.removing.erase.segment_batches", one_by_one)
        found = store.erase("a", "user-*", first=2, last=4, metadata={"who": "1"}, dry_run=True)
        assert (found.entries, found.segments) == (60, 60)
        report = store.erase("a", "user-*", first=2, last=4)
        assert (report.entries, report.segments, report.hidden) == (119 * 3 + 2, 120, 1)
        monkeypatch.undo()
        left = [entry.sequence for entry in store.consume_segment("a", "user-8")]
        assert left == [1, 5, 6]
        assert [entry.sequence for entry in store.consume_segment("a", "user-7")] == [5, 6]
        assert store.erase("a", "user-*").entries == 119 * 3 + 2
        assert {entry.payload for entry in store.consume_space("a")} == {b"3"}
        assert len(list(store.consume_space("a"))) == 360


def test_maintain_goes_on_with_the_other_spaces_if_another_run_holds_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from streamkit.archive.archiver import lease_name

    monkeypatch.setattr("streamkit.removing.erase._WAIT", 0.0)
    with streamkit.connect("memory://") as client:
        store = client.store(uuid4())
        with contextlib.ExitStack() as held:
            for space in ("busy", "free"):
                store.produce(space, "a", [Record(b"1"), Record(b"2")])
                with store.lease(lease_name(space, 0)), pytest.raises(LeaseNotAcquired):
                    store.erase(space, "a", first=1, last=1)
            held.enter_context(store.lease(lease_name("busy", 0)))
            with pytest.raises(LeaseNotAcquired, match=r"these spaces.*: 'busy'\. All other spaces are maintained"):
                store.maintain()
            left = {name: bool(store._known(name).partitions[0].erasing) for name in ("busy", "free")}  # type: ignore[union-attr]
            assert left == {"busy": True, "free": False}
        store.maintain()


@pytest.mark.parametrize("selector", [{"segment": "user-*"}, {"metadata": {"subject": "17"}}], ids=["glob", "metadata"])
def test_no_entry_of_any_partition_can_be_read_if_an_archiver_keeps_an_erasure_from_its_end(
    monkeypatch: pytest.MonkeyPatch, selector: dict[str, Any]
) -> None:
    from streamkit.archive.archiver import lease_name

    monkeypatch.setattr("streamkit.removing.erase._WAIT", 0.0)
    url, tag = f"memory://{uuid4()}", os.urandom(24)
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        store.create_space("a", partitions=4)
        for user in range(16):
            store.produce("a", f"user-{user}", [Record(tag, {"subject": "17"})])
        with store.lease(lease_name("a", 0)), pytest.raises(LeaseNotAcquired, match="cannot be read"):
            store.erase("a", **selector)
        assert [entry.segment for entry in store.consume_space("a")] == []
        assert len(found_in(rows_in_memory(url), tag)) > 0
        store.maintain()
        assert found_in(rows_in_memory(url), tag) == []
        report = store.erase("a", **selector)
        assert (report.entries, report.completed >= report.started > 0) == (0, True)
