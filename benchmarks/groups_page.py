"""Tables in pages of docs/, which stand between two marks there. Most of them are in docs/groups.md."""

from __future__ import annotations

from pathlib import Path

__all__ = ["publish"]

PAGE = Path(__file__).parent.parent / "docs" / "groups.md"


def publish(command: str, lines: list[str], page: Path | None = None) -> None:
    """Put `lines` where the page, docs/groups.md by default, has the mark of `command`. ValueError if it has none."""
    page = page or PAGE
    begin, end = f"<!-- figures: python -m {command} --publish -->", "<!-- end of figures -->"
    before, mark, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (mark and closed):
        raise ValueError(f"there is no {begin} with {end} after it")
    page.write_text("\n".join([f"{before}{begin}", *lines, f"{end}{after}"]))
