"""Links between entries."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence

from ..arguments import check_function, check_type
from ..model import Entry
from .entries import QUALIFIED, NumberedEntries, limited

__all__ = ["Links"]


class Links(NumberedEntries):
    """A view of links between names. `links(entry)` returns pairs (from, to), or names that the entry's segment links
    to; None for none.
    """

    _beside = ("links.id",)

    def __init__(self, links: Callable[[Entry], Iterable[str | tuple[str, str]] | None], *, version: int = 1) -> None:
        super().__init__(version)
        check_function("links", links, "an Entry", iterated=True)
        self._links = links

    def setup(self, db: sqlite3.Connection) -> None:
        super().setup(db)
        db.execute(
            "create table links (source text, target text, id integer, primary key (source, target, id)) without rowid"
        )
        db.execute("create index links_to on links (target, source, id)")

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        id = self._next
        kept: list[Entry] = []
        pairs: list[tuple[str, str, int]] = []
        for entry in entries:
            found = self._links(entry)
            several = dict.fromkeys(
                (entry.segment, link) if isinstance(link, str) else _pair(link)
                for link in ((found,) if isinstance(found, str) else found or ())
            )
            if several:
                pairs += [(source, target, id) for source, target in several]
                kept.append(entry)
                id += 1
        self._keep(db, kept)
        db.executemany("insert into links values (?, ?, ?)", pairs)

    def of(self, source: str) -> list[str]:
        """List the targets of `source`, each once, the first link first."""
        return self._names("select target from links where source = ? group by target order by min(id), target", source)

    def to(self, target: str) -> list[str]:
        """List the sources of `target`, each once, the first link first."""
        return self._names("select source from links where target = ? group by source order by min(id), source", target)

    def _names(self, query: str, name: str) -> list[str]:
        _check_name(name)
        return [found for (found,) in self._ask(query, (name,))]

    def entries(
        self, *, source: str | None = None, target: str | None = None, limit: int = 0, reverse: bool = False
    ) -> list[Entry]:
        """The entries that link: from `source`, to `target`, or both."""
        named = [(column, name) for column, name in (("source", source), ("target", target)) if name is not None]
        for _, name in named:
            _check_name(name)
        where = " and ".join(f"{column} = ?" for column, _ in named)
        order = "desc" if reverse else "asc"
        return self._entries(
            f"select {QUALIFIED} from entries where id in (select id from links{' where ' + where if where else ''}) "
            f"order by id {order}{limited(limit)}",
            (name for _, name in named),
        )


def _check_name(name: object) -> None:
    check_type(name, str, "the name of a link's end must be a str")


def _pair(link: tuple[str, str]) -> tuple[str, str]:
    """SQLite would store a number in a column of text as text, so that 1 and "1" are one name."""
    if isinstance(link, tuple) and len(link) == 2 and isinstance(link[0], str) and isinstance(link[1], str):
        return link
    raise TypeError(f"a link is a name, or a pair of names, as ('a', 'b'), not {type(link).__name__}")
