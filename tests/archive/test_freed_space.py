"""Space on a local disk comes back once what was archived has left the log."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record
from streamkit.testing import ManualClock

pytest.importorskip("deltalake")
MIB = 1 << 20


def test_a_local_store_is_smaller_after_archiving(tmp_path: Path) -> None:
    clock, id = ManualClock(1e9), uuid4()
    place = tmp_path / str(id)

    def size() -> int:
        return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())

    with streamkit.connect(f"file://{tmp_path}", clock=clock) as client:
        store = client.store(id)
        store.create_space("space", archive_grace=10)
        for number in range(150):
            store.produce("space", f"s{number}", [Record(os.urandom(120 << 10))])
        before = size()
        assert before > 16 * MIB
        for _ in range(2):
            store.archive("space")
            clock.sleep(60)
            store.maintain()
        # The current log file and the names of segments stay.
        assert size() < 9 * MIB
        assert len(list(store.consume_space("space"))) == 150
        assert store.verify().ok
