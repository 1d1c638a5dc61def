"""Other people's clients against the server: curl, the PyPI and npm clients of Durable Streams, and a browser."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_browser import npm_folder
from fix_covered import EXHAUSTIVE
from fix_serve import Served

import streamkit
from harness.balanced import Balanced
from streamkit import Record

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "serve"
RECONNECTS = 100 if EXHAUSTIVE else 6


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    served = Served(f"file://{tmp_path}/root")
    yield served.address
    served.close()


def run(*command: str | Path, cwd: Path | None = None) -> list[str]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_curl_appends_reads_and_follows(address: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    lines = run("sh", EXAMPLES / "curl.sh", address)
    read = [json.loads(line)["entries"] for line in lines if line.startswith('{"entries"')]
    assert [[entry["json"] for entry in page] for page in read] == [[{"placed": 3}, {"paid": True}], [{"paid": True}]]
    assert "event: caught-up" in lines
    assert lines[-1] == '[{"text": "hello"}]'


def test_the_python_client_writes_and_follows(address: str) -> None:
    lines = run(sys.executable, EXAMPLES / "durable_client.py", address)
    assert len(lines) == 11
    assert lines[-1] == "{'reading': 'last'}"


def test_the_node_client_writes_and_follows(address: str, tmp_path: Path) -> None:
    node, modules = npm_folder("durable_streams")
    (tmp_path / "node_modules").symlink_to(modules)
    shutil.copy(EXAMPLES / "durable_client.mjs", tmp_path)
    lines = run(node, "durable_client.mjs", address, cwd=tmp_path)
    assert [json.loads(line)["reading"] for line in lines] == list(range(10))


@pytest.mark.slow
def test_a_browser_that_reconnects_again_and_again_sees_each_entry_once(browser: Any, tmp_path: Path) -> None:
    """Connections are cut, and processes behind the balancer are killed, while a writer writes."""
    url, store = f"file://{tmp_path}/root", uuid4()
    with Balanced(url, store) as balanced, streamkit.connect(url) as client:
        stop = threading.Event()
        written: list[int] = []

        def write() -> None:
            while not stop.wait(0.003):
                client.store(store).produce("orders", "order-42", [Record(b"%d" % len(written))])
                written.append(len(written))

        page = browser.new_page()
        page.route(f"{balanced.address}/watch", lambda route: route.fulfill(path=EXAMPLES / "watch.html"))
        page.goto(f"{balanced.address}/watch")
        page.evaluate("window.opened = +(events.readyState === 1); events.addEventListener('open', () => opened++)")
        writer = threading.Thread(target=write)
        writer.start()
        try:
            chance = random.Random(1)
            for count in range(1, RECONNECTS + 1):
                page.wait_for_function(f"opened >= {count}", timeout=60_000)
                if chance.random() < 0.2:
                    balanced.replace(chance.randrange(2))
                balanced.cut()
        finally:
            stop.set()
            writer.join()
        page.wait_for_function(f"document.querySelectorAll('#entries li').length >= {len(written)}", timeout=60_000)
        shown = page.locator("#entries li").all_inner_texts()
        assert [int(line.rpartition(" ")[2]) for line in shown] == written
        page.wait_for_function(f"opened > {RECONNECTS}", timeout=60_000)
        page.close()
