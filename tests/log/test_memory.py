"""Memory of reads, counted: a function has 128 MB."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record

MB = 1 << 20


@pytest.mark.parametrize("metadata", [False, True])
def test_peeking_at_many_segments_holds_a_few_megabytes(make_url: Callable[[str], str], metadata: bool) -> None:
    with streamkit.connect(make_url("local")) as writing, streamkit.connect(make_url("local")) as reading:
        store_id = uuid4()
        store = writing.store(store_id)
        names = [f"segment-{number}" for number in range(400)]
        large = {"large": "x" * 60_000}
        for name in names:
            record = Record(b"", large) if metadata else Record(name.encode() * 5_000)
            store.produce("space", name, [record])
        reader = reading.store(store_id)
        reader.peek("space", names[0])
        tracemalloc.start()
        for name in names:
            assert reader.peek("space", name).sequence == 1
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 10 * MB
        assert reader.peek("space", names[-1]).metadata == (large if metadata else {})


@pytest.mark.parametrize("kind", ["memory", "remote", "local"])
def test_merging_many_partitions_decodes_one_transaction_at_a_time(make_url: Callable[[str], str], kind: str) -> None:
    with streamkit.connect(make_url(kind)) as client:
        store = client.store(uuid4())
        store.create_space("space", 32)
        for number in range(64):
            store.produce("space", f"segment-{number}", [Record(bytes(2 * MB))])
        tracemalloc.start()
        assert sum(len(entry.payload) for entry in store.consume_space("space")) == 64 * 2 * MB
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 16 * MB
