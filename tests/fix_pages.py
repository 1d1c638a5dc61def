"""Pages of docs/ whose Python is fragments, which a test runs block after block."""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import streamkit
from streamkit import Record, Store

ROOT = Path(__file__).parent.parent
STORE = "7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55"


class Page:
    """A page of docs/, whose blocks share their names. Places outside of the test's folder are moved into it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "page"}
        text = (ROOT / "docs" / name).read_text()
        self.blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        self.left = set(range(1, len(self.blocks) + 1))

    @property
    def url(self) -> str:
        return f"file://{self.folder}/var/lib/app"

    def store(self, id: str = STORE, *records: tuple[str, str, int]) -> Store:
        """Open a store of the page's URL, and write so many entries into each (space, segment)."""
        store = streamkit.connect(self.url).store(id)
        for space, segment, count in records:
            store.produce(space, segment, [Record(b"%d" % n) for n in range(1, count + 1)])
        return store

    def code(self, number: int) -> str:
        self.left.discard(number)
        return self.moved(self.blocks[number - 1])

    def moved(self, code: str) -> str:
        """Return code with its places in the test's folder, and with the whole id of the store."""
        code = code.replace("s3://", f"file://{self.folder}/s3/").replace("7d9f2c1e-…", STORE)
        return re.sub(r"(?<=[\"/])/(?=var/|tmp/|data/)", f"{self.folder}/", code)

    def run(self, number: int, **names: Any) -> dict[str, Any]:
        """Run a block, and get all names that blocks have made so far."""
        self.names |= names
        exec(compile(self.code(number), f"block {number}", "exec"), self.names)
        return self.names

    async def await_(self, number: int, *, code: str | None = None, **names: Any) -> dict[str, Any]:
        """Run a block of the body of a coroutine."""
        self.names |= names
        body = compile(code or self.code(number), f"block {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = eval(body, self.names)
        assert inspect.iscoroutine(running), "the block awaits something"
        await running
        return self.names


@pytest.fixture
def page(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """The page that the test names. Afterwards each of its blocks has run."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("STREAMKIT")]:
        monkeypatch.delenv(name)
    page = Page(request.param, tmp_path)
    yield page
    assert page.left == set(), "blocks that the test has not run"


def of(name: str) -> pytest.MarkDecorator:
    """Name the page of a test."""
    return pytest.mark.parametrize("page", [name], indirect=True)


def named_in(module: ModuleType) -> set[str]:
    """Return the pages that the tests of a module name."""
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    marks = [mark for test in tests for mark in getattr(test, "pytestmark", [])]
    return {mark.args[1][0] for mark in marks if mark.args and mark.args[0] == "page"}
