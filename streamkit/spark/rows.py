"""A piece as Arrow batches; this runs on the executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..archive.columns import as_ours
from ..archive.table import schema as table_schema
from ..client import Client
from ..errors import PermanentError
from ..log.read import Batch, Bounds, partition_batches
from ..store import inner
from .filters import Test, arrow_filter, groups_that_may
from .options import Options
from .plan import Piece

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["arrow_schema", "read_piece"]

_ROWS = 10_000


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    kinds = {field.name: field.type for field in table_schema()}
    kinds |= dict.fromkeys(("store", "space", "tier"), pa.string())
    return pa.schema([pa.field(name, kinds[name]) for name in columns])


_clients: dict[tuple[str, str | None], Client] = {}


def read_piece(piece: Piece, options: Options, tests: Sequence[Test]) -> Iterator[pa.RecordBatch]:
    # A Python worker runs many tasks: it keeps its client.
    key = (options.url, options.archive)
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = options.client()
    yield from (_cold if piece.file is not None else _hot)(client, piece, options, tests)


def _cold(client: Client, piece: Piece, options: Options, tests: Sequence[Test]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert piece.file is not None
    archive = inner(client.store(piece.store)).archive(piece.space)
    wanted = arrow_schema(options.columns)
    kept = arrow_filter(piece, tests)
    stored = [name for name in table_schema().names if name in {*options.columns, *kept.columns}]
    with archive.table.mapped():
        source = archive.table.filesystem.open_input_file(piece.file.path)
        file = pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True)
        groups = groups_that_may(file.metadata, tests)
        batches = iter(file.iter_batches(_ROWS, row_groups=groups, columns=stored) if groups else ())
        while True:
            batch = next(batches, None)
            if batch is None:
                return
            if not piece.file.ours:
                batch = _batch_as_ours(batch)
            if kept.expression is not None:
                batch = batch.filter(kept.expression)
            if batch.num_rows:
                fixed = {"store": str(piece.store), "space": piece.space, "tier": "cold"}
                arrays = [
                    pa.repeat(pa.scalar(fixed[name]), batch.num_rows) if name in fixed else batch[name]
                    for name in wanted.names
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _batch_as_ours(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With the table's types: another engine's file may have its own for the same."""
    import pyarrow as pa

    return as_ours(pa.Table.from_batches([batch]), large=False).combine_chunks().to_batches()[0]


def _hot(client: Client, piece: Piece, options: Options, tests: Sequence[Test]) -> Iterator[pa.RecordBatch]:
    known = inner(client.store(piece.store)).look_up(piece.space)[0]
    if known is None:
        raise PermanentError(f"the space {piece.space!r} of the store {piece.store} is gone: was the store deleted?")
    partition = known.partitions[piece.partition]
    if partition.number < piece.last:
        partition.refresh()
    wanted = arrow_schema(options.columns)
    kept = arrow_filter(piece, tests, log=True)
    bounds = Bounds(min_timestamp=piece.min_timestamp, max_timestamp=piece.max_timestamp)
    gathered: list[Batch] = []
    rows = 0
    for batch in partition_batches(partition, (piece.first, piece.skip), piece.last, bounds):
        gathered.append(batch)
        rows += len(batch.entries)
        if rows >= _ROWS:
            yield from _batch(piece, gathered, wanted, kept.expression, kept.columns)
            gathered, rows = [], 0
    if gathered:
        yield from _batch(piece, gathered, wanted, kept.expression, kept.columns)


def _batch(
    piece: Piece, batches: Sequence[Batch], wanted: pa.Schema, kept: Any, needed: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    columns: dict[str, list[Any]] = {name: [] for name in {*wanted.names, *needed}}
    entries = [entry for batch in batches for entry in batch.entries]
    for batch in batches:
        origin, count = batch.origin, len(batch.entries)
        shift = batch.entries[0].sequence - origin.first_sequence
        trx = batch.entries[0].trx
        for name, value in (
            ("number", batch.number),
            ("trx_id", str(trx.id) if "trx_id" in columns else ""),
            ("trx_node", str(trx.node) if "trx_node" in columns else ""),
            ("timestamp", batch.timestamp * 1000),
            ("segment", batch.entries[0].segment),
        ):
            if name in columns:
                columns[name] += [value] * count
        for name, first in (("index", origin.index + shift), ("position", origin.position + shift)):
            if name in columns:
                columns[name] += range(first, first + count)
    if "sequence" in columns:
        columns["sequence"] = [entry.sequence for entry in entries]
    if "payload" in columns:
        columns["payload"] = [entry.payload for entry in entries]
    if "metadata" in columns:
        columns["metadata"] = [list(entry.metadata.items()) or None for entry in entries]
    fixed: dict[str, Any] = {
        "store": str(piece.store),
        "space": piece.space,
        "partition": piece.partition,
        "tier": "hot",
    }
    full = arrow_schema(list(columns))
    arrays = [
        pa.repeat(pa.scalar(fixed[field.name], field.type), len(entries))
        if field.name in fixed
        else pa.array(columns[field.name], field.type)
        for field in full
    ]
    batch_ = pa.RecordBatch.from_arrays(arrays, schema=full)
    if kept is not None:
        batch_ = batch_.filter(kept)
    if batch_.num_rows:
        yield batch_.select(wanted.names)
