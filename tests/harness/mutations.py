"""Changed bytes of stored formats: mostly with checksums that are right again, to reach beyond the first check."""

from __future__ import annotations

import zlib
from random import Random

__all__ = ["HOSTILE", "INTERESTING", "believable_block", "believable_frame", "believable_record", "mutated"]

INTERESTING = [0, 1, 2, 127, 128, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1]
HOSTILE = [
    b"\xdd\xff\xff\xff\xff",  # a list of 2**32 - 1
    b"\xdf\xff\xff\xff\xff",  # a map
    b"\xdb\xff\xff\xff\xff",  # text
    b"\xc6\xff\xff\xff\xff",  # bytes
    b"\xdc\xff\xff",
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + bytes(7),
    b"\xcb\x7f\xf8" + bytes(6),  # not a number
    b"\xa2\xff\xfe",  # text that is not UTF-8
    b"\xa3\xed\xa0\x80",  # a lone surrogate
    b"\xc0",
    b"\x91" * 40,
]
"""Beginnings of msgpack values that claim much or mean nothing."""


def mutated(dice: Random, data: bytes) -> bytes:
    """A few changes of a kind that reaches beyond the first check."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        at = dice.randrange(len(changed) + 1)
        match dice.randrange(7):
            case 0 if changed:
                changed[min(at, len(changed) - 1)] ^= 1 << dice.randrange(8)
            case 1:
                del changed[at:]
            case 2:
                changed[at:at] = dice.randbytes(dice.randrange(1, 9))
            case 3:
                changed[at : at + dice.randrange(1, 9)] = b""
            case 4:
                size = dice.choice((1, 2, 4, 8))
                changed[at : at + size] = (dice.choice(INTERESTING) % (1 << 8 * size)).to_bytes(size, "big")
            case 5:
                size = dice.choice((1, 2, 4, 8))
                changed[at : at + size] = (dice.choice(INTERESTING) % (1 << 8 * size)).to_bytes(size, "little")
            case _:
                part = dice.choice(HOSTILE)
                changed[at : at + dice.randrange(len(part) + 1)] = part
    return bytes(changed)


def believable_record(dice: Random, data: bytes, seed: int = 0) -> bytes:
    """Mostly with checksums, and lengths, that are right again."""
    if len(data) < 24 or dice.random() < 0.2:
        return data
    changed = bytearray(b"SKTX" + data[4:])
    if dice.random() < 0.9:
        changed[8] = 1
        changed[16:24] = len(changed).to_bytes(8, "little")
    end = min(len(changed), 24 + int.from_bytes(changed[12:16], "little"))
    changed[4:8] = zlib.crc32(changed[8:end], seed).to_bytes(4, "little")
    at = end
    while at + 16 <= len(changed):
        size = (
            16
            + int.from_bytes(changed[at + 4 : at + 6], "little")
            + int.from_bytes(changed[at + 8 : at + 12], "little")
        )
        changed[at : at + 4] = zlib.crc32(changed[at + 4 : at + size], seed).to_bytes(4, "little")
        at += size
    return bytes(changed)


def believable_frame(dice: Random, data: bytes, seed: int = 0) -> bytes:
    if len(data) < 16 or dice.random() < 0.1:
        return data
    changed = bytearray(data)
    if dice.random() < 0.9:
        head = int.from_bytes(changed[4:6], "little")
        changed[8:12] = max(0, len(changed) - 16 - head).to_bytes(4, "little")
    changed[0:4] = zlib.crc32(changed[4:], seed).to_bytes(4, "little")
    return bytes(changed)


def believable_block(dice: Random, data: bytes) -> bytes:
    """Mostly with a checksum that is right again; of a block that begins its section."""
    return (
        data
        if dice.random() < 0.2
        else zlib.crc32(data[4:], zlib.crc32(b"i" * 16) ^ 8).to_bytes(4, "little") + data[4:]
    )
