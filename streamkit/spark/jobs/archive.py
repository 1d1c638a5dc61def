"""Archive many spaces of many stores in parallel.

python -m streamkit.spark.jobs.archive --url s3://bucket/prefix --min-age 86400
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...archive.spread import Spread
from ...client import connect
from ...errors import LeaseNotAcquired
from ...store import Store
from ...terminal import amount
from .command import arguments, existing, main, on_executors, say, spread_over, start, targets

__all__ = ["job"]


def _archive(
    store: Store, space: str, min_age: float | None, size: int, wait: float, spread: Spread | None = None
) -> tuple[int, int, int]:
    """Return (entries, files, transactions removed). LeaseNotAcquired if other archivers hold the lease all the
    time."""
    ends = time.monotonic() + wait
    entries = files = removed = 0
    while True:
        try:
            report = store.archive(space, min_age=min_age, target_file_bytes=size, spread=spread)
        except LeaseNotAcquired:
            if time.monotonic() >= ends:
                raise
        else:
            entries, files, removed = entries + report.entries, files + report.files, removed + report.removed
            if not report.busy:
                return entries, files, removed
            if time.monotonic() >= ends:
                raise LeaseNotAcquired(
                    f"space {space!r}: other archivers are at the partitions {', '.join(map(str, report.busy))}; "
                    f"{entries} entries of the others were archived. Run it again later"
                )
        time.sleep(1.0)


def _text(entries: int, files: int, removed: int) -> str:
    return f"{amount(entries, 'entry')} in {amount(files, 'file')}, {amount(removed, 'transaction')} left the log"


def job(given: Sequence[str] | None = None) -> int:
    parser = arguments("archive", "Move committed transactions into Delta tables.")
    parser.add_argument("--min-age", type=float, default=None, help="only transactions older than so many seconds")
    parser.add_argument("--target-file-bytes", type=int, default=64 << 20, help="payload in a file")
    parser.add_argument(
        "--wait", type=float, default=90.0, help="seconds for other archivers to end; a killed one's lease lasts 60"
    )
    parser.add_argument(
        "--spread", action="store_true", help="one space after the other, its partitions on all executors at once"
    )
    options = parser.parse_args(given)
    url, place, wait = options.url, options.archive, options.wait
    min_age, size = options.min_age, options.target_file_bytes

    def task(store: str, space: str) -> str:
        with connect(url, archive=place) as client:
            entries, files, removed = _archive(existing(client, store, space), space, min_age, size, wait)
        return _text(entries, files, removed)

    spark = start("archive")
    if options.spread:
        with connect(url, archive=place) as client:
            for store, space in targets(options):
                spread = spread_over(spark, url, place)
                done = _archive(existing(client, store, space), space, min_age, size, wait, spread)
                say(f"  {store} {space!r}: {_text(*done)}")
        return 0
    found = on_executors(spark, targets(options), task, "archiving")
    return 1 if any(error for *_, error in found) else 0


if __name__ == "__main__":
    main(job)
