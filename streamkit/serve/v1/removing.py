"""Removing: trim and erase. Both are dry runs unless the body says otherwise."""

from __future__ import annotations

import msgspec

from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer
from .records import body_of

__all__ = ["erase", "trim"]


class TrimIn(msgspec.Struct, forbid_unknown_fields=True):
    """A trim of a segment or of the space, by exactly one bound. `before`: a sequence, or an offset of the space."""

    segment: str | None = None
    before: int | str | None = None
    keep_entries: int | None = None
    keep_bytes: int | None = None
    max_age: float | None = None
    dry_run: bool = True


class EraseIn(msgspec.Struct, forbid_unknown_fields=True):
    """An erasure of entries: of the segments that a glob names, or with this metadata, or both.

    `sequences`: only these, of the one segment `segment`.
    """

    segment: str | None = None
    first: int = 1
    last: int | None = None
    metadata: dict[str, str] | None = None
    sequences: list[int] | None = None
    dry_run: bool = True


async def trim(request: Request) -> Answer:
    """Remove the first entries of a segment, or the first transactions of a space."""
    request.query(())
    given = await body_of(request, TrimIn)
    if given.segment is None:
        request.access.check_all_segments()
    else:
        request.access.check_segment(given.segment)
    if given.before is not None and isinstance(given.before, str) != (given.segment is None):
        raise Problem("invalid-argument", "before is a sequence of a segment, or an offset of a space")
    report = await request.store().trim(
        request.name(1),
        given.segment,
        before=given.before,
        keep_entries=given.keep_entries,
        keep_bytes=given.keep_bytes,
        max_age=given.max_age,
        dry_run=given.dry_run,
    )
    return json_answer(report)


async def erase(request: Request) -> Answer:
    """Make entries unreadable for ever, everywhere."""
    request.query(())
    given = await body_of(request, EraseIn)
    request.access.check_all_segments()
    report = await request.store().erase(
        request.name(1),
        given.segment,
        first=given.first,
        last=given.last,
        metadata=given.metadata,
        sequences=given.sequences,
        dry_run=given.dry_run,
    )
    return json_answer(report)
