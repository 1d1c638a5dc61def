"""Entries kept in a view's database, so that a result needs no read of the log."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from ..arguments import check_type
from ..decoders import json_decoder
from ..errors import PermanentError, Unavailable
from ..metadata import NO_METADATA, Metadata
from ..model import TRX, Entry, Origin
from ..run.reading import RemovedEntries
from .database import FOREIGN, refused
from .view import View

__all__ = ["COLUMNS", "QUALIFIED", "EntryView", "NumberedEntries", "decode", "encode", "placeholders"]

COLUMNS = "space, segment, sequence, timestamp, metadata, payload, place"
"""The columns of a table that keeps entries. `metadata` is JSON; `place` holds the rest of the entry."""
QUALIFIED = ", ".join(f"entries.{column}" for column in COLUMNS.split(", "))
"""The columns of the table `entries`, for a query over several tables."""
DEFINITION = (
    "space text not null, segment text not null, sequence integer not null, timestamp integer not null, "
    "metadata text, payload blob not null, place blob not null"
)
_PLACE = struct.Struct("<QQQHH")
_MOST = (1 << 63) - 1
"""SQLite's largest number."""
_encode = msgspec.json.Encoder().encode
_decode = json_decoder(dict[str, str]).decode

Row = tuple[Any, ...]


def placeholders(count: int) -> str:
    return ", ".join("?" * count)


def encode(entries: Sequence[Entry]) -> Iterator[Row]:
    """The columns of each."""
    pack = _PLACE.pack
    trx: TRX | None = None
    origin: Origin | None = None
    ids = incarnation = b""
    for entry in entries:
        if entry.trx is not trx:
            trx = entry.trx
            ids = trx.raw_id + trx.raw_node
        if entry.origin is not origin:
            origin = entry.origin
            incarnation = origin.incarnation
            position, index = origin.position - origin.first_sequence, origin.index - origin.first_sequence
            partition, partitions = origin.partition, origin.partitions
        sequence = entry.sequence
        metadata = entry.metadata
        assert trx is not None
        yield (
            entry.space,
            entry.segment,
            sequence,
            entry.timestamp,
            _encode(metadata).decode() if metadata else None,
            entry.payload,
            ids + pack(trx.number, position + sequence, index + sequence, partition, partitions) + incarnation,
        )


def decode(row: Sequence[Any]) -> Entry:
    """The entry of the first seven columns, which are COLUMNS."""
    space, segment, sequence, timestamp, metadata, payload, place = row[:7]
    number, position, index, partition, partitions = _PLACE.unpack_from(place, 32)
    origin = Origin(partition, partitions, position, index, sequence, incarnation=place[32 + _PLACE.size :])
    return Entry(
        space,
        segment,
        sequence,
        timestamp,
        TRX(place[:16], place[16:32], number),
        payload,
        Metadata(_decode(metadata)) if metadata else NO_METADATA,
        origin,
    )


def limited(limit: int) -> str:
    check_type(limit, int, "limit is an int")
    if limit < 0:
        raise ValueError(f"limit is 0 (no limit) or more, not {limit}")
    return f" limit {min(limit, _MOST)}" if limit else ""


class EntryView(View):
    """A ready-made view. It is asked through itself, once `store.view` has opened it."""

    layout = 0
    """Version of the view's tables. A release that stores other data raises it: new tables are built beside the old."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._opened: Any = None

    def attach(self, view: Any) -> None:
        """Take note of the open view. `store.view` calls it; ValueError if another view has this object."""
        opened = self._opened
        if opened is not None and not opened.closed and opened.path != view.path:
            raise ValueError(
                f"this {type(self).__name__} is that of the view {opened.name!r} already: make another one for "
                f"{view.name!r}"
            )
        self._opened = view

    @property
    def db(self) -> sqlite3.Connection:
        """A read-only connection to the database. PermanentError before `store.view` has opened the view."""
        if self._opened is None:
            raise PermanentError(
                f"this {type(self).__name__} belongs to no view yet: hand it to store.view(name, it, spaces=[…])"
            )
        db: sqlite3.Connection = self._opened.db
        return db

    def _ask(self, query: str, parameters: Iterable[Any] = (), *, layout: bool = False) -> list[Row]:
        """The rows. `layout`: the answer needs tables of this release, and Unavailable says that they are built."""
        db = self.db
        with self._asking():
            if layout:
                self._check_layout(db)
            return db.execute(query, tuple(parameters)).fetchall()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except FOREIGN as error:
            raise refused(error, self._opened.path) from error

    def _check_layout(self, db: sqlite3.Connection) -> None:
        if db.execute("pragma user_version").fetchone()[0] != self.layout:
            raise Unavailable(
                f"the view {self._opened.name!r} is still that of an earlier release, which stored such keys "
                f"differently: catch_up() rebuilds it"
            )

    def _mark_layout(self, db: sqlite3.Connection) -> None:
        db.execute(f"pragma user_version = {self.layout}")

    def _entries(self, query: str, parameters: Iterable[Any] = (), *, layout: bool = False) -> list[Entry]:
        return [decode(row) for row in self._ask(query, parameters, layout=layout)]


class NumberedEntries(EntryView):
    """A ready-made view that keeps entries by number. Rows of other tables name their numbers."""

    _beside: tuple[str, ...] = ()
    """The columns of other tables that hold such numbers, as "table.column"."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self._next = 1

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute(f"create table entries (id integer primary key, {DEFINITION})")

    def load(self, db: sqlite3.Connection) -> None:
        self._next = db.execute("select coalesce(max(id), 0) + 1 from entries").fetchone()[0]

    def _keep(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        """Insert entries with the next numbers."""
        db.executemany(
            f"insert into entries (id, {COLUMNS}) values ({placeholders(8)})",
            ((id, *row) for id, row in enumerate(encode(entries), self._next)),
        )
        self._next += len(entries)

    def erase(self, db: sqlite3.Connection, gap: RemovedEntries) -> None:
        """Delete the entries of a gap, and the rows that name them."""
        if not gap.segment:  # of a whole space: the numbers are those of transactions, which are no column here
            raise PermanentError("entries trimmed from a space as a whole stay in its views")
        chosen = "select id from entries where space = ? and sequence between ? and ? and segment = ?"
        parameters = (gap.space, gap.first_sequence, gap.last_sequence, gap.segment)
        for name in self._beside:
            table, _, column = name.partition(".")
            db.execute(f"delete from {table} where {column} in ({chosen})", parameters)
        db.execute(f"delete from entries where id in ({chosen})", parameters)
