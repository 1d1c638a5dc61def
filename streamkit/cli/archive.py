"""archive, compact, restore: what is done with a space's Delta table."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
import typer

from .options import Archive, Json, MaxTimestamp, SpaceName, StoreId, Url, check_space, open_client, open_store
from .output import print_line, record_line
from .progress import progress

__all__ = ["archive", "compact", "restore"]


def archive(
    space: SpaceName,
    until: MaxTimestamp = 0,
    min_age: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Only what is older.", show_default=False)
    ] = None,
    json: Json = False,
    url: Url = None,
    store: StoreId = None,
    archive: Archive = None,
) -> None:
    """Move committed transactions into the space's Delta table, where every reader finds them."""
    with open_store(url, store, archive) as opened, progress("archiving", unit="entries") as bar:
        check_space(opened, space)
        report = opened.archive(
            space, until=until or None, min_age=min_age, progress=lambda transactions, entries: bar.advance(entries)
        )
    if json:
        print_line(record_line(msgspec.to_builtins(report)))
    else:
        print_line(
            f"{report.entries:,} entries of {report.transactions:,} transactions archived in {report.files:,} files, "
            f"{report.bytes:,} bytes; {report.removed:,} transactions left the log"
        )


def compact(
    space: SpaceName,
    target_file_bytes: Annotated[
        int, typer.Option(metavar="BYTES", help="Of payload in a file, before compression.")
    ] = 64 << 20,
    retention_hours: Annotated[
        float, typer.Option(metavar="HOURS", help="Keep old files that are younger: longer than the longest read.")
    ] = 168.0,
    json: Json = False,
    url: Url = None,
    store: StoreId = None,
    archive: Archive = None,
) -> None:
    """Bring small files of the space's archive together; remove those that no version of the table needs."""
    with open_store(url, store, archive) as opened, progress("compacting", unit="files") as bar:
        check_space(opened, space)
        report = opened.compact(
            space, target_file_bytes=target_file_bytes, retention_hours=retention_hours, progress=bar.at
        )
    if json:
        print_line(record_line(msgspec.to_builtins(report)))
    else:
        print_line(f"{report.before:,} files became {report.after:,}; {report.removed:,} old ones were removed")


def restore(
    space: SpaceName,
    source: Annotated[
        str, typer.Option("--from", metavar="UUID", help="The store to copy from; --store is the one to copy into.")
    ],
    from_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Where that store is, if elsewhere.", show_default=False)
    ] = None,
    from_archive: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where its archives are, if not beside it.", show_default=False),
    ] = None,
    until: MaxTimestamp = 0,
    cold: Annotated[bool, typer.Option("--cold", help="From the archive alone: the log is lost.")] = False,
    json: Json = False,
    url: Url = None,
    store: StoreId = None,
    archive: Archive = None,
) -> None:
    """Copy a space from another store, or from what is archived of it, into this one."""
    try:
        origin = UUID(source)
    except ValueError:
        raise typer.BadParameter(f"{source!r} is not a UUID", param_hint="--from") from None
    with (
        open_client(from_url or url, from_archive or (None if from_url else archive)) as client,
        open_store(url, store, archive) as opened,
        progress("restoring", unit="entries") as bar,
    ):
        report = opened.restore(
            space,
            client.store(origin),
            until=until or None,
            tier="cold" if cold else "all",
            progress=lambda transactions, entries: bar.advance(entries),
        )
    if json:
        print_line(record_line(msgspec.to_builtins(report)))
    else:
        print_line(
            f"{report.entries:,} entries of {report.transactions:,} transactions restored; {report.present:,} "
            "transactions were there"
        )
