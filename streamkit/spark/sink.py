"""Writing a DataFrame, exactly once: every transaction has an idempotency key, and a repetition computes the same key.

A key depends on the write's name and on the rows, never on Spark's division into tasks. `write_space` gives each row a
bucket by the hash of its segment. The rows of a bucket come to one task in one order, and its transactions are counted.
A stream's tasks are those of its source, which are the same when a batch is repeated.
"""

from __future__ import annotations

import gc
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ..errors import TransactionIdMismatch
from ..log.idempotency import LASTING
from ..model import Record
from ..names import check_name, partition_of
from ..store import Store, inner
from ..telemetry.around import current_hook
from ..transaction import add_all
from .options import Options, parse
from .overtaken import naming_replaced_files
from .versions import SINK_TAKES_ROWS, StreamSink, arrow_schema_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["BatchWriter", "StreamWriter", "as_batches", "write_space"]

_BYTES = 8 << 20
_ROWS = 20_000
_SEGMENTS = 5000
_TAKEN = 10_000
"""The most rows of a task that are sorted together, if they have no more than _BYTES."""
_HELD = 64 << 20
"""Payload that a task holds for transactions of several partitions."""
_UNCOLLECTED = 100_000
"""Objects that may be made before the interpreter looks for unreachable cycles."""
_BUCKET = "streamkit_bucket"
_ROW = "streamkit_row"
_BUCKETS = 16
"""The least number of buckets. It does not depend on the cluster, because a repeated write must give the same
buckets."""
_CHANGED = (
    "A first attempt has written other rows here: entries of the source were removed meanwhile, or the query gives its "
    "rows to other tasks. docs/spark-write.md shows how to finish such a batch"
)
_TYPES = {
    "segment": ("string",),
    "payload": ("binary", "string"),
    "metadata": ("map<string,string>",),
    "store": ("string",),
    "space": ("string",),
}


def write_space(
    frame: DataFrame,
    url: str,
    store: UUID | str,
    space: str,
    *,
    order: str = "",
    idempotency_key: str = "",
    partitions: int = 1,
) -> None:
    """Append a DataFrame with the columns segment, payload and perhaps metadata. `order` orders the rows of a segment.

    All rows go to `store` and `space`. A column `store` or `space` with another value is an error, and nothing is
    written. ValueError for any other column. FilesReplaced if read_space() made the frame, and an erasure has replaced
    its files since; then nothing is written.

    With `idempotency_key` the same frame again writes nothing twice, and completes a failed write, with any number of
    tasks. Rows of a segment with equal `order` are then ordered by their payload; without `order`, all rows are.
    Without a key they keep the frame's order. `partitions` applies to a new space.
    """
    from pyspark.sql import functions as F

    from .session import register

    register(frame.sparkSession)
    given = {"url": url, "store": str(store), "space": space, "partitions": str(partitions)}
    if order:
        given["order"] = order
    if idempotency_key:
        given["idempotencyKey"] = idempotency_key
    options = parse(given, writing=True)
    check_columns(options, frame.schema)
    if options.stores is None or len(options.stores) != 1 or options.space is None:
        raise ValueError(f"a frame is written to one store and one space, not to {str(store)!r} and {space!r}")
    with options.client() as client:
        count = max(_BUCKETS, _partitions(client.store(options.stores[0]), options.space, partitions))
    frame, bucket = _to_one_place(frame, options.stores[0], options.space, F.pmod(F.xxhash64("segment"), F.lit(count)))
    columns = [F.col(name) for name in dict.fromkeys(("segment", order)) if name and name in frame.columns]
    if idempotency_key:
        columns.append(F.col("payload"))
        if "metadata" in frame.columns:
            columns.append(F.array_sort(F.map_entries("metadata")))
    else:
        frame = frame.withColumn(_ROW, F.monotonically_increasing_id())
        columns.append(F.col(_ROW))
    frame = frame.withColumn(_BUCKET, bucket).drop("store", "space")
    frame = frame.repartition(_BUCKET).sortWithinPartitions(_BUCKET, *columns)
    # Spark knows all rows before it writes the first one: nothing is written yet if a file is gone.
    with naming_replaced_files():
        frame.write.format("streamkit").options(**given).mode("append").save()


def _to_one_place(frame: DataFrame, store: UUID, space: str, bucket: Column) -> tuple[DataFrame, Column]:
    """The frame, and `bucket`, which fails where a row names another place. Spark knows the buckets of all rows before
    it hands any of them to the sink: nothing is written then."""
    from pyspark.sql import functions as F

    for name, target in (("store", str(store)), ("space", space)):
        if name in frame.columns:
            said = F.lower(name) if name == "store" else F.col(name)
            message = F.concat(
                F.lit(f"a row has {name} = "), F.coalesce(name, F.lit("null")), F.lit(elsewhere(name, target))
            )
            bucket = F.when(said.eqNullSafe(target), bucket).otherwise(F.raise_error(message))
    return frame, bucket


def elsewhere(name: str, target: str) -> str:
    """Explain that a row's column `name` is not the place that the write names."""
    return (
        f", and the write names the {name} {target!r}: the write decides. Drop the columns, "
        "frame.drop('store', 'space'); or, to write to many places, use frame.write.format('streamkit') without the "
        f"option {name!r}"
    )


@dataclass
class Written(WriterCommitMessage):
    rows: int
    transactions: int


def check_columns(options: Options, schema: StructType) -> None:
    """Raise ValueError for a DataFrame that cannot be written."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    names = ", ".join(kinds) or "none"
    for name in ("segment", "payload"):
        if name not in kinds:
            raise ValueError(f"the DataFrame has no column {name!r}; it has {names}")
    for name, wanted in _TYPES.items():
        if name in kinds and kinds[name] not in wanted:
            raise ValueError(f"the column {name!r} is {kinds[name]}; it must be {' or '.join(wanted)}")
    written = {*_TYPES, options.order, _BUCKET, _ROW}
    if lost := [name for name in kinds if name not in written]:
        raise ValueError(
            f"the DataFrame has columns that are not written: {', '.join(lost)}. A sink writes segment, payload and "
            "metadata, to the place that store and space name, in the order of the column `order`. Select them: "
            "frame.select('segment', 'payload', 'metadata')"
        )
    if options.order and options.order not in kinds:
        raise ValueError(f"the option 'order' names {options.order!r}; the columns are {names}")
    if "store" not in kinds and (options.stores is None or len(options.stores) != 1):
        raise ValueError("say which store is written to: one UUID as the option 'store', or a column 'store'")
    if "space" not in kinds and options.space is None:
        raise ValueError("say which space is written to: its name as the option 'space', or a column 'space'")


class _Run(NamedTuple):
    """Rows of one segment that follow on each other."""

    bucket: int | None
    place: tuple[UUID, str]
    """Store and space."""
    segment: str
    records: list[Record]
    size: int
    """Bytes of payload."""


class _Stretch(NamedTuple):
    """Runs of rows that follow on each other, of one bucket and one place. Neighbours are of different segments."""

    bucket: int | None
    place: tuple[UUID, str]
    segments: list[str]
    records: list[list[Record]]
    """The records of each run."""
    rows: list[int]
    """Rows of the batch up to the end of each run."""
    sizes: list[int]
    """Bytes of payload of the batch up to the end of each run."""
    bytes_before: int

    def run(self, at: int) -> _Run:
        size = self.sizes[at] - (self.sizes[at - 1] if at else self.bytes_before)
        return _Run(self.bucket, self.place, self.segments[at], self.records[at], size)


class _Open:
    """A transaction that is being gathered."""

    def __init__(self, store: UUID, space: str, partition: int) -> None:
        self.store = store
        self.space = space
        self.partition = partition
        self.parts: list[tuple[str, list[Record]]] = []
        self.rows = 0
        self.bytes = 0

    def add(self, segment: str, records: list[Record], size: int) -> None:
        if not self.parts or self.parts[-1][0] != segment:
            self.parts.append((segment, []))
        self.parts[-1][1].extend(records)
        self.rows += len(records)
        self.bytes += size

    def add_some(self, stretch: _Stretch, begin: int) -> tuple[int, int]:
        """Add the runs from `begin`, which is not the first, that fit. Returns the first that does not, and bytes."""
        rows, sizes = stretch.rows, stretch.sizes
        row, size = rows[begin - 1], sizes[begin - 1]
        end = min(
            bisect_right(rows, row + _ROWS - self.rows, begin),
            bisect_right(sizes, size + _BYTES - self.bytes, begin),
            max(begin, begin + _SEGMENTS - len(self.parts)),
            len(rows),
        )
        if end == begin:
            return begin, 0
        self.parts += zip(stretch.segments[begin:end], stretch.records[begin:end], strict=True)
        self.rows += rows[end - 1] - row
        self.bytes += sizes[end - 1] - size
        return end, sizes[end - 1] - size


class _Transactions:
    """Cuts rows into transactions: of one bucket, of one partition of one space, and not too large. The cuts depend on
    the rows and their order alone, not on Spark's batches.
    """

    def __init__(self, options: Options, client: Any) -> None:
        self._options = options
        self._client = client
        self._places: dict[tuple[UUID, str], tuple[int, int]] = {}
        """The place of each (store, space) among them, and the number of its partitions."""
        self._place: tuple[UUID, str] | None = None
        self._number = self._count = 0
        """The last group, with its state: usually there is only one."""
        self._open: dict[tuple[int, int], _Open] = {}
        """The open partitions, by the space's place and the partition."""
        self._bytes = 0

    def cut(self, stretches: Iterator[_Stretch]) -> Iterator[tuple[int | None, _Open]]:
        bucket: int | None = None
        for stretch in stretches:
            if stretch.bucket != bucket:
                for full in self._rest():
                    yield bucket, full
                bucket = stretch.bucket
            at, count = 0, len(stretch.segments)
            while at < count:
                run = stretch.run(at)
                key = self._key(run)
                if self._fits(self._open.get(key), run.segment, len(run.records), run.size):
                    self._put(key, run, run.records, run.size)
                else:
                    for full in self._split(key, run):
                        yield bucket, full
                at += 1
                # Most rows come here: they go together into the one transaction that is being gathered.
                if at < count and self._count == 1 and len(self._open) == 1:
                    at, size = self._open[key].add_some(stretch, at)
                    self._bytes += size
        for full in self._rest():
            yield bucket, full

    def _key(self, run: _Run) -> tuple[int, int]:
        if run.place is not self._place:
            known = self._places.get(run.place)
            if known is None:
                store, space = run.place
                count = _partitions(self._client.store(store), space, self._options.partitions)
                known = self._places[run.place] = (len(self._places), count)
            self._place, (self._number, self._count) = run.place, known
        return self._number, partition_of(run.segment, self._count)

    def _rest(self) -> list[_Open]:
        rest = list(self._open.values())
        self._open.clear()
        self._bytes = 0
        return rest

    def _split(self, key: tuple[int, int], run: _Run) -> Iterator[_Open]:
        """Add rows that do not fit. Return the transactions that must be written before."""
        segment, records = run.segment, run.records
        sizes = [len(record.payload) for record in records]
        begin = 0
        while begin < len(records):
            while self._open and not self._fits(self._open.get(key), segment, 1, sizes[begin]):
                # Its own group, if that one is full; else the largest.
                full = key if self._full(self._open.get(key), segment, 1, sizes[begin]) else self._largest()
                self._bytes -= self._open[full].bytes
                yield self._open.pop(full)
            end = begin + self._room(self._open.get(key), sizes, begin)
            self._put(key, run, records[begin:end], sum(sizes[begin:end]))
            begin = end

    def _put(self, key: tuple[int, int], run: _Run, records: list[Record], size: int) -> None:
        gathered = self._open.get(key)
        if gathered is None:
            gathered = self._open[key] = _Open(*run.place, key[1])
        gathered.add(run.segment, records, size)
        self._bytes += size

    def _room(self, gathered: _Open | None, sizes: list[int], begin: int) -> int:
        """Count the records from `begin` on that fit in a transaction. The first always fits, however large it is."""
        rows, size = (gathered.rows, gathered.bytes) if gathered is not None else (0, 0)
        most = min(_BYTES - size, _HELD - self._bytes)
        totals = list(accumulate(sizes[begin : begin + _ROWS - rows]))
        return max(1, bisect_right(totals, most))

    def _fits(self, gathered: _Open | None, segment: str, rows: int, size: int) -> bool:
        return not self._full(gathered, segment, rows, size) and self._bytes + size <= _HELD

    def _full(self, gathered: _Open | None, segment: str, rows: int, size: int) -> bool:
        """True if a transaction has no room for so many more rows and bytes."""
        if gathered is None:
            return rows > _ROWS or (rows > 1 and size > _BYTES)
        return (
            gathered.rows + rows > _ROWS
            or gathered.bytes + size > _BYTES
            or (len(gathered.parts) >= _SEGMENTS and gathered.parts[-1][0] != segment)
        )

    def _largest(self) -> tuple[int, int]:
        return max(self._open, key=lambda key: self._open[key].bytes)


def _partitions(store: Store, space: str, partitions: int) -> int:
    """Return the space's number of partitions. A missing space is made with `partitions`."""
    known = inner(store).look_up(space)[0]
    if known is None:
        store.create_space(space, partitions)
        known = inner(store).look_up(space)[0]
    return len(known.partitions) if known else 1


def _stretches(batches: Iterator[pa.RecordBatch], options: Options) -> Iterator[_Stretch]:
    """Raise ValueError for a row that cannot be written."""
    import pyarrow as pa

    fixed_store = options.stores[0] if options.stores else None
    places: dict[tuple[str | None, str | None], tuple[UUID, str]] = {}
    before = 0
    for batch in batches:
        names = batch.schema.names
        payload = batch["payload"]
        columns = {
            "payload": (payload if pa.types.is_binary(payload.type) else payload.cast(pa.large_binary())).to_pylist()
        }
        columns |= {name: batch[name].to_pylist() for name in (*_TYPES, _BUCKET) if name in names and name != "payload"}
        for name in ("segment", "payload", "store", "space"):
            if name in columns and batch[name].null_count:
                row = before + columns[name].index(None)
                raise ValueError(f"row {row} of a task: the column {name!r} is null; give each row a value")
        for name, target in (("store", fixed_store), ("space", options.space)):
            for text in dict.fromkeys(columns.get(name, ())) if target is not None else ():
                if (_uuid(text) if name == "store" else text) != target:
                    raise ValueError(f"a row has {name} = {text}{elsewhere(name, str(target))}")
        metadata = columns.get("metadata")
        payloads: list[bytes] = columns["payload"]
        if metadata is None:
            records = [*map(Record, payloads)]
        else:
            records = [
                Record(payload, dict(pairs) if pairs else None)
                for payload, pairs in zip(payloads, metadata, strict=True)
            ]
        buckets, stores, spaces, segments = (
            columns.get(name, [None] * batch.num_rows) for name in (_BUCKET, "store", "space", "segment")
        )
        sums = [*accumulate(map(len, payloads), initial=0)]
        all_ends = _ends(batch, (_BUCKET, "store", "space", "segment"))
        begin = first = 0
        for end in _ends(batch, (_BUCKET, "store", "space")):
            given = (stores[begin], spaces[begin])
            place = places.get(given)
            if place is None:
                store = fixed_store if given[0] is None else _uuid(given[0])
                space = options.space if given[1] is None else check_name(given[1], "space")
                assert store is not None
                assert space is not None
                place = places[given] = (store, space)
            last = bisect_left(all_ends, end, first) + 1
            ends = all_ends[first:last]
            if len(ends) == end - begin:
                grouped, named = [[record] for record in records[begin:end]], segments[begin:end]
            else:
                starts = [begin, *ends[:-1]]
                grouped = [records[start:stop] for start, stop in zip(starts, ends, strict=True)]
                named = [segments[start] for start in starts]
            yield _Stretch(buckets[begin], place, named, grouped, ends, [sums[stop] for stop in ends], sums[begin])
            begin, first = end, last
        before += batch.num_rows


def _ends(batch: pa.RecordBatch, names: Sequence[str]) -> list[int]:
    """Return the ends of runs of rows that are alike in the columns `names`."""
    import numpy as np
    import pyarrow.compute as pc

    count = batch.num_rows
    breaks = np.zeros(max(0, count - 1), dtype=bool)
    for name in names:
        if name in batch.schema.names and count > 1:
            column = batch[name]
            breaks |= pc.not_equal(column.slice(1), column.slice(0, count - 1)).to_numpy(zero_copy_only=False)
    return [*(np.flatnonzero(breaks) + 1).tolist(), *([count] if count else [])]


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ValueError(f"the column 'store' holds {text[:60]!r}, which is no UUID") from None


@contextmanager
def _collected_seldom() -> Iterator[None]:
    """Look for unreachable cycles a few times for each transaction, not some hundred times: rows make none, and each
    look goes through all that are held. A worker of Spark runs one task at a time."""
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(max(before[0], _UNCOLLECTED), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Writer:
    def __init__(self, options: Options, schema: StructType) -> None:
        check_columns(options, schema)
        self.options = options

    def _write(self, batches: Iterator[pa.RecordBatch], name: str, task: int) -> Written:
        """One task's rows, under the name of the write."""
        first = next(batches, None)
        if first is None:
            return Written(0, 0)
        batches = _chain(first, batches)
        if _BUCKET not in first.schema.names:
            batches = self._in_order(batches)
        rows = count = 0
        bucket = None
        # A partition looks for a key among its own: if the partitions shared a count, and rows were missing from a
        # repetition, a key would name rows of another partition, and they would be written again.
        chunks: Counter[tuple[UUID, str, int]] = Counter()
        with _collected_seldom(), self.options.client() as client:
            for bucket_, gathered in _Transactions(self.options, client).cut(_stretches(batches, self.options)):
                if bucket_ != bucket:
                    chunks.clear()
                bucket = bucket_
                place = f"t{task}" if bucket is None else f"b{bucket}"
                owner = gathered.store, gathered.space, gathered.partition
                key = f"{LASTING}{name}/{place}/{chunks[owner]}"
                chunks[owner] += 1
                try:
                    with client.store(gathered.store).transaction(gathered.space, idempotency_key=key) as trx:
                        if current_hook() is None:
                            add_all(trx, gathered.parts)
                        else:
                            for segment, records in gathered.parts:
                                trx.produce(segment, records)
                except TransactionIdMismatch as error:
                    raise TransactionIdMismatch(f"{error}. {_CHANGED}", error.statuses) from error
                rows += gathered.rows
                count += 1
        return Written(rows, count)

    def _in_order(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows with those of a segment together, in the order of the order column, or as they come."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        # All rows of a task are held once, as they came. The ordering columns are sorted; the others are taken a few
        # rows at a time.
        held = list(batches)
        names = [name for name in ("store", "space", "segment", self.options.order) if name in held[0].schema.names]
        keys = pa.Table.from_batches([batch.select(names) for batch in held])
        # Arrow's sort is stable: rows that compare equal stay as they came.
        rows = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in names]).to_numpy().astype(np.int64)
        sizes = np.concatenate([pc.binary_length(batch["payload"]).fill_null(0).to_numpy() for batch in held])[rows]
        starts = np.cumsum([0, *(batch.num_rows for batch in held)])
        begin = 0
        while begin < len(rows):
            total = np.cumsum(sizes[begin : begin + _TAKEN], dtype=np.int64)
            end = begin + max(1, int(np.searchsorted(total, _BYTES, "right")))
            yield _rows_of(held, starts, rows[begin:end])
            begin = end


def _rows_of(batches: Sequence[pa.RecordBatch], starts: Any, rows: Any) -> pa.RecordBatch:
    """The given `rows` of `batches`, in the given order. `starts`: the number of each batch's first row."""
    import numpy as np
    import pyarrow as pa

    where = np.searchsorted(starts, rows, "right") - 1
    parts, places = [], []
    for number in np.unique(where):
        own = np.flatnonzero(where == number)
        parts.append(batches[number].take(pa.array(rows[own] - starts[number])))
        places.append(own)
    together = pa.Table.from_batches(parts).combine_chunks()
    return together.take(pa.array(np.argsort(np.concatenate(places)))).combine_chunks().to_batches()[0]


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A write as a whole is not atomic: a failed one leaves whole transactions, and the same key finishes it."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.key and _BUCKET not in schema.fieldNames():
            raise ValueError(
                "the option 'idempotencyKey' holds only if the rows of a segment come together, however Spark cuts the "
                "frame into tasks: use streamkit.spark.write_space(frame, …, idempotency_key=…)"
            )
        self.name = options.key or str(uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        from pyspark import TaskContext

        context = TaskContext.get()
        return self._write(iterator, self.name, context.partitionId() if context else 0)


def as_batches(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Spark's rows as Arrow batches."""
    import pyarrow as pa

    wanted = arrow_schema_of(schema)
    while some := list(islice(rows, _TAKEN)):
        columns = []
        for field, values in zip(wanted, zip(*some, strict=True), strict=True):
            if pa.types.is_map(field.type):
                values = tuple(None if value is None else list(value.items()) for value in values)
            columns.append(pa.array(values, field.type))
        yield pa.record_batch(columns, schema=wanted)


class StreamWriter(_Writer, StreamSink):  # type: ignore[misc]
    """Exactly once: a batch that Spark repeats comes to the same keys."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> Written:
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if not query or not batch or context is None:
            raise RuntimeError("Spark names neither query nor batch: nothing was written; use a streaming query")
        batches = as_batches(iterator, self._schema) if SINK_TAKES_ROWS else iterator
        return self._write(batches, f"{query}/{batch}", context.partitionId())
