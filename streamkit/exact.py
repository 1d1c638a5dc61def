"""Exact equality of a value and its decoded copy.

Python's `==` finds 1, True and 1.0 equal, and so `(1,)` and `(1.0,)`. Here types count at every depth.
"""

from __future__ import annotations

import datetime
import math
import zoneinfo
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from enum import Enum
from operator import is_
from typing import Any

__all__ = ["difference", "same"]

_PLAIN = frozenset({str, int, bool, bytes, type(None), datetime.timedelta})
"""Types for which `==` is exact once the types are equal."""
_TEXT = frozenset({str})
_HEAP_TYPE = 1 << 9
"""The flag of types that a class statement made. Without `==`, other types (functions) equal only themselves."""
_MISSING = object()
_Path = tuple[Any, str] | None
"""The steps from the whole value to a part of it, the last step first."""
_Part = tuple[str, Any, Any]
"""A step, and the two values after it."""


class _Different(Exception):
    pass


def same(a: Any, b: Any) -> bool:
    """True if `a` and `b` have equal types and equal values, at every depth.

    The order of a dict or a set does not count. NaN is the same as NaN; 0.0 and -0.0 differ, and so do Decimals with
    other exponents and datetimes with another `fold` or time zone. A value may contain itself.
    """
    return difference(a, b) is None


def difference(a: Any, b: Any, *, equivalent: bool = False) -> str | None:
    """Describe the first difference of `b` from `a`, as in "[2].items: tuple became list"; None if they are the same.

    The text names types and fields. It holds no values and no keys, as these may be secret. `equivalent`: an
    int may become the float of the same value, as where a float is declared, and a `timezone` another library's.
    """
    path: _Path = None
    seen: dict[tuple[int, int], tuple[Any, Any]] = {}  # with the values: an id is given out again once they are gone
    pending: list[tuple[Any, Any, _Path]] = [(a, b, None)]
    try:
        while pending:
            one, other, path = pending.pop()
            if one is other:
                continue
            kind = type(one)
            if kind is not type(other):
                if equivalent and _is_equivalent(one, other):
                    continue
                raise _Different(f"{kind.__name__} became {type(other).__name__}")
            if kind in _PLAIN or kind is float:
                _agree(kind, one == other if kind is not float else _same_float(one, other))
                continue
            pair = (id(one), id(other))
            if pair in seen:  # a part that several hold, or the value itself
                continue
            seen[pair] = (one, other)
            for step, part, counterpart in _parts(kind, one, other):
                if part is counterpart or (
                    type(part) is type(counterpart) and type(part) in _PLAIN and part == counterpart
                ):
                    continue
                pending.append((part, counterpart, (path, step)))
    except _Different as error:
        return f"{_text(path)}{error}"
    except Exception as error:  # a comparison that a user's class makes may raise anything
        return f"{_text(path)}{type(error).__name__} was raised by the comparison"
    return None


def _is_equivalent(a: Any, b: Any) -> bool:
    if type(a) is int:
        return type(b) is float and a == b
    if type(a) is datetime.timezone and isinstance(b, datetime.tzinfo) and not isinstance(b, zoneinfo.ZoneInfo):
        return a.utcoffset(None) == b.utcoffset(None)
    return False


def _text(path: _Path) -> str:
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(step)
    return f"{''.join(reversed(steps))}: " if steps else ""


def _parts(kind: type, a: Any, b: Any) -> Iterator[_Part]:
    """The parts in which both must agree. Raises _Different if the values themselves differ."""
    if kind is list or kind is tuple:
        yield from _sequences(kind, a, b)
        return
    if kind is dict:
        yield from _dicts(kind, a, b)
        return
    names = _fields(kind)
    if issubclass(kind, Enum):
        _agree(kind, a.name == b.name)
        yield ".value", a.value, b.value
        return
    if issubclass(kind, float):
        _agree(kind, _same_float(a, b))
    elif issubclass(kind, Decimal):
        _agree(kind, a.as_tuple() == b.as_tuple())
    elif issubclass(kind, complex):
        _agree(kind, _same_float(a.real, b.real) and _same_float(a.imag, b.imag))
    elif issubclass(kind, datetime.datetime | datetime.time):
        _agree(kind, a.replace(tzinfo=None) == b.replace(tzinfo=None) and a.fold == b.fold)
        yield ".tzinfo", a.tzinfo, b.tzinfo
    elif issubclass(kind, zoneinfo.ZoneInfo):
        _agree(kind, a.key == b.key is not None)
    elif issubclass(kind, datetime.timezone):
        _agree(kind, a == b and a.tzname(None) == b.tzname(None))
    elif issubclass(kind, list | tuple | deque):
        yield from _sequences(kind, a, b)
    elif issubclass(kind, dict):
        yield from _dicts(kind, a, b)
    elif issubclass(kind, set | frozenset):
        yield from _sets(kind, a, b)
    elif _is_buffer(a):
        left, right = memoryview(a), memoryview(b)
        _agree(kind, (left.format, left.shape) == (right.format, right.shape) and left.tobytes() == right.tobytes())
    elif kind.__eq__ is not object.__eq__ and names is None:
        _agree(kind, bool(a == b))
        return
    elif names is None and (isinstance(a, type) or not kind.__flags__ & _HEAP_TYPE):
        raise _Different(f"the {kind.__name__} is another one")
    for name in names if names is not None else _own_attributes(a, b):
        one, other = getattr(a, name, _MISSING), getattr(b, name, _MISSING)
        if (one is _MISSING) != (other is _MISSING):
            raise _Different(f"{name} of {kind.__name__} is only on one side")
        yield f".{name}", one, other


def _agree(kind: type, agreed: bool) -> None:
    if not agreed:
        raise _Different(f"the {kind.__name__} changed")


def _same_float(a: float, b: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return float.__eq__(a, b) and math.copysign(1, a) == math.copysign(1, b)


def _is_buffer(value: Any) -> bool:
    try:
        memoryview(value).release()
    except TypeError:
        return False
    return True


def _sequences(kind: type, a: Any, b: Any) -> Iterator[_Part]:
    if len(a) != len(b):
        raise _Different(f"the length of the {kind.__name__} changed")
    if issubclass(kind, deque):
        yield ".maxlen", a.maxlen, b.maxlen
    if kind is not deque and _are_plain(a, b):
        return
    for at, (one, other) in enumerate(zip(iter(a), iter(b), strict=True)):
        yield f"[{at}]", one, other


def _are_plain(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """True if they are the same and hold only plain values. It takes no Python step for each value."""
    return _PLAIN.issuperset(map(type, a)) and all(map(is_, map(type, a), map(type, b))) and list(a) == list(b)


def _dicts(kind: type, a: Any, b: Any) -> Iterator[_Part]:
    if issubclass(kind, defaultdict):
        yield ".default_factory", a.default_factory, b.default_factory
    if kind is dict and a.keys() == b.keys() and _TEXT.issuperset(map(type, a)) and _TEXT.issuperset(map(type, b)):
        values, others = list(a.values()), list(map(b.__getitem__, a))
        if not _are_plain(values, others):
            yield from (("[key]", one, other) for one, other in zip(values, others, strict=True))
        return
    partners = _partners(kind, a, b)
    if issubclass(kind, OrderedDict) and [id(key) for key in b] != [id(key) for _, key in partners]:
        raise _Different(f"the order of the {kind.__name__} changed")
    for one, other in partners:
        yield "[key]", dict.__getitem__(a, one), dict.__getitem__(b, other)


def _sets(kind: type, a: Any, b: Any) -> Iterator[_Part]:
    _partners(kind, a, b)
    return iter(())


def _partners(kind: type, a: Collection[Any], b: Collection[Any]) -> list[tuple[Any, Any]]:
    """Pair each member of `a` with the equal member of `b`."""
    if len(a) != len(b):
        raise _Different(f"the length of the {kind.__name__} changed")
    members = {member: member for member in b}
    pairs, lonely = [], []
    for member in a:
        found = members.get(member, _MISSING)
        if type(found) is type(member) and (type(member) in _PLAIN or same(member, found)):
            pairs.append((member, members.pop(member)))
        else:
            lonely.append(member)
    for member in lonely:  # a NaN equals nothing, so that it is not found by its hash
        candidates = () if type(member) in _PLAIN else members.values()
        partner = next((other for other in candidates if same(member, other)), _MISSING)
        if partner is _MISSING:
            raise _Different(f"{'a key' if isinstance(a, dict) else 'a member'} of the {kind.__name__} changed")
        pairs.append((member, members.pop(partner)))
    return pairs


def _fields(kind: type) -> Iterable[str] | None:
    """The names of the declared fields of a class. Other attributes are no part of an instance's value."""
    for names in ("__struct_fields__", "__dataclass_fields__", "__pydantic_fields__"):
        found: Iterable[str] | None = getattr(kind, names, None)
        if found is not None:
            extra = ("__pydantic_extra__",) if names == "__pydantic_fields__" else ()
            return (*found, *extra)
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else tuple(attribute.name for attribute in attributes)


def _own_attributes(a: Any, b: Any) -> Iterable[str]:
    """The attributes of instances of a class that declares no fields."""
    names = dict.fromkeys((*getattr(a, "__dict__", ()), *getattr(b, "__dict__", ())))
    for base in type(a).__mro__:
        slots = base.__dict__.get("__slots__", ())
        names.update(dict.fromkeys((slots,) if isinstance(slots, str) else slots))
    return [name for name in names if name not in ("__dict__", "__weakref__")]
