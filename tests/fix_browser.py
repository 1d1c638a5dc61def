"""A real Chromium, headless. npm installs it, and playwright drives it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

INFRA = Path(__file__).parent.parent / "infra"


def npm_folder(name: str) -> tuple[str, Path]:
    """The Node executable, and the node_modules of a folder of infra. Installs them if `make` has not."""
    install = [sys.executable, str(INFRA / "npm.py"), str(INFRA / name)]
    node, modules = subprocess.run(install, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")[:2]
    return node, Path(modules)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of the browser, unpacked."""
    node, modules = npm_folder("chromium")
    unpacked = subprocess.run(
        [node, "executable.js"],
        cwd=modules.parent,
        env={**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("chromium"))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return unpacked.stdout.strip()


@pytest.fixture
def browser(chromium: str) -> Iterator[Any]:
    """A `playwright` browser. While it is open, the thread has a running event loop: no test may keep it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root, Chromium has no sandbox of its own.
        found = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield found
        found.close()
