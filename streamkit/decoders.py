"""Decoders that threads may make at the same time.

For the first decoder of a class, msgspec collects the types of its fields. If another thread makes a decoder of the
class meanwhile, msgspec crashes the process. So this module makes every decoder, under a lock.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar, get_args, get_origin, get_type_hints, overload

import msgspec

from .importing import DECODERS

__all__ = ["Decoders", "convert", "json_decoder", "load_types", "msgpack_decoder"]

T = TypeVar("T")

_KEPT = 1024
_collected: dict[int, Any] = {}
"""The types for which a decoder was made, by their ids. For an equal one, such as another `Page[int]` of a generic
class, msgspec collects the types of the fields again."""


@overload
def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """A decoder of JSON for a type."""
    with DECODERS:
        return msgspec.json.Decoder(kind)


@overload
def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """A decoder of MessagePack for a type."""
    with DECODERS:
        return msgspec.msgpack.Decoder(kind)


@overload
def convert(value: Any, kind: type[T], **options: Any) -> T: ...
@overload
def convert(value: Any, kind: Any, **options: Any) -> Any: ...
def convert(value: Any, kind: Any, **options: Any) -> Any:
    """`msgspec.convert`, with its options."""
    if _collected.get(id(kind)) is not kind:
        _collect(kind)
    return msgspec.convert(value, kind, **options)


def _collect(kind: Any) -> None:
    """Collect the types of a class's fields. The lock is not held while code of the user's class runs."""
    load_types(kind)
    msgpack_decoder(kind)
    if len(_collected) >= _KEPT:
        _collected.clear()
    _collected[id(kind)] = kind


def load_types(kind: Any) -> None:
    """Evaluate the annotations of a user's class, before a decoder is made for it.

    An annotation may import a module. If it was evaluated under the lock, this thread would wait for a thread that
    imports the module, and that thread for the lock: the module may make decoders.
    """
    seen: dict[int, Any] = {}
    left = [kind]
    while left:
        kind = left.pop()
        if id(kind) in seen:
            continue
        seen[id(kind)] = kind
        left += [get_origin(kind), *get_args(kind)]
        with suppress(Exception):  # msgspec raises a better error when the decoder is made
            if type(kind).__module__ in ("typing", "typing_extensions"):  # others may have an attribute of any name
                left += [getattr(kind, name, None) for name in ("__value__", "__supertype__", "__bound__")]
            if isinstance(kind, type):
                left += get_type_hints(kind, include_extras=True).values()


class Decoders(dict[Any, msgspec.msgpack.Decoder[Any]]):
    """A decoder of MessagePack for each class. It is made for the first row of the class, because most processes need
    few of them. Threads may share it."""

    def __missing__(self, kind: Any) -> msgspec.msgpack.Decoder[Any]:
        with DECODERS:
            found = self.get(kind)
            if found is None:
                found = self[kind] = msgspec.msgpack.Decoder(kind)
        return found
