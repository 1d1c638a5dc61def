"""Decoders of msgpack. Each is made for the first row of its class, because most processes need few of them."""

from __future__ import annotations

from typing import Any

import msgspec

from ..importing import IMPORTING

__all__ = ["Decoders"]


class Decoders(dict[Any, msgspec.msgpack.Decoder[Any]]):
    """The decoder of each class that was asked for. Threads may share it."""

    def __missing__(self, kind: Any) -> msgspec.msgpack.Decoder[Any]:
        with IMPORTING:  # msgspec crashes if two threads make the first decoders of a class at once
            found = self.get(kind)
            if found is None:
                found = self[kind] = msgspec.msgpack.Decoder(kind)
        return found
