"""A single value: the fold of all entries."""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from ..functions import check_function
from ..model import Entry
from .entries import EntryView

__all__ = ["Reduce"]

S = TypeVar("S")


class Reduce(EntryView, Generic[S]):
    """`fn(state, entry)` gives the next state; `get()` the present one.

    The state is written with every batch, so it is rather small: counters, sums, a table of some thousand rows. It is
    what msgspec can encode (numbers, text, dict, list, set, dataclasses, Structs); `type` says as what to read it
    again, that of `initial` if it is None. `fn` may change the state that it is given, and return it.
    """

    def __init__(
        self,
        fn: Callable[[S, Entry], S],
        initial: S,
        *,
        type: Any = None,
        version: int = 1,
    ) -> None:
        super().__init__(version)
        check_function("fn", fn, "a state and an Entry")
        self._fn = fn
        self._initial = initial
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoder = msgspec.msgpack.Decoder(type if type is not None else _type_of(initial))
        self._state: S = copy.deepcopy(initial)

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute("create table reduced (id integer primary key check (id = 1), state blob not null)")
        db.execute("insert into reduced values (1, ?)", (self._encode(self._initial),))

    def load(self, db: sqlite3.Connection) -> None:
        self._state = self._read(db)

    def _read(self, db: sqlite3.Connection) -> S:
        state: S = self._decoder.decode(db.execute("select state from reduced").fetchone()[0])
        return state

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        state, fn = self._state, self._fn
        for entry in entries:
            state = fn(state, entry)
        self._state = state
        db.execute("update reduced set state = ?", (self._encode(state),))

    def get(self) -> S:
        """The state, as far as the view is; a copy of one's own."""
        return self._read(self.db)


def _type_of(initial: Any) -> Any:
    """None says nothing about what comes after it."""
    return Any if initial is None or type(initial) in (dict, list, int) else type(initial)
