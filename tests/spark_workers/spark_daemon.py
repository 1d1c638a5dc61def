"""The daemon of Spark's Python workers in the tests: before it forks a worker, it has imported what the worker needs.

Spark starts a daemon for each kind of worker. Its own daemon imports nothing, so that each new worker imports Arrow,
pandas and streamkit again, which takes longer than the work of most tests. A session can name the daemon of the workers
that run tasks; `sitecustomize` prepares the daemons of those that plan, commit and stream.
"""

from __future__ import annotations

import gc
import importlib
import sys

import pandas  # noqa: F401
import pyarrow.compute
import pyarrow.dataset  # noqa: F401
import pyspark.sql.datasource
import pyspark.sql.pandas.types
import pyspark.worker  # noqa: F401

import streamkit.spark.sink
import streamkit.spark.source
import streamkit.spark.stream  # noqa: F401
import streamkit_local  # noqa: F401


def prepare(modules: list[str]) -> None:
    """Import `modules`, the kind of the workers, too."""
    for name in modules:
        importlib.import_module(name)
    gc.freeze()


if __name__ == "__main__":
    prepare(sys.argv[1:2])
    from pyspark.daemon import manager

    manager()
