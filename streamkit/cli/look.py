"""stores, spaces, segments, status: commands that list."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from streamkit import CorruptData, Store, StoreClosed
from streamkit.terminal import amount

from .options import Archive, Json, SpaceName, Url, check_space, note_missing, open_client, with_store
from .output import iso, print_line, print_note, print_result, record_line, status_fields, status_text
from .progress import progress

__all__ = ["segments", "spaces", "status", "stores"]


def stores(
    long: Annotated[
        bool, typer.Option("--long", "-l", help="Show spaces, segments, entries and bytes too. This opens every store.")
    ] = False,
    json: Json = False,
    url: Url = None,
    archive: Archive = None,
) -> None:
    """List the stores under the URL.

    Example: `streamkit stores --long`
    """
    with open_client(url, archive) as client:
        for store_id in sorted(client.stores()):
            if not long:
                print_result({"store": store_id}, str(store_id), json)
                continue
            with client.store(store_id) as store:
                names, size = len(list(store.get_spaces())), store.size()
            if json:
                fields = {"store": store_id, "spaces": names, "segments": size.segments, "entries": size.entries}
                fields |= {"payload_bytes": size.payload_bytes, "stored_bytes": size.stored_bytes}
                print_line(record_line(fields))
            else:
                print_line(
                    f"{store_id}  {amount(names, 'space')}  {amount(size.segments, 'segment')}  "
                    f"{amount(size.entries, 'entry')}  {amount(size.payload_bytes, 'byte')} of payload  "
                    f"{amount(size.stored_bytes, 'byte')} stored"
                )
            if size.damaged:
                print_note(f"CorruptData: spaces of store {store_id} cannot be counted: {', '.join(size.damaged)}")


@with_store
def spaces(opened: Store, json: Json = False) -> None:
    """List the spaces of the store."""
    for name in opened.get_spaces():
        print_result({"space": name}, name, json)


@with_store
def segments(
    opened: Store,
    space: SpaceName,
    long: Annotated[bool, typer.Option("--long", "-l", help="Show the first and last sequence and time too.")] = False,
    json: Json = False,
) -> None:
    """List the segments of a space."""
    name = None
    for name in opened.get_segments(space):
        if long:
            found = opened.segment_status(space, name)
            print_result(status_fields(found), status_text(found), json)
        else:
            print_result({"space": space, "segment": name}, name, json)
    if name is None:
        note_missing(opened, space)


@with_store
def status(
    opened: Store,
    space: Annotated[
        str | None, typer.Argument(metavar="SPACE", help="One space. Default: all.", show_default=False)
    ] = None,
    segment: Annotated[
        str | None, typer.Argument(metavar="SEGMENT", help="One segment of it.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Sum up the store, one space, or one segment: entries, and the times of the first and the last."""
    if space is not None:
        check_space(opened, space)
    if space is not None and segment is not None:
        found = opened.segment_status(space, segment)
        print_result(status_fields(found), status_text(found), json)
        if not found.last_sequence:
            print_note(f"the space {space!r} has no segment {segment!r}")
        return
    names = list(opened.get_spaces()) if space is None else [space]
    damaged = 0
    for name in names:
        try:
            fields = space_summary(opened, name)
        except CorruptData as error:
            if space is not None:
                raise
            print_note(f"space {name!r} is damaged: {error}")
            damaged += 1
            continue
        except StoreClosed as error:
            if space is not None:
                raise
            print_note(str(error))
            continue
        print_result(fields, _summary_text(fields), json)
    if not names:
        print_note(f"the store {opened.id} is empty")
    if damaged:
        raise CorruptData(f"{amount(damaged, 'damaged space')}, named above; see `streamkit verify`")


def space_summary(store: Store, space: str) -> dict[str, Any]:
    """Counts from the segments' statuses; no entry is read."""
    fields: dict[str, Any] = {"space": space, "segments": 0, "entries": 0}
    first = last = 0
    with progress(space, unit="segments") as bar:
        for name in store.get_segments(space):
            found = store.segment_status(space, name)
            fields["segments"] += 1
            fields["entries"] += found.last_sequence - found.first_sequence + 1
            first = min(first or found.first_timestamp, found.first_timestamp)
            last = max(last, found.last_timestamp)
            bar.advance(1)
    return {**fields, "first_timestamp": first, "last_timestamp": last}


def _summary_text(fields: dict[str, Any]) -> str:
    return (
        f"{fields['space']}  {amount(fields['segments'], 'segment')}  {amount(fields['entries'], 'entry')}  "
        f"{iso(fields['first_timestamp'])} .. {iso(fields['last_timestamp'])}"
    )
