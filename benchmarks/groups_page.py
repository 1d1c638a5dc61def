"""Tables in docs/groups.md, which stand between two marks there."""

from __future__ import annotations

from pathlib import Path

__all__ = ["publish"]

PAGE = Path(__file__).parent.parent / "docs" / "groups.md"


def publish(command: str, lines: list[str]) -> None:
    """Put `lines` where the page has the mark of `command`. ValueError if it has none."""
    begin, end = f"<!-- figures: python -m {command} --publish -->", "<!-- end of figures -->"
    before, mark, rest = PAGE.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (mark and closed):
        raise ValueError(f"there is no {begin} with {end} after it")
    PAGE.write_text("\n".join([f"{before}{begin}", *lines, f"{end}{after}"]))
