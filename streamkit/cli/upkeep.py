"""verify, repair, maintain: whether a store is whole, and what keeps it so."""

from __future__ import annotations

from typing import Annotated

import typer

from streamkit import PermanentError, Store

from .options import Archive, Json, StoreId, Url, check_space, open_client, open_store, resolved_url
from .output import print_line, print_note, record_line
from .progress import progress

__all__ = ["maintain", "repair", "verify"]

OneSpace = Annotated[str | None, typer.Argument(metavar="SPACE", help="One space. Else all.", show_default=False)]


def verify(
    space: OneSpace = None, json: Json = False, url: Url = None, store: StoreId = None, archive: Archive = None
) -> None:
    """Walk log and archive: dense, undamaged, and the index says the same. Every finding is named; exit 1 with any."""
    with open_store(url, store, archive) as opened, progress("verifying", unit="transactions") as bar:
        report = opened.verify(space, progress=bar.at)
        if report.ok and not report.transactions:
            _check_there(opened, space, url, archive)
    for finding in report.findings:
        fields = {
            "space": finding.space,
            "partition": finding.partition,
            "key": finding.key.hex(),
            "problem": finding.problem,
        }
        text = f"{finding.space}/{finding.partition}  {finding.key!r}  {finding.problem}"
        print_line(record_line(fields) if json else text)
    counts = {"transactions": report.transactions, "entries": report.entries, "segments": report.segments}
    if json:
        print_line(record_line({"ok": report.ok, "findings": len(report.findings), **counts}))
    elif report.ok:
        checked = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        print_line(f"whole: {checked}")
    if not report.ok:
        print_note(f"CorruptData: {len(report.findings)} findings")
        raise typer.Exit(1)


def repair(
    space: OneSpace = None, json: Json = False, url: Url = None, store: StoreId = None, archive: Archive = None
) -> None:
    """Build the index again from log and archive, which are never touched. Nobody may write or archive meanwhile."""
    with open_store(url, store, archive) as opened:
        rows = opened.repair(space)
        if not rows:
            _check_there(opened, space, url, archive)  # afterwards: what lists it may have been what was damaged
    print_line(
        record_line({"rows": rows}) if json else f"the index is built anew: {rows:,} rows were written or removed"
    )


def maintain(space: OneSpace = None, url: Url = None, store: StoreId = None, archive: Archive = None) -> None:
    """Bring the index up to the log, for a schedule. No reader needs it; readers may be faster after it."""
    with open_store(url, store, archive) as opened:
        if space is not None or next(iter(opened.get_spaces()), None) is None:
            _check_there(opened, space, url, archive)
        opened.maintain(space)


def _check_there(opened: Store, space: str | None, url: str | None, archive: str | None) -> None:
    """PermanentError if there is no such store, or no such space in it: nothing was found, and nothing done."""
    if space is not None:
        check_space(opened, space)
    with open_client(url, archive) as client:
        if opened.id not in client.stores():
            raise PermanentError(f"there is no store {opened.id} at {resolved_url(url)}")
