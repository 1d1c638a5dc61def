"""Archive many spaces of many stores in parallel.

python -m streamkit.spark.jobs.archive --url s3://bucket/prefix --min-age 86400
"""

from __future__ import annotations

from collections.abc import Sequence

from ...client import connect
from .command import arguments, main, on_executors, start, targets

__all__ = ["job"]


def job(given: Sequence[str] | None = None) -> int:
    parser = arguments("archive", "Move committed transactions into Delta tables.")
    parser.add_argument("--min-age", type=float, default=None, help="only what is older than so many seconds")
    parser.add_argument("--target-file-bytes", type=int, default=64 << 20, help="payload in a file")
    options = parser.parse_args(given)
    url, place, min_age, size = options.url, options.archive, options.min_age, options.target_file_bytes

    def task(store: str, space: str) -> str:
        with connect(url, archive=place) as client:
            report = client.store(store).archive(space, min_age=min_age, target_file_bytes=size)
        return f"{report.entries} entries in {report.files} files, {report.removed} transactions left the log"

    found = on_executors(start("archive"), targets(options), task, "archiving")
    return 1 if any(error for *_, error in found) else 0


if __name__ == "__main__":
    main(job)
