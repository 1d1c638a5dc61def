"""`make demo`, which is `streamkit demo` in a checkout: it appends real records and queries them."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from streamkit import Record

ROOT = Path(__file__).parents[2]
ALL = 336_776
MOST = ALL if EXHAUSTIVE else 20_000


@pytest.mark.slow
def test_the_demo_runs_and_begins_anew_each_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    url = tmp_path.as_uri()
    earlier = uuid5(NAMESPACE_URL, "streamkit:demo")
    with streamkit.connect(url) as client, client.store(earlier) as store:
        store.produce("JFK", "N619AA", [Record(b"of an earlier run")])
    runpy.run_path(str(ROOT / "examples" / "demo"), run_name="demo")["show"](url, MOST)
    said = capfd.readouterr().out
    for text in (
        f"{MOST:,} departures",
        "nothing twice, nothing missing",
        "entries/s",
        f"append, 1,000 a commit   {MOST:,}",
    ):
        assert text in said
    with streamkit.connect(url) as client:
        assert list(client.stores()) == [earlier]
        store = client.store(earlier)
        assert sum(1 for space in store.get_spaces() for _ in store.consume_space(space)) == MOST


def test_the_command_needs_a_url_that_a_second_process_can_read() -> None:
    command = [sys.executable, "-m", "streamkit.cli", "demo", "--url", "memory://demo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "the demo reads from a second process" in done.stderr


def test_the_command_without_a_checkout_says_where_the_demo_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from streamkit.cli import app

    monkeypatch.setattr(app, "EXAMPLE", tmp_path / "demo")
    assert app.run(["demo", "--url", tmp_path.as_uri()]) == 1
    assert "Run it in a checkout: make demo" in capsys.readouterr().err
