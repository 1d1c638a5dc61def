"""The commands `backup` and `restore`: a whole store, or one space of another store."""

from __future__ import annotations

from typing import Annotated

import typer

from streamkit.backup import BackupPoint
from streamkit.terminal import amount

from .options import Json, MaxTimestamp, StoreOptions, open_client, store_uuid, with_options
from .output import iso, print_line, print_note, print_result, record_line
from .progress import progress

__all__ = ["backup", "restore"]

OneSpace = Annotated[
    str | None,
    typer.Argument(
        metavar="SPACE",
        help="The space to restore: required with --from; all of them by default with --backup.",
        show_default=False,
    ),
]


@with_options
def backup(
    named: StoreOptions,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="Where backups are kept: a directory, or a URL.", show_default=False)
    ],
    keep: Annotated[
        int | None, typer.Option(metavar="N", help="Remove all points but the latest N.", show_default=False)
    ] = None,
    skip_damaged: Annotated[
        bool,
        typer.Option("--skip-damaged", help="Leave out spaces that cannot be read, and name them; exit with 1."),
    ] = False,
    points: Annotated[
        bool, typer.Option("--points", help="List the points of the backup, and back up nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Back up the whole store while it is in use, internal spaces and archives included.

    Each backup is a new point. Only data that is new since the last point is copied.
    """
    with named.open() as opened:
        if points:
            for point in opened.backups(target):
                _print_point(point, json)
            return
        named.check_exists(opened)
        with progress("backing up", unit="B") as bar:
            report = opened.backup(
                target, keep=keep, skip_damaged=skip_damaged, progress=lambda files, size: bar.advance(size)
            )
    removed = f"; removed: {amount(report.removed, 'older point')}" if report.removed else ""
    print_result(
        report,
        f"point {report.point.number} has {amount(report.point.transactions, 'transaction')} of "
        f"{amount(report.point.spaces, 'space')}; copied: {amount(report.files, 'file')}, "
        f"{amount(report.bytes, 'byte')}{removed}",
        json,
    )
    if report.point.skipped:
        _note_skipped(report.point)
        raise typer.Exit(1)


def _print_point(point: BackupPoint, json: bool) -> None:
    if json:
        print_line(record_line(point))
    else:
        print_line(
            f"{point.number}  {iso(point.timestamp)}  {amount(point.spaces, 'space')}  "
            f"{amount(point.transactions, 'transaction')}"
        )
        if point.skipped:
            _note_skipped(point)


def _note_skipped(point: BackupPoint) -> None:
    names = ", ".join(map(repr, point.skipped))
    print_note(f"CorruptData: point {point.number} lacks damaged spaces: {names}")


@with_options
def restore(
    named: StoreOptions,
    space: OneSpace = None,
    source: Annotated[
        str | None,
        typer.Option("--backup", metavar="TARGET", help="Restore from the backup at TARGET.", show_default=False),
    ] = None,
    point: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The number of the point to restore; the latest by default.", show_default=False
        ),
    ] = None,
    backup_of: Annotated[
        str | None,
        typer.Option(metavar="UUID", help="The store that was backed up, if it had another UUID.", show_default=False),
    ] = None,
    origin: Annotated[
        str | None,
        typer.Option("--from", metavar="UUID", help="Copy one space from this store instead.", show_default=False),
    ] = None,
    from_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The place of that store, if not that of --url.", show_default=False),
    ] = None,
    from_archive: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The URL of its archives, if they are not beside it.", show_default=False),
    ] = None,
    until: MaxTimestamp = 0,
    cold: Annotated[bool, typer.Option("--cold", help="Read only the archive, for a store whose log is lost.")] = False,
    json: Json = False,
) -> None:
    """Restore a store from its backup into an empty store, or copy one space of another store.

    `--backup` restores the whole store with its numbers, ids, timestamps, idempotency keys, groups and routes, so
    nothing is done twice. With SPACE it restores that space alone, and the space's groups and routes start again.

    `--from` copies entries into new transactions with new ids and timestamps. Groups and process managers of the copy
    start again and **repeat their effects**; offsets of the other store are not valid in it.
    """
    if (source is None) == (origin is None):
        raise typer.BadParameter("give one of --backup (a backup) and --from (another store)", param_hint="--backup")
    if source is not None:
        given = {"--from-url": from_url, "--from-archive": from_archive, "--until": until, "--cold": cold}
        for name, value in given.items():
            if value:
                raise typer.BadParameter(f"{name} goes with --from, not with --backup", param_hint=name)
        of = None if backup_of is None else store_uuid(backup_of, "--backup-of")
        with named.open() as opened, progress("restoring", unit="B") as bar:
            restored = opened.restore_backup(
                source,
                point=point,
                spaces=None if space is None else [space],
                backup_of=of,
                progress=lambda files, size: bar.advance(size),
            )
        print_result(
            restored,
            f"point {restored.point.number} of {iso(restored.point.timestamp)} is back: "
            f"{amount(restored.spaces, 'space')}, {amount(restored.bytes, 'byte')}; "
            f"repeated: {amount(restored.erasures, 'later erasure')}",
            json,
        )
        if restored.point.skipped:
            _note_skipped(restored.point)
        return
    if space is None:
        raise typer.BadParameter("name the space to copy", param_hint="SPACE")
    for name, number in (("--point", point), ("--backup-of", backup_of)):
        if number is not None:
            raise typer.BadParameter(f"{name} goes with --backup, not with --from", param_hint=name)
    assert origin is not None
    other = store_uuid(origin, "--from")
    with (
        open_client(
            from_url or named.url,
            from_archive or named.archive,
            beside=from_url is not None and from_archive is None,
        ) as client,
        named.open() as opened,
        progress("restoring", unit="entries") as bar,
    ):
        report = opened.restore(
            space,
            client.store(other),
            until=until or None,
            tier="cold" if cold else "all",
            progress=lambda transactions, entries: bar.advance(entries),
        )
    print_result(
        report,
        f"{amount(report.entries, 'entry')} of {amount(report.transactions, 'transaction')} restored; "
        f"{amount(report.present, 'transaction')} existed already",
        json,
    )
