"""Comparison of the public API with the last release: `python infra/release/api.py [TAG]`.

It names each public name that was removed, or changed so that a caller would fail. The exit code is 1 if there is one,
unless CHANGELOG.md has a section "Breaking" under "Unreleased". Without a tag there is nothing to compare.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parent.parent.parent
PRIVATE = re.compile(r"^streamkit\.(log|index|cli|serve\.(?!app\b)[a-z_]+)\b|\._")
"""Modules that callers do not use."""


def last_tag(root: Path) -> str | None:
    """The newest tag of a release before this commit; None if there is none."""
    command = ["git", "-C", str(root), "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def changes(root: Path, tag: str) -> Iterator[str]:
    """A line for each breaking change since the tag."""
    old = griffe.load_git("streamkit", ref=tag, repo=root, search_paths=["."])
    new = griffe.load("streamkit", search_paths=[str(root)], try_relative_path=False)
    for breakage in griffe.find_breaking_changes(old, new):
        if not PRIVATE.search(breakage.obj.path):
            yield breakage.explain(style=griffe.ExplanationStyle.ONE_LINE)


def announced(changelog: str) -> bool:
    """True if the changelog has a section "Breaking" under "Unreleased"."""
    unreleased = changelog.partition("## [Unreleased]")[2].partition("\n## ")[0]
    return "### Breaking" in unreleased


def main(arguments: list[str], root: Path = ROOT) -> int:
    tag = arguments[0] if arguments else last_tag(root)
    if tag is None:
        print("no release has a tag yet: there is nothing to compare")
        return 0
    found = list(changes(root, tag))
    print("\n".join([*found, f"{len(found)} breaking changes since {tag}"]))
    if found and not announced((root / "CHANGELOG.md").read_text()):
        print(
            'undo them, or name them in CHANGELOG.md in a section "### Breaking" of "## [Unreleased]"', file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
