"""Restore spaces into a new store: from both tiers, or from the archive alone where the log is lost; up to a time.

python -m streamkit.spark.jobs.restore --url s3://bucket/prefix --store ID --into NEW-ID --until 2026-01-31T00:00:00

Transactions stay whole and in their order, segments keep their sequences; timestamps and transaction ids are new.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ...archive.restore import archived_spaces, restore_space
from ...client import connect
from ..options import bound
from .command import arguments, existing, main, on_executors, say, start, targets

__all__ = ["job"]


def job(given: Sequence[str] | None = None) -> int:
    parser = arguments("restore", "Copy a store's spaces into another store.")
    parser.add_argument("--into", required=True, type=UUID, help="the UUID of the store to restore into")
    parser.add_argument("--into-url", help="where that store is, if elsewhere")
    parser.add_argument("--until", default="", help="the last timestamp: milliseconds or ISO 8601")
    parser.add_argument("--cold", action="store_true", help="from the archive alone: the log is lost")
    options = parser.parse_args(given)
    until = bound("until", options.until)
    if isinstance(until, str):
        raise ValueError("until is a timestamp here, not an offset")
    url, place, into_url, into, cold = (
        options.url,
        options.archive,
        options.into_url or options.url,
        options.into,
        options.cold,
    )
    if cold:
        with connect(url, archive=place) as client:
            store = client.store(options.store)
            work = [(str(store.id), space) for space in archived_spaces(store)]
        work = [pair for pair in work if options.space in ("*", pair[1])]
    else:
        work = targets(options)
    if len({store for store, _ in work}) != 1:
        raise ValueError("restore takes one store at a time: --store ID")
    if str(into) == work[0][0] and into_url == url:
        raise ValueError("the source and the target are the same store: name another target")

    def task(store: str, space: str) -> str:
        with connect(url, archive=place) as client, connect(into_url) as other:
            source = client.store(store) if cold else existing(client, store, space)
            report = restore_space(source, other.store(into), space, until, cold)
        return f"{report.transactions} transactions copied" + (
            f", {report.present} existed already" * bool(report.present)
        )

    say(f"into the store {into}" + (f", up to {options.until}" if until else ""))
    found = on_executors(start("restore"), work, task, "restoring")
    return 1 if any(error for *_, error in found) else 0


if __name__ == "__main__":
    main(job)
