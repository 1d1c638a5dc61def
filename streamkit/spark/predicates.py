"""Filters as values: a test of a row, and a test of the least and greatest values of a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from pyspark.sql import Column

__all__ = ["METADATA", "AnyOf", "Predicate", "Test", "parse_filters"]

METADATA = "metadata."
"""A column name that begins with it names a key of an entry's metadata."""
Ends = Mapping[str, tuple[Any, Any]]
"""The least and the greatest value of columns."""

_TEXTS = ("segment",)
_NUMBERS = ("sequence", "number", "partition")
_ONE = ("=", "!=", "<", "<=", ">", ">=")
_OPERATORS = (*_ONE, "in", "not in", "starts with", "is null", "is not null")
_FORM = '[["segment", "in", ["order-1", "order-2"]], ["metadata.type", "=", "paid"]]'


class Test(NamedTuple):
    """A column against values. Like in SQL, a null passes no test but "is null"."""

    column: str
    operator: str
    values: tuple[Any, ...] = ()

    @property
    def stored(self) -> str:
        """The column that is read for it."""
        return "metadata" if self.column.startswith(METADATA) else self.column

    def may_pass(self, ends: Ends) -> bool:
        """False if no value between the column's ends passes."""
        if self.operator == "is null" and self.stored != "metadata":
            return False
        if self.column not in ends or not self.values:
            return True
        least, greatest = ends[self.column]
        first = self.values[0]
        match self.operator:
            case "=" | "in":
                return any(least <= value <= greatest for value in self.values)
            case "!=" | "not in":
                return not (least == greatest and least in self.values)
            case "<":
                return bool(least < first)
            case "<=":
                return bool(least <= first)
            case ">":
                return bool(greatest > first)
            case ">=":
                return bool(greatest >= first)
        return bool(least[: len(first)] <= first <= greatest)  # starts with

    def arrow(self) -> pc.Expression:
        import pyarrow as pa
        import pyarrow.compute as pc

        field = pc.field(self.stored)
        kind = pa.int64()
        if self.stored == "metadata":
            key = self.column.removeprefix(METADATA)
            field, kind = pc.map_lookup(field, pa.scalar(key), "first"), pa.string()
        elif self.column in _TEXTS:
            kind = pa.string()
        values: list[Any] = list(self.values)
        if self.column == "timestamp":
            kind = pa.timestamp("us", "UTC")
            values = [value * 1000 for value in values]
        match self.operator:
            case "is null":
                return ~field.is_valid()
            case "is not null":
                return field.is_valid()
            case "starts with":
                return pc.starts_with(field, values[0])
            case "in":
                return field.isin(pa.array(values, kind))
            case "not in":
                return field.is_valid() & ~field.isin(pa.array(values, kind))
        return _compared(self.operator, field, pa.scalar(values[0], kind))

    def spark(self) -> Column:
        from pyspark.sql import functions as F

        field = F.col(self.stored)
        if self.stored == "metadata":
            field = field[self.column.removeprefix(METADATA)]
        values = [F.timestamp_millis(F.lit(v)) if self.column == "timestamp" else F.lit(v) for v in self.values]
        match self.operator:
            case "is null":
                return field.isNull()
            case "is not null":
                return field.isNotNull()
            case "starts with":
                return field.startswith(self.values[0])
            case "in":
                return field.isin(*values)
            case "not in":
                return ~field.isin(*values)
        found: Column = _compared(self.operator, field, values[0])
        return found


class AnyOf(NamedTuple):
    """Passed by a row that passes all tests of one alternative."""

    alternatives: tuple[tuple[Test, ...], ...]

    def may_pass(self, ends: Ends) -> bool:
        return any(all(test.may_pass(ends) for test in tests) for tests in self.alternatives)

    def arrow(self) -> pc.Expression:
        return self._joined(lambda test: test.arrow())

    def spark(self) -> Column:
        found: Column = self._joined(lambda test: test.spark())
        return found

    def _joined(self, made: Callable[[Test], Any]) -> Any:
        whole = None
        for tests in self.alternatives:
            one = made(tests[0])
            for test in tests[1:]:
                one = one & made(test)
            whole = one if whole is None else whole | one
        return whole


Predicate = Test | AnyOf


def _compared(operator: str, left: Any, right: Any) -> Any:
    match operator:
        case "=":
            return left == right
        case "!=":
            return left != right
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
    return left >= right


def parse_filters(text: str, moment: Callable[[str], int]) -> AnyOf | None:
    """The option `filters`; None if there are none. ValueError for an invalid filter.

    A test is an array of a column, an operator and a value. A row passes all tests of the array, or, in an array of
    such arrays, all tests of one of them. `moment` reads a timestamp.
    """
    if not text:
        return None
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, list) or not given:
        raise ValueError(f"the option 'filters' is a JSON array of tests: {_FORM}; not {text[:100]!r}")
    alternatives = (
        given if all(isinstance(one, list) and one and isinstance(one[0], list) for one in given) else [given]
    )
    return AnyOf(tuple(tuple(_test(one, moment) for one in tests) for tests in alternatives))


def _test(given: Any, moment: Callable[[str], int]) -> Test:
    if not isinstance(given, list) or len(given) not in (2, 3) or not all(isinstance(part, str) for part in given[:2]):
        raise ValueError(f"a filter is a column, an operator and a value, as in {_FORM}; not {given!r:.100}")
    column, operator = given[0], {"==": "="}.get(given[1], given[1])
    if column not in (*_TEXTS, *_NUMBERS, "timestamp") and not (column.startswith(METADATA) and column != METADATA):
        known = ", ".join((*_TEXTS, *_NUMBERS, "timestamp", f"{METADATA}KEY"))
        raise ValueError(f"a filter names the column {column!r}; filters are for {known}")
    if operator not in _OPERATORS:
        raise ValueError(f"a filter has the operator {operator!r}; there are {', '.join(_OPERATORS)}")
    if operator.startswith("is "):
        if len(given) == 3:
            raise ValueError(f"the operator {operator!r} takes no value; the filter is {given!r:.100}")
        return Test(column, operator)
    several = operator in ("in", "not in")
    if len(given) != 3 or isinstance(given[2], list) != several or given[2] == []:
        wanted = "an array of values" if several else "one value"
        raise ValueError(f"the operator {operator!r} takes {wanted}; the filter is {given!r:.100}")
    if operator == "starts with" and (column in _NUMBERS or column == "timestamp"):
        raise ValueError(f"the operator 'starts with' is for text; the column {column!r} has none")
    return Test(
        column, operator, tuple(_value(column, value, moment) for value in (given[2] if several else given[2:]))
    )


def _value(column: str, value: Any, moment: Callable[[str], int]) -> Any:
    if column == "timestamp":
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(
                f"a filter on timestamp takes milliseconds, or ISO 8601 text with a zone; not {value!r:.100}"
            )
        return moment(str(value))
    kind = int if column in _NUMBERS else str
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"a filter on {column} takes {'a number' if kind is int else 'text'}; not {value!r:.100}")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"a filter on {column} takes a number of 64 bits; not {value}")
    return value
