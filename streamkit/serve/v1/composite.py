"""Composite cursors: the offsets of several spaces as one text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ...base64url import decode_base64url, encode_base64url
from ...decoders import json_decoder
from ...errors import InvalidOffset
from ...lexkey import LexKey
from ...log.offsets import Offset
from ...names import check_name
from ..problems import Problem
from ..request import Request

__all__ = ["asked", "cursor_of", "cursor_text", "offset_of"]

_SPACES = 100
_BYTES = 1 << 20
"""The largest request for several spaces."""


class SeveralIn(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """A read of several spaces: `spaces`, each with its offset, or their names; or the `cursor` of a page."""

    spaces: dict[str, str | None] | list[str] | None = None
    cursor: str | None = None
    from_: str | int | None = None
    until: int | None = None
    limit: int | None = None
    max_bytes: int | None = None
    wait: float | None = None
    gaps: str | None = None


_decode = json_decoder(SeveralIn).decode


def offset_of(space: str, text: str | None) -> LexKey | None:
    """The offset in a text, checked; None for None."""
    return None if text is None else Offset.decode(text, space).encode()


async def asked(request: Request) -> tuple[list[str], dict[str, str], str | None]:
    """The spaces, the bounds as those of a query, and the cursor that a body asks for."""
    request.query(())
    if request.media_type != "application/json":
        raise Problem("unsupported-media-type", "the body of a request over several spaces must be application/json")
    try:
        body = await request.body()
        if len(body) > _BYTES:
            raise Problem("body-too-large", f"a body for several spaces has at most {_BYTES} bytes")
        found = _decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem("invalid-body", f"the body is not valid: {error}") from None
    bounds = {
        "from": found.from_,
        "until": found.until,
        "limit": found.limit,
        "max_bytes": found.max_bytes,
        "wait": found.wait,
        "gaps": found.gaps,
    }
    query = {name: str(value) for name, value in bounds.items() if value is not None}
    if isinstance(found.spaces, dict):
        if found.cursor is not None:
            raise Problem("invalid-argument", "give either a cursor, or the offsets of spaces")
        offsets = {space: offset_of(check_name(space, "space"), text) for space, text in found.spaces.items()}
        if all(offset is None for offset in offsets.values()):
            return list(offsets), query, None
        return [], query, cursor_text(offsets)
    return found.spaces or [], query, found.cursor


def cursor_text(offsets: Mapping[str, LexKey | None]) -> str:
    """One text for the offsets of several spaces."""
    data = msgspec.json.encode({space: None if offset is None else bytes(offset) for space, offset in offsets.items()})
    return encode_base64url(data)


def cursor_of(spaces: Iterable[str], text: str | None) -> dict[str, LexKey | None]:
    """The offsets in a cursor, and the beginning of the spaces that it does not have. A Problem for too many."""
    found: dict[str, LexKey | None] = {}
    if text is not None:
        try:
            offsets = json_decoder(dict[str, bytes | None]).decode(decode_base64url(text))
        except ValueError:
            raise InvalidOffset("the cursor is damaged; pass the cursor of a page or an event") from None
        _check_count(len(offsets))
        for space, offset in offsets.items():
            check_name(space, "space")
            found[space] = None if offset is None else Offset.decode(offset, space).encode()
    for space in spaces:
        found.setdefault(check_name(space, "space"), None)
    _check_count(len(found))
    return found


def _check_count(spaces: int) -> None:
    if not 1 <= spaces <= _SPACES:
        raise Problem("invalid-argument", f"a read takes 1 to {_SPACES} spaces, not {spaces}; name them with `space`")
