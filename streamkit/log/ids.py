"""The ids of transactions: version 7 UUIDs that tell when they were made, and for which partition."""

from __future__ import annotations

import os
import random
import struct

__all__ = ["BITS", "TAG", "draw", "id_of", "is_id", "is_posted", "made_at", "new_id"]

TAG = (1 << 24) - 1
"""The bits of a partition's seed that the ids of its transactions carry in their middle."""
BITS = 49
"""The number of bits of an id that are drawn."""
_ID = struct.Struct(">QII")
_chance = random.Random()
"""The generator of this module alone, so that a program that seeds the common one makes no id twice."""
draw = _chance.getrandbits
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_chance.seed)


def new_id(milliseconds: int, tag: int, *, posted: bool = False) -> bytes:
    """A new id that tells its time, the partition's tag, and if it is of a posted request."""
    return id_of(milliseconds, tag, draw(BITS), posted=posted)


def id_of(milliseconds: int, tag: int, drawn: int, *, posted: bool = False) -> bytes:
    """The id with the number that `draw(BITS)` gave."""
    middle = 0xA0 if posted else 0x80
    front = milliseconds << 16 | 0x7 << 12 | drawn >> 37
    return _ID.pack(front, (middle | drawn >> 32 & 0x1F) << 24 | tag, drawn & 0xFFFFFFFF)


def is_id(id: bytes) -> bool:
    """True if `id` can be a transaction's: a version 7 UUID."""
    return id[6] >> 4 == 7 and id[8] >> 6 == 0b10


def is_posted(id: bytes) -> bool:
    """True if `id` is of a posted request, False if it is of a transaction."""
    return id[8] & 0x20 != 0


def made_at(id: bytes) -> int:
    """The time at which an id was made, in ms by the clock of its maker. The timestamp of its transaction is not
    below."""
    return int.from_bytes(id[:6], "big")
