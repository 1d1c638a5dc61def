"""Salvage: one damaged byte costs at most the transaction that it is in, and each lost transaction is named."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from pathlib import Path
from random import randbytes
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_azurite import Azurite
from fix_s3 import S3Bucket

import streamkit
from harness.bit_flips import files_of, flipped, places
from streamkit import Gap, PermanentError, Record, SpaceExists, Store

Content = list[tuple[str, int, bytes, dict[str, str]]]
SPACE = "orders"


def content(store: Store, space: str) -> Content:
    return [(e.segment, e.sequence, e.payload, dict(e.metadata)) for e in store.consume_space(space)]


def by_transaction(store: Store) -> dict[int, Content]:
    found: dict[int, Content] = defaultdict(list)
    for e in store.consume_space(SPACE):
        found[e.trx.number].append((e.segment, e.sequence, e.payload, dict(e.metadata)))
    return found


def fill(store: Store, transactions: int = 12, maintain_at: int = 6) -> None:
    for n in range(transactions):
        with store.transaction(SPACE) as trx:
            trx.produce(f"s{n % 3}", [Record(b"one-%d" % n, {"n": str(n)})])
            trx.produce("all", [Record(b"two-%d" % n), Record(b"three-%d" % n)])
        if n == maintain_at:
            store.maintain(SPACE)


def check(damaged: Store, whole: dict[int, Content]) -> int:
    """Salvage to another store. How many transactions are lost; all others are there, and the lost ones are named."""
    with streamkit.connect("memory://") as client, client.store(uuid4()) as other:
        report = damaged.salvage(SPACE, "new", into=other)
        lost = {number for each in report.lost for number in range(each.first, each.last + 1)}
        wanted = [entry for number in sorted(whole) if number not in lost for entry in whole[number]]
        assert content(other, "new") == wanted
        assert (report.transactions, report.entries) == (len(whole) - len(lost), len(wanted))
        assert report.ok == (not lost and not report.damage)
        for each in report.lost:
            wrote = {entry[0] for number in range(each.first, each.last + 1) for entry in whole[number]}
            assert not each.segments or set(each.segments) == wrote
        assert other.verify("new").ok
        return len(lost)


# -- a local disk ----------------------------------------------------------------------------------------------------


def test_a_bit_flipped_anywhere_on_disk_loses_one_transaction_at_most(tmp_path: Path) -> None:
    id, root = uuid4(), tmp_path / "whole"
    with streamkit.connect(root.as_uri()) as client, client.store(id) as store:
        fill(store)
        store.produce("untouched", "s", [Record(b"1")])
        whole = by_transaction(store)
    tried = Counter[int]()
    for path, data in files_of(root):
        for at in places(len(data), 53):
            damaged = tmp_path / "damaged"
            shutil.copytree(root, damaged)
            (damaged / path.relative_to(root)).write_bytes(flipped(path.read_bytes(), at))
            with streamkit.connect(damaged.as_uri()) as client:
                tried[check(client.store(id), whole)] += 1
            shutil.rmtree(damaged)
    assert tried.keys() == {0, 1}, "some of them lost one"


def test_a_damaged_large_row_and_a_full_file_lose_one_transaction(tmp_path: Path) -> None:
    id, root = uuid4(), tmp_path / "whole"
    with streamkit.connect(root.as_uri()) as client, client.store(id) as store:
        for n in range(12):
            store.produce(SPACE, f"s{n % 2}", [Record(randbytes(900_000))])
        whole = by_transaction(store)
    files = [(path, data) for path, data in files_of(root) if len(data) > 100_000]
    assert len(files) > 1
    lost = []
    for path, data in files:
        damaged = tmp_path / "damaged"
        shutil.copytree(root, damaged)
        (damaged / path.relative_to(root)).write_bytes(flipped(data, len(data) // 2))
        with streamkit.connect(damaged.as_uri()) as client:
            lost.append(check(client.store(id), whole))
        shutil.rmtree(damaged)
    assert set(lost) <= {0, 1}
    assert any(lost)


def damage_log(root: Path, store: UUID, text: bytes) -> None:
    """Flip a bit of `text`, where a log of the store holds it."""
    for path, data in files_of(root / str(store)):
        if text in data and path.suffix == ".log":
            path.write_bytes(flipped(path.read_bytes(), data.index(text)))


@pytest.fixture
def damaged(tmp_path: Path) -> Any:
    """A store of which the tenth transaction is damaged, opened anew."""
    id = uuid4()
    with streamkit.connect(tmp_path.as_uri()) as client, client.store(id) as store:
        fill(store)
        store.produce("untouched", "s", [Record(b"1")])
        store.group("untouched", "readers")
    damage_log(tmp_path, id, b"three-9")
    with streamkit.connect(tmp_path.as_uri()) as client, client.store(id) as store:
        yield store


def test_a_space_is_salvaged_within_its_store_and_sequences_stay(damaged: Store) -> None:
    report = damaged.salvage(SPACE, "new")
    (lost,) = report.lost
    assert (lost.first, lost.last, set(lost.segments)) == (10, 10, {"all", "s0"})
    assert sorted((gap.segment, gap.first, gap.last) for gap in report.missing) == [("all", 19, 20), ("s0", 4, 4)]
    entries = list(damaged.consume_segment("new", "all", gaps="yield"))
    (gap,) = [entry for entry in entries if isinstance(entry, Gap)]
    assert (gap.first_sequence, gap.last_sequence, gap.reason) == (19, 20, "erased")
    assert damaged.peek("new", "all").sequence == 24
    damaged.produce("new", "all", [Record(b"more")], expected_sequence=24)


def test_a_dry_run_reports_the_same_and_writes_nothing(damaged: Store) -> None:
    dry = damaged.salvage(SPACE, "new", dry_run=True)
    assert "new" not in list(damaged.get_spaces())
    report = damaged.salvage(SPACE, "new")
    assert (dry.transactions, dry.entries, dry.lost, dry.missing) == (
        report.transactions,
        report.entries,
        report.lost,
        report.missing,
    )


def test_salvage_refuses_what_makes_no_sense(damaged: Store) -> None:
    with pytest.raises(SpaceExists, match="does not exist yet"):
        damaged.salvage(SPACE, "untouched")
    with pytest.raises(PermanentError, match="no space 'absent'"):
        damaged.salvage("absent", "new")
    with pytest.raises(TypeError, match="into is a Store"):
        damaged.salvage(SPACE, "new", into="store")  # type: ignore[arg-type]


def test_what_was_trimmed_deleted_or_erased_does_not_come_back(tmp_path: Path) -> None:
    id = uuid4()
    with streamkit.connect(tmp_path.as_uri()) as client, client.store(id) as store:
        fill(store)
        store.trim(SPACE, "all", before=9)
        store.delete_segment(SPACE, "s1")
        store.erase(SPACE, "s2", first=2, last=2)
        store.produce(SPACE, "s1", [Record(b"again")])
        wanted = content(store, SPACE)
        statuses = {name: store.segment_status(SPACE, name) for name in store.get_segments(SPACE)}
    with streamkit.connect(tmp_path.as_uri()) as client, client.store(id) as store:
        assert store.salvage(SPACE, "new").ok
        assert sorted(content(store, "new")) == sorted(wanted)
        for name, status in statuses.items():
            found = store.segment_status("new", name)
            assert (found.first_sequence, found.last_sequence) == (status.first_sequence, status.last_sequence)


def test_archived_transactions_are_salvaged_too(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    id = uuid4()
    with streamkit.connect(tmp_path.as_uri()) as client, client.store(id) as store:
        store.create_space(SPACE, archive_grace=0.001)
        fill(store, 6, 99)
        store.archive(SPACE)
        fill(store, 6, 99)
        store.maintain(SPACE)
        wanted = content(store, SPACE)
    damage_log(tmp_path, id, b"three-4")
    with streamkit.connect(tmp_path.as_uri()) as client, client.store(id) as store:
        report = store.salvage(SPACE, "new")
        lost = {n for each in report.lost for n in range(each.first, each.last + 1)}
        assert len(lost) <= 1
        found = content(store, "new")
        assert [entry for entry in wanted if entry in found] == found
        assert len(wanted) - len(found) in (0, 3)


def test_an_archived_transaction_of_many_entries_is_salvaged_whole(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    with streamkit.connect(tmp_path.as_uri()) as client, client.store(uuid4()) as store:
        with store.transaction(SPACE) as trx:
            for segment in "a", "b":
                trx.produce(segment, [Record(b"%d" % number) for number in range(10_000)])
        store.archive(SPACE)
        assert store.salvage(SPACE, "new").entries == 20_000
        assert content(store, "new") == content(store, SPACE)
        assert {entry.trx.number for entry in store.consume_space("new")} == {1}


# -- verify ----------------------------------------------------------------------------------------------------------


def test_verify_names_the_damaged_space_and_goes_on_to_the_others(damaged: Store) -> None:
    report = damaged.verify()
    assert {finding.space for finding in report.findings} == {SPACE}
    assert report.transactions == 1, "the one of the space that is whole"


def test_verify_counts_what_size_and_status_count(tmp_path: Path) -> None:
    with streamkit.connect(tmp_path.as_uri()) as client, client.store(uuid4()) as store:
        fill(store, 3)
        with store.group(SPACE, "readers").consumer("one") as consumer:
            for delivery in consumer.receive(limit=2):
                consumer.ack(delivery)
        report, size = store.verify(), store.size()
        assert (report.transactions, report.entries, report.segments) == (3, 9, 4)
        assert (size.entries, size.segments, size.payload_bytes) == (9, 4, size.bytes)
        assert size.stored_bytes == size.stored == sum(tier.bytes for tier in size.tiers)
        tiers = {tier.name: tier.bytes for tier in size.tiers}
        assert tiers["internal"] > 0
        assert "internal" not in {tier.name for tier in store.size(SPACE).tiers}


# -- objects ---------------------------------------------------------------------------------------------------------


def test_a_bit_flipped_in_any_object_on_s3_loses_a_block_of_a_pack_at_most(s3_bucket: S3Bucket) -> None:
    url, id = s3_bucket.url("stores"), uuid4()
    with streamkit.connect(url) as client, client.store(id) as store:
        fill(store)
        whole = by_transaction(store)
    s3: Any = s3_bucket.server.client()
    for name in [name for name in s3_bucket.names() if not name.endswith("FORMAT")]:
        data = s3.get_object(Bucket=s3_bucket.name, Key=name)["Body"].read()
        for at in places(len(data), max(1, len(data) // 3)):
            s3.put_object(Bucket=s3_bucket.name, Key=name, Body=flipped(data, at))
            with streamkit.connect(url) as client:
                assert check(client.store(id), whole) <= 1
        s3.put_object(Bucket=s3_bucket.name, Key=name, Body=data)


@pytest.mark.exhaustive_only  # on a disk and on S3 every run flips bits
def test_a_bit_flipped_in_any_row_on_azure_loses_one_transaction_at_most(azurite: Azurite) -> None:
    from azure.data.tables import TableServiceClient, UpdateMode

    from streamkit_azure.account import account_of

    url, id = azurite.url(f"salvage{uuid4().hex[:6]}"), uuid4()
    with streamkit.connect(url) as client, client.store(id) as store:
        fill(store)
        whole = by_transaction(store)
    account = account_of(url)
    from azure.core.credentials import AzureNamedKeyCredential

    service = TableServiceClient(account.tables, credential=AzureNamedKeyCredential(account.name, account.key))
    table = service.get_table_client(account.table(id))
    tried = 0
    for entity in list(table.list_entities()):
        for name, value in entity.items():
            if not isinstance(value, bytes) or len(value) < 20:
                continue
            for at in places(len(value), max(1, len(value) // 2)):
                tried += 1
                table.upsert_entity({**entity, name: flipped(value, at)}, mode=UpdateMode.REPLACE)
                with streamkit.connect(url) as client:
                    assert check(client.store(id), whole) <= 1
        table.upsert_entity(entity, mode=UpdateMode.REPLACE)
    assert tried > 12
