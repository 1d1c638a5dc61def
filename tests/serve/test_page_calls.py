"""Every call of curl in docs/serve.md and docs/durable-streams.md, against a server, in the order of the page."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fix_serve import Served

DOCS = Path(__file__).parents[2] / "docs"
STANDARD = "http://127.0.0.1:4437"
CURL = shutil.which("curl")

pytestmark = pytest.mark.skipif(CURL is None, reason="needs curl")


def commands(page: str) -> Iterator[str]:
    """The lines of a page's shell blocks; a line that ends within quotes or with a backslash takes the next one."""
    for block in re.findall(r"^```sh\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE):
        command = ""
        for line in block.splitlines():
            command += line
            try:
                words = shlex.split(command.removesuffix("\\"), comments=True)
            except ValueError:
                command += "\n"
                continue
            if command.endswith("\\"):
                command = command[:-1]
                continue
            if words:
                yield command
            command = ""


def calls(page: str, address: str) -> Iterator[tuple[str, ...]]:
    """The words of each call of curl. Names that the page has set are replaced."""
    names: dict[str, str] = {}
    for command in commands(page):
        if assigned := re.fullmatch(r"(\w+)=(\S+)", command):
            names[assigned[1]] = assigned[2].replace(STANDARD, address)
        elif command.startswith("curl ") and "/views/" not in command:  # tests/serve/test_view_functions.py has views
            for name, value in names.items():
                command = command.replace(f"${name}", value)
            yield tuple(shlex.split(command.replace(STANDARD, address), comments=True))


def begin_of_stream(words: tuple[str, ...]) -> str:
    """The first lines of an endless answer, up to its first data."""
    assert CURL is not None
    with subprocess.Popen([CURL, "-s", "-i", *words[1:]], stdout=subprocess.PIPE, text=True) as asked:
        assert asked.stdout is not None
        text = ""
        for line in asked.stdout:
            text += line
            if line.startswith("data:"):
                break
        asked.kill()
    return text


@pytest.mark.parametrize(("page", "least"), [("serve.md", 12), ("durable-streams.md", 5)])
def test_the_calls_of_a_page_are_answered(serve: Callable[..., Served], page: str, least: int) -> None:
    assert CURL is not None
    served = serve(topics=True)
    receipt, made = "", 0
    for words in calls(page, served.address):
        made += 1
        if "-N" in words:
            text = begin_of_stream(words)
            assert text.startswith("HTTP/1.1 200"), (words, text)
            continue
        given = [
            word.replace("wait=20", "wait=0").replace("1.0.0.1.5f0c29d1a6be", receipt).replace("sk_…", "sk_none")
            for word in words[1:]
        ]
        done = subprocess.run([CURL, "-s", "-w", "\n%{http_code}", *given], capture_output=True, text=True, check=True)
        body, _, status = done.stdout.rpartition("\n")
        assert status in ("200", "201", "204"), (words, done.stdout)
        if found := re.search(r'"receipt":"([^"]+)"', body):
            receipt = found[1]
        if words[1].endswith("/settle"):
            assert '"lost":false' in body, body
    assert made >= least
