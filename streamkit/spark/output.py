"""A Delta table that a job fills: rows, and how far they go, in one commit that builds on the version looked at.

Executors write the rows as Parquet files into the table's directory; the driver sees names and sizes, and commits them.
A file that no commit names, of a task or a job that failed, is not there, and `vacuum` removes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

__all__ = ["Layout", "Output"]

_FILES = "path string, size bigint, rows bigint, stats string, values string"
_VALUE = "streamkit_value_"
_FILE_BYTES = 256 << 20
_GROUP_ROWS = 1 << 20
_SPILL = 256 << 20
"""Bytes that a merge holds before it uses the disk."""
_PARTITIONS = ("string", "tinyint", "smallint", "int", "bigint", "boolean", "date")


class Layout(NamedTuple):
    """The layout of rows in a table."""

    partition_by: tuple[str, ...] = ()
    """Columns that have a file of their own for each value; of a table that is there already, as it has them."""
    merge_on: tuple[str, ...] = ()
    """Columns that tell a row: one that the table has already is replaced."""
    add: tuple[str, ...] = ()
    """Columns that are added to those of the row in place of replacing them."""
    evolve: bool = False
    """True if columns may be added to the table. Columns that the rows lack are null."""


class Output:
    """A Delta table as a URL or path, with delta-rs. Errors of the table are delta-rs's own."""

    def __init__(self, url: str, layout: Layout) -> None:
        self.url = url
        self.layout = layout

    def load(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self.url)
        except TableNotFoundError:
            return None

    def write(self, frame: DataFrame, marks: Sequence[Any], check: Callable[[DeltaTable], None]) -> int:
        """The frame's rows and the marks, in one commit; how many rows. ValueError if they do not fit the table.

        `check` is called with the version that the commit builds on: what it raises ends it before anything is written.
        CommitFailedError if another was faster.
        """
        from deltalake import CommitProperties

        schema = _schema(frame)
        self._check_layout(frame)
        table = self._prepared(schema, check)
        columns = _types(table)
        arranged = frame.select(*(name for name in columns if name in schema.names))
        target = schema.empty_table().select(arranged.columns).schema
        partition_by = tuple(table.metadata().partition_columns)
        files = self._files(table.table_uri, arranged, target, () if self.layout.merge_on else partition_by)
        rows: int = sum(file["rows"] for file in files)
        properties = CommitProperties(app_transactions=list(marks), max_commit_retries=0)
        if self.layout.merge_on and rows:
            self._merge(table, files, target, properties)
        else:
            from deltalake.transaction import AddAction

            actions: list[Any] = [
                AddAction(file["path"], file["size"], json.loads(file["values"]), _now(), True, file["stats"])
                for file in files
            ]
            table.create_write_transaction(
                actions, "append", table.schema(), list(partition_by), commit_properties=properties
            )
        return rows

    def _check_layout(self, frame: DataFrame) -> None:
        kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        layout = self.layout
        for option, names in (
            ("partition-by", layout.partition_by),
            ("merge-on", layout.merge_on),
            ("add", layout.add),
        ):
            for name in names:
                if name not in kinds:
                    raise ValueError(f"--{option} names {name!r}, and the SQL gives {', '.join(kinds)}")
        if layout.add and (not layout.merge_on or set(layout.add) & set(layout.merge_on)):
            raise ValueError("--add is for columns of rows that are merged, and not of --merge-on itself")
        for name in layout.partition_by:
            if kinds[name] not in _PARTITIONS:
                raise ValueError(
                    f"--partition-by {name!r} is {kinds[name]}: a partition is of {', '.join(_PARTITIONS)}. CAST it"
                )

    def _prepared(self, schema: pa.Schema, check: Callable[[DeltaTable], None]) -> DeltaTable:
        """The table, with the columns that the rows need."""
        from deltalake import DeltaTable, Schema, write_deltalake
        from deltalake.exceptions import DeltaError

        layout = self.layout
        table = self.load()
        if table is None:
            # Without rows, so that the rows are only ever added to a version that has been looked at.
            with suppress(DeltaError):
                write_deltalake(self.url, schema.empty_table(), mode="error", partition_by=list(layout.partition_by))
            table = DeltaTable(self.url)
        check(table)
        partition_by = tuple(table.metadata().partition_columns)
        if layout.partition_by and layout.partition_by != partition_by:
            raise ValueError(
                f"{self.url} is partitioned by {', '.join(partition_by) or 'nothing'}, and not by "
                f"{', '.join(layout.partition_by)}: leave --partition-by out, or take another output"
            )
        there = _types(table)
        given = {field.name: field.type for field in Schema.from_arrow(schema).fields}
        fits = there == given
        if layout.evolve:
            fits = all(there.get(name, kind) == kind for name, kind in given.items())
            lacking = set(partition_by) - given.keys()
            fits = fits and not lacking
        if not fits:
            told = [", ".join(f"{name} {kind}" for name, kind in columns.items()) for columns in (there, given)]
            more = "" if layout.evolve else ", add its columns with --evolve"
            raise ValueError(
                f"{self.url} has the columns {told[0]}, and the SQL gives {told[1]}: nothing was written. Change the "
                f"SQL (CAST, AS){more}, or take another output"
            )
        new = [field for field in Schema.from_arrow(schema).fields if field.name not in there]
        if new:
            # A commit of its own, without rows: a run after a kill finds the columns there.
            table.alter.add_columns(new)
            table = DeltaTable(self.url)
            check(table)
        return table

    def _files(self, url: str, frame: DataFrame, schema: pa.Schema, partition_by: Sequence[str]) -> list[Any]:
        """The rows as files of the table's directory, written by the executors."""
        from pyspark.sql import functions as F

        if partition_by:
            frame = frame.repartition(*partition_by).sortWithinPartitions(*partition_by)
            for at, name in enumerate(partition_by):
                # As Delta's log has them.
                frame = frame.withColumn(f"{_VALUE}{at}", F.col(name).cast("string"))
        named = tuple(partition_by)

        def written(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return _write(url, schema, named, batches)

        return frame.mapInArrow(written, _FILES).collect()

    def _merge(self, table: DeltaTable, files: Sequence[Any], schema: pa.Schema, properties: Any) -> None:
        """Rows that the table has are replaced, or added up, and the others come to it; a batch of them at a time."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        filesystem = _filesystem(table.table_uri)
        paths = [file["path"] for file in files]

        def rows(columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
            for path in paths:
                with filesystem.open_input_file(path) as source:
                    yield from pq.ParquetFile(source).iter_batches(columns=columns)

        keys = list(self.layout.merge_on)
        named = pa.Table.from_batches(rows(keys), schema=schema.empty_table().select(keys).schema)
        for name in keys:
            if named[name].null_count:
                raise ValueError(f"--merge-on {name!r} is null in a row of the SQL: it does not tell which row that is")
        if named.group_by(keys).aggregate([]).num_rows != named.num_rows:
            raise ValueError(f"the SQL gives several rows for one {', '.join(keys)}: GROUP BY them")
        changed = {}
        for name in schema.names:
            if name not in keys:
                there, new = f"target.{_quoted(name)}", f"source.{_quoted(name)}"
                added = f"coalesce({there}, 0) + coalesce({new}, 0)"
                changed[_quoted(name)] = added if name in self.layout.add else new
        merging = table.merge(
            pa.RecordBatchReader.from_batches(schema, rows()),
            " AND ".join(f"target.{_quoted(name)} = source.{_quoted(name)}" for name in keys),
            source_alias="source",
            target_alias="target",
            max_spill_size=_SPILL,
            commit_properties=properties,
        )
        if changed:
            merging = merging.when_matched_update(changed)
        merging.when_not_matched_insert({_quoted(name): f"source.{_quoted(name)}" for name in schema.names}).execute()
        for path in paths:
            filesystem.delete_file(path)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _now() -> int:
    import time

    return int(time.time() * 1000)


def _types(table: Any) -> dict[str, Any]:
    return {field.name: field.type for field in table.schema().fields}


def _schema(frame: DataFrame) -> pa.Schema:
    """Return the schema of the rows in the table: any of them may be null, and moments are in UTC."""
    import pyarrow as pa

    from .versions import arrow_schema_of

    return pa.schema([field.with_nullable(True) for field in arrow_schema_of(frame.schema)])


def _filesystem(url: str) -> Any:
    """A pyarrow file system of a table's directory. For a directory that is not local, delta-rs gives its own."""
    import pyarrow.fs as fs
    from deltalake.fs import DeltaStorageHandler

    scheme, _, path = url.rpartition("://")
    if scheme in ("", "file"):
        from urllib.parse import unquote

        return fs.SubTreeFileSystem(unquote(path) if scheme else path, fs.LocalFileSystem())
    return fs.PyFileSystem(DeltaStorageHandler(url))


# -- on the executors ------------------------------------------------------------------------------------------------


def _write(
    url: str, schema: pa.Schema, partition_by: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One task's rows as files; those of a partition come together. What is known of each file, as _FILES says."""
    import pyarrow as pa

    filesystem = _filesystem(url)
    stored = [field for field in schema if field.name not in partition_by]
    file: _File | None = None
    for batch in batches:
        for values, rows in _runs(batch, partition_by):
            if file is not None and (file.values != values or file.bytes >= _FILE_BYTES):
                yield file.closed()
                file = None
            if file is None:
                file = _File(filesystem, pa.schema(stored), values)
            file.add(rows)
    if file is not None:
        yield file.closed()


def _runs(batch: pa.RecordBatch, partition_by: Sequence[str]) -> Iterator[tuple[dict[str, str | None], pa.RecordBatch]]:
    if not partition_by:
        if batch.num_rows:
            yield {}, batch
        return
    columns = [batch[f"{_VALUE}{at}"].to_pylist() for at in range(len(partition_by))]
    begin = 0
    for end in range(1, batch.num_rows + 1):
        if end == batch.num_rows or any(column[end] != column[begin] for column in columns):
            values = {name: column[begin] for name, column in zip(partition_by, columns, strict=True)}
            yield values, batch.slice(begin, end - begin)
            begin = end


class _File:
    """A Parquet file that is being written."""

    def __init__(self, filesystem: Any, schema: pa.Schema, values: dict[str, str | None]) -> None:
        import pyarrow.parquet as pq

        self.values = values
        self.bytes = self._rows = 0
        self._filesystem = filesystem
        self._schema = schema
        self._path = f"part-{uuid4()}.parquet"
        self._writer = pq.ParquetWriter(self._path, schema, filesystem=filesystem, compression="zstd")

    def add(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches([batch]).select(self._schema.names).cast(self._schema)
        self._writer.write_table(table, row_group_size=_GROUP_ROWS)
        self.bytes += table.nbytes
        self._rows += batch.num_rows

    def closed(self) -> pa.RecordBatch:
        import pyarrow as pa

        self._writer.close()
        size = self._filesystem.get_file_info(self._path).size
        # Files are few and small for the most part, and readers have the statistics in their footers.
        stats = json.dumps({"numRecords": self._rows})
        row = {"path": self._path, "size": size, "rows": self._rows, "stats": stats, "values": json.dumps(self.values)}
        kinds = [("path", pa.string()), ("size", pa.int64()), ("rows", pa.int64()), ("stats", pa.string())]
        return pa.RecordBatch.from_pylist([row], schema=pa.schema([*kinds, ("values", pa.string())]))
