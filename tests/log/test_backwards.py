"""Reading backwards takes little for the last few, and is bounded in memory where transactions are large."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject

import streamkit
from harness.log_keys import transaction_keys
from streamkit import Record
from streamkit.errors import CorruptData
from streamkit.log.keys import partition_key


def test_the_last_few_of_many_are_read_without_the_others(make_url: Callable[[str], str]) -> None:
    with streamkit.connect(make_url("key")) as client:
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
    """Many small ones are read in large chunks; large ones before them must not be."""
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


def test_a_hole_is_not_passed_over_backwards(subject: Subject) -> None:
    for number in range(50):
        subject.store.produce("space", "s", [Record(b"%d" % number)])
    store = subject.stranger()
    begun = store.consume_space("space", reverse=True)
    assert [entry.sequence for entry in islice(begun, 3)] == [50, 49, 48]
    backend = subject.store._backend
    if subject.url.startswith("file"):
        pytest.skip("a local log has no single rows to take away")
    backend.write(bytes(partition_key("space", 0)), [streamkit.backend.Delete(transaction_keys(backend, "space")(20))])
    with pytest.raises(CorruptData, match="transaction 20 is missing"):
        list(begun)
