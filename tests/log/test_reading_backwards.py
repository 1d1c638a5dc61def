"""Reading backwards takes little for the last few, and is bounded in memory where transactions are large."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject

import streamkit
from harness.cramped import cramped
from harness.log_keys import transaction_keys
from streamkit import Entry, Gap, Record
from streamkit.errors import CorruptData
from streamkit.log.keys import partition_key
from streamkit.names import partition_of
from streamkit.testing import ManualClock


def test_the_last_few_of_many_are_read_without_the_others(make_url: Callable[[str], str]) -> None:
    with streamkit.connect(make_url("remote")) as client:
        id = uuid4()
        store = client.store(id)
        for number in range(3000):
            store.produce("space", f"s{number % 3}", [Record(b"%d" % number + bytes(100))])
        store.maintain()
        for read in (
            lambda: store.consume_space("space", limit=5, reverse=True),
            lambda: store.consume_segment("space", "s1", limit=5, reverse=True),
        ):
            before = store.statistics().requests["bytes_read"]
            assert len(list(read())) == 5
            assert store.statistics().requests["bytes_read"] - before < 100_000


def test_memory_is_bounded_where_transactions_grow(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small entries are read in large chunks. Large entries before them must not be read with them."""
    for _ in range(40):
        subject.store.produce("space", "s", [Record(bytes(range(256)) * 4096)])
    for number in range(500):
        subject.store.produce("space", "s", [Record(b"%d" % number)])
    backend = subject.store._backend
    scan = backend.scan
    most = 0

    def counting(*args: Any, **options: Any) -> Iterator[Any]:
        nonlocal most
        size = 0
        for row in scan(*args, **options):
            size += len(row.data)
            most = max(most, size)
            yield row

    monkeypatch.setattr(backend, "scan", counting)
    sequences = [entry.sequence for entry in subject.store.consume_space("space", reverse=True)]
    assert sequences == list(range(540, 0, -1))
    assert most < 8 << 20
    assert [e.sequence for e in subject.store.consume_segment("space", "s", reverse=True)] == sequences


@pytest.mark.parametrize("kind", ["memory", "remote"])
def test_a_hole_is_not_passed_over_backwards(kind: str, make_url: Callable[[str], str]) -> None:
    """Entries of a transaction that is too large for a pack are read backwards."""
    with cramped(), streamkit.connect(make_url(kind)) as client:
        id = uuid4()
        store = client.store(id)
        for number in range(50):
            with store.transaction("space") as trx:
                for at in range(20 if number % 10 == 9 else 1):
                    trx.produce(f"s{at}", [Record(b"%d" % number)])
        reader = client.store(id)
        begun = reader.consume_space("space", reverse=True)
        assert next(begun).trx.number == 50
        backend = store._backend
        backend.delete(bytes(partition_key("space", 0)), [transaction_keys(backend, "space")(20)])
        with pytest.raises(CorruptData, match="transaction 20 is missing"):
            list(begun)
        with pytest.raises(CorruptData, match="transaction 20 is missing"):
            list(store.consume_space("space"))


@pytest.mark.parametrize("kind", ["memory", "remote"])
def test_a_large_transaction_that_begins_a_pack_is_within_the_times_that_it_is_of(
    kind: str, make_url: Callable[[str], str]
) -> None:
    """The transaction is in no pack. A pack has the time of its own first record."""
    clock = ManualClock()
    with cramped(), streamkit.connect(make_url(kind), clock=clock) as client:
        store = client.store(uuid4())
        for number in range(12):
            clock.sleep(1)
            with store.transaction("space") as trx:
                for at in range(20 if number % 2 == 0 else 1):
                    trx.produce(f"s{at}", [Record(b"%d" % number)])
        store.maintain()
        entries = list(store.consume_space("space"))
        for entry in entries:
            for bounds in ({"max_timestamp": entry.timestamp}, {"min_timestamp": entry.timestamp}):
                wanted = [
                    other
                    for other in entries
                    if bounds.get("min_timestamp", 0) <= other.timestamp <= bounds.get("max_timestamp", 1 << 60)
                ]
                assert list(store.consume_space("space", **bounds)) == wanted
                assert list(store.consume_space("space", reverse=True, **bounds)) == wanted[::-1]


def test_gaps_of_a_partition_stand_among_the_entries_of_others(make_url: Callable[[str], str]) -> None:
    clock = ManualClock()
    with streamkit.connect(make_url("memory"), clock=clock) as client:
        store = client.store(uuid4())
        store.create_space("space", partitions=2)
        trimmed, whole = (next(f"s{n}" for n in range(50) if partition_of(f"s{n}", 2) == at) for at in range(2))
        for segment in (trimmed, trimmed, whole, trimmed, whole):
            clock.sleep(1)
            store.produce("space", segment, [Record(b"x")])
        store.trim("space", trimmed, before=3)
        found = list(store.consume_space("space", reverse=True, gaps="yield"))
        entries = [one for one in found if isinstance(one, Entry)]
        assert [(one.segment, one.sequence) for one in entries] == [(whole, 2), (trimmed, 3), (whole, 1)]
        gaps = [(one.segment, one.first_sequence, one.last_sequence) for one in found if isinstance(one, Gap)]
        assert sorted(gaps) in ([(trimmed, 1, 1), (trimmed, 2, 2)], [(trimmed, 1, 2)])
        for at, entry in enumerate(entries):
            later = [(one.segment, one.sequence) for one in store.consume_space("space", offset=entry.space_offset)]
            assert sorted(later) == sorted((one.segment, one.sequence) for one in entries[:at])
