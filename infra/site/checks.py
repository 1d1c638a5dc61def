"""Checks of the built pages: links, anchors, references, origins and sizes."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

MOST = 300_000
"""Bytes of a page."""


class Page(HTMLParser):
    """The identifiers and addresses of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.left: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") != "canonical":
            self.loaded.append(values.get("href", ""))
        if "src" in values:
            self.loaded.append(values["src"])
        if tag == "autoref" or "data-autorefs-identifier" in values:
            self.left.append(values.get("identifier") or values.get("data-autorefs-identifier", ""))


@cache
def page_of(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def problems_of(html: Path, public: list[str]) -> list[str]:
    """The problems of the site in the folder `html`, which documents each of the names `public`."""
    page_of.cache_clear()
    found: list[str] = []
    ids: set[str] = set()
    for path in sorted(path for path in html.rglob("*.html") if path.is_file()):
        name, size, page = path.relative_to(html), path.stat().st_size, page_of(path)
        ids |= page.ids
        if size > MOST:
            found.append(f"{name}: {size:,} bytes, more than {MOST:,}")
        found += [
            f"{name}: the reference {one!r} is not resolved" for one in page.left if not one.startswith("typing.")
        ]
        found += [f"{name}: loads {one} from another origin" for one in page.loaded if re.match(r"(https?:)?//", one)]
        for link in {*page.links, *page.loaded}:
            if path.name == "404.html" or re.match(r"[a-z][a-z+.-]*:|//", link):
                continue
            target, _, anchor = link.partition("#")
            target = unquote(target.partition("?")[0])
            place = (path.parent / target).resolve() if target else path
            place = place / "index.html" if place.is_dir() else place
            if not place.exists():
                found.append(f"{name}: {link} leads nowhere")
            elif anchor and place.suffix == ".html" and unquote(anchor) not in page_of(place).ids | {"__skip"}:
                found.append(f"{name}: {link} names no heading")
    found += [f"no page documents {name}" for name in public if name not in ids]
    return found
