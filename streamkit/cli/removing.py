"""trim, retention, erase, size, rm: keeping and forgetting."""

from __future__ import annotations

from typing import Annotated

import typer

from streamkit import CorruptData, Store
from streamkit.removing.limits import stored
from streamkit.removing.report import EraseReport
from streamkit.retention import Retention
from streamkit.store import inner
from streamkit.terminal import amount

from .options import Json, SpaceName, check_space, metadata_pairs, with_store
from .output import confirmed, print_line, print_note, print_result, record_line
from .progress import progress

__all__ = ["erase", "retention", "rm", "size", "trim"]

OneSegment = Annotated[
    str | None, typer.Argument(metavar="SEGMENT", help="One segment. Without it, the whole space.", show_default=False)
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing; print the number of entries that would be removed.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@with_store
def trim(
    opened: Store,
    space: SpaceName,
    segment: OneSegment = None,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE", help="Remove entries before this: a sequence for a segment, an offset for a space."
        ),
    ] = None,
    keep_entries: Annotated[int | None, typer.Option(metavar="N", help="Keep the newest N entries.")] = None,
    keep_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help="Keep the newest entries, with at most this much payload.")
    ] = None,
    max_age: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Keep entries that are at most this old.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Remove the first entries of a segment, or the first transactions of a space. Give one of the bounds."""
    bounds = {"--before": before, "--keep-entries": keep_entries, "--keep-bytes": keep_bytes, "--max-age": max_age}
    given = [name for name, value in bounds.items() if value is not None]
    if len(given) != 1:
        raise typer.BadParameter(f"give one of {', '.join(bounds)}, not {' and '.join(given) or 'none'}")
    place = before if before is None or segment is None else _sequence(before)
    if segment is None and before is not None and before.isdigit() and len(before) < 20:
        raise typer.BadParameter(f"--before of a space takes an offset; for the sequence {before} name a SEGMENT too")
    check_space(opened, space)
    report = opened.trim(
        space,
        segment,
        before=place,
        keep_entries=keep_entries,
        keep_bytes=keep_bytes,
        max_age=max_age,
        dry_run=dry_run,
    )
    what = "to remove" if dry_run else "removed"
    print_result(report, f"{amount(report.entries, 'entry')}, {amount(report.bytes, 'byte')} {what}", json)


@with_store
def retention(
    opened: Store,
    space: SpaceName,
    max_age: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Keep entries that are at most this old.")
    ] = None,
    max_entries: Annotated[int | None, typer.Option(metavar="N", help="Keep at most the newest N entries.")] = None,
    max_bytes: Annotated[int | None, typer.Option(metavar="BYTES", help="Keep at most this much payload.")] = None,
    per: Annotated[
        str, typer.Option(metavar="segment|space", help="Count entries and bytes for each segment, or for the space.")
    ] = "segment",
    when_full: Annotated[
        str,
        typer.Option(metavar="drop_oldest|reject", help="Remove entries beyond the bounds, or refuse to write them."),
    ] = "drop_oldest",
    none: Annotated[bool, typer.Option("--none", help="Set no bounds: nothing is removed any more.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Show the retention of a space, or set another one. It asks before it sets bounds."""
    given = Retention(max_age, max_entries, max_bytes, per, when_full)
    has_bounds = (max_age, max_entries, max_bytes) != (None, None, None)
    if none and given != Retention():
        raise typer.BadParameter("--none goes with no other option of the retention")
    if given != Retention() and not has_bounds:
        raise typer.BadParameter("give a bound too: --max-age, --max-entries or --max-bytes")
    stored(given)  # checks it
    check_space(opened, space)
    settings = opened.space_settings(space)
    assert settings is not None
    present = settings.retention
    if not none and not has_bounds:
        print_result(present, _bounds(present), json)
        return
    if not none and not yes:
        print_note(f"now: {_bounds(present)}")
        print_note(f"new: {_bounds(given)}")
        if not confirmed("Set the new retention?"):
            raise typer.Exit(1)
    opened.set_retention(space, given, expected=settings)
    print_result(given, _bounds(given), json)


def _bounds(retention: Retention) -> str:
    bounds = []
    if retention.max_age is not None:
        bounds.append(f"at most {retention.max_age:,.15g} seconds old")
    if retention.max_entries is not None:
        bounds.append(f"at most {amount(retention.max_entries, 'entry')} for each {retention.per}")
    if retention.max_bytes is not None:
        bounds.append(f"at most {amount(retention.max_bytes, 'byte')} for each {retention.per}")
    if not bounds:
        return "no bounds"
    beyond = "entries beyond are removed" if retention.when_full == "drop_oldest" else "writes beyond are refused"
    return f"{', '.join(bounds)}; {beyond}"


def _sequence(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"--before of a segment takes a sequence, not {text[:60]!r}") from None


@with_store
def erase(
    opened: Store,
    space: SpaceName,
    segment: Annotated[
        str | None, typer.Argument(metavar="SEGMENT", help='One segment, or a glob: "user-17/*".', show_default=False)
    ] = None,
    first: Annotated[int, typer.Option(metavar="SEQUENCE", help="Begin at this sequence.")] = 1,
    last: Annotated[int | None, typer.Option(metavar="SEQUENCE", help="End at this sequence.")] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata", metavar="NAME=VALUE", help="Entries with this pair. Repeat it: an entry must have all pairs."
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Make entries unreadable for ever, in log, index and archive. It prints their number first, and asks."""
    pairs = metadata_pairs(metadata or ()) or None
    if segment is None and pairs is None:
        raise typer.BadParameter("name the entries: give SEGMENT, --metadata NAME=VALUE, or both")
    with progress("searching", unit="entries") as bar:
        check_space(opened, space)
        if not yes or dry_run:
            found = opened.erase(space, segment, first=first, last=last, metadata=pairs, dry_run=True, progress=bar.at)
            text = f"to erase: {_amounts(found)}"
            if dry_run:
                print_result(found, text, json)
                return
            print_note(text)
            if not found.entries and not found.hidden:
                known = inner(opened).look_up(space)[0]
                if known is not None and any(partition.erasing for partition in known.partitions):
                    opened.maintain(space)  # a stopped erasure: its entries are not readable any more, but still stored
                    print_note("the rest of an earlier erasure is removed")
                raise typer.Exit(0)
            if not confirmed("Erase them for ever?"):
                raise typer.Exit(1)
        report = opened.erase(space, segment, first=first, last=last, metadata=pairs, progress=bar.at)
    if json:
        print_line(record_line(report))
    else:
        print_line(
            f"erased: {_amounts(report)}; rewritten: "
            f"{amount(report.rows, 'row')}, {amount(report.files, 'file')} of the archive"
        )
        for text in report.unreached:
            print_note(text)


def _amounts(report: EraseReport) -> str:
    text = f"{amount(report.entries, 'entry')} of {amount(report.segments, 'segment')}, {amount(report.bytes, 'byte')}"
    return f"{text}, and {report.hidden:,} removed before" if report.hidden else text


@with_store
def size(
    opened: Store,
    space: Annotated[
        str | None, typer.Argument(metavar="SPACE", help="One space. Default: all.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Show the number of entries and segments, the bytes of payload, and the stored bytes by tier.

    Internal spaces hold the state of groups, queues, views and routes. They count only in the stored tier `internal`.
    """
    if space is not None:
        check_space(opened, space)
    found = opened.size(space)
    tiers = {tier.name: tier.bytes for tier in found.tiers}
    if json:
        fields = {"entries": found.entries, "segments": found.segments, "bytes": found.payload_bytes, "stored": tiers}
        print_line(record_line({**fields, "damaged": found.damaged} if found.damaged else fields))
    else:
        stored = ", ".join(f"{name} {count:,}" for name, count in tiers.items())
        print_line(
            f"{amount(found.entries, 'entry')}  {amount(found.segments, 'segment')}  "
            f"{amount(found.payload_bytes, 'byte')}  stored: {stored}"
        )
    if found.damaged:
        raise CorruptData(f"damaged, and not counted: {', '.join(map(repr, found.damaged))}; see `streamkit verify`")


@with_store
def rm(opened: Store, space: SpaceName, segment: OneSegment = None, yes: Yes = False, json: Json = False) -> None:
    """Delete a segment, or a whole space with its archive. It asks first."""
    check_space(opened, space)
    if not yes:
        counts = _counts(opened, space) if segment is None else ""
        what = f"the space {space!r}" if segment is None else f"the segment {segment!r} of {space!r}"
        if not confirmed(f"Delete {what}{counts}?"):
            raise typer.Exit(1)
    if segment is None:
        opened.delete_space(space)
    else:
        opened.delete_segment(space, segment)
    if json:
        print_line(record_line({"space": space, "segment": segment, "deleted": True}))


def _counts(store: Store, space: str) -> str:
    try:
        return f" with {amount(store.size(space).entries, 'entry')}"
    except CorruptData as error:
        print_note(f"CorruptData: {error}")
        return ", which cannot be read"
