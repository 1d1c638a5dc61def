"""`spark.read.format("streamkit")` and its stream and sinks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from .filters import may_hold, tests_of
from .options import Options, parse, schema, table_options
from .plan import Span, TaskShare, packed, pieces, spans
from .rows import arrow_schema, read_pieces

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["StreamkitSource"]

_TABLE = "streamkit"
"""Key in the metadata of a table's columns: the options of the table."""


class Task(InputPartition):
    def __init__(self, piece: TaskShare) -> None:
        self.piece = piece


class PackedTask(InputPartition):
    """A task of a batch read: several small pieces, one after the other. A stream's tasks follow from the data
    instead."""

    def __init__(self, pieces: tuple[TaskShare, ...]) -> None:
        self.pieces = pieces


class _Reader(DataSourceReader):
    """One read, planned on the driver: every task reads from the same look at the watermarks.

    It takes no filters from the query, see streamkit.spark.filters.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.tests = tests_of(options)

    def partitions(self) -> Sequence[PackedTask]:
        with self.options.client() as client:
            planned = _pinned(self.options.snapshot) if self.options.snapshot else spans(client, self.options)
            some = [piece for piece in pieces(client, self.options, planned) if may_hold(piece, self.tests)]
            return [PackedTask(task) for task in packed(some, self.options.split)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark's own has none: there is nothing to read.
        return read_pieces(getattr(partition, "pieces", ()), self.options, self.tests)


def _pinned(text: str) -> list[Span]:
    """Decode the spans that read_space has planned."""
    import json
    from uuid import UUID

    return [Span(UUID(store), *rest) for store, *rest in json.loads(text)]


class StreamkitSource(DataSource):
    """Options are those of `streamkit.spark.options`."""

    @classmethod
    def name(cls) -> str:
        return "streamkit"

    def schema(self) -> StructType | str:
        columns = parse(self.options).columns
        of_table = table_options(self.options)
        if not of_table:
            return schema(columns)
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructField, StructType

        # Of a table Spark keeps the schema, and gives its reader no options but those of the query.
        fields = from_arrow_schema(arrow_schema(columns)).fields
        return StructType([StructField(field.name, field.dataType, True, {_TABLE: of_table}) for field in fields])

    def _given(self, schema: StructType | None) -> Options:
        of_table = {} if schema is None else schema.fields[0].metadata.get(_TABLE, {})
        return parse({**of_table, **self.options})

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self._given(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .stream import StreamReader

        return StreamReader(self._given(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .sink import BatchWriter

        if overwrite:
            raise ValueError("a log is only appended to: use mode('append')")
        return BatchWriter(parse(self.options, writing=True), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from .sink import StreamWriter

        return StreamWriter(parse(self.options, writing=True), schema)
