"""Events as records and back, and states as snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import CorruptData, UnsupportedVersion
from ..model import Entry, Record
from .aggregate import Aggregate, EventType, Pending, event_types, replay
from .codecs import Codec

__all__ = ["EVENT", "EventFormat"]

EVENT = "event"
VERSION = "event-version"


class EventFormat:
    """The payload is the arguments, by name; the metadata says which event, and its version if that is not 1."""

    def __init__(self, kind: type[Aggregate], codec: Codec) -> None:
        self._kind = kind
        self._types = event_types(kind)
        self._codec = codec
        self._metadata: dict[EventType, dict[str, str]] = {}

    def records(self, pending: Iterable[Pending], metadata: dict[str, str] | None) -> list[Record]:
        """TypeError for what could not be replayed."""
        found = []
        for type, arguments in pending:
            marks = self._metadata.get(type)
            if marks is None:
                marks = {EVENT: type.name} | ({VERSION: str(type.version)} if type.version > 1 else {})
                self._metadata[type] = marks
            payload = self._codec.encode(arguments)
            self._check(type, arguments, payload)
            found.append(Record(payload, {**metadata, **marks} if metadata else marks))
        return found

    def _check(self, type: EventType, arguments: dict[str, Any], payload: bytes) -> None:
        """TypeError for an argument that could not be read again as what it is annotated with."""
        types = type.types
        values: dict[str, Any] | None = None
        for argument, value in arguments.items():
            hint = types.get(argument)
            if hint is None or (value.__class__ is hint and hint in _PLAIN):
                continue
            if values is None:
                values = self._codec.decode(payload)
            try:
                self._codec.convert(values[argument], hint)
            except Exception as error:
                raise TypeError(
                    f"{type.function.__qualname__}: the argument {argument!r} is not what it is annotated with "
                    f"({error}), and could not be replayed: nothing was written"
                ) from error

    def apply(self, aggregate: Aggregate, entry: Entry) -> None:
        """Replay one event. CorruptData, or UnsupportedVersion, naming it, if this program does not know it."""
        type, values = self.event(entry)
        try:
            replay(aggregate, type, values)
        except Exception as error:
            error.add_note(f"while event {_where(entry)} was replayed")
            raise

    def event(self, entry: Entry) -> tuple[EventType, dict[str, Any]]:
        """Which event an entry is, and its arguments, brought to the present version and to their types."""
        name = entry.metadata.get(EVENT, "")
        type = self._types.get(name)
        if type is None:
            raise CorruptData(
                f"{_where(entry)} is an event {name!r}, and {self._kind.__name__} has none of that name: keep a method "
                f"for it, @event({name!r}), for as long as the log does"
            )
        version = int(entry.metadata.get(VERSION, "1"))
        if version > type.version:
            raise UnsupportedVersion(
                f"{_where(entry)} is an event {name!r} of version {version}; this program knows it up to {type.version}"
            )
        values = self._codec.decode(entry.payload)
        while version < type.version:
            values = type.upcast[version](values)
            version += 1
        types = type.types
        for argument, value in values.items():
            hint = types.get(argument)
            if hint is not None and (hint not in _PLAIN or value.__class__ is not hint):
                try:
                    values[argument] = self._codec.convert(value, hint)
                except Exception as error:
                    raise CorruptData(
                        f"{_where(entry)}: the argument {argument!r} of the event {name!r} is not what it is annotated "
                        f"with ({error}): give the event another version, and upcast the earlier one"
                    ) from error
        return type, values


_PLAIN = (str, int, float, bool)


def _where(entry: Entry) -> str:
    return f"sequence {entry.sequence} of {entry.segment!r} in the space {entry.space!r}"
