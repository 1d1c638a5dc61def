"""A registry: which class an entry's type and version is, and how an earlier version becomes the present one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from ..arguments import check_choice, check_type
from ..decoders import json_decoder, msgpack_decoder
from ..errors import CorruptData, PermanentError, UnsupportedVersion
from ..eventsourcing.codecs import Codec, JsonCodec, MsgpackCodec, PydanticCodec
from ..eventsourcing.versions import (
    EVENT,
    VERSION,
    Upcast,
    check_versions,
    marks_of,
    place_of,
    upcast_values,
    version_of,
)
from ..exact import difference
from ..gaps import Gap
from ..model import Entry, Record
from .cloudevents import CE_TYPE

__all__ = ["Policy", "Registry", "Type", "Typed", "Unknown", "UnknownType", "check_policy"]

T = TypeVar("T")
Policy = Literal["raise", "skip", "raw"]


class Typed(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object that was read, and the entry that it was read from."""

    value: T
    entry: Entry


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """The value of an entry whose type or version the registry lacks, with the policy "raw". The entry has the rest."""

    name: str | None
    """None if the entry names no type."""
    version: str


class UnknownType(PermanentError):
    """The registry lacks the type of an entry. Add it, or choose the policy "skip" or "raw"."""


class Type(Generic[T]):
    """A class, its name in the log (else the class's own name), and its version.

    `upcast`: a function for each earlier version. It takes the fields of that version, a dict, and returns those of the
    next one. `codec`: the format of the payload.
    """

    def __init__(
        self,
        kind: type[T],
        name: str | None = None,
        *,
        version: int = 1,
        upcast: Mapping[int, Upcast] | None = None,
        codec: Literal["json", "msgpack"] = "json",
    ) -> None:
        if not isinstance(kind, type):
            raise TypeError(f"a type is a class, not {kind!r:.60}")
        self.kind = kind
        self.name = kind.__name__ if name is None else name
        check_type(self.name, str, "the name of a type is str")
        if not self.name:
            raise ValueError(f"the name of the type {kind.__qualname__} is empty")
        self.version = version
        self.upcast = check_versions(version, upcast)
        self.marks = marks_of(self.name, version)
        self.is_pydantic = hasattr(kind, "__pydantic_validator__")
        self.codec = codec
        self._codec, self._plain = _codecs(kind, codec, self.is_pydantic)
        self.decode: Callable[[bytes], T] = self._codec.decode
        if not self.is_pydantic:
            # The codec's own decoder, without its translation of errors: it is called for each entry.
            self.decode = (json_decoder if codec == "json" else msgpack_decoder)(kind).decode

    def record(self, value: T, metadata: Mapping[str, str] | None) -> Record:
        """Return the record for a value. TypeError if it would be read as another value."""
        try:
            payload = self._codec.encode(value)
            again = self.decode(payload)
        except Exception as error:
            raise TypeError(f"{value!r:.60} cannot be written and read again ({error}): nothing was written") from error
        if again != value:
            found = difference(value, again, equivalent=True)
            if found is not None:
                raise TypeError(f"{value!r:.60} would be read as something else ({found}): nothing was written")
        return Record(payload, {**metadata, **self.marks} if metadata else self.marks)

    def read(self, entry: Entry) -> T:
        """The object of an entry, by way of the upcasters if its version is an earlier one."""
        version = version_of(entry, self.name, self.version)
        values: Any = None
        if version < self.version:
            read = partial(self._plain.decode, entry.payload)
            values = upcast_values(entry, self.name, version, self.version, self.upcast, read)
        try:
            if version == self.version:
                return self.decode(entry.payload)
            return cast(T, self._plain.convert(values, self.kind))
        except Exception as error:
            text = f"{place_of(entry)} is no {self.kind.__name__}, version {version} of {self.name!r}: {error}"
            raise CorruptData(text) from error

    def __repr__(self) -> str:
        return f"<Type {self.name!r}, version {self.version}, {self.kind.__qualname__}>"


class Registry(Generic[T]):
    """The types of a program: classes, or each a `Type` with another name or version. ValueError if two share a name.

    The classes are msgspec Structs, dataclasses, attrs classes or pydantic models. Declare the union of them for your
    type checker: `events: Registry[Placed | Paid] = Registry([Placed, Paid])`.
    """

    def __init__(self, types: Iterable[type[T] | Type[T]]) -> None:
        self._by_name: dict[str, Type[T]] = {}
        self._by_kind: dict[type[T], Type[T]] = {}
        self._current: dict[tuple[str | None, str | None], Callable[[bytes], T]] = {}
        """Choose the decoder of a payload by its metadata. A payload of the present version costs one lookup."""
        if not isinstance(types, Iterable):
            raise TypeError(f"types is an iterable of classes, as in Registry([Placed, Paid]), not {types!r:.60}")
        for given in types:
            made = given if isinstance(given, Type) else Type(given)
            if made.name in self._by_name:
                raise ValueError(f"two types have the name {made.name!r}: give one another name, Type(…, 'name')")
            if made.kind in self._by_kind:
                raise ValueError(f"{made.kind.__qualname__} occurs twice: one class is one type")
            self._by_name[made.name] = self._by_kind[made.kind] = made
            self._current[made.name, made.marks.get(VERSION)] = made.decode
        if not self._by_name:
            raise ValueError("a registry has at least one type")

    def __iter__(self) -> Iterator[Type[T]]:
        return iter(self._by_name.values())

    def type_of(self, kind: type[Any]) -> Type[T]:
        """The type of a class. TypeError if the registry lacks it."""
        found = self._by_kind.get(kind)
        if found is None:
            known = ", ".join(sorted(kind.__name__ for kind in self._by_kind))
            raise TypeError(f"the registry has no type {getattr(kind, '__qualname__', kind)}; it has {known}")
        return found

    def record(self, value: T, metadata: Mapping[str, str] | None = None) -> Record:
        """The record for an object: its payload, and `metadata` with its type and version."""
        return self.type_of(type(value)).record(value, metadata)

    def records(self, values: Iterable[T], metadata: Mapping[str, str] | None = None) -> list[Record]:
        """The records for objects. TypeError if `values` is a single object."""
        if type(values) in self._by_kind:
            raise TypeError(f"values is an iterable of objects, not one {type(values).__name__}: put it into a list")
        return [self.record(value, metadata) for value in values]

    def read(self, entry: Entry) -> T:
        """The object of an entry. UnknownType, UnsupportedVersion for a later version, CorruptData for its payload."""
        name = _name_of(entry)
        found = self._by_name.get(name) if name is not None else None
        if found is None:
            known = ", ".join(map(repr, sorted(self._by_name)))
            named = "names no type in its metadata" if name is None else f"is of the type {name!r}"
            raise UnknownType(
                f"{place_of(entry)} {named}; the registry has {known}. Add the type, or read with "
                "unknown='skip' or 'raw'"
            )
        return found.read(entry)

    def read_or(self, entry: Entry, policy: Policy) -> Typed[Any] | None:
        """The object beside its entry. If the registry lacks it: None to "skip" it, an Unknown for "raw"."""
        metadata = entry.metadata
        decode = self._current.get((metadata.get(EVENT), metadata.get(VERSION)))
        if decode is not None:
            with suppress(Exception):  # `read` raises an error that names the entry
                return Typed(decode(entry.payload), entry)
        try:
            return Typed(self.read(entry), entry)
        except (UnknownType, UnsupportedVersion):
            if policy == "raise":
                raise
            if policy == "skip":
                return None
            return Typed(Unknown(_name_of(entry), metadata.get(VERSION, "1")), entry)

    def reading(self, entries: Iterable[Entry | Gap], policy: Policy) -> Iterator[Any]:
        """The objects of entries, each beside its entry. A Gap is passed on."""
        current = self._current
        for entry in entries:
            if entry.__class__ is Entry:
                metadata = entry.metadata
                decode = current.get((metadata.get(EVENT), metadata.get(VERSION)))
                if decode is not None:
                    try:
                        value = decode(entry.payload)
                    except Exception:
                        self.read(entry)  # raises an error that names the entry
                        raise
                    yield Typed(value, entry)
                    continue
            elif isinstance(entry, Gap):
                yield entry
                continue
            found = self.read_or(entry, policy)
            if found is not None:
                yield found

    def __repr__(self) -> str:
        return f"<Registry of {', '.join(self._by_name)}>"


def _name_of(entry: Entry) -> str | None:
    """The name of an entry's type. A CloudEvent of another program has its own type alone."""
    return entry.metadata.get(EVENT) or entry.metadata.get(CE_TYPE)


def check_policy(policy: Policy) -> Policy:
    """Raise ValueError for another policy than these."""
    check_choice("unknown", policy, "raise", "skip", "raw")
    return policy


def _codecs(kind: type[Any], codec: str, is_pydantic: bool) -> tuple[Codec, Codec]:
    """The codec of the class, and one for the fields of its earlier versions."""
    check_choice("codec", codec, "json", "msgpack")
    if is_pydantic:
        if codec != "json":
            raise ValueError(f"{kind.__qualname__} is a pydantic model, which is written as JSON")
        return PydanticCodec(kind), _Plain(kind)
    if not (issubclass(kind, msgspec.Struct) or is_dataclass(kind) or hasattr(kind, "__attrs_attrs__")):
        raise TypeError(
            f"{kind.__qualname__} is no msgspec Struct, dataclass, attrs class or pydantic model: use one of these"
        )
    make: Any = JsonCodec if codec == "json" else MsgpackCodec
    try:
        return make(kind), make()
    except Exception as error:
        raise TypeError(f"{kind.__qualname__} cannot be written: {error}") from error


class _Plain(JsonCodec[Any]):
    """JSON as dicts, from which pydantic makes a model."""

    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self._model: PydanticCodec[Any] = PydanticCodec(kind)

    def convert(self, value: Any, type: Any) -> Any:
        # By way of JSON: from a dict of Python's values a strict model takes no text for a date.
        return self._model.decode(self.encode(value))
