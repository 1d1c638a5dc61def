"""A real Chromium, headless: one a test session. It is installed by npm, and driven by playwright."""

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
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A `playwright` browser."""
    from playwright.sync_api import sync_playwright

    node, modules = npm_folder("chromium")
    folder = tmp_path_factory.mktemp("chromium")
    unpacked = subprocess.run(
        [node, "executable.js"],
        cwd=modules.parent,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    with sync_playwright() as playwright:
        # As root, Chromium has no sandbox of its own.
        found = playwright.chromium.launch(
            executable_path=unpacked.stdout.strip(), args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield found
        found.close()
