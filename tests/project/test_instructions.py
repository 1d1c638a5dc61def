"""Instructions to install for people and platforms: never `streamkit`, which is another project on the index."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from streamkit import __version__

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
WHEEL = f"streamkit_store-{__version__}-py3-none-any.whl"
UNSEEN = {"node_modules", "__pycache__", "build", "target", "dist", "golden", "data", "streamkit-data"}

FOREIGN = re.compile(
    r"""
    \b(?:pip3?|pipx|uv|poetry|conda)\b [^\n]*? \b(?:install|add|download|wheel|inject)\b   # a command that installs
    [^\n`]*? [\s'"=] streamkit (?= [\s'"`\[=<>~!;,)] | $ )                            # that name, and no other
    | (?<![\w./{-]) streamkit \[ [a-z0-9${]                                           # a requirement with extras
    | (?<![\w./-]) streamkit \s* (?:==|>=|~=|<=) \s* \d                               # a requirement with a version
    | \b(?:version|distribution|metadata|requires|files) \( ['"]streamkit['"] \)     # the distribution by its name
    """,
    re.VERBOSE,
)


def _files() -> Iterator[tuple[Path, str]]:
    """Yield every text of the project."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in UNSEEN and not name.startswith(".")]
        for name in files:
            path = Path(folder, name)
            if path != Path(__file__) and path.suffix not in (".png", ".whl", ".gz", ".woff2"):
                yield path.relative_to(ROOT), path.read_text(encoding="utf-8")


FILES = dict(_files())


def _requirements(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _same(left: list[str], right: list[str]) -> bool:
    def plain(texts: list[str]) -> set[tuple[str, str, str]]:
        found = map(Requirement, texts)
        return {(canonicalize_name(one.name), str(one.specifier), str(one.marker)) for one in found}

    return plain(left) == plain(right)


@pytest.mark.parametrize(
    "text",
    [
        "pip install streamkit               # local disk and memory",
        "pip install 'streamkit[s3]'",
        "RUN python -m pip install -q streamkit",
        '"$folder/env/bin/pip" install --quiet venv-pack "streamkit[archive,$cloud]"',
        "streamkit[s3]>=0.1",
        "streamkit>=0.1",
        "f\"'streamkit[{extra}]'\"",
        "package: streamkit[archive,${var.extra}]",
        'importlib.metadata.version("streamkit")',
        "uv add streamkit",
        "needs it: `pip install streamkit`",
    ],
)
def test_an_instruction_for_the_other_project_would_be_found(text: str) -> None:
    assert FOREIGN.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'streamkit-store[s3]'",
        "pip install '.[cli]' in a checkout brings `streamkit`",
        "pip install 'dist/streamkit_store-0.1.0-py3-none-any.whl[s3]'",
        "pip uninstall -y streamkit-store",
    ],
)
def test_our_own_instructions_are_none_of_these(text: str) -> None:
    assert not FOREIGN.search(text)


def test_nothing_installs_the_other_project_of_that_name() -> None:
    found = [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in FILES.items()
        for number, line in enumerate(text.splitlines(), 1)
        if FOREIGN.search(line)
    ]
    assert found == []
    assert len(FILES) > 200, "and all files were looked at"


def test_no_requirement_names_the_other_project() -> None:
    texts = [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]
    for path, text in FILES.items():
        if path.name.startswith("requirements") and path.suffix == ".txt":
            texts += _requirements(text)
    names = set()
    for text in texts:
        try:
            names.add(canonicalize_name(Requirement(text).name))
        except InvalidRequirement:  # a path, which the next test looks at
            assert text.startswith("./streamkit_store-"), text
    assert "streamkit" not in names
    assert {"msgspec", "streamkit-store"} <= names


def test_every_extra_and_every_wheel_that_is_named_exists() -> None:
    extras, wheels = set(), set()
    for text in FILES.values():
        for names in re.findall(r"(?:streamkit-store|\.whl|'\.|\"\.)\\*\[([a-z0-9_,]+)\\*\]", text):
            extras |= set(names.split(","))
        wheels |= set(re.findall(r"streamkit_store-[\w.-]+\.whl", text))
    assert extras <= set(EXTRAS)
    assert {"s3", "azure", "archive", "spark", "cli"} <= extras
    assert wheels == {WHEEL}


@pytest.mark.parametrize(("folder", "extra"), [("aws_lambda", "s3"), ("azure_functions", "azure")])
def test_a_function_installs_the_wheel_that_lies_beside_it(folder: str, extra: str) -> None:
    requirements = _requirements(FILES[Path("examples", folder, "requirements.txt")])
    assert f"./{WHEEL}[{extra}]" in requirements


def test_synapse_installs_what_the_wheel_needs() -> None:
    given = _requirements(FILES[Path("infra/synapse/requirements.txt")])
    assert _same(given, [*PROJECT["dependencies"], *EXTRAS["archive"], *EXTRAS["azure"]])


def test_databricks_builds_the_wheel_and_installs_what_its_extras_need() -> None:
    path = Path("infra/databricks/databricks.yml")
    bundle = yaml.safe_load(FILES[path])
    wheel, *others = bundle["x-streamkit"]["libraries"]
    built = (ROOT / path).parent / bundle["artifacts"]["streamkit"]["path"]
    assert built.resolve() == ROOT
    assert (ROOT / path).parent.joinpath(wheel["whl"]).parent.resolve() == ROOT / "dist"
    assert Path(WHEEL).match(Path(wheel["whl"]).name)
    assert _same([library["pypi"]["package"] for library in others], [*EXTRAS["archive"], *EXTRAS["s3"]])
    instead = re.findall(r"# - pypi: \{ package: \"(.+)\" \}", FILES[path])
    assert _same(instead, EXTRAS["azure"])


def test_an_environment_for_spark_is_packed_from_a_checkout_or_a_wheel() -> None:
    script = FILES[Path("infra/spark/environment.sh")]
    assert '"${streamkit}[archive,$cloud]"' in script
    assert 'streamkit="${STREAMKIT:-$(cd "$(dirname "$0")/../.." && pwd)}"' in script
