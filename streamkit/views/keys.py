"""Keys of views: different keys are stored differently, in an order that SQLite keeps.

SQLite orders numbers, then text by code point, then blobs. Numbers and text are stored as such. A blob begins with a
byte for its kind, so that True, False, bytes and tuples follow in this order. The parts of a tuple are tagged and
ended: ("a", "b\\0c") and ("a\\0b", "c") differ.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from ..arguments import check_type

__all__ = ["end_of_prefix", "loaded", "stored", "stored_prefix", "values"]

_FALSE, _TRUE, _BYTES, _TUPLE = b"\x00", b"\x01", b"\x02", b"\x03"

_END = b"\x00"
_NUMBER = struct.Struct(">QH")
_U64 = struct.Struct(">Q")
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHAT = "a key is str, int, float, bytes or a tuple of these"


def stored(key: Any) -> Any:
    """Encode a key for a column. TypeError if it is not a key, ValueError if it has no place in the order."""
    kind = type(key)
    if kind is str:
        return key
    if kind is int or kind is float:
        return _number(key)
    if isinstance(key, bool):
        return _TRUE if key else _FALSE
    if isinstance(key, bytes):
        return _BYTES + key
    if isinstance(key, tuple):
        return _TUPLE + b"".join(map(_part, key))
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, int):
        return _number(int(key))
    if isinstance(key, float):
        return _number(float(key))
    raise TypeError(f"{_WHAT}, not {kind.__name__}")


def stored_prefix(prefix: Any) -> str | bytes:
    """The common beginning of the stored forms of all keys that begin with `prefix`."""
    check_type(prefix, str | bytes | tuple, "a prefix is str, bytes or a tuple")
    found: str | bytes = stored(prefix)
    return found


def loaded(column: Any) -> Any:
    """Decode a key from a column."""
    if not isinstance(column, bytes):
        return column
    kind, rest = column[:1], column[1:]
    if kind == _TUPLE:
        parts, _ = _loaded_parts(rest, 0)
        return parts
    return rest if kind == _BYTES else kind == _TRUE


def values(found: Any) -> Iterable[Any]:
    """Turn the result of a user's function, which may be None, one value or several, into an iterable."""
    if found is None:
        return ()
    if isinstance(found, (str, int, float, bytes, tuple)):
        return (found,)
    return found  # type: ignore[no-any-return]


def end_of_prefix(prefix: str | bytes) -> str | bytes | None:
    """The first text or blob above all that begin with `prefix`; None if there is none."""
    if isinstance(prefix, bytes):
        if prefix.startswith(_TUPLE):
            return prefix + b"\xff"  # a text that continues with NUL has 0xff after the end of this one
        trimmed = prefix.rstrip(b"\xff")
        return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None
    for at in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[at]) + 1
        if code <= 0x10FFFF:
            return prefix[:at] + chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)
    return None


def _number(key: float) -> float:
    if isinstance(key, int):
        if not -_SIGN <= key < _SIGN:
            raise ValueError("an int key has 64 bits, from -2**63 to 2**63 - 1: use text or a float for larger ones")
    elif math.isnan(key):
        raise ValueError("NaN has no place in an order: it cannot be a key")
    return key


def _part(part: Any) -> bytes:
    """One part of a tuple."""
    if isinstance(part, str):
        try:
            return _text(5, part.encode())
        except UnicodeEncodeError as error:
            raise ValueError("text in a key has no lone surrogates: it is stored as UTF-8") from error
    if isinstance(part, bool):
        return b"\x03" if part else b"\x02"
    if isinstance(part, int | float):
        return b"\x04" + _number_part(part)
    if part is None:
        return b"\x01"
    if isinstance(part, bytes):
        return _text(6, part)
    if isinstance(part, UUID):
        return b"\x07" + part.bytes
    if isinstance(part, datetime):
        if part.tzinfo is None:
            raise ValueError("a datetime in a key needs a time zone (datetime.now(UTC), for instance)")
        return b"\x08" + _U64.pack((part - _EPOCH) // timedelta(microseconds=1) + _SIGN)
    if isinstance(part, tuple):
        return b"\x09" + b"".join(map(_part, part)) + _END
    raise TypeError(
        f"a part of a key is str, bytes, int, float, bool, None, UUID, datetime or a tuple, not {type(part).__name__}"
    )


def _text(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + data.replace(b"\x00", b"\x00\xff") + _END


def _number_part(number: float) -> bytes:
    """The greatest float that is not above it, and the difference: 2**53 + 1 is no float."""
    if isinstance(number, float):
        if math.isnan(number):
            raise ValueError("NaN has no place in an order: it cannot be a part of a key")
        floor, rest = float(number) + 0.0, 0
    elif -_SIGN <= number <= _ALL:
        floor = float(number)
        if int(floor) > number:
            floor = math.nextafter(floor, -math.inf)
        rest = int(number) - int(floor)
    else:
        raise ValueError("an int in a key is from -2**63 to 2**64 - 1: use text or a float for larger ones")
    bits: int = _U64.unpack(struct.pack(">d", floor))[0]
    return _NUMBER.pack(~bits & _ALL if bits & _SIGN else bits | _SIGN, rest)


def _loaded_parts(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
    """The parts from `at` on, and where they end."""
    parts: list[Any] = []
    while at < len(data) and data[at]:
        tag, at = data[at], at + 1
        if tag in (5, 6):
            end = at
            while data[end] or data[end + 1 : end + 2] == b"\xff":
                end += 1 if data[end] else 2
            text = data[at:end].replace(b"\x00\xff", b"\x00")
            parts.append(text.decode() if tag == 5 else text)
            at = end + 1
        elif tag == 4:
            bits, rest = _NUMBER.unpack_from(data, at)
            floor: float = struct.unpack(">d", _U64.pack(bits ^ _SIGN if bits & _SIGN else ~bits & _ALL))[0]
            parts.append(int(floor) + rest if floor.is_integer() and abs(floor) <= _ALL else floor)
            at += _NUMBER.size
        elif tag == 7:
            parts.append(UUID(bytes=data[at : at + 16]))
            at += 16
        elif tag == 8:
            parts.append(_EPOCH + timedelta(microseconds=_U64.unpack_from(data, at)[0] - _SIGN))
            at += 8
        elif tag == 9:
            part, at = _loaded_parts(data, at)
            parts.append(part)
        else:
            parts.append({1: None, 2: False, 3: True}[tag])
    return tuple(parts), at + 1
