"""The commands `export` and `import`: spaces to a file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamkit import Store
from streamkit.terminal import amount

from .options import Json, MaxTimestamp, check_space, with_store
from .output import print_result
from .progress import progress

__all__ = ["export", "import_"]


@with_store
def export(
    opened: Store,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The file to write: NDJSON, or Parquet if its name ends with .parquet.",
            show_default=False,
        ),
    ],
    space: Annotated[
        list[str] | None,
        typer.Option(
            "--space",
            metavar="SPACE",
            help="A space to export; may be repeated. Default: all.",
            show_default=False,
        ),
    ] = None,
    until: MaxTimestamp = 0,
    json: Json = False,
) -> None:
    """Write spaces to a file of JSON lines or of Parquet: all entries, exactly, with the state that an import needs.

    `--until` leaves out later commits. If the command was stopped, the same command continues.

    Example: `streamkit export orders.ndjson --space orders --until 2026-01-31T08:00:00Z`
    """
    from streamkit.export import export_store

    if not file.absolute().parent.is_dir():
        raise typer.BadParameter(
            f"there is no folder {str(file.absolute().parent)!r}: make it first", param_hint="FILE"
        )
    for name in space or ():
        check_space(opened, name)
    with progress("exporting", unit="entries") as bar:
        report = export_store(opened, file, spaces=space, until=until or None, progress=bar.at)
    written = f"{amount(report.entries, 'entry')} of {amount(report.spaces, 'space')}, {amount(report.bytes, 'byte')}"
    resumed = f"; {report.resumed:,} of them by an earlier run" if report.resumed else ""
    print_result(report, f"{written}, in {file}{resumed}", json)


@with_store
def import_(
    opened: Store,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of an export.", show_default=False)],
    restart: Annotated[bool, typer.Option("--restart", help="Remove the rest of a stopped import first.")] = False,
    json: Json = False,
) -> None:
    """Write the spaces of an export to the store, which must not have them: exactly as they were.

    The file is checked first. A space appears once all of it is written. If the command was stopped, the same command
    continues.

    Example: `streamkit import orders.ndjson --url s3://bucket/app`
    """
    from streamkit.export import import_store

    if not file.exists():
        raise typer.BadParameter(f"there is no file {str(file)!r}", param_hint="FILE")
    with progress("importing", unit="entries") as bar:
        report = import_store(opened, file, restart=restart, progress=bar.at)
    present = f"; {report.present:,} of them existed already" if report.present else ""
    text = f"{amount(report.entries, 'entry')} of {amount(report.spaces, 'space')} in the store{present}"
    print_result(report, text, json)
