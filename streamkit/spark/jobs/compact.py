"""Bring small files of archives together, and remove files that no version needs any more.

python -m streamkit.spark.jobs.compact --url file:///var/lib/app --retention-hours 168
"""

from __future__ import annotations

from collections.abc import Sequence

from ...archive.compact import compact_space
from ...archive.spread import Spread
from ...client import connect
from ...store import inner
from ...terminal import amount
from .command import arguments, existing, main, on_executors, say, spread_over, start, targets

__all__ = ["job"]


def job(given: Sequence[str] | None = None) -> int:
    parser = arguments("compact", "Merge small files of archives; remove those that no version needs.")
    parser.add_argument("--target-file-bytes", type=int, default=64 << 20, help="payload in a file")
    parser.add_argument(
        "--retention-hours", type=float, default=168.0, help="keep younger files: longer than the longest read takes"
    )
    parser.add_argument(
        "--spread", action="store_true", help="one space after the other, its files on all executors at once"
    )
    options = parser.parse_args(given)
    url, place, size, hours = options.url, options.archive, options.target_file_bytes, options.retention_hours

    def task(store: str, space: str, spread: Spread | None = None) -> str:
        with connect(url, archive=place) as client:
            archive = inner(existing(client, store, space)).archive(space)
            before, after, removed = compact_space(archive, size, hours, spread=spread)
        return f"{amount(before, 'file')} became {after:,}; {amount(removed, 'old file')} removed"

    spark = start("compact")
    if options.spread:
        for store, space in targets(options):
            say(f"  {store} {space!r}: {task(store, space, spread_over(spark, url, place))}")
        return 0
    found = on_executors(spark, targets(options), task, "compacting")
    return 1 if any(error for *_, error in found) else 0


if __name__ == "__main__":
    main(job)
