"""`spark.read.format("streamkit")` and its stream and sinks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
)

from ..errors import MissingDependency
from .filters import Test, may_hold, tests_of
from .options import Options, parse, schema
from .plan import Piece, Span, pieces, spans
from .rows import read_piece

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["StreamkitSource"]


class Task(InputPartition):
    def __init__(self, piece: Piece) -> None:
        self.piece = piece


class _Reader(DataSourceReader):
    """One read, planned on the driver: every task reads from the same look at the watermarks."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.tests: list[Test] = []
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def partitions(self) -> list[Task]:
        with self.options.client() as client:
            found = _pinned(self.options.snapshot) if self.options.snapshot else spans(client, self.options)
            return [Task(piece) for piece in pieces(client, self.options, found) if may_hold(piece, self.tests)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return read_piece(partition.piece, self.options, self.tests)


class _PushFilters:
    """A reader's pushFilters. Spark calls it where it pushes filters down, and refuses a reader that overrides the
    method where it does not: to it this looks as if the method were the inherited one.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.tests, rest = tests_of(filters)
        return rest


def _pinned(text: str) -> list[Span]:
    """What read_space has looked at."""
    import json
    from uuid import UUID

    return [Span(UUID(store), *rest) for store, *rest in json.loads(text)]


class StreamkitSource(DataSource):
    """Options are those of `streamkit.spark.options`."""

    @classmethod
    def name(cls) -> str:
        return "streamkit"

    def schema(self) -> str:
        return schema(parse(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if find_spec("pyspark.sql.streaming.datasource") is None:
            raise MissingDependency(
                "reading a stream from a store needs Spark 4.2 or newer; batches are read from 4.1 on"
            )
        from .stream import StreamReader

        return StreamReader(parse(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .sink import BatchWriter

        if overwrite:
            raise ValueError("a log is only appended to: use mode('append')")
        return BatchWriter(parse(self.options, writing=True), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from .sink import StreamWriter

        return StreamWriter(parse(self.options, writing=True), schema)
