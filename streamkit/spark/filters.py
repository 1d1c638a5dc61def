"""Filters that Spark pushes down: on segment, sequence, timestamp, number and partition."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from .options import COLUMNS, milliseconds
from .plan import Piece

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["Kept", "Test", "arrow_filter", "groups_that_may", "may_hold", "tests_of"]

_COLUMNS = ("partition", "number", "segment", "sequence", "timestamp")


class Test(NamedTuple):
    """One column against values: `operator` is ==, <, <=, >, >= with one value, or "in" with several."""

    column: str
    operator: str
    values: tuple[Any, ...]

    def possible(self, least: Any, greatest: Any) -> bool:
        """Whether a value between the two may pass."""
        match self.operator:
            case "<":
                return bool(least < self.values[0])
            case "<=":
                return bool(least <= self.values[0])
            case ">":
                return bool(greatest > self.values[0])
            case ">=":
                return bool(greatest >= self.values[0])
            case _:
                return any(least <= value <= greatest for value in self.values)


def tests_of(filters: Sequence[Any]) -> tuple[list[Test], list[Any]]:
    """(tests, the filters that Spark must still look at)."""
    from pyspark.sql.datasource import (
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
    )

    operators = {
        EqualTo: "==",
        LessThan: "<",
        LessThanOrEqual: "<=",
        GreaterThan: ">",
        GreaterThanOrEqual: ">=",
        In: "in",
    }
    tests, rest = [], []
    for one in filters:
        operator = operators.get(type(one))
        name = one.attribute[0] if operator and len(one.attribute) == 1 else ""
        values = one.value if operator == "in" else (getattr(one, "value", None),)
        if operator and name in _COLUMNS and values and all(_fits(name, value) for value in values):
            tests.append(Test(name, operator, tuple(values)))
        elif isinstance(one, IsNotNull) and one.attribute in [(known,) for known in COLUMNS if known != "metadata"]:
            continue
        else:
            rest.append(one)
    return tests, rest


def _fits(name: str, value: Any) -> bool:
    if name == "segment":
        return isinstance(value, str)
    if name == "timestamp":
        return isinstance(value, datetime)
    return isinstance(value, int) and not isinstance(value, bool)


def may_hold(piece: Piece, tests: Sequence[Test]) -> bool:
    """False if the statistics of the piece's file say that it holds nothing that passes."""
    for test in tests:
        if test.column == "partition" and not test.possible(piece.partition, piece.partition):
            return False
        if test.column == "number" and not test.possible(piece.first, piece.last):
            return False
        file = piece.file
        if file is None:
            continue
        if test.column == "segment" and not test.possible(*file.segments):
            return False
        if test.column == "sequence" and not test.possible(*file.sequences):
            return False
        if test.column == "timestamp":
            whole = test._replace(values=tuple(milliseconds(value) for value in test.values))
            # To the millisecond on both sides of what may be finer.
            if not whole.possible(file.timestamps[0] - 1, file.timestamps[1] + 1):
                return False
    return True


def groups_that_may(metadata: Any, tests: Sequence[Test]) -> list[int]:
    """The row groups of a Parquet file that may hold a row that passes."""
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    looked = [(names.index(test.column), test) for test in tests if test.column in names]
    groups = []
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        for column, test in looked:
            found = group.column(column).statistics
            known = test.column != "timestamp" and found is not None and found.has_min_max
            if known and not test.possible(found.min, found.max):
                break
        else:
            groups.append(at)
    return groups


class Kept(NamedTuple):
    expression: pc.Expression | None
    columns: tuple[str, ...]
    """That the expression needs."""


def arrow_filter(piece: Piece, tests: Sequence[Test], *, log: bool = False) -> Kept:
    """What to keep of the rows that were read; a reader of the log keeps numbers and time bounds by itself."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: list[Any] = []
    columns: list[str] = []

    def keep(column: str, expression: Any) -> None:
        columns.append(column)
        found.append(expression)

    moment = pa.timestamp("us", "UTC")
    if not log and piece.file is not None:
        if piece.file.shared:
            keep("partition", pc.field("partition") == piece.partition)
        if piece.first > piece.file.numbers[0] or piece.last < piece.file.numbers[1]:
            keep("number", (pc.field("number") >= piece.first) & (pc.field("number") <= piece.last))
        if piece.file.timestamps[0] < piece.min_timestamp:
            keep("timestamp", pc.field("timestamp") >= pa.scalar(piece.min_timestamp * 1000, moment))
        if piece.max_timestamp and piece.file.timestamps[1] > piece.max_timestamp:
            keep("timestamp", pc.field("timestamp") <= pa.scalar(piece.max_timestamp * 1000, moment))
    for column, operator, values in tests:
        field = pc.field(column)
        scalars = [_scalar(column, value, moment) for value in values]
        match operator:
            case "<":
                keep(column, field < scalars[0])
            case "<=":
                keep(column, field <= scalars[0])
            case ">":
                keep(column, field > scalars[0])
            case ">=":
                keep(column, field >= scalars[0])
            case "==":
                keep(column, field == scalars[0])
            case _:
                keep(column, field.isin(pa.array([scalar.as_py() for scalar in scalars], scalars[0].type)))
    expression = None
    for one in found:
        expression = one if expression is None else expression & one
    return Kept(expression, tuple(dict.fromkeys(columns)))


def _scalar(column: str, value: Any, moment: Any) -> Any:
    import pyarrow as pa

    if column == "timestamp":
        return pa.scalar(value, moment)
    return pa.scalar(value, pa.string() if column == "segment" else pa.int64())
