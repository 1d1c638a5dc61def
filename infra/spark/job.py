"""Runs a job of streamkit by its name, where a platform wants a file to start: job.py archive --url s3://bucket/prefix"""

from __future__ import annotations

import sys
from importlib import import_module

JOBS = ("archive", "compact", "lag", "restore", "verify")


def main() -> None:
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in JOBS:
        sys.exit(f"job.py JOB …: the job is one of {', '.join(JOBS)}, not {name!r}")
    from streamkit.spark.jobs.command import main as run

    run(import_module(f"streamkit.spark.jobs.{name}").job)


if __name__ == "__main__":
    main()
