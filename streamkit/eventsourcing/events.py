"""Events as records and back."""

from __future__ import annotations

import types
from collections.abc import Iterable
from functools import partial
from typing import Any, Union, get_args, get_origin

from ..errors import CorruptData
from ..exact import difference
from ..model import Entry, Record
from .aggregate import Aggregate, EventType, Pending, event_types, replay
from .codecs import Codec, JsonCodec, MsgpackCodec
from .versions import EVENT, marks_of, place_of, upcast_values, version_of

__all__ = ["EVENT", "EventFormat", "check_codec"]


def check_codec(codec: Codec) -> None:
    """Raise TypeError for a codec that does not read the dict of arguments that it wrote."""
    probe = {"argument": ["text", 1, None]}
    try:
        read = codec.decode(codec.encode(probe))
    except Exception as error:
        raise TypeError(f"{_CODEC}: {codec!r:.60} raised {type(error).__name__}: {error}") from error
    if difference(probe, read) is not None or not callable(getattr(codec, "convert", None)):
        raise TypeError(f"{_CODEC}, not {codec!r:.60}")


_CODEC = "a repository's codec has encode, decode and convert, and reads any dict, as JsonCodec() without a type does"


class EventFormat:
    """The payload is the arguments, by name; the metadata says which event, and its version if that is not 1."""

    def __init__(self, kind: type[Aggregate], codec: Codec) -> None:
        self._kind = kind
        self._types = event_types(kind)
        self._codec = codec
        self._keeps_plain = type(codec) in (JsonCodec, MsgpackCodec)
        """Text, bools, None, 64-bit ints and finite floats come back as they were, without a look at each."""
        self._plain: dict[EventType, dict[str, frozenset[type]]] = {}
        self._metadata: dict[EventType, dict[str, str]] = {}

    def records(self, pending: Iterable[Pending], metadata: dict[str, str] | None) -> list[Record]:
        """Raise TypeError for arguments that would be replayed as something else."""
        found = []
        for type, arguments in pending:
            marks = self._metadata.get(type)
            if marks is None:
                marks = self._metadata[type] = marks_of(type.name, type.version)
            payload = self._encode(type, arguments)
            if not (self._keeps_plain and self._is_plain(type, arguments)):
                self._check(type, arguments, payload)
            found.append(Record(payload, {**metadata, **marks} if metadata else marks))
        return found

    def _encode(self, type: EventType, arguments: dict[str, Any]) -> bytes:
        try:
            return self._codec.encode(arguments)
        except Exception as error:
            raise TypeError(
                f"{_named(type, self._unwritable(arguments))} cannot be written, and {_NOTHING}: {error}"
            ) from error

    def _unwritable(self, arguments: dict[str, Any]) -> str:
        for argument, value in arguments.items():
            try:
                self._codec.encode({argument: value})
            except Exception:
                return argument
        return ", ".join(arguments)

    def _is_plain(self, type: EventType, arguments: dict[str, Any]) -> bool:
        kinds = self._plain.get(type)
        if kinds is None:
            kinds = self._plain[type] = {name: _plain_kinds(hint) for name, hint in type.types.items()}
        for argument, value in arguments.items():
            kind = value.__class__
            if kind not in kinds.get(argument, _PLAIN):
                return False
            if kind is int:
                if not -(1 << 63) <= value < 1 << 63:
                    return False
            elif kind is float and value - value != 0:  # NaN and infinity
                return False
        return True

    def _check(self, type: EventType, arguments: dict[str, Any], payload: bytes) -> None:
        """Raise TypeError for an argument that the payload would give back as something else."""
        try:
            again = self._codec.decode(payload)
            self._convert(type, again)
        except _Mismatch as error:
            raise TypeError(
                f"{_named(type, error.argument)} does not match its annotation ({error}), and could not be "
                f"replayed: {_NOTHING}"
            ) from error
        except Exception as error:
            raise TypeError(f"{type.function.__qualname__} could not be replayed ({error}): {_NOTHING}") from error
        for argument, value in arguments.items():
            found = difference(value, again.get(argument, _Mismatch), equivalent=True)
            if found is not None:
                raise TypeError(
                    f"{_named(type, argument)} would be replayed as something else ({found}): {_NOTHING}. Annotate it "
                    "with its exact type, as in `dict[int, str]`, or use another codec"
                )

    def _convert(self, type: EventType, values: dict[str, Any]) -> None:
        """Make the values those of the annotations, in place."""
        types = type.types
        for argument, value in values.items():
            hint = types.get(argument)
            if hint is not None and (hint not in _CONVERTED or value.__class__ is not hint):
                try:
                    values[argument] = self._codec.convert(value, hint)
                except Exception as error:
                    raise _Mismatch(argument, error) from error

    def apply(self, aggregate: Aggregate, entry: Entry) -> None:
        """Replay one event. CorruptData or UnsupportedVersion, naming it, if this program cannot read it."""
        type, values = self.event(entry)
        try:
            replay(aggregate, type, values)
        except Exception as error:
            if isinstance(error, TypeError) and not type.takes(values):
                raise CorruptData(
                    f"{place_of(entry)}: the event {type.name!r} has the arguments {', '.join(values) or 'none'}, and "
                    f"{type.function.__qualname__}{type.signature} does not take them: {_UPCAST}"
                ) from error
            error.add_note(f"while event {place_of(entry)} was replayed")
            raise

    def event(self, entry: Entry) -> tuple[EventType, dict[str, Any]]:
        """The type of an event, and its arguments, in the present version and of their annotated types."""
        name = entry.metadata.get(EVENT, "")
        type = self._types.get(name)
        if type is None:
            if EVENT not in entry.metadata:
                raise CorruptData(f"{place_of(entry)} names no event in its metadata: no aggregate has written it")
            raise CorruptData(
                f"{place_of(entry)} is an event {name!r}, and {self._kind.__name__} has none of that name: keep a "
                f"method for it, @event({name!r}), for as long as the log does"
            )
        values = self._upcast(type, entry)
        try:
            self._convert(type, values)
        except _Mismatch as error:
            raise CorruptData(
                f"{place_of(entry)}: the argument {error.argument!r} of the event {name!r} does not match its "
                f"annotation ({error}): {_UPCAST}"
            ) from error
        return type, values

    def _upcast(self, type: EventType, entry: Entry) -> dict[str, Any]:
        """The arguments as they are written, in the present version."""
        version = version_of(entry, type.name, type.version)
        read = partial(self._codec.decode, entry.payload)
        return upcast_values(entry, type.name, version, type.version, type.upcast, read)


class _Mismatch(Exception):
    """An argument that cannot be converted to its annotation."""

    def __init__(self, argument: str, error: Exception) -> None:
        super().__init__(str(error))
        self.argument = argument


_NOTHING = "nothing was written"
_UPCAST = "give the event another version, and upcast the earlier one"
_CONVERTED = (str, int, float, bool)
_PLAIN: frozenset[type] = frozenset((str, int, float, bool, type(None)))


def _plain_kinds(hint: Any) -> frozenset[type]:
    """The plain types that an annotation leaves as they are: of Any all, of `str | None` the two."""
    if hint is Any or hint is object:
        return _PLAIN
    kinds: tuple[Any, ...] = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if not _PLAIN.issuperset(kinds) or len(set(kinds) - {type(None)}) > 1:
        return frozenset()
    return frozenset(kinds)


def _named(type: EventType, argument: str) -> str:
    return f"{type.function.__qualname__}: the argument {argument!r}"
