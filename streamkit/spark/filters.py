"""The rows that the options ask for: files and row groups that are not read, and rows that are dropped.

Filters of a query are not taken. Spark 4.1 to 4.3 keep a pushed filter with the relation, not with the query, so the
next query of the same frame would lack rows. The option `filters` belongs to one frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from .options import Options, milliseconds
from .plan import TaskShare
from .predicates import AnyOf, Predicate, Test

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["Predicate", "RowFilter", "arrow_filter", "groups_that_may", "may_hold", "tests_of"]


def tests_of(options: Options) -> list[Predicate]:
    tests: list[Predicate] = []
    if options.segments is not None:
        tests.append(Test("segment", "in", options.segments))
    first, last = options.sequences
    if first:
        tests.append(Test("sequence", ">=", (first,)))
    if last:
        tests.append(Test("sequence", "<=", (last,)))
    if options.filters is not None:
        tests.append(options.filters)
    return tests


def may_hold(piece: TaskShare, tests: Sequence[Predicate]) -> bool:
    """False if the piece's range, or the statistics of its file, say that it holds nothing that passes."""
    ends: dict[str, tuple[Any, Any]] = {"partition": (piece.partition, piece.partition)}
    ends["number"] = (piece.first, piece.last)
    file = piece.file
    if file is not None:
        ends |= {"segment": file.segments, "sequence": file.sequences, "timestamp": file.timestamps}
    return all(test.may_pass(ends) for test in tests)


def groups_that_may(metadata: Any, tests: Sequence[Predicate]) -> list[int]:
    """The row groups of a Parquet file that may hold a row that passes."""
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    columns = [(names.index(column), column) for column in _columns(tests) if column in names]
    groups = []
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        ends = {}
        for place, column in columns:
            statistics = group.column(place).statistics
            if statistics is not None and statistics.has_min_max:
                ends[column] = (_plain(statistics.min), _plain(statistics.max))
        if all(test.may_pass(ends) for test in tests):
            groups.append(at)
    return groups


def _plain(value: Any) -> Any:
    return milliseconds(value) if isinstance(value, datetime) else value


def _columns(tests: Sequence[Predicate]) -> dict[str, None]:
    """The stored columns of the tests, each once."""
    whole: list[Test] = []
    for test in tests:
        whole += [one for some in test.alternatives for one in some] if isinstance(test, AnyOf) else [test]
    return dict.fromkeys(test.stored for test in whole)


class RowFilter(NamedTuple):
    expression: pc.Expression | None
    columns: tuple[str, ...]
    """The columns that the expression needs."""


def arrow_filter(piece: TaskShare, tests: Sequence[Predicate]) -> RowFilter:
    """Build the filter for rows that were read. A reader of the log keeps the bounds of transactions by itself."""
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
    for test in tests:
        keep(test.arrow(), *_columns([test]))
    expression = None
    for part in expressions:
        expression = part if expression is None else expression & part
    return RowFilter(expression, tuple(dict.fromkeys(columns)))
