"""Decoders of msgpack that are made with the first row of their kind: most processes need few of them."""

from __future__ import annotations

import os
import threading
from typing import Any

import msgspec

__all__ = ["Decoders"]

_making = threading.RLock()
"""Held while a decoder is made: msgspec crashes if two threads make the first decoders of one class at once."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)


class Decoders(dict[Any, Any]):
    """A decoder for each class, made on its first use."""

    def __missing__(self, kind: Any) -> msgspec.msgpack.Decoder[Any]:
        with _making:
            found = self.get(kind)
            if found is None:
                found = self[kind] = msgspec.msgpack.Decoder(kind)
        return found
