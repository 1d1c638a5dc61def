"""Roll entries up into a Delta table, each entry exactly once, however often the program is run or killed.

python examples/spark/rollup.py --url file:///var/lib/app --store ID --space EWR \\
    --output file:///var/lib/rollup \\
    --sql "SELECT date_trunc('hour', timestamp) AS hour, count(*) AS departures FROM entries GROUP BY ALL"

The SQL sees the entries since the last run, as the view `entries`; its result is appended. So aggregates are partial:
readers of the table add them up, or the rows are merged into the existing rows: --merge-on hour --add departures.

The executors write rows as Parquet files into the table's directory. The driver commits their names and the position in
one commit. A file that no commit names, of a task or a job that failed, is not there, and `vacuum` removes it.

The program is one file, so `spark-submit rollup.py …` needs no other file.

It plans ranges of transactions with parts of streamkit's own data source: `plan`, `options`, `typed`, `versions` and
`jobs.command` of `streamkit.spark`. They may change with any release, and the public data source does not tell which
transactions a frame holds, as an exactly-once output must know. So pin streamkit's version if you copy this program.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from pyspark import cloudpickle

from streamkit.archive.table import check_installed
from streamkit.errors import CorruptData, EntriesRemoved, PermanentError, Unavailable
from streamkit.spark.jobs.command import arguments, main, say, start, targets
from streamkit.spark.options import parse
from streamkit.spark.plan import Span, limited, spans, trimmed
from streamkit.spark.session import register
from streamkit.spark.typed import BAD, bad_payloads, parse_payloads, struct

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Layout", "Output", "RollupReport", "job", "roll_up"]

# Executors do not have this file: they get its functions with each task, also if a program imports it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

BATCH = 50_000_000
_naming = threading.Lock()
"""The view is the session's, and another thread may roll up something else in it."""
_FILES = "path string, size bigint, rows bigint, stats string, values string"
_VALUE = "streamkit_value_"
_FILE_BYTES = 256 << 20
_GROUP_ROWS = 1 << 20
_SPILL = 256 << 20
"""Bytes that a merge holds before it uses the disk."""
_PARTITIONS = ("string", "tinyint", "smallint", "int", "bigint", "boolean", "date")


class RollupReport(NamedTuple):
    rows: int
    """Rows of the SQL's result, which the output was given."""
    bad: int
    """Entries whose payload is not of the schema, which were set aside."""
    batches: int
    """Commits to the output."""


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


def roll_up(
    spark: SparkSession,
    options: dict[str, str],
    sql: str,
    output: str,
    *,
    layout: Layout | None = None,
    schema: StructType | str | None = None,
    bad: str | None = None,
    batch_rows: int = BATCH,
) -> RollupReport:
    """Run `sql` over the new entries, and write its rows into the Delta table `output`.

    The view `entries` has the columns of format("streamkit"); `options` are the options of that format. With `schema`,
    the fields of JSON payloads replace the column `payload` (see parse_payloads). Entries that do not fit are
    appended unchanged to the Delta table `bad`. Without `bad` they raise ValueError, and nothing is written.

    A commit covers up to `batch_rows` entries, in whole transactions, and holds their rows and position. The rollup
    ends with the entries that were committed when it was called. Unavailable if another rollup was faster; ValueError
    if the rows do not fit the table; EntriesRemoved if entries behind the output's position were trimmed or expired.
    """
    check_installed()
    register(spark)
    parsed = parse(options)
    if parsed.tier != "all":
        raise ValueError(f"a rollup reads both tiers: leave the option 'tier' out, it is {parsed.tier!r}")
    if batch_rows < 1:
        raise ValueError(f"a batch has at least one row, not {batch_rows}")
    if bad is not None and schema is None:
        raise ValueError("`bad` needs `schema`, which decides whether an entry is bad: give both")
    target = Output(output, layout or Layout())
    aside = Output(bad, Layout()) if bad is not None else None
    report = RollupReport(0, 0, 0)
    with parsed.client() as client:
        held = target.load()
        # After this look the store may go on, and another rollup with it.
        whole = [_whole(span) for span in spans(client, parsed, named=False)]
        for span in whole:
            _after(span, held, bool(parsed.last))
            begin = _done(span, held) + 1
            gap = trimmed(client, span, begin) if begin > 1 and parsed.fail_on_loss else None
            if gap is not None:
                raise EntriesRemoved(
                    f"{gap} before they were rolled up: set the option failOnDataLoss to false (--go-on) to go on with "
                    "what is there, or take another output",
                    gap,
                )
        while True:
            table = target.load()
            planned = [_after(span, table, True) for span in whole]
            new = [span for span in planned if span.first <= span.last]
            if not new:
                return report
            new = limited(client, new, batch_rows)
            done = _batch(spark, options, new, sql, schema, target, aside)
            report = RollupReport(report.rows + done.rows, report.bad + done.bad, report.batches + 1)


def _batch(
    spark: SparkSession,
    options: dict[str, str],
    new: Sequence[Span],
    sql: str,
    schema: StructType | str | None,
    target: Output,
    aside: Output | None,
) -> RollupReport:
    """One commit, and before it the entries that are set aside, which know by themselves how far they go."""
    frame = _read(spark, options, new)
    kept = 0
    if schema is not None:
        typed = _typed(frame, schema)
        if aside is None:
            if count := typed.where(f"{BAD} IS NOT NULL").count():
                raise ValueError(
                    f"{count} payloads are not of the schema, and nothing was written: name a table for them with --bad"
                )
        else:
            kept = _set_aside(spark, options, new, schema, aside, target.url)
        frame = typed.where(f"{BAD} IS NULL").drop(BAD)
    with _naming:
        frame.createOrReplaceTempView("entries")
        rows = spark.sql(sql)
    return RollupReport(_append(target, rows, new), kept, 1)


def _typed(frame: DataFrame, schema: StructType | str) -> DataFrame:
    """The rows with the payload's fields. A field replaces a column of the same name."""
    taken = {name.lower() for name in struct(schema).fieldNames()} - {"payload"}
    return parse_payloads(frame.select(*(name for name in frame.columns if name not in taken)), schema)


def _set_aside(
    spark: SparkSession, options: dict[str, str], new: Sequence[Span], schema: Any, aside: Output, output: str
) -> int:
    table = aside.load()
    # Several outputs may share one table of bad documents: it notes how far it goes for each.
    of = f"{blake2b(output.encode(), digest_size=8).hexdigest()}/"
    # Killed after this and before the rows were written, it comes again.
    planned = [_after(span, table, True, of) for span in new]
    rest = [span for span in planned if span.first <= span.last]
    if not rest:
        return 0
    return _append(aside, bad_payloads(_read(spark, options, rest), schema), rest, of)


def _append(target: Output, rows: DataFrame, new: Sequence[Span], of: str = "") -> int:
    """The rows, and how far they go. Unavailable if that is not where the table is."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    def check(table: Any) -> None:
        if any(_after(span, table, True, of) != span for span in new):
            raise Unavailable(f"{target.url}: another rollup was faster: run it again")

    try:
        return target.write(rows, _marks_of(new, of), check)
    except CommitFailedError as error:
        raise Unavailable(f"{target.url}: {error}; another rollup may be running: run it again") from error
    except DeltaError as error:
        raise Unavailable(f"{target.url}: {error}") from error


def _whole(span: Span) -> Span:
    """The rows without the part of a transaction in which `until` ends, because marks are whole transactions."""
    return span._replace(last=span.last - 1, stop=0) if span.stop else span


def _mark(span: Span, of: str = "") -> str:
    """The space comes last: it may have any name."""
    return f"streamkit-rollup/{span.store}/{of}{span.partition}/{span.space}"


def _marks_of(planned: Sequence[Span], of: str) -> list[Any]:
    """The position that the rows reach, and the incarnation of their space."""
    from deltalake import Transaction

    marks = [Transaction(_mark(span, of), span.last) for span in planned]
    return marks + [Transaction(_mark(span, f"{of}incarnation/"), _version(span)) for span in planned]


def _version(span: Span) -> int:
    """The incarnation as what Delta takes for a version: 63 bits."""
    return int(span.incarnation or "0", 16) >> 1


def _after(span: Span, table: Any, bounded: bool, of: str = "") -> Span:
    """Return the part of a span that the output does not hold yet. `bounded`: the log may go on after it."""
    done = _done(span, table, of)
    if done:
        incarnation = table.transaction_version(_mark(span, f"{of}incarnation/"))
        if incarnation is not None and incarnation != _version(span):
            raise PermanentError(
                f"the output was made of another space {span.space!r} of the store {span.store}, which was deleted "
                "since: they do not belong together. Take another output"
            )
    if done > span.last and not bounded:
        raise CorruptData(
            f"the output holds transactions up to {done} of space {span.space!r}, and the store ends at {span.last}: "
            "they do not belong together"
        )
    return span if done < span.first else span._replace(first=done + 1, skip=0)


def _done(span: Span, table: Any, of: str = "") -> int:
    """The last transaction that the output holds."""
    return (table.transaction_version(_mark(span, of)) if table is not None else None) or 0


def _read(spark: SparkSession, options: dict[str, str], found: Sequence[Span]) -> DataFrame:
    pinned = json.dumps([[str(span.store), *span[1:]] for span in found])
    return spark.read.format("streamkit").options(**{**options, "snapshot": pinned}).load()


# -- the table ---------------------------------------------------------------------------------------------------------


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
    return int(time.time() * 1000)


def _types(table: Any) -> dict[str, Any]:
    return {field.name: field.type for field in table.schema().fields}


def _schema(frame: DataFrame) -> pa.Schema:
    """Return the schema of the rows in the table: any of them may be null, and moments are in UTC."""
    import pyarrow as pa

    from streamkit.spark.versions import arrow_schema_of

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


# -- on the executors --------------------------------------------------------------------------------------------------


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


# -- the command line --------------------------------------------------------------------------------------------------


def job(given: Sequence[str] | None = None) -> int:
    parser = arguments("rollup", "Write what SQL makes of new entries to a Delta table, each entry exactly once.")
    parser.prog = "rollup.py"
    parser.add_argument("--sql", required=True, help="over the view `entries`")
    parser.add_argument("--output", required=True, help="the Delta table, as a URL or path")
    parser.add_argument("--schema", help='of JSON payloads: "item string, price double"; its fields are columns then')
    parser.add_argument("--bad", help="the Delta table for entries whose payloads are not of the schema")
    parser.add_argument("--partition-by", default="", help="columns with files of their own, of a table that is new")
    parser.add_argument("--merge-on", default="", help="columns that tell a row: one that is there is replaced")
    parser.add_argument("--add", default="", help="columns that are added to those of the row that is there")
    parser.add_argument("--evolve", action="store_true", help="add columns to the table that the SQL gives anew")
    parser.add_argument("--batch-rows", type=int, default=BATCH, help="entries in a commit, about")
    parser.add_argument("--go-on", action="store_true", help="where entries were trimmed before they were rolled up")
    options = parser.parse_args(given)
    work = targets(options)
    say(f"rolling up {len(work)} spaces into {options.output}")
    given_options = {"url": options.url, "store": options.store, "space": options.space}
    if options.archive:
        given_options["archive"] = options.archive
    if options.go_on:
        given_options["failOnDataLoss"] = "false"
    layout = Layout(_names(options.partition_by), _names(options.merge_on), _names(options.add), options.evolve)
    report = roll_up(
        start("rollup"),
        given_options,
        options.sql,
        options.output,
        layout=layout,
        schema=options.schema,
        bad=options.bad,
        batch_rows=options.batch_rows,
    )
    verb = "merged" if layout.merge_on else "appended"
    say(f"{report.rows} rows {verb}" + (f", {report.bad} entries set aside in {options.bad}" * (report.bad > 0)))
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


if __name__ == "__main__":
    main(job)
