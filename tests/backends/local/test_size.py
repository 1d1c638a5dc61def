"""The stored bytes of a space on a local disk."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record

AHEAD = 3 << 20
"""The most bytes that files have more than they hold: zeros written in advance, and words that processes share."""


def on_disk(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_the_stored_bytes_are_those_on_the_disk(tmp_path: Path) -> None:
    payload = os.urandom(1 << 17)
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        assert store.size().stored_bytes == 0
        for batch in range(40):  # 40 transactions of 128 KiB, which are rows of their own, and 128 small ones each
            store.produce("a", "large", [Record(payload[at : at + 128]) for at in range(0, len(payload), 128)])
            for at in range(128):
                store.produce("a", f"small-{at}", [Record(payload[at * 128 : at * 128 + 64 + batch])])
        store.maintain()
        size = store.size("a")
        there = on_disk(tmp_path)
        assert there - AHEAD < size.stored_bytes <= there
        assert all(tier.bytes > 0 for tier in size.tiers if tier.name != "archive")
        store.delete_space("a")
        assert store.size().stored_bytes == 0


@pytest.mark.parametrize("payload", [10, 3000, 100_000])
def test_a_deleted_space_leaves_small_files(tmp_path: Path, payload: int) -> None:
    """The end of its log stays, for the processes that have the space open."""
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        store.produce("other", "a", [Record(b"")])
        before = on_disk(tmp_path)
        for _ in range(200):
            store.produce("deleted", "a", [Record(os.urandom(payload))])
        assert on_disk(tmp_path) > before + 200 * min(payload, 3000)
        store.delete_space("deleted")
        assert on_disk(tmp_path) < before + 70_000
