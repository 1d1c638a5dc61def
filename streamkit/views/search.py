"""Entries by the words in them: SQLite's FTS5."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Literal

from ..arguments import check_choice, check_function, check_type
from ..errors import MissingDependency, PermanentError
from ..model import Entry
from .database import FOREIGN
from .entries import QUALIFIED, NumberedEntries, Row, decode, limited

__all__ = ["Search"]

_TERM = re.compile(r'"([^"]*)"(\*?)|([^\s"]+)')


class Search(NumberedEntries):
    """A full-text search. `text(entry)` returns the searchable text of an entry, or None. `tokenizer` is FTS5's
    ("porter unicode61" stems)."""

    _beside = ("words.rowid",)

    def __init__(self, text: Callable[[Entry], str | None], *, tokenizer: str = "unicode61", version: int = 1) -> None:
        super().__init__(version)
        check_function("text", text, "an Entry")
        self._text = text
        self._tokenizer = tokenizer
        self._check_tokenizer()

    def _check_tokenizer(self) -> None:
        check_type(self._tokenizer, str, "a tokenizer is text")
        with closing(sqlite3.connect(":memory:")) as db:
            try:
                self.setup(db)
            except (*FOREIGN, ValueError) as error:
                if "no such module" in str(error):
                    raise MissingDependency("Search needs a SQLite with FTS5, and this Python has none") from error
                raise ValueError(f"{self._tokenizer!r:.60} is no tokenizer of FTS5: {error}") from error

    def setup(self, db: sqlite3.Connection) -> None:
        super().setup(db)
        tokenizer = self._tokenizer.replace("'", "''")
        db.execute(f"create virtual table words using fts5 (text, tokenize = '{tokenizer}')")

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        text = self._text
        found = [(entry, said) for entry in entries if (said := text(entry)) is not None]
        first = self._next
        self._keep(db, [entry for entry, _ in found])
        db.executemany("insert into words (rowid, text) values (?, ?)", enumerate([said for _, said in found], first))

    def search(
        self, query: str, limit: int = 100, *, order: Literal["rank", "newest", "oldest"] = "rank", syntax: bool = False
    ) -> list[Entry]:
        """The entries that hold every word of `query`, the best first: `two words`, `"a phrase"`, `pref*`.

        With `syntax` it is a query in FTS5's own language: AND, OR, NOT, NEAR. ValueError if it is malformed.
        """
        check_type(query, str, "a query is text")
        check_choice("order", order, "rank", "newest", "oldest")
        if syntax and "\0" in query:
            raise ValueError("a query of FTS5 has no NUL: it would end there")
        terms = query if syntax else _terms(query)
        if not terms.strip():
            return []
        by = {"rank": "words.rank, entries.id", "newest": "entries.id desc", "oldest": "entries.id"}[order]
        return [
            decode(row)
            for row in self._matching(
                f"select {QUALIFIED} from words join entries on entries.id = words.rowid "
                f"where words match ? order by {by}{limited(limit)}",
                terms,
            )
        ]

    def count(self, query: str) -> int:
        """Count the entries that `search` would find."""
        check_type(query, str, "a query is text")
        terms = _terms(query)
        if not terms:
            return 0
        [(count,)] = self._matching("select count(*) from words where words match ?", terms)
        found: int = count
        return found

    def _matching(self, query: str, terms: str) -> list[Row]:
        try:
            return self._ask(query, (terms,))
        except PermanentError as error:
            if type(error.__cause__) is not sqlite3.OperationalError:
                raise
            raise ValueError(f"{terms!r:.100} is no query of FTS5: {error.__cause__}") from error


def _terms(query: str) -> str:
    """The query in FTS5's language, with each word quoted, so that no word has a special meaning."""
    found = []
    query = query.replace("\0", " ")  # for FTS5 a query ends there
    for phrase, star, word in _TERM.findall(query):
        text = phrase or word
        if not phrase and text.endswith("*"):
            text, star = text.rstrip("*"), "*"
        if any(character.isalnum() for character in text):
            found.append('"' + text.replace('"', '""') + '"' + star)
    return " ".join(found)
