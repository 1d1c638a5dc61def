"""Aggregates: a call of a method decorated with `@event` changes the state and records its arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple, TypeVar, get_type_hints, overload

from ..arguments import check_function, check_type, completed
from ..removing.erasures import Seen
from .versions import Upcast, check_versions

__all__ = ["Aggregate", "EventType", "Pending", "event", "event_types", "replay", "saved"]

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__streamkit_event__"


class _Mark(NamedTuple):
    name: str
    version: int
    upcast: Mapping[int, Upcast]
    function: Callable[..., Any]
    signature: inspect.Signature


class Pending(NamedTuple):
    """An event that is recorded and not saved yet."""

    type: EventType
    arguments: dict[str, Any]


class EventType:
    """A kind of event of an aggregate: its name and version in the log, and the method that applies it."""

    def __init__(self, mark: _Mark) -> None:
        self.name = mark.name
        self.version = mark.version
        self.upcast = mark.upcast
        self.function = mark.function
        self.signature = mark.signature
        self._types: dict[str, Any] | None = None

    @property
    def types(self) -> dict[str, Any]:
        """The annotations of the arguments. They are resolved when they are first needed."""
        if self._types is None:
            try:
                hints = get_type_hints(self.function, include_extras=True)
            except Exception as error:  # an annotation is any expression
                raise TypeError(
                    f"an annotation of {self.function.__qualname__} names a type that its module does not know: "
                    f"{error}. Define the type outside of functions"
                ) from error
            self._types = {name: hint for name, hint in hints.items() if name != "return"}
        return self._types

    def takes(self, values: dict[str, Any]) -> bool:
        """True if the method can be called with these arguments."""
        try:
            self.signature.bind(None, **values)
        except TypeError:
            return False
        return True


@overload
def event(name: F, /) -> F: ...
@overload
def event(
    name: str | None = None, /, *, version: int = 1, upcast: Mapping[int, Upcast] | None = None
) -> Callable[[F], F]: ...


def event(name: Any = None, /, *, version: int = 1, upcast: Mapping[int, Upcast] | None = None) -> Any:
    """Make a method of an Aggregate an event: `@event`, or `@event("name")`, by which the log knows it.

    A call runs the method, and records its arguments unless it raises. Replaying runs it again with these arguments.
    They are encoded by their annotations (msgspec's types), or without annotations as JSON types: TypeError for
    anything else. So the method must depend on its arguments and the state alone. Other decisions belong in a method
    that calls it. `version` and `upcast`: if arguments change, raise the version, and give for each earlier version a
    function that turns its arguments (a dict) into those of the next version.
    """
    if inspect.isfunction(name):
        return _decorate(name, name.__name__, 1, {})
    check_type(name, str, "@event takes the event's name", optional=True)
    if name == "":
        raise ValueError("an event's name is not empty")
    steps = check_versions(version, upcast)

    def decorate(function: F) -> F:
        decorated: F = _decorate(function, name or function.__name__, version, steps)
        return decorated

    return decorate


def _decorate(function: Any, name: str, version: int, upcast: Mapping[int, Upcast]) -> Any:
    if not inspect.isfunction(function):
        raise TypeError(f"@event is for methods of an Aggregate, not {function!r:.60}")
    check_function(f"the event {name!r}", function, "its arguments")
    signature = inspect.signature(function)
    for parameter in tuple(signature.parameters.values())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            refused = f"*{parameter.name}" if parameter.kind is parameter.VAR_POSITIONAL else f"{parameter.name}, /"
            raise TypeError(
                f"{function.__qualname__}: an event is replayed by the names of its arguments, not {refused}"
            )
    mark = _Mark(name, version, upcast, function, signature)
    plain = frozenset(one.name for one in signature.parameters.values() if one.annotation in _ANYTHING)
    names = tuple(signature.parameters)[1:]
    by_place = all(one.kind is one.POSITIONAL_OR_KEYWORD for one in signature.parameters.values())

    @functools.wraps(function)
    def record(self: Aggregate, *arguments: Any, **named: Any) -> Any:
        if by_place and not named and len(arguments) == len(names):  # a tenth of the time that binding takes
            values = dict(zip(names, arguments, strict=True))
            return self._record(name, function, values, plain, (self, *arguments), named)
        bound = signature.bind(self, *arguments, **named)
        bound.apply_defaults()
        values = dict(bound.arguments)
        values.pop(next(iter(signature.parameters)))
        unsaid = plain
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                more = values.pop(parameter.name)
                values.update(more)
                unsaid = plain.union(more)
        return self._record(name, function, values, unsaid, (self, *arguments), named)

    setattr(record, _MARK, mark)
    return record


_ANYTHING = (inspect.Parameter.empty, Any, "Any", "typing.Any", object, "object")
_PLAIN = frozenset((str, int, float, bool, type(None)))


def _check_plain(function: Callable[..., Any], argument: str, value: Any) -> None:
    """Raise TypeError for an argument without an annotation that would be replayed as another type."""
    kind = type(value)
    if kind in _PLAIN:
        return
    if kind is list or (kind is dict and all(type(key) is str for key in value)):
        for one in value if kind is list else value.values():
            _check_plain(function, argument, one)
        return
    what = "dict with other keys than str" if kind is dict else kind.__name__
    raise TypeError(
        f"{function.__qualname__}: the argument {argument!r} has a value of type {what}, which would be replayed as "
        "something else: annotate it, as in `at: datetime`. (One of **arguments needs a parameter of its own.)"
    )


def _recorded(function: Callable[..., Any], argument: str, value: Any, plain: bool) -> Any:
    """A copy of the argument, because the event may change it. TypeError if it cannot be recorded."""
    if type(value) in _PLAIN:
        return value
    try:
        if plain:
            _check_plain(function, argument, value)
        return deepcopy(value)
    except RecursionError as error:
        raise TypeError(f"{function.__qualname__}: the argument {argument!r} is nested too deeply to record") from error
    except Exception as error:
        if plain and isinstance(error, TypeError):
            raise
        raise TypeError(
            f"{function.__qualname__}: the argument {argument!r}, a {type(value).__name__}, cannot be copied ({error})"
        ) from error


def event_types(kind: type[Aggregate]) -> dict[str, EventType]:
    """The event types of a class, by name. TypeError if two methods have one name."""
    found = kind.__dict__.get("__streamkit_events__")
    if found is None:
        found = {}
        for attribute in dir(kind):
            # A subclass may override an event by a plain method that calls it: the event is still the base's.
            bases = (getattr(base.__dict__.get(attribute), _MARK, None) for base in kind.__mro__)
            mark = next(filter(None, bases), None)
            if mark is None:
                continue
            if mark.name in found:
                raise TypeError(f"{kind.__name__} has two events {mark.name!r}: name one of them, @event('…')")
            found[mark.name] = EventType(mark)
        kind.__streamkit_events__ = found  # type: ignore[attr-defined]
    types: dict[str, EventType] = found
    return types


class Aggregate:
    """An object whose state is the fold of its events: subclass it, and let a Repository load and save it.

    `__init__(self)` makes the empty state; it calls `super().__init__()` first. `id` is the segment's name, `version`
    the sequence of its last event, 0 if the aggregate does not exist.
    """

    def __init__(self) -> None:
        self.id = ""
        self.version = 0
        self._pending: list[Pending] = []
        self._depth = 0
        self._seen = Seen()

    @property
    def pending(self) -> tuple[Pending, ...]:
        """Events that are recorded and not saved yet."""
        return tuple(self._pending)

    def _record(
        self,
        name: str,
        function: Callable[..., Any],
        values: dict[str, Any],
        plain: frozenset[str],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        try:
            depth = self._depth
        except AttributeError:
            raise TypeError(f"{type(self).__name__}.__init__ does not call super().__init__()") from None
        if depth:  # an event that calls another one is one event: replaying it will call that again
            return function(*arguments, **named)
        values = {name: _recorded(function, name, value, name in plain) for name, value in values.items()}
        self._depth = 1
        try:
            result = completed(f"the event {name!r}", function(*arguments, **named))
        finally:
            self._depth = 0
        self._pending.append(Pending(event_types(type(self))[name], values))
        self.version += 1
        return result

    def __repr__(self) -> str:
        state = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({state})"


def replay(aggregate: Aggregate, kind: EventType, values: dict[str, Any]) -> None:
    """Apply an event that was recorded before."""
    aggregate._depth = 1
    try:
        kind.function(aggregate, **values)
    finally:
        aggregate._depth = 0
    aggregate.version += 1


def saved(aggregate: Aggregate) -> None:
    """Note that the recorded events are in the log."""
    aggregate._pending.clear()
