"""archive, compact: the Delta table of a space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamkit.terminal import amount

from .options import (
    Json,
    MaxTimestamp,
    SpaceName,
    StoreOptions,
    check_space,
    resolved_archive,
    resolved_url,
    with_options,
)
from .output import print_result
from .progress import progress

if TYPE_CHECKING:
    from streamkit.archive import Processes

__all__ = ["archive", "compact"]

ProcessCount = Annotated[int, typer.Option(metavar="COUNT", min=1, help="The number of processes that write files.")]


@with_options
def archive(
    named: StoreOptions,
    space: SpaceName,
    until: MaxTimestamp = 0,
    min_age: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Only transactions older than this.", show_default=False),
    ] = None,
    processes: ProcessCount = 1,
    json: Json = False,
) -> None:
    """Move committed transactions into the space's Delta table, where every reader finds them."""
    with named.open() as opened, progress("archiving", unit="entries") as bar:
        check_space(opened, space)
        report = opened.archive(
            space,
            until=until or None,
            min_age=min_age,
            progress=lambda transactions, entries: bar.advance(entries),
            spread=_spread(named, processes),
        )
    print_result(
        report,
        f"{amount(report.entries, 'entry')} of {amount(report.transactions, 'transaction')} archived "
        f"in {amount(report.files, 'file')}, {amount(report.bytes, 'byte')}; "
        f"{amount(report.removed, 'transaction')} left the log",
        json,
    )


@with_options
def compact(
    named: StoreOptions,
    space: SpaceName,
    target_file_bytes: Annotated[
        int, typer.Option(metavar="BYTES", help="The most payload of a file, before compression.")
    ] = 64 << 20,
    retention_hours: Annotated[
        float,
        typer.Option(metavar="HOURS", help="Keep old files for this long. Choose more than the longest read takes."),
    ] = 168.0,
    processes: ProcessCount = 1,
    json: Json = False,
) -> None:
    """Merge small files of the space's archive, and delete files that no version of the table needs."""
    with named.open() as opened, progress("compacting", unit="files") as bar:
        check_space(opened, space)
        report = opened.compact(
            space,
            target_file_bytes=target_file_bytes,
            retention_hours=retention_hours,
            progress=bar.at,
            spread=_spread(named, processes),
        )
    became = f"{amount(report.before, 'file')} became {report.after:,}"
    print_result(report, f"{became}; removed: {amount(report.removed, 'old file')}", json)


def _spread(named: StoreOptions, processes: int) -> Processes | None:
    from streamkit.archive import Processes

    if processes == 1:
        return None
    return Processes(resolved_url(named.url), processes, archive=resolved_archive(named.archive))
