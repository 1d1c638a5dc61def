"""The daemon of Spark's Python workers in the tests: before it forks a worker, it has imported what the worker needs.

Spark starts a daemon for each kind of worker. Its own daemon imports nothing, so that each new worker imports Arrow,
pandas and streamkit again, which takes longer than the work of most tests.
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
from pyspark.daemon import manager

import streamkit.spark.sink
import streamkit.spark.source
import streamkit.spark.stream  # noqa: F401
import streamkit_local  # noqa: F401

if __name__ == "__main__":
    for name in sys.argv[1:2]:
        importlib.import_module(name)
    gc.freeze()
    manager()
