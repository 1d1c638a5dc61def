"""consume, peek, follow: entries to standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Literal

import typer

from streamkit import EntriesRemoved, Entry, Store

from .options import (
    Json,
    MaxTimestamp,
    MinTimestamp,
    SegmentName,
    SpaceName,
    note_missing,
    with_store,
)
from .output import entry_line, entry_text, print_line, print_note

__all__ = ["consume", "follow", "peek"]

Segment = Annotated[str | None, typer.Option("--segment", metavar="SEGMENT", help="Read only this segment.")]
SkipGaps = Annotated[bool, typer.Option("--skip-gaps", help="Read on where entries were trimmed: no error.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=0, metavar="N", help="At most this many entries; 0 for all.")]


@with_store
def consume(
    opened: Store,
    spaces: Annotated[list[str], typer.Argument(metavar="SPACE", help="The spaces.", show_default=False)],
    segment: Segment = None,
    offset: Annotated[
        list[str] | None,
        typer.Option(metavar="HEX", help="Begin after this offset. With several spaces: SPACE=HEX, once for each."),
    ] = None,
    min_sequence: Annotated[
        int, typer.Option(min=0, metavar="SEQUENCE", help="With --segment: begin at this sequence.")
    ] = 0,
    max_sequence: Annotated[
        int, typer.Option(min=0, metavar="SEQUENCE", help="With --segment: end at this sequence.")
    ] = 0,
    min_timestamp: MinTimestamp = 0,
    max_timestamp: MaxTimestamp = 0,
    limit: Limit = 0,
    skip_gaps: SkipGaps = False,
    json: Json = False,
) -> None:
    """Read spaces in the order of their commits, or one segment in the order of its sequences, up to the present.

    The offset to continue from is printed at the end; with --json it is the field `offset` of each line.
    """
    if segment is None and (min_sequence or max_sequence):
        raise typer.BadParameter("--min-sequence and --max-sequence need --segment")
    if segment is not None and len(spaces) > 1:
        raise typer.BadParameter(f"--segment is a segment of one SPACE: name one of {', '.join(spaces)}")
    if segment is not None and offset:
        raise typer.BadParameter("a segment begins at --min-sequence: leave out --offset")
    offsets = _offsets(spaces, offset or [])
    gaps = _gaps(skip_gaps)
    if segment is not None:
        entries = opened.consume_segment(
            spaces[0],
            segment,
            min_sequence=min_sequence,
            max_sequence=max_sequence,
            min_timestamp=min_timestamp,
            max_timestamp=max_timestamp,
            limit=limit,
            gaps=gaps,
        )
    elif len(spaces) == 1:
        entries = opened.consume_space(
            spaces[0],
            offset=offsets[spaces[0]],
            min_timestamp=min_timestamp,
            max_timestamp=max_timestamp,
            limit=limit,
            gaps=gaps,
        )
    else:
        entries = opened.consume(
            offsets, min_timestamp=min_timestamp, max_timestamp=max_timestamp, limit=limit, gaps=gaps
        )
    last = _print_all(entries, json, show_space=len(spaces) > 1)
    if last is None:
        note_missing(opened, *spaces)
    if not json:
        _print_next(last, segment)


@with_store
def peek(opened: Store, space: SpaceName, segment: SegmentName, json: Json = False) -> None:
    """Print the latest entry of a segment."""
    entry = opened.peek(space, segment)
    if json:
        print_line(entry_line(entry))
    elif entry.sequence:
        print_line(entry_text()(entry))
    else:
        print_note(f"{segment} in {space} is empty")
    if not entry.sequence:
        note_missing(opened, space)


@with_store
def follow(
    opened: Store,
    space: SpaceName,
    segment: Segment = None,
    offset: Annotated[str | None, typer.Option(metavar="HEX", help="Begin after this offset.")] = None,
    after: Annotated[
        int, typer.Option(min=0, metavar="SEQUENCE", help="With --segment: begin after this sequence.")
    ] = 0,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="End after this many seconds without an entry. Without it, never."),
    ] = None,
    skip_gaps: SkipGaps = False,
    json: Json = False,
) -> None:
    """Read a space, or one segment, from its start and then live, until Ctrl-C."""
    if segment is None and after:
        raise typer.BadParameter("--after needs --segment; a space goes by --offset")
    if segment is not None and offset is not None:
        raise typer.BadParameter("--segment goes by --after, not by --offset")
    note_missing(opened, space)
    if segment is not None:
        entries = opened.follow_segment(space, segment, after=after, timeout=timeout, gaps=_gaps(skip_gaps))
    else:
        entries = opened.follow_space(space, offset=offset, timeout=timeout, gaps=_gaps(skip_gaps))
    _print_all(entries, json, live=True)


def _gaps(skip: bool) -> Literal["raise", "skip"]:
    return "skip" if skip else "raise"


def _offsets(spaces: list[str], given: list[str]) -> dict[str, str | None]:
    offsets: dict[str, str | None] = dict.fromkeys(spaces)
    for text in given:
        space, _, offset = text.rpartition("=")
        if not space and len(spaces) == 1:
            space = spaces[0]
        if space not in offsets or offsets[space] is not None:
            raise typer.BadParameter(f"{text[:60]!r}: one HEX for one SPACE, or SPACE=HEX once for each of several")
        offsets[space] = offset
    return offsets


def _print_all(entries: Iterable[Entry], json: bool, *, show_space: bool = False, live: bool = False) -> Entry | None:
    text = entry_text(show_space)
    entry = None
    try:
        for entry in entries:
            print_line(entry_line(entry) if json else text(entry))
            if live:
                sys.stdout.buffer.flush()
    except EntriesRemoved as error:
        error.add_note("on the command line: --skip-gaps")
        raise
    sys.stdout.buffer.flush()
    return entry


def _print_next(last: Entry | None, segment: str | None) -> None:
    if last is None:
        print_note("no entries")
    elif segment is not None:
        print_note(f"continue with: --min-sequence {last.sequence + 1}")
    else:
        print_note(f"continue with: --offset {last.space_offset.hex()}")
