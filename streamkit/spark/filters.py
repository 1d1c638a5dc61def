"""What the options leave of the rows: files and row groups that are not read, and rows that are dropped.

Nothing is taken from the filters of a query: Spark keeps what was pushed down into a Python source on the relation, and
a frame that is used twice would lose rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .options import Options
from .plan import Piece

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["RowFilter", "Test", "arrow_filter", "groups_that_may", "may_hold", "tests_of"]


class Test(NamedTuple):
    """A column against values: `operator` is <= or >= with one value, or "in" with any number of them."""

    column: str
    operator: str
    values: tuple[Any, ...]

    def possible(self, least: Any, greatest: Any) -> bool:
        """Whether a value between the two may pass."""
        match self.operator:
            case "<=":
                return bool(least <= self.values[0])
            case ">=":
                return bool(greatest >= self.values[0])
            case _:
                return any(least <= value <= greatest for value in self.values)


def tests_of(options: Options) -> list[Test]:
    tests = []
    if options.segments is not None:
        tests.append(Test("segment", "in", options.segments))
    first, last = options.sequences
    if first:
        tests.append(Test("sequence", ">=", (first,)))
    if last:
        tests.append(Test("sequence", "<=", (last,)))
    return tests


def may_hold(piece: Piece, tests: Sequence[Test]) -> bool:
    """False if the statistics of the piece's file say that it holds nothing that passes."""
    file = piece.file
    if file is None:
        return True
    ends = {"segment": file.segments, "sequence": file.sequences}
    return all(test.possible(*ends[test.column]) for test in tests)


def groups_that_may(metadata: Any, tests: Sequence[Test]) -> list[int]:
    """The row groups of a Parquet file that may hold a row that passes."""
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    columns = [(names.index(test.column), test) for test in tests if test.column in names]
    groups = []
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        for column, test in columns:
            statistics = group.column(column).statistics
            known = statistics is not None and statistics.has_min_max
            if known and not test.possible(statistics.min, statistics.max):
                break
        else:
            groups.append(at)
    return groups


class RowFilter(NamedTuple):
    expression: pc.Expression | None
    columns: tuple[str, ...]
    """That the expression needs."""


def arrow_filter(piece: Piece, tests: Sequence[Test]) -> RowFilter:
    """What to keep of the rows that were read; a reader of the log keeps the bounds of transactions by itself."""
    import pyarrow as pa
    import pyarrow.compute as pc

    expressions: list[Any] = []
    columns: list[str] = []

    def keep(expression: Any, *names: str) -> None:
        columns.extend(names)
        expressions.append(expression)

    number, index = pc.field("number"), pc.field("index")
    if piece.file is not None:
        if piece.file.shared:
            keep(pc.field("partition") == piece.partition, "partition")
        if piece.first > piece.file.numbers[0] or piece.last < piece.file.numbers[1]:
            keep((number >= piece.first) & (number <= piece.last), "number")
        if piece.skip:
            keep((number != piece.first) | (index >= piece.skip), "number", "index")
        if piece.stop:
            keep((number != piece.last) | (index < piece.stop), "number", "index")
        if piece.erased:
            keep(pc.field("payload").is_valid(), "payload")
    if piece.min_timestamp:
        moment = pa.scalar(piece.min_timestamp * 1000, pa.timestamp("us", "UTC"))
        keep(pc.field("timestamp") >= moment, "timestamp")
    for column, operator, values in tests:
        kind = pa.string() if column == "segment" else pa.int64()
        field = pc.field(column)
        match operator:
            case "<=":
                keep(field <= pa.scalar(values[0], kind), column)
            case ">=":
                keep(field >= pa.scalar(values[0], kind), column)
            case _:
                keep(field.isin(pa.array(values, kind)), column)
    expression = None
    for part in expressions:
        expression = part if expression is None else expression & part
    return RowFilter(expression, tuple(dict.fromkeys(columns)))
