"""Writing a DataFrame, exactly once: every transaction has an idempotency key that a retry comes to as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ..model import Record
from ..names import check_name, partition_of
from ..store import Store, inner
from .options import Options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["BatchWriter", "StreamWriter", "write_space"]

_BYTES = 8 << 20
_ROWS = 20_000
_SEGMENTS = 1000
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
    """Append a DataFrame with the columns segment, payload and perhaps metadata; each segment in the order of `order`.

    Rows of a segment are brought together first, which format("streamkit") alone cannot do.
    """
    from .session import register

    register(frame.sparkSession)
    frame = frame.repartition("segment")
    options = {"url": url, "store": str(store), "space": space, "partitions": str(partitions)}
    if order:
        options["order"] = order
    if idempotency_key:
        options["idempotencyKey"] = idempotency_key
    frame.write.format("streamkit").options(**options).mode("append").save()


@dataclass
class Written(WriterCommitMessage):
    rows: int
    transactions: int


class _Writer:
    def __init__(self, options: Options, schema: StructType) -> None:
        found = {field.name: field.dataType.simpleString() for field in schema.fields}
        for name in ("segment", "payload"):
            if name not in found:
                raise ValueError(f"the DataFrame has no column {name!r}; it has {', '.join(found) or 'none'}")
        for name, kinds in _TYPES.items():
            if name in found and found[name] not in kinds:
                raise ValueError(f"the column {name!r} is {found[name]}; it must be {' or '.join(kinds)}")
        if options.order and options.order not in found:
            raise ValueError(f"the option 'order' names {options.order!r}; the columns are {', '.join(found)}")
        if "store" not in found and (options.stores is None or len(options.stores) != 1):
            raise ValueError("say which store is written to: one UUID as the option 'store', or a column 'store'")
        if "space" not in found and options.space is None:
            raise ValueError("say which space is written to: its name as the option 'space', or a column 'space'")
        self.options = options

    def _write(self, batches: Iterator[pa.RecordBatch], key: str) -> Written:
        """One task's rows. Those of a segment stay in the order of the order column, or as they come."""
        import pyarrow as pa

        gathered = list(batches)
        if not gathered:
            return Written(0, 0)
        table = pa.Table.from_batches(gathered)
        names = [name for name in ("store", "space", "segment") if name in table.column_names]
        order = [(name, "ascending") for name in (*names, self.options.order) if name]
        # Arrow's sort is stable: rows that compare equal stay as they came.
        table = table.sort_by(order)
        count = 0
        with self.options.client() as client:
            for chunk, (id, space, parts) in enumerate(_chunks(table, self.options, client)):
                store = client.store(id)
                with store.transaction(space, idempotency_key=f"spark/{key}/{chunk}") as trx:
                    for segment, records in parts:
                        trx.produce(segment, records)
                count += 1
        return Written(table.num_rows, count)


Parts = list[tuple[str, list[Record]]]


def _chunks(table: pa.Table, options: Options, client: Any) -> Iterator[tuple[UUID, str, Parts]]:
    """Transactions: of one store and space, of one of its partitions, and not too large."""
    made: dict[tuple[UUID, str], int] = {}
    open_parts: dict[tuple[UUID, str, int], Parts] = {}
    sizes: dict[tuple[UUID, str, int], list[int]] = {}
    for id, space, segment, record in _records(table, options):
        place = (id, space)
        if place not in made:
            made[place] = _partitions(client.store(id), space, options.partitions)
        key = (id, space, partition_of(segment, made[place]))
        parts = open_parts.setdefault(key, [])
        size = sizes.setdefault(key, [0, 0])
        if not parts or parts[-1][0] != segment:
            parts.append((segment, []))
        parts[-1][1].append(record)
        size[0] += 1
        size[1] += len(record.payload)
        if size[0] >= _ROWS or size[1] >= _BYTES or len(parts) >= _SEGMENTS:
            yield id, space, open_parts.pop(key)
            del sizes[key]
    for (id, space, _), parts in open_parts.items():
        yield id, space, parts


def _partitions(store: Store, space: str, partitions: int) -> int:
    known = inner(store).look_up(space)[0]
    if known is None:
        store.create_space(space, partitions)
        known = inner(store).look_up(space)[0]
    return len(known.partitions) if known else 1


def _records(table: pa.Table, options: Options) -> Iterator[tuple[UUID, str, str, Record]]:
    fixed_store = options.stores[0] if options.stores else None
    fixed_space = options.space
    for batch in table.to_batches(max_chunksize=10_000):
        columns = {name: batch[name].to_pylist() for name in batch.schema.names if name in _TYPES}
        for at, (segment, payload) in enumerate(zip(columns["segment"], columns["payload"], strict=True)):
            if segment is None or payload is None:
                raise ValueError(f"row {at}: segment and payload are not null")
            metadata = columns["metadata"][at] if "metadata" in columns else None
            record = Record(
                payload.encode() if isinstance(payload, str) else payload, dict(metadata) if metadata else None
            )
            store = UUID(columns["store"][at]) if "store" in columns else fixed_store
            space = columns["space"][at] if "space" in columns else fixed_space
            assert store is not None
            assert space is not None
            yield store, check_name(space, "space"), segment, record


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A write as a whole is not atomic: a failed one leaves whole transactions, and the same key finishes it."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self.key = options.key or str(uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        from pyspark import TaskContext

        context = TaskContext.get()
        return self._write(iterator, f"{self.key}/{context.partitionId() if context else 0}")


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Exactly once: a batch that Spark repeats comes to the same keys."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if not query or not batch or context is None:
            raise RuntimeError("Spark does not say which batch of which query this is: nothing was written")
        return self._write(iterator, f"{query}/{batch}/{context.partitionId()}")
