"""A single value: the fold of all entries."""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from ..arguments import check_function
from ..decoders import load_types, msgpack_decoder
from ..errors import PermanentError
from ..exact import difference
from ..model import Entry
from .entries import EntryView

__all__ = ["Reduce"]

S = TypeVar("S")
_NATIVE = {type(None), bool, int, float, str, bytes, dict, list}
"""Types that MessagePack has itself."""
_REMEDY = (
    "Name its type in full, as in Reduce(fn, {}, type=dict[str, tuple[int, Decimal]]), or keep it in dicts, lists, "
    "text, numbers and bytes"
)


class Reduce(EntryView, Generic[S]):
    """A view that folds entries into one state. `fn(state, entry)` returns the next state; `get()` the present one.

    The state is written with every batch, so keep it small: counters, sums, a table of some thousand rows. It is a
    value that msgspec can encode: numbers, text, bytes, dict, list, and with a `type` also tuples, sets, Decimals,
    datetimes, dataclasses and Structs. `type` is the state's type in full, as dict[str, tuple[int, Decimal]]; that of
    `initial` if it is None. `fn` may change the state that it is given, and return it. A state that would come back
    different after a restart pauses the view with a TypeError.
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
        kind = type if type is not None else _type_of(initial)
        load_types(kind)
        self._decoder = msgpack_decoder(kind)
        self._written(initial)
        self._state: S = copy.deepcopy(initial)

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute("create table reduced (id integer primary key check (id = 1), state blob not null)")
        db.execute("insert into reduced values (1, ?)", (self._encode(self._initial),))

    def load(self, db: sqlite3.Connection) -> None:
        [data] = db.execute("select state from reduced").fetchone()
        self._state = self._read(data)

    def _read(self, data: bytes) -> S:
        try:
            state: S = self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PermanentError(
                f"the state in the view's database is no {self._decoder.type}: {error}. Give Reduce a new version"
            ) from error
        return state

    def _written(self, state: S) -> tuple[bytes, S]:
        """The state as bytes, and as it comes back from them. TypeError if that is another one."""
        try:
            data = self._encode(state)
            again = self._decoder.decode(data)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise TypeError(f"Reduce cannot keep its state: {type(error).__name__}: {error}. {_REMEDY}") from error
        where = difference(state, again)
        if where is not None:
            raise TypeError(f"Reduce cannot keep its state, which would come back different: {where}. {_REMEDY}")
        return data, again

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        state, fn = self._state, self._fn
        for entry in entries:
            state = fn(state, entry)
        data, self._state = self._written(state)
        db.execute("update reduced set state = ?", (data,))

    def get(self) -> S:
        """The state, as far as the view is; a copy of one's own."""
        [(data,)] = self._ask("select state from reduced")
        return self._read(data)


def _type_of(initial: Any) -> Any:
    """The type of later states; Any if the initial value is no promise: 0 may be followed by 0.5, and None by
    everything."""
    return Any if type(initial) in _NATIVE else type(initial)
