"""The compiled twin: its choice, a checkout without Rust, and the error of its source distribution."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from streamkit.speed import INTERFACE

ROOT = Path(__file__).parents[2]
CODEC = "from streamkit import speed; print(speed.INTERFACE, speed.twin is None, speed.codec())"
STORED = """
import sys, streamkit
from streamkit import Record, speed
with streamkit.connect("memory://") as client:
    store = client.store("7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55")
    for number in range(3):
        store.produce("orders", "order-42", [Record(b"%d" % number, {"type": "placed"} if number else None)])
    entries = store.consume_segment("orders", "order-42")
    print(speed.codec(), [(entry.sequence, entry.payload, dict(entry.metadata)) for entry in entries])
"""


def told(program: str, folder: Path, **environment: str) -> str:
    """The output of a program. Modules in `folder` are found before all others."""
    path = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "STREAMKIT_PURE": "", **environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("value", ["1", "yes"])
def test_an_environment_variable_leaves_the_twin_out(value: str, tmp_path: Path) -> None:
    assert told(CODEC, tmp_path, STREAMKIT_PURE=value) == f"{INTERFACE} True Python"


def test_a_twin_of_another_release_is_not_used_and_the_codec_says_why(tmp_path: Path) -> None:
    (tmp_path / "streamkit_speed.py").write_text("INTERFACE = 99\n__version__ = '9.9'\n")
    said = told(CODEC, tmp_path)
    assert said.startswith(
        f"{INTERFACE} True Python (streamkit-speed 9.9 is of another release: pip install --upgrade "
    )
    assert told(STORED, tmp_path).endswith("(3, b'2', {'type': 'placed'})]")


def test_a_folder_that_has_the_name_of_the_twin_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "streamkit_speed").mkdir()
    (tmp_path / "streamkit_speed" / "__init__.py").write_text("")
    assert told(CODEC, tmp_path).startswith(f"{INTERFACE} True Python (streamkit-speed ? is of another release: ")


def test_a_twin_that_cannot_be_loaded_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "streamkit_speed.py").write_text("raise ImportError('the wheel is of another platform')\n")
    assert told(CODEC, tmp_path) == f"{INTERFACE} True Python"


def test_both_codecs_read_the_same_in_processes_of_their_own(tmp_path: Path) -> None:
    pure, chosen = told(STORED, tmp_path, STREAMKIT_PURE="1"), told(STORED, tmp_path)
    assert pure.partition(" [")[2] == chosen.partition(" [")[2]
    assert pure.startswith("Python [")


@pytest.mark.parametrize(
    ("tools", "reason"), [((), "cargo is not installed"), (("cargo",), "there is no C compiler")], ids=["cargo", "cc"]
)
def test_a_checkout_without_the_tools_says_so_in_one_line_and_goes_on(
    tools: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    for tool in tools:
        (tmp_path / tool).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / tool).chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(ROOT / "infra" / "speed.py")],
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"make: the compiled twin is missing ({reason}); the Python codec does the work\n"
    assert done.stderr == ""


def test_the_distribution_of_the_twin_has_one_version_a_license_and_pinned_crates() -> None:
    cargo = tomllib.loads((ROOT / "speed" / "Cargo.toml").read_text())["package"]
    locked = tomllib.loads((ROOT / "speed" / "Cargo.lock").read_text())["package"]
    assert [crate["version"] for crate in locked if crate["name"] == cargo["name"]] == [cargo["version"]]
    assert all("checksum" in crate for crate in locked if crate["name"] != cargo["name"])
    assert (ROOT / "speed" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    project = tomllib.loads((ROOT / "speed" / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["requires-python"]) == ("streamkit-speed", ">=3.11")


def test_both_sides_have_the_same_interface() -> None:
    from streamkit.speed import INTERFACE

    source = (ROOT / "speed" / "src" / "lib.rs").read_text()
    found = re.search(r"const INTERFACE: u32 = (\d+);", source)
    assert found is not None
    assert int(found[1]) == INTERFACE


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_demo_does_not_wait_for_the_twin() -> None:
    done = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "speed" not in done.stdout
