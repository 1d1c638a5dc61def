"""JSON arrays that are too long: they are refused before their elements are made, which take up to 50 times as much."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ..decoders import json_decoder

__all__ = ["is_longer"]

_MOST = 100_000
"""A limit above this is checked only after the elements were decoded."""


def is_longer(array: bytes | Raw, most: int) -> bool:
    """True if a JSON array has more than `most` elements (0: any number). It is read no further than that. False for a
    text that is no array, or is malformed: the decoder refuses it.
    """
    data = bytes(array) if isinstance(array, Raw) else array
    if not 0 < most <= _MOST or data.count(b",") < most or data.lstrip(b" \t\r\n")[:1] != b"[":
        return False
    try:
        _decoder(most).decode(data)
    except msgspec.ValidationError:
        return True
    except (msgspec.DecodeError, RecursionError):
        return False
    return False


@lru_cache(8)
def _decoder(most: int) -> msgspec.json.Decoder[Any]:
    """msgspec stops at the first element that a struct of an array's form has no field for; a list has no such end."""
    fields: list[Any] = [(f"_{number}", Raw | UnsetType, UNSET) for number in range(most)]
    return json_decoder(msgspec.defstruct("Bounded", fields, array_like=True, forbid_unknown_fields=True))
