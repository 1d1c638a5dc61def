"""archive: committed transactions into the Delta table."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from .options import Json, MaxTimestamp, SpaceName, StoreId, Url, open_store
from .output import print_line, record_line
from .progress import progress

__all__ = ["archive"]


def archive(
    space: SpaceName,
    until: MaxTimestamp = 0,
    min_age: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Only what is older.", show_default=False)
    ] = None,
    json: Json = False,
    url: Url = None,
    store: StoreId = None,
) -> None:
    """Move committed transactions into the space's Delta table, where every reader finds them."""
    with open_store(url, store) as opened, progress("archiving", unit="entries") as bar:
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
