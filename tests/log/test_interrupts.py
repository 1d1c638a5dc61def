"""Real signals that arrive while threads append: handlers that raise, and handlers that call the store."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from harness import interrupted

SECONDS = 60.0 if EXHAUSTIVE else 1.0


@pytest.mark.parametrize("what", ["raise", "call"])
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_signals_lose_nothing_and_leave_nobody_behind(
    kind: str, what: str, tmp_path: Path, covered: Callable[[str, int], None]
) -> None:
    url, store_id = "memory://" if kind == "memory" else tmp_path.as_uri(), uuid4()
    command = [sys.executable, interrupted.__file__, url, str(store_id), what, str(SECONDS)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 90)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert not told["stuck"]
    assert told["interrupted"] > 10
    assert told["acknowledged"]["last"] == ["last 1"]
    covered(f"signals, {kind}, {what}", told["interrupted"])
    if what == "call":
        assert told["done"], "no handler could append"
    if kind == "local":
        with streamkit.connect(url) as client:
            store = client.store(store_id)
            there = Counter(entry.payload.decode() for entry in store.consume_space(interrupted.SPACE))
            assert store.verify().ok
        assert set(there.values()) == {1}
        assert {payload for payloads in told["acknowledged"].values() for payload in payloads} <= set(there)
