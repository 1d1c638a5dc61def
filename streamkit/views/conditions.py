"""Conditions of queries as SQL. A value is compared only with values of its kind, unlike in plain SQLite."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from ..arguments import check_type
from .entries import placeholders
from .keys import end_of_prefix

__all__ = ["Column", "extract", "json_path"]

_PART = re.compile(r'[^.\[\]"]+|\[\d+\]')
_PATH = re.compile(r'(?:[^.\[\]"]+|\[\d+\])(?:\.[^.\[\]"]+|\[\d+\])*')
_COMPARISONS = {"eq": "is", "ne": "is not", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_OWN = {"segment": str, "space": str, "sequence": int, "timestamp": int}
_KINDS = {str: ("text",), int: ("integer", "real"), bool: ("true", "false")}
"""The results of `json_type` for values of one kind. `json_extract` gives 1 for true, and text for lists."""
_MOST_VALUES = 10_000
"""The most values in a list. SQLite takes some 32,000 parameters."""


class Column:
    """The value that a path names: in the JSON, or one that every entry has."""

    def __init__(self, path: str) -> None:
        check_type(path, str, 'a path is text, as "user.id"')
        self.path = path
        self.own = path.startswith("@")
        if not self.own:
            self.name = extract(path)
            self._type = f"json_type(json, '{json_path(path)}')"
        elif path[1:] in _OWN:
            self.name = path[1:]
        else:
            raise ValueError(f"an entry has no {path!r}: it has {', '.join(sorted('@' + name for name in _OWN))}")

    def condition(self, operator: str, value: Any) -> tuple[str, list[Any]]:
        """The SQL, and its parameters."""
        if isinstance(value, (list, set, frozenset)) and operator == "eq":
            operator = "in"
        if operator == "in":
            return self._in(value)
        if operator == "exists":
            if not isinstance(value, bool):
                raise TypeError(f"{self.path!r} exists, True, or does not, False; not {type(value).__name__}")
            return f"{self.name} is {'not ' if value else ''}null", []
        if operator == "prefix":
            return self._prefix(value)
        if operator not in _COMPARISONS:
            known = ", ".join([*_COMPARISONS, "in", "prefix", "exists"])
            raise ValueError(f"no comparison {operator!r} for {self.path!r}; there are {known}")
        comparison = f"{self.name} {_COMPARISONS[operator]} ?"
        if value is None and not self.own:
            if operator not in ("eq", "ne"):
                raise TypeError(f"None has no order: compare {self.path!r} with None by eq or ne")
            return comparison, [None]
        found = self._value(value)
        if self.own:
            return comparison, [found]
        if operator == "ne":
            return f"not ({self.name} is ?{self._and_is_a(_kind(value))})", [found]
        return f"{comparison}{self._and_is_a(_kind(value))}", [found]

    def _in(self, values: Iterable[Any]) -> tuple[str, list[Any]]:
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise TypeError(f"{self.path!r} is in a list of values, not {type(values).__name__}")
        kinds: dict[type, list[Any]] = {}
        several: list[str] = []
        for value in values:
            if value is None and not self.own:
                several = [f"{self.name} is null"]
            else:
                kinds.setdefault(_kind(value), []).append(self._value(value))
        parameters: list[Any] = []
        for kind, found in kinds.items():
            parameters += found
            several.append(f"({self.name} in ({placeholders(len(found))}){'' if self.own else self._and_is_a(kind)})")
        if len(parameters) > _MOST_VALUES:
            count = len(parameters)
            raise ValueError(
                f"{self.path!r} is compared with {count:,} values: compare it with {_MOST_VALUES:,} at most"
            )
        return f"({' or '.join(several)})" if several else "0", parameters

    def _prefix(self, prefix: Any) -> tuple[str, list[Any]]:
        if not isinstance(prefix, str) or (self.own and _OWN[self.path[1:]] is not str):
            raise TypeError(f"a prefix is text, for a path to text; not {type(prefix).__name__} for {self.path!r}")
        above = end_of_prefix(prefix)
        rest = "" if self.own else self._and_is_a(str)
        if above is None:
            return f"{self.name} >= ?{rest}", [prefix]
        return f"{self.name} >= ? and {self.name} < ?{rest}", [prefix, above]

    def _and_is_a(self, kind: type) -> str:
        names = ", ".join(f"'{name}'" for name in _KINDS[kind])
        return f" and {self._type} in ({names})"

    def _value(self, value: Any) -> Any:
        kind = _kind(value)
        if self.own and kind is not _OWN[self.path[1:]]:
            wanted = "text" if _OWN[self.path[1:]] is str else "a number"
            raise TypeError(f"{self.path!r} is compared with {wanted}, not {type(value).__name__}")
        if kind not in _KINDS:
            raise TypeError(
                f"{self.path!r} is compared with text, a number, True, False or None, not {type(value).__name__}"
            )
        if kind is int:
            if isinstance(value, float) and math.isnan(value):
                raise ValueError(f"{self.path!r} is compared with NaN, which equals nothing")
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                raise ValueError(f"{self.path!r} is compared with an int that does not fit into 64 bits")
            return float(value) if isinstance(value, float) else int(value)
        return int(value) if kind is bool else str.__str__(value)


def _kind(value: Any) -> type:
    """The kind of a value: str, bool, or int for every number; another type if it cannot be compared."""
    if isinstance(value, bool):
        return bool
    if isinstance(value, int | float):
        return int
    return str if isinstance(value, str) else type(value)


def extract(path: str) -> str:
    """The SQL for the value at a path."""
    return f"json_extract(json, '{json_path(path)}')"


def json_path(path: str) -> str:
    """The path in SQLite's form, safe within a string. ValueError if it is not a path."""
    check_type(path, str, 'a path is text, as "user.id"')
    names = path.removeprefix("$.")
    if not _PATH.fullmatch(names) or "\0" in names or not _is_utf8(names):
        raise ValueError(
            f'{path!r} is not a path: write names with dots, and [n] for the n-th of a list, as "items[0].name"'
        )
    text = "".join(part if part.startswith("[") else f'."{part}"' for part in _PART.findall(names))
    return "$" + text.replace("'", "''")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
