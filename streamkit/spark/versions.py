"""The parts of Spark's Python data source API: 4.2 offers all of it, 4.0 and 4.1 batches and streams.

Spark 4.0 and 4.1 do not give a stream's reader the beginning of a batch, nor its limit. They have no trigger that
empties a source in several batches. Spark 4.0 hands a stream's sink rows, not Arrow batches.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import StructType
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:

        class ReadLimit:
            """The limit of a batch."""

        class ReadAllAvailable(ReadLimit):
            pass

        class ReadMaxRows(ReadLimit):
            def __init__(self, max_rows: int) -> None:
                self.max_rows = max_rows

        class SupportsTriggerAvailableNow:
            pass


__all__ = [
    "SINK_TAKES_ROWS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "StreamSink",
    "SupportsTriggerAvailableNow",
    "arrow_schema_of",
]

SINK_TAKES_ROWS = not hasattr(datasource, "DataSourceStreamArrowWriter")
StreamSink: Any = getattr(datasource, "DataSourceStreamArrowWriter", None) or datasource.DataSourceStreamWriter
"""The base class of a stream's sink."""


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Spark's schema as Arrow's, with moments in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    named: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **named)
