"""Spark over streamkit: a data source for batch and streaming, the native path to the cold tier, and jobs.

    from streamkit.spark import read_space, register
    register(spark)
    spark.read.format("streamkit").options(url=url, store=id, space="orders").load()

The extra `spark` brings pyspark; Java 17 must be there.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import MissingDependency

if find_spec("pyspark") is None:
    raise MissingDependency("streamkit.spark needs pyspark: pip install 'streamkit-store[spark]'")

from .lag import StreamLag, stream_lag
from .native import read_space
from .overtaken import FilesReplaced, planned_again
from .session import register, session
from .typed import parse_payloads
from .types import parse_type

if TYPE_CHECKING:
    from .sink import write_space

__all__ = [
    "FilesReplaced",
    "StreamLag",
    "parse_payloads",
    "parse_type",
    "planned_again",
    "read_space",
    "register",
    "session",
    "stream_lag",
    "write_space",
]


if not TYPE_CHECKING:  # a type checker tells of names that are not there

    def __getattr__(name: str) -> Any:
        # Not before it is used: Spark before 4.0 has no sinks of this kind, and runs jobs that only work on executors.
        if name == "write_space":
            from .sink import write_space

            return write_space
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
