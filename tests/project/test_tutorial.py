"""The tutorial, followed to the letter: its files are written, its commands run, and their output is as printed
there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from fix_azurite import Azurite
from fix_s3 import S3Server

from streamkit.cli.init import Cloud, project_files

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
STEPS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
INSTALLS = ("pip ", "python3 -m venv", "mkdir shop", "moto_server", "npm ", "npx ", "until curl")
"""Beginnings of lines that install from a network or start a server: the test's environment has these."""
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


class Reader:
    """A reader of the tutorial: a folder, and a shell that keeps its variables from block to block."""

    def __init__(self, folder: Path, changes: dict[str, str]) -> None:
        self.folder = folder
        self.changes = changes
        self.said = ""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("STREAMKIT", "AWS", "XDG"))}
        bin = folder / ".bin"
        bin.mkdir()
        (bin / "streamkit").write_text(f'#!/bin/sh\nexec {sys.executable} -m streamkit.cli "$@"\n')
        (bin / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        for program in bin.iterdir():
            program.chmod(0o755)
        self.environment = {**own, "PATH": f"{bin}{os.pathsep}{own['PATH']}", "PYTHONPATH": ""}

    def follow(self, step: str) -> None:
        for kind, title, text in BLOCK.findall(step):
            if title:
                self.write(title, text)
            elif kind == "sh":
                self.run(text)
            elif kind == "text":
                self.compare(text)

    def write(self, title: str, text: str) -> None:
        name, _, change = title.partition(" (")
        path = self.folder / name
        if change == "add)":
            text = f"{path.read_text()}\n\n{text}"
        elif change.startswith("replace "):
            function = change.removeprefix("replace ").removesuffix(")")
            pattern = rf"^def {function}\(.*?(?=^\S|\Z)"
            text = re.sub(pattern, lambda _: f"{text}\n\n", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        path.write_text(text.rstrip("\n") + "\n")

    def run(self, text: str) -> None:
        for old, new in self.changes.items():
            text = text.replace(old, new)
        lines = [line for line in text.splitlines() if not line.startswith(INSTALLS)]
        script = "\n".join(["set -e", *lines, "env -0 >.environment"])
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        kept = dict(pair.split("=", 1) for pair in (self.folder / ".environment").read_text().split("\0") if pair)
        self.environment = kept
        self.said = done.stdout

    def compare(self, text: str) -> None:
        """Check that `text` was printed, except for times; `…` is any text."""
        pattern = re.escape(TIME.sub("TIME", text.strip())).replace("…", ".*")
        assert re.match(pattern, TIME.sub("TIME", self.said.strip()), re.DOTALL), f"{self.said}\nis not\n{text}"


@pytest.mark.s3
@pytest.mark.azure
def test_every_step_of_the_tutorial_does_what_it_says(
    s3_server: S3Server, azurite: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = f"shop-{uuid4().hex[:8]}"
    monkeypatch.setenv("STACK", stack)
    server, account = f"127.0.0.1:{s3_server.port}", azurite.url(f"t{uuid4().hex[:10]}")
    reader = Reader(tmp_path, {"127.0.0.1:5555": server, "azurite:///shop": f"'{account}'"})
    for step in STEPS:
        reader.follow(step.replace("Name=shop-", f"Name={stack}-").replace("s3://shop-", f"s3://{stack}-"))
    # The reader has the files that `streamkit init` makes.
    made = {**project_files(Cloud.azure), **project_files(Cloud.aws)}
    for name in ("shop.py", "worker.py", "totals.py", "nightly.py", "handler.py", "function_app.py"):
        assert (tmp_path / name).read_text() == made[name], name


def test_a_difference_from_the_page_would_be_found(tmp_path: Path) -> None:
    reader = Reader(tmp_path, {})
    reader.follow('```python title="a.py"\nprint(1)\n```\n\n```sh\npython a.py\n```\n\n```text\n1\n```\n')
    with pytest.raises(AssertionError, match="is not"):
        reader.compare("2")
    with pytest.raises(AssertionError):
        reader.run("false")
