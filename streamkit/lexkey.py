"""LexKey v1: parts to bytes whose byte order is the order of the parts.

Parts are joined by one 0x00. The encoding is not self-describing and does not escape: to rule out collisions, forbid
NUL in text parts, as streamkit's names do.
"""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime
from uuid import UUID

__all__ = ["LexKey", "Part", "Unsigned"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SIGN = 1 << 63
_U64 = struct.Struct(">Q")


class Unsigned(int):
    """An integer from 0 to 2**64 - 1, encoded without a sign."""

    def __new__(cls, value: int) -> Unsigned:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"Unsigned takes an int, not {type(value).__name__}")
        if not 0 <= value < 1 << 64:
            raise ValueError(f"Unsigned takes 0 to 2**64 - 1, not {value}")
        return super().__new__(cls, value)


Part = str | bytes | UUID | int | float | datetime | bool | None


def _signed(value: int, what: str) -> bytes:
    if not -_SIGN <= value < _SIGN:
        raise ValueError(f"{what} does not fit into 64 signed bits: {value}")
    return _U64.pack(value + _SIGN)


def _encode(part: Part) -> bytes:
    match part:
        case str():
            try:
                return part.encode()
            except UnicodeEncodeError:
                raise ValueError("a str part has a lone surrogate, which UTF-8 does not have") from None
        case bytes():
            return bytes(part)
        case None:
            return b"\x00"
        case bool():
            return b"\x01" if part else b"\x00"
        case Unsigned():
            return _U64.pack(part)
        case int():
            return _signed(part, "int part")
        case UUID():
            return part.bytes
        case float():
            if math.isnan(part):
                raise ValueError("NaN has no place in an order: it cannot be a key part")
            bits: int = _U64.unpack(struct.pack(">d", part))[0]
            return _U64.pack(~bits & 0xFFFF_FFFF_FFFF_FFFF if bits & _SIGN else bits | _SIGN)
        case datetime():
            if part.tzinfo is None:
                raise ValueError("a datetime part needs a time zone (datetime.now(UTC), for instance)")
            delta = part - _EPOCH
            micros = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
            return _signed(micros * 1000, "datetime part in nanoseconds")
        case _:
            raise TypeError(
                f"a key part is str, bytes, UUID, int, Unsigned, float, datetime, bool or None, "
                f"not {type(part).__name__}"
            )


class LexKey(bytes):
    """An encoded key. It is bytes: it sorts, hashes and compares as such."""

    @classmethod
    def encode(cls, *parts: Part) -> LexKey:
        """Return the parts, encoded and joined by one 0x00. TypeError for another type, ValueError for a value that
        does not fit."""
        return cls(b"\x00".join(map(_encode, parts)))

    @classmethod
    def encode_first(cls, *parts: Part) -> LexKey:
        """The key before every key below `parts`: encode(*parts) followed by 0x00."""
        return cls(cls.encode(*parts) + b"\x00")

    @classmethod
    def encode_last(cls, *parts: Part) -> LexKey:
        """Return encode(*parts) followed by 0xff."""
        return cls(cls.encode(*parts) + b"\xff")

    @classmethod
    def from_hex(cls, text: str) -> LexKey:
        """The inverse of `.hex()`. ValueError if `text` is not hexadecimal."""
        return cls(bytes.fromhex(text))

    def children(self) -> tuple[LexKey, LexKey]:
        """Return (start, end): exactly the keys below this one are in start <= key < end.

        The end is 0x01, not 0xff: up to 0xff there are also the keys of longer names, `order-42` under `order-4`.
        """
        return LexKey(self + b"\x00"), LexKey(self + b"\x01")

    def __repr__(self) -> str:
        return f"LexKey({self.hex()})"
