"""Values as bytes and back: payloads of records, with or without aggregates.

codec = JsonCodec(Placed | Paid)                      # Structs, dataclasses, unions of tagged Structs
store.produce("orders", "42", [Record(codec.encode(Placed(3)))])
event = codec.decode(entry.payload)
"""

from __future__ import annotations

import copy
import json
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from ..decoders import convert, json_decoder, load_types, msgpack_decoder
from ..errors import CorruptData, MissingDependency

__all__ = ["Codec", "JsonCodec", "MsgpackCodec", "PydanticCodec"]

T = TypeVar("T")


class Codec(Protocol):
    """A codec: an object with these three methods. `convert` turns a part that `decode` returned into a value of
    `type`."""

    def encode(self, value: Any) -> bytes:
        """Return the value as bytes."""
        ...

    def decode(self, data: bytes) -> Any:
        """Return the value of `data`. CorruptData if the bytes do not hold one."""
        ...

    def convert(self, value: Any, type: Any) -> Any:
        """Return a decoded part, such as a dict, as a value of `type`."""
        ...


class _MsgspecCodec(Generic[T]):
    """A dict comes back in its order. A set has none, so it is sorted: equal values are equal bytes."""

    _encoder: msgspec.json.Encoder | msgspec.msgpack.Encoder
    _sorting: msgspec.json.Encoder | msgspec.msgpack.Encoder
    _decoder: Any

    def encode(self, value: T) -> bytes:
        """Return the value as bytes. Equal values give equal bytes. TypeError for a type that msgspec does not know."""
        return self._encoder.encode(self._sorted(value) if _has_set(value) else value)

    def _sorted(self, value: Any) -> Any:
        """The value with each set in it as its sorted bytes, and all else as it is, dicts in their order."""
        if not _has_set(value):
            return value
        if isinstance(value, (set, frozenset)):
            return msgspec.Raw(self._sorting.encode(value))
        if isinstance(value, dict):
            return {key: self._sorted(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._sorted(part) for part in value]
        changed = copy.copy(value)
        assign: Any = msgspec.structs.force_setattr if isinstance(value, msgspec.Struct) else object.__setattr__
        for name in _fields(value):
            if hasattr(value, name):
                assign(changed, name, self._sorted(getattr(value, name)))
        return changed

    def decode(self, data: bytes) -> T:
        """Return the value of `data`. CorruptData if the bytes do not hold one."""
        try:
            found: T = self._decoder.decode(data)
        except msgspec.DecodeError as error:
            raise CorruptData(f"the payload does not have the expected type: {error}") from error
        return found


def _has_set(value: Any) -> bool:
    if value is None or isinstance(value, (str, int, float, bytes)):
        return False
    if isinstance(value, (set, frozenset)):
        return True
    parts: Any = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    else:
        parts = [getattr(value, name, None) for name in _fields(value)]
    return any(map(_has_set, parts))


def _fields(value: Any) -> Any:
    kind: Any = type(value)
    attrs = getattr(kind, "__attrs_attrs__", ())
    return getattr(kind, "__struct_fields__", None) or getattr(
        kind, "__dataclass_fields__", [one.name for one in attrs]
    )


class JsonCodec(_MsgspecCodec[T]):
    """JSON by msgspec. Without a `type`, it decodes to dicts, lists, text and numbers."""

    def __init__(self, type: Any = Any) -> None:
        self._encoder = msgspec.json.Encoder()
        self._sorting = msgspec.json.Encoder(order="deterministic")
        load_types(type)
        self._decoder = json_decoder(type)

    def encode(self, value: T) -> bytes:
        """Return the value as bytes. Equal values give equal bytes. TypeError for a type that msgspec does not know,
        ValueError for NaN and infinity: JSON has neither."""
        data = super().encode(value)
        if b"null" in data:  # msgspec writes them as null
            try:
                json.dumps(msgspec.to_builtins(value, str_keys=True, enc_hook=repr), allow_nan=False)  # repr: of a Raw
            except ValueError as error:
                raise ValueError("JSON has neither NaN nor infinity: MsgpackCodec() keeps them") from error
        return data

    def convert(self, value: Any, type: Any) -> Any:
        """Return a decoded part as a value of `type`: text becomes a UUID, a date or bytes if `type` is one."""
        return convert(value, type, builtin_types=(), str_keys=True)


class MsgpackCodec(_MsgspecCodec[T]):
    """MessagePack by msgspec: smaller and faster than JSON, but not readable as text."""

    def __init__(self, type: Any = Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._sorting = msgspec.msgpack.Encoder(order="deterministic")
        load_types(type)
        self._decoder = msgpack_decoder(type)

    def convert(self, value: Any, type: Any) -> Any:
        """Return a decoded part as a value of `type`."""
        return convert(value, type, builtin_types=(bytes,))


class PydanticCodec(Generic[T]):
    """JSON by pydantic, which has to be installed: models, and every type that a TypeAdapter takes."""

    def __init__(self, type: Any = Any) -> None:
        try:
            import pydantic
        except ImportError as error:
            raise MissingDependency("PydanticCodec needs pydantic: pip install pydantic") from error
        self._adapter = pydantic.TypeAdapter(type)
        self._make = pydantic.TypeAdapter
        self._error = pydantic.ValidationError

    def encode(self, value: T) -> bytes:
        """Return the value as JSON."""
        data: bytes = self._adapter.dump_json(value)
        return data

    def decode(self, data: bytes) -> T:
        """Return the value of `data`. CorruptData if the bytes do not hold one."""
        try:
            found: T = self._adapter.validate_json(data)
        except self._error as error:
            raise CorruptData(f"the payload does not have the expected type: {error}") from error
        return found

    def convert(self, value: Any, type: Any) -> Any:
        """Return a decoded part as a value of `type`. pydantic.ValidationError if it is not one."""
        return self._make(type).validate_python(value)
