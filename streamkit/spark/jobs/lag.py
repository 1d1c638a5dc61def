"""Tell how far a stream is behind, from its checkpoint: entries, bytes and seconds, a line of JSON for each space.

python -m streamkit.spark.jobs.lag --url file:///var/lib/app --checkpoint /data/checkpoint
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from ..lag import stream_lag
from .command import main, say

__all__ = ["job"]


def job(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m streamkit.spark.jobs.lag", description="Tell how far a stream is behind."
    )
    parser.add_argument("--url", required=True, help="where the stores are")
    parser.add_argument("--checkpoint", required=True, help="the query's checkpointLocation, as a path or URL")
    parser.add_argument("--archive", help="where the archives are, if not beside the stores")
    options = parser.parse_args(given)
    for (store, space), lag in stream_lag(options.checkpoint, options.url, archive=options.archive).items():
        say(json.dumps({"store": str(store), "space": space, **lag._asdict()}))
    return 0


if __name__ == "__main__":
    main(job)
