"""Entries by nearness: exact, by the cosine of the angle between vectors."""

from __future__ import annotations

import heapq
import math
import sqlite3
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..arguments import check_count, check_function
from ..model import Entry
from .entries import COLUMNS, NumberedEntries, decode

__all__ = ["Vectors"]

_ROWS = 8192
_MOST = (1 << 31) - 1
"""Vectors in one answer."""


class Vectors(NumberedEntries):
    """A view of vectors. `embed(entry)` returns `dimensions` numbers, or None. They are kept as 32-bit floats, of
    length 1.

    Every vector is compared: with sqlite-vec if it is installed, else with NumPy, else in Python, which is slow.
    """

    _beside = ("vectors.id",)

    def __init__(self, embed: Callable[[Entry], Sequence[float] | None], dimensions: int, *, version: int = 1) -> None:
        super().__init__(version)
        check_function("embed", embed, "an Entry", iterated=True)
        check_count("dimensions", dimensions)
        self._embed = embed
        self._dimensions = dimensions

    def setup(self, db: sqlite3.Connection) -> None:
        super().setup(db)
        db.execute("create table vectors (id integer primary key, vector blob not null)")

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        found = [(entry, self._unit(vector)) for entry in entries if (vector := self._embed(entry)) is not None]
        first = self._next
        self._keep(db, [entry for entry, _ in found])
        db.executemany("insert into vectors values (?, ?)", enumerate([vector for _, vector in found], first))

    def _unit(self, vector: Sequence[float]) -> bytes:
        try:
            values = [float(value) for value in vector]
        except OverflowError as error:
            raise ValueError("a number of the vector is too large for a float") from error
        if len(values) != self._dimensions:
            raise ValueError(f"a vector here has {self._dimensions} dimensions, not {len(values)}")
        length = math.sqrt(math.fsum(value * value for value in values))
        if not math.isfinite(length) or length == 0:
            raise ValueError("a vector that has no direction (all zeros, or not finite) is near to nothing")
        return array("f", [value / length for value in values]).tobytes()

    def nearest(self, vector: Sequence[float], limit: int = 10) -> list[Entry]:
        """The nearest entries, the nearest first."""
        return [entry for entry, _ in self.similar(vector, limit)]

    def similar(self, vector: Sequence[float], limit: int = 10) -> list[tuple[Entry, float]]:
        """Find entries like `nearest`, each with its cosine: 1 for the same direction, 0 for a right angle, -1 for the
        opposite."""
        check_count("limit", limit)
        wanted = self._unit(vector)
        db = self.db
        with self._asking():
            return self._similar(db, wanted, min(limit, _MOST))

    def _similar(self, db: sqlite3.Connection, wanted: bytes, limit: int) -> list[tuple[Entry, float]]:
        best = _by_extension(db, wanted, limit)
        if best is None:
            best = heapq.nlargest(limit, self._cosines(db, wanted), key=lambda pair: (pair[1], -pair[0]))
        found = []
        for id, cosine in best:
            row = db.execute(f"select {COLUMNS} from entries where id = ?", (id,)).fetchone()
            if row is not None:
                found.append((decode(row), cosine))
        return found

    def _cosines(self, db: sqlite3.Connection, wanted: bytes) -> Iterator[tuple[int, float]]:
        rows = db.execute("select id, vector from vectors order by id")
        try:
            import numpy as np
        except ImportError:
            mine = array("f", wanted)
            for id, vector in rows:
                yield id, sum(map(float.__mul__, mine, array("f", vector)))
            return
        unit: Any = np.frombuffer(wanted, "f4")
        while some := rows.fetchmany(_ROWS):
            matrix = np.frombuffer(b"".join([vector for _, vector in some]), "f4").reshape(-1, self._dimensions)
            yield from zip([id for id, _ in some], (matrix @ unit).tolist(), strict=True)


def _by_extension(db: sqlite3.Connection, wanted: bytes, limit: int) -> Iterable[tuple[int, float]] | None:
    """Search with sqlite-vec, if it is installed and may be loaded."""
    try:
        import sqlite_vec
    except ImportError:
        return None
    query = "select id, 1.0 - vec_distance_cosine(vector, ?) as near from vectors order by near desc, id limit ?"
    try:
        return list(db.execute(query, (wanted, limit)))
    except sqlite3.OperationalError:
        pass
    try:
        db.enable_load_extension(True)
        sqlite_vec.load(db)
        db.enable_load_extension(False)
    except (AttributeError, sqlite3.OperationalError):  # this Python's SQLite takes no extensions
        return None
    return list(db.execute(query, (wanted, limit)))
