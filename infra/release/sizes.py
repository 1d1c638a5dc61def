"""Sizes of an installation: `python infra/release/sizes.py` prints MiB for the core and for each extra, unpacked.

The figures are those of this environment, without compiled Python. The exit code is 1 if the core, or the core with the
extra s3, is larger than 30 MiB: a function that is deployed as a zip needs room for its own code.
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent
NAME = "streamkit-store"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MOST = {"": 30.0, "s3": 30.0}
"""MiB that the core, and the core with an extra, may have."""


def closure(name: str, extras: frozenset[str] = frozenset()) -> set[tuple[str, frozenset[str]]]:
    """The distribution and all that it needs, each with the extras that are asked of it."""
    found: set[tuple[str, frozenset[str]]] = set()
    left = [(canonicalize_name(name), extras)]
    while left:
        one = left.pop()
        if one in found:
            continue
        found.add(one)
        for requirement in map(Requirement, needs(one[0])):
            asked = [{"extra": extra} for extra in one[1] or {""}]
            if requirement.marker is None or any(map(requirement.marker.evaluate, asked)):
                left.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return found


def needs(name: str) -> list[str]:
    """The requirements of a distribution. Those of the project come from pyproject.toml, because an older one may be
    installed."""
    if name != NAME:
        return distribution(name).requires or []
    optional = PROJECT["optional-dependencies"].items()
    marked = [_marked(text, extra) for extra, texts in optional for text in texts]
    return [*PROJECT["dependencies"], *marked]


def _marked(text: str, extra: str) -> str:
    requirement, _, marker = text.partition(";")
    return f"{requirement}; ({marker}) and extra == '{extra}'" if marker else f"{requirement}; extra == '{extra}'"


def names(extra: str) -> set[str]:
    """The names of the distributions that an installation with the extra has."""
    return {name for name, _ in closure(NAME, frozenset({extra}) if extra else frozenset())}


def mebibytes(name: str) -> float:
    """The size of a distribution's files, without compiled Python."""
    if name == NAME:  # it may be installed from a checkout
        folders = [ROOT / "streamkit", *(path for path in (ROOT / "backends").iterdir() if path.is_dir())]
        files = [path for folder in folders for path in folder.rglob("*") if path.suffix != ".pyc" and path.is_file()]
        return sum(path.stat().st_size for path in files) / 2**20
    paths = [Path(str(file.locate())) for file in distribution(name).files or () if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 2**20


def extras() -> list[str]:
    """The extras of users. `speed` counts where the compiled twin could be built."""
    hidden = {"dev", "docs"} | ({"speed"} if find_spec("streamkit_speed") is None else set())
    return [extra for extra in PROJECT["optional-dependencies"] if extra not in hidden]


def main() -> int:
    wrong = 0
    for extra in ["", *extras()]:
        size = sum(map(mebibytes, names(extra)))
        most = MOST.get(extra)
        note = "" if most is None else f"   at most {most:g}"
        print(f"{extra or 'core':14} {size:8.1f} MiB{note}")
        wrong += most is not None and size > most
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
