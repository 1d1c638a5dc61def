"""Arguments that callers hand in, checked: TypeError for a wrong type, ValueError for a wrong value.

A function that a caller passes in must have done its work when its call returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .errors import InvalidName
from .names import check_name

if TYPE_CHECKING:
    from .log.floors import Gaps

__all__ = [
    "check_choice",
    "check_count",
    "check_erasure",
    "check_function",
    "check_gaps",
    "check_hours",
    "check_listing",
    "check_poll",
    "check_reverse",
    "check_seconds",
    "check_sequence",
    "check_timestamp",
    "check_type",
    "completed",
    "newest_of",
]

T = TypeVar("T")
_PLAIN = (type(None), bool, int, str, bytes)
_MOST = 1e15
"""Seconds: more than 30 million years. The milliseconds still fit a stored integer."""
_MOST_SEQUENCES = 1_000_000
"""Sequences that one erasure names."""


def check_type(value: Any, kind: Any, what: str, *, optional: bool = False) -> None:
    """Raise TypeError unless `value` is of `kind`, or is None and `optional`. `what` names the argument in the error.

    A bool is no int.
    """
    if optional and value is None:
        return
    if not (type(value) is kind if kind in (int, bool) else isinstance(value, kind)):
        raise TypeError(f"{what}, not {type(value).__name__}")


def check_count(name: str, value: Any, least: int = 1, *, most: int | None = None) -> int:
    """`value`, an int from `least` up to `most`."""
    check_type(value, int, f"{name} is an int")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{name} is {least} {'or more' if most is None else f'to {most}'}, not {value}")
    return int(value)


def check_choice(name: str, value: Any, *known: str) -> str:
    """`value`, one of the `known` ones."""
    if value not in known:
        *first, last = map(repr, known)
        raise ValueError(f"{name} is {', '.join(first)} or {last}, not {value!r:.60}")
    return str(value)


def check_seconds(name: str, value: Any, *, positive: bool = False, endless: bool = False) -> float:
    """Return `value` as a float: from 0, or above 0 if `positive`; infinity only if `endless`. TypeError or
    ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number of seconds, not {type(value).__name__}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if math.isnan(seconds) or seconds < 0 or (positive and seconds == 0):
        raise ValueError(f"{name} is a number of seconds {'above' if positive else 'from'} 0, not {value}")
    if _MOST < seconds < math.inf and not endless:
        raise ValueError(f"{name} is at most {_MOST:g} seconds, not {value}")
    if math.isinf(seconds) and not endless:
        raise ValueError(f"{name} is a finite number of seconds, not {seconds}")
    return seconds


def check_timestamp(name: str, value: Any) -> None:
    """Raise TypeError unless `value` is an int or None."""
    if type(value) is not int and value is not None:
        dated = hasattr(value, "isoformat")  # a date or a datetime
        remedy = ": write int(moment.timestamp() * 1000), of a datetime with a time zone" if dated else ""
        raise TypeError(f"{name} is an int, in milliseconds since the epoch, not {type(value).__name__}{remedy}")


def check_poll(poll: Any) -> tuple[float, float] | None:
    """Return (at first, at most) in seconds, or None."""
    if poll is None:
        return None
    if not isinstance(poll, (tuple, list)) or len(poll) != 2:
        raise TypeError(f"poll is two numbers of seconds, between looks at first and at most, not {poll!r:.60}")
    least, most = (check_seconds("poll", value, positive=True) for value in poll)
    if least > most:
        raise ValueError(f"poll is (first pause, longest pause): the first, {least:g}, is longer than {most:g}")
    return least, most


def check_function(name: str, function: Any, takes: str, *, iterated: bool = False, awaited: bool = False) -> None:
    """Raise TypeError for an object that cannot be called, or that would do its work only after the call.

    `takes`: the argument of the call, for the message. `iterated`: a generator function is fine, because the caller
    iterates the result. `awaited`: an async function is fine, because the caller awaits the result.
    """
    import inspect

    if not callable(function):
        raise TypeError(f"{name} is a function of {takes}, not {function!r:.60}")
    called = _called(function)
    if inspect.iscoroutinefunction(called):
        if not awaited:
            advice = ", or use streamkit.aio, which awaits handlers" if name == "handler" else ""
            raise TypeError(
                f"{name} is an async function, {function!r:.60}: it would not be awaited, and its work would never be "
                f"done. Use a plain function{advice}"
            )
    elif inspect.isasyncgenfunction(called) or (inspect.isgeneratorfunction(called) and not iterated):
        raise TypeError(
            f"{name} is a generator function, {function!r:.60}: it would not be iterated, and its work would never be "
            "done. Hand in a function without yield"
        )


def completed(name: str, result: T) -> T:
    """Return the result of a call. TypeError for an awaitable or a generator, because its work is still to do. A lambda
    can return one, and only its result shows that.
    """
    if type(result) in _PLAIN:
        return result
    import inspect

    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()  # or Python warns that it was never awaited
    elif not (inspect.isawaitable(result) or inspect.isasyncgen(result)):
        return result
    raise TypeError(
        f"{name} returned a {type(result).__name__}: it is neither awaited nor iterated, so its work was not done. "
        "Do the work before the function returns"
    )


def _called(function: Any) -> Any:
    """The function whose code a call runs: behind partials, bound methods and `__call__`."""
    import inspect

    while not inspect.isfunction(function):
        if isinstance(function, partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif inspect.isfunction(type(function).__call__) and not inspect.iscoroutinefunction(function):
            return type(function).__call__
        else:
            break
    return function


def check_subclass(what: str, value: Any, base: type) -> None:
    """Raise TypeError unless `value` is a subclass of `base`. `what` names the call in the error."""
    if not isinstance(value, type) or not issubclass(value, base):
        raise TypeError(f"{what} a subclass of {base.__name__}, not {value!r:.60}")


def check_several(name: str, values: Any, example: str = "[name]") -> None:
    """Raise TypeError unless `values` is iterable. One str is refused, because its letters would be taken for the
    values."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} are several, as in {example}, not {values!r:.60}")


def check_names_of(name: str, values: Any, what: str) -> tuple[str, ...]:
    """The legal names of `what` in `values`, each once."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        example = [values] if isinstance(values, str) else ["a", "b"]
        raise TypeError(f"{name} are several names, as in {name}={example!r:.60}, not {values!r:.60}")
    return tuple(dict.fromkeys(check_name(value, what) for value in values))


def check_texts(what: str, texts: Any) -> dict[str, str]:
    """A copy of a mapping of str to str. TypeError for anything else."""
    check_type(texts, Mapping, f"{what} maps str to str; it is no mapping")
    for key, value in texts.items():
        for text in (key, value):
            if not isinstance(text, str):
                raise TypeError(f"{what} maps str to str; {key!r} has a value of type {type(value).__name__}")
    return dict(texts)


def newest_of(until: Any, min_age: Any, now: int) -> int:
    """The newest timestamp (ms) that both allow."""
    newest = 1 << 62
    if until is not None:
        check_timestamp("until", until)
        newest = until
    if min_age is not None:
        check_seconds("min_age", min_age)
        newest = min(newest, now - int(min_age * 1000))
    return newest


def check_gaps(gaps: Any) -> Gaps:
    check_type(gaps, str, "gaps is 'raise', 'skip' or 'yield'")
    return cast("Gaps", check_choice("gaps", gaps, "raise", "skip", "yield"))


def check_listing(prefix: Any, after: Any, limit: Any) -> None:
    """The bounds of a list of segments."""
    check_type(prefix, str, "prefix is str")
    try:
        prefix.encode()
    except UnicodeEncodeError:
        raise InvalidName("prefix has a lone surrogate, which is not text; no name begins with it") from None
    if after is not None:
        check_name(after, "segment")
    check_type(limit, int, "limit is an int")
    if limit < 0:
        raise ValueError(f"limit is 0 (no bound) or more, not {limit}")


def check_sequence(name: str, value: Any) -> int:
    check_type(value, int, f"{name} is a sequence")
    if value < 0:
        raise ValueError(f"{name} is a sequence, 0 for all, not {value}")
    return int(value)


def check_reverse(reverse: Any) -> None:
    check_type(reverse, bool, "reverse is True or False")


def check_hours(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number of hours, not {type(value).__name__}")
    if not 0 <= value < 1e9:
        raise ValueError(f"{name} is a number of hours from 0, not {value}")


def check_erasure(segment: Any, first: Any, last: Any, metadata: Any, sequences: Any = None) -> frozenset[int] | None:
    """The sequences that are named one by one. TypeError, or ValueError where nothing is named, or nothing can be."""
    if segment is None and metadata is None:
        raise ValueError("erase takes a segment, or a glob of segments, or metadata, or both: nothing was named")
    check_type(segment, str, "segment is the name of one, or a glob", optional=True)
    if segment == "":
        raise ValueError("segment is the name of a segment, or a glob, not an empty text")
    _check_utf8("segment", segment or "")
    for name, value in (("first", first), ("last", last)):
        check_type(value, int, f"{name} is a sequence", optional=True)
        if value is not None and value < 1:
            raise ValueError(f"{name} is a sequence from 1, not {value}")
    if last is not None and first is not None and first > last:
        raise ValueError(f"first is at most last: no entry has a sequence from {first} to {last}")
    if segment is None and (first != 1 or last is not None):
        raise ValueError("first and last are sequences of a segment: name one, or a glob")
    if metadata is not None:
        check_type(metadata, Mapping, "metadata is a mapping of text to text")
        if not metadata:
            raise ValueError("metadata is empty, and every entry would match: name a pair")
        for name, value in metadata.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError("metadata is a mapping of text to text")
            _check_utf8("metadata", name + value)
    return None if sequences is None else _named_sequences(segment, first, last, sequences)


def _named_sequences(segment: Any, first: Any, last: Any, sequences: Any) -> frozenset[int]:
    if segment is None or first != 1 or last is not None:
        raise ValueError("sequences are of one segment: name it, and leave out first and last")
    if isinstance(sequences, (str, bytes)) or not isinstance(sequences, Iterable):
        raise TypeError(f"sequences is a list of numbers, not {type(sequences).__name__}")
    found = frozenset(sequences)
    for sequence in found:
        if type(sequence) is not int:
            raise TypeError(f"sequences is a list of numbers; there is a {type(sequence).__name__} in it")
        if sequence < 1:
            raise ValueError(f"a sequence is a number from 1, not {sequence}")
    if not 0 < len(found) <= _MOST_SEQUENCES:
        raise ValueError(f"sequences names 1 to {_MOST_SEQUENCES:,} entries, not {len(found):,}")
    return found


def _check_utf8(name: str, text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{name} is UTF-8, which has no lone surrogates: no entry has this {name}")
