"""Decoders of msgpack. Each is made when it is first used, because a new process waits for all that are made before."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["Decoders"]


class Decoders(dict[Any, msgspec.msgpack.Decoder[Any]]):
    """The decoder of each type that was asked for. Threads may share it."""

    def __missing__(self, kind: Any) -> msgspec.msgpack.Decoder[Any]:
        found = self[kind] = msgspec.msgpack.Decoder(kind)
        return found
