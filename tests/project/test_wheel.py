"""The wheel, alone in an empty environment: its contents, its requirements, and a run of the README's program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from streamkit import __version__

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ["streamkit", *(f"streamkit_{name}" for name in ("memory", "local", "s3", "azure"))]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that is built from this checkout with the installed tools. Nothing is downloaded."""
    folder = tmp_path_factory.mktemp("wheel")
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the wheel and with copies of its requirements without an extra."""
    folder = tmp_path_factory.mktemp("environment")
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder)
    python = folder / "bin" / "python"
    site = Path(_run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip())
    for name in _demanded(PROJECT["dependencies"]):
        for file in distribution(name).files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), target)
    _run([*_pip(python), "install", "--no-deps", "--no-index", str(wheel)], folder)
    return python


def _demanded(requirements: list[str]) -> set[str]:
    """The names of the packages, and those of their requirements."""
    names: set[str] = set()
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            names |= {requirement.name, *_demanded(distribution(requirement.name).requires or [])}
    return names


def _pip(python: Path) -> list[str]:
    return [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]


def _run(command: list[str], folder: Path, code: int = 0) -> str:
    """The output of a program that knows nothing of this checkout, with its standard error if it may fail."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + (done.stderr if code else "")


def test_the_wheel_holds_the_packages_whole_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"streamkit_store-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        held = {name for name in opened.namelist() if ".dist-info/" not in name}
    expected = set()
    for package in PACKAGES:
        folder = ROOT if package == "streamkit" else ROOT / "backends"
        files = (path for path in (folder / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        expected |= {str(path.relative_to(folder)) for path in files}
    assert held == expected
    assert {f"{package}/py.typed" for package in PACKAGES} <= held
    project = "streamkit/cli/project/"  # the files of `streamkit init`
    project = "streamkit/cli/project/"  # the files of `streamkit init`
    assert {f"{project}{name}" for name in ("shop.py.txt", "template.yaml", "main.bicep")} <= held
    console = "streamkit/serve/console/static/"
    assert {Path(name).suffix for name in held if not name.startswith((project, console))} == {".py", ".typed"}
    kinds = {Path(name).suffix for name in held if name.startswith(console)}
    assert kinds == {".html", ".css", ".js", ".svg", ".txt", ".woff2"}
    assert {f"{console}{name}" for name in ("index.html", "main.js", "style.css", "vendor/LICENSE-preact.txt")} <= held


def test_the_wheel_says_what_it_is_and_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(opened.read(name).decode())
        entry_points = opened.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert (metadata["Name"], metadata["Version"]) == ("streamkit-store", __version__)
    needs = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    always = {canonicalize_name(need.name) for need in needs if "extra" not in str(need.marker)}
    assert always == {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    assert "streamkit" not in {need.name for need in needs}, "another project has that name on the package index"
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert "streamkit = streamkit.cli:main" in entry_points


def test_installed_alone_it_runs_the_program_of_the_readme(empty: Path, tmp_path: Path) -> None:
    found = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    program = tmp_path / "readme.py"
    program.write_text(found[1].replace("file:///tmp/streamkit-readme", f"file://{tmp_path}/store"))
    said = _run([str(empty), str(program)], tmp_path).splitlines()
    assert said == ['1 {"placed": 3}', '2 {"paid": true}', "after it: ['stock-9']"]


def test_installed_alone_it_is_one_distribution_and_imports_from_its_own_place(empty: Path, tmp_path: Path) -> None:
    program = """
import importlib.metadata, importlib.util, streamkit, sys
assert streamkit.__file__.startswith(sys.prefix), streamkit.__file__
assert importlib.metadata.version("streamkit-store") == streamkit.__version__
print(sorted({d.name.lower() for d in importlib.metadata.distributions() if "stream" in d.name}))
print(sorted(p.name for p in importlib.metadata.entry_points(group="streamkit.backends")))
print([name for name in ("tests", "infra", "harness", "benchmarks", "boto3", "azure", "typer", "pyarrow", "pyspark")
    if importlib.util.find_spec(name)])
"""
    said = _run([str(empty), "-c", program], tmp_path).splitlines()
    assert said == ["['streamkit-store']", "['azure', 'azurite', 'file', 'memory', 's3']", "[]"]


@pytest.mark.parametrize(
    ("statement", "extra"),
    [
        ("streamkit.connect('s3://bucket/prefix')", "s3"),
        ("streamkit.connect('azure://account/prefix')", "azure"),
        (
            "store = streamkit.connect('memory://').store('7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55')\n"
            "store.produce('orders', 'order-42', [streamkit.Record(b'')])\n"
            "store.archive('orders')",
            "archive",
        ),
        ("import streamkit.spark", "spark"),
        ("from streamkit.cli import main; main(['stores'])", "cli"),
    ],
    ids=["s3", "azure", "archive", "spark", "cli"],
)
def test_what_needs_an_extra_says_how_to_add_it(statement: str, extra: str, empty: Path, tmp_path: Path) -> None:
    said = _run([str(empty), "-c", f"import streamkit\n{statement}"], tmp_path, code=1)
    fix = f"pip install 'streamkit-store[{extra}]'"
    assert fix in said.splitlines()[-1]


def test_an_extra_is_added_to_what_is_installed_without_asking_for_it_on_an_index(empty: Path, tmp_path: Path) -> None:
    """The advice of the errors holds, also before streamkit-store is published."""
    said = _run([*_pip(empty), "install", "--no-index", "--dry-run", "streamkit-store[s3]"], tmp_path, code=1)
    assert "Requirement already satisfied: streamkit-store[s3]" in said
    assert "No matching distribution found for boto3" in said
