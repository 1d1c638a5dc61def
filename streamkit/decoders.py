"""Decoders that threads may make at the same time.

For the first decoder of a class, msgspec collects the types of its fields. If another thread makes a decoder of the
class meanwhile, msgspec crashes the process. So this module makes every decoder, under a lock.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgspec

from .importing import DECODERS

__all__ = ["Decoders", "convert", "json_decoder", "msgpack_decoder"]

T = TypeVar("T")


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
    msgpack_decoder(kind)  # collects the types; the lock is not held while code of the user's class runs
    return msgspec.convert(value, kind, **options)


class Decoders(dict[Any, msgspec.msgpack.Decoder[Any]]):
    """A decoder of MessagePack for each class. It is made for the first row of the class, because most processes need
    few of them. Threads may share it."""

    def __missing__(self, kind: Any) -> msgspec.msgpack.Decoder[Any]:
        with DECODERS:
            found = self.get(kind)
            if found is None:
                found = self[kind] = msgspec.msgpack.Decoder(kind)
        return found
