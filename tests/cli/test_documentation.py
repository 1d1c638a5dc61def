"""docs/cli.md and the command line say the same: every command, every option, every line that one would copy."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from harness.warm_command import warm_command
from streamkit.cli.app import app

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "cli.md").read_text()
PROGRAM = typer.main.get_command(app)
COMMANDS: dict[str, Any] = PROGRAM.commands  # type: ignore[attr-defined]
NESTED: dict[str, Any] = {
    f"{name} {inner}": command
    for name, several in COMMANDS.items()
    for inner, command in getattr(several, "commands", {}).items()
}
EVERYWHERE = {"--help"}


def _options(command: Any) -> set[str]:
    given = [option for each in command.params for option in (*each.opts, *each.secondary_opts)]
    return {option for option in given if option.startswith("--")}


def _shell(text: str) -> list[str]:
    """The lines of a page's shell blocks, without their comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    joined = "\n".join(blocks).replace("\\\n", " ")
    return [re.sub(r"\s+#.*$", "", line).strip() for line in joined.splitlines() if line.strip()]


def _calls() -> list[tuple[str, list[str]]]:
    """Return (page, words) of every `streamkit …` in a shell block of the project's pages."""
    found = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for line in _shell(path.read_text()):
            inner = re.findall(r"\$\(([^)]*)\)", line)
            outer = re.sub(r'"?\$\([^)]*\)"?', "00", line)
            for part in [part for whole in (outer, *inner) for part in re.split(r"[|;<>]|&&", whole)]:
                call = part.strip().removeprefix("do ")
                if call.startswith("streamkit "):
                    found.append((path.name, shlex.split(call)[1:]))
    return found


def test_every_command_is_in_the_table() -> None:
    table = {name for row in re.findall(r"^\| (`.*) \|", PAGE, re.MULTILINE) for name in re.findall(r"`([a-z]+)", row)}
    assert set(COMMANDS) <= table


@pytest.mark.parametrize("name", sorted({**COMMANDS, **NESTED}))
def test_every_option_is_explained(name: str) -> None:
    command = {**COMMANDS, **NESTED}[name]
    missing = {option for option in _options(command) if f"{option}`" not in PAGE and f"{option} " not in PAGE}
    assert missing == set()


def test_no_option_is_explained_that_does_not_exist() -> None:
    known = EVERYWHERE.union(_options(PROGRAM), *map(_options, {**COMMANDS, **NESTED}.values()))
    of_others = {"--all"}  # of the script that runs under a lease
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", PAGE)) - of_others <= known


@pytest.mark.parametrize(("page", "words"), _calls(), ids=lambda value: value if isinstance(value, str) else value[0])
def test_every_call_in_the_pages_is_well_formed(page: str, words: list[str]) -> None:
    command, rest = COMMANDS[words[0]], words[1:]
    if hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    with command.make_context(words[0], rest):
        pass


FILES = {
    "departures.ndjson": '{"tailnum": "N14228", "n": 1}\n{"tailnum": "N24211", "n": 2}\n',
    "orders.ndjson": '{"order_id": "order-42", "paid": true}\n',
    "report.sh": "#!/bin/sh\necho report under $STREAMKIT_LEASE\n",
    "react": "#!/bin/sh\ncat\n",
    "bin/streamkit": f'#!/bin/sh\nexec {sys.executable} -m streamkit.cli "$@"\n',
    "bin/uuidgen": f"#!{sys.executable}\nimport uuid\nprint(uuid.uuid4())\n",
    "bin/jq": f"""#!{sys.executable}
import json, sys
for line in sys.stdin:
    value = json.loads(line)[sys.argv[-1].removeprefix(".")]
    print(value if "-r" in sys.argv else json.dumps(value))
""",
}
"""The environment that the pages assume."""


@pytest.mark.parametrize("page", ["README.md", "docs/cli.md"])
def test_what_one_would_copy_runs_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "events.gz").write_bytes(gzip.compress(b'{"kind": "a"}\n'))
    text = (ROOT / page).read_text()
    section = text.partition("## On the command line")[2] or text
    script = "\n".join(line for line in _shell(section) if not line.startswith("pip "))
    script = script.replace("file:///var/lib/app", f"file://{tmp_path}/stores")
    spaces = "".join(f"streamkit create {name}\n" for name in ("orders", "people", "mails"))
    script = script.replace("streamkit trim", f"{spaces}streamkit trim", 1)
    # Endless follows end here, and real offsets replace those of the examples.
    script = script.replace("streamkit follow", "streamkit follow --timeout 0.1")
    offset = "$(streamkit consume flights --json -n 1 | jq -r .offset)"
    script = re.sub(r"--offset flights=\S+ --offset weather=\S+", f'--offset "flights={offset}"', script)
    assert "…" not in script
    # The commands of the long page are forked; those of the README begin as a user's do.
    with warm_command(tmp_path / "bin" / "streamkit") if page == "docs/cli.md" else nullcontext():
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "report under nightly" in done.stdout


def test_the_test_is_not_blind() -> None:
    assert len(_calls()) >= 15
    with pytest.raises(typer.TyperException), COMMANDS["archive"].make_context("archive", ["orders", "--no-such"]):
        pass
