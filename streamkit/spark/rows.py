"""A piece as Arrow batches; this runs on the executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..archive.columns import as_ours
from ..archive.snapshot import Gone
from ..archive.table import schema as table_schema
from ..client import Client
from ..errors import CorruptData, EntriesRemoved, PermanentError, StoreClosed
from ..log.batches import Batch, Bounds, without_removed
from ..log.partition import Partition
from ..log.read_partition import partition_batches
from ..log.visible import floor_of, may_hide_entries
from ..store import inner
from .filters import Predicate, arrow_filter, groups_that_may
from .options import Options
from .overtaken import FilesReplaced, replaced
from .plan import TaskShare

if TYPE_CHECKING:
    import pyarrow as pa

    from ..archive.read import Archive
    from ..archive.table import File, Table

__all__ = ["arrow_schema", "loss", "loss_error", "read_pieces", "removed"]

_ROWS = 10_000


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    kinds = {field.name: field.type for field in table_schema()}
    kinds |= dict.fromkeys(("store", "space", "tier"), pa.string())
    return pa.schema([pa.field(name, kinds[name]) for name in columns])


def loss(store: UUID, space: str, what: str) -> str:
    """The message for entries that were removed before a stream has read them."""
    return f"the space {space!r} of the store {store} is not the one of the checkpoint: {what}"


def removed(last: int, partition: int) -> str:
    return f"transactions up to {last} of partition {partition} were removed before they were read"


def loss_error(message: str) -> PermanentError:
    return PermanentError(
        f"{message}. Was the store trimmed, deleted, restored or set back? Begin with a new checkpoint, or set the "
        f"option failOnDataLoss to false to continue with the remaining entries"
    )


_clients: dict[tuple[str, str | None], Client] = {}


def read_pieces(pieces: Sequence[TaskShare], options: Options, tests: Sequence[Predicate]) -> Iterator[pa.RecordBatch]:
    """A task's pieces, without the entries that were removed from their spaces by now.

    A Python worker runs many tasks: it keeps its client, and opens it again where that does not work any more. The task
    looks at each of its partitions once.
    """
    looked: dict[tuple[UUID, str, int], Partition] = {}
    for piece in pieces:
        begun = False
        try:
            for batch in _read(piece, options, tests, looked):
                begun = True
                yield batch
        except StoreClosed:
            # Another user in this process closed it, or the store was deleted.
            if begun:
                raise
        else:
            continue
        _forget(options)
        looked.clear()
        yield from _read(piece, options, tests, looked)


def _read(
    piece: TaskShare, options: Options, tests: Sequence[Predicate], looked: dict[tuple[UUID, str, int], Partition]
) -> Iterator[pa.RecordBatch]:
    partition = looked.get(piece.owner)
    if partition is None:
        partition = looked[piece.owner] = _partition(piece, options)
    if piece.file is None:
        return _hot(piece, partition, options, tests)
    return _cold(piece, partition, options, tests)


def _forget(options: Options) -> None:
    client = _clients.pop((options.url, options.archive), None)
    if client is not None:
        client.close()


def _partition(piece: TaskShare, options: Options) -> Partition:
    """The partition of a piece, refreshed. PermanentError if its space is not the one of the plan.

    A new client reads the head and the log after it. A client that knows the partition reads its head, because the
    store may have been deleted, and the next transaction, which may have removed entries.
    """
    for _ in range(2):
        client = _clients.get((options.url, options.archive))
        if client is None:
            client = _clients[options.url, options.archive] = options.client()
        space, since = inner(client.store(piece.store)).look_up(piece.space)
        if space is not None and space.settings.incarnation.hex() == piece.incarnation:
            partition = space.partitions[piece.partition]
            try:
                if since is None:
                    partition.read_head()
                partition.refresh((), since)
            except (StoreClosed, CorruptData):
                if not partition.lost:
                    raise
            else:
                return partition
        # It may be the client that knows a space of this name which was deleted.
        _forget(options)
    raise PermanentError(
        f"the space {piece.space!r} of the store {piece.store} is gone, or another one was made in its place since the "
        "read was planned: was the store deleted?"
    )


def _cold(
    piece: TaskShare, partition: Partition, options: Options, tests: Sequence[Predicate]
) -> Iterator[pa.RecordBatch]:
    """A file's rows. If entries of the file were removed since the read was planned, the reader of entries reads them:
    it knows which ones are left."""
    file = piece.file
    assert file is not None
    floor = partition.ask(floor_of).number
    if floor > piece.last:
        return
    if floor > piece.first:
        piece = replace(piece, first=floor, skip=0)
    archive: Archive = inner(_clients[options.url, options.archive].store(piece.store)).archive(piece.space)
    begun = False
    try:
        if may_hide_entries(partition.view()):
            raise Gone(file.path)
        piece = replace(piece, erased=piece.erased or partition.head.erased > 0)
        for batch in _of_file(piece, file, archive.table, options, tests):
            begun = True
            yield batch
    except Gone:
        # The reader of entries has another order, and cannot continue where the file ended. Of another engine's file,
        # other files may have rows of the same transactions, and other tasks read those.
        if begun or not file.ours:
            raise FilesReplaced(replaced(f"of the space {piece.space!r} of the store {piece.store}")) from None
    else:
        return
    yield from _hot(replace(piece, file=None, tier=""), partition, options, tests)


def _of_file(
    piece: TaskShare, file: File, table: Table, options: Options, tests: Sequence[Predicate]
) -> Iterator[pa.RecordBatch]:
    """The rows of a file that belong to the piece. Gone if the file is replaced, perhaps after some rows."""
    import pyarrow as pa

    source = table.open(file.path, pre_buffer=True)
    wanted = arrow_schema(options.columns)
    kept = arrow_filter(piece, tests)
    stored = [name for name in table_schema().names if name in {*options.columns, *kept.columns}]
    with table.reading(file.path):
        groups = groups_that_may(source.metadata, tests)
        if file.groups is not None:
            groups = [group for group in groups if file.groups[0] <= group < file.groups[1]]
        for batch in source.iter_batches(_ROWS, row_groups=groups, columns=stored) if groups else ():
            if not file.ours:
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
    """The batch with the table's types. A file of another engine may have other types for the same values."""
    import pyarrow as pa

    return as_ours(pa.Table.from_batches([batch]), large=False).combine_chunks().to_batches()[0]


def _hot(
    piece: TaskShare, partition: Partition, options: Options, tests: Sequence[Predicate]
) -> Iterator[pa.RecordBatch]:
    wanted = arrow_schema(options.columns)
    kept = arrow_filter(piece, tests)
    gathered: list[Batch] = []
    rows = 0
    for batch in without_removed(_up_to(piece, _planned(piece, partition, options))):
        gathered.append(batch)
        rows += len(batch.entries)
        if rows >= _ROWS:
            yield from _batch(piece, gathered, wanted, kept.expression, kept.columns)
            gathered, rows = [], 0
    if gathered:
        yield from _batch(piece, gathered, wanted, kept.expression, kept.columns)


def _planned(piece: TaskShare, partition: Partition, options: Options) -> Iterator[Batch]:
    """The piece's transactions. PermanentError where a stream was to read some that were removed since."""
    strict = piece.named and options.fail_on_loss
    bounds = Bounds(gaps="raise" if strict else "skip")
    try:
        yield from partition_batches(partition, (piece.first, piece.skip), piece.last, bounds, named=strict)
    except EntriesRemoved as error:
        what = removed(error.gap.last_sequence, piece.partition)
        raise loss_error(loss(piece.store, piece.space, what)) from error


def _up_to(piece: TaskShare, batches: Iterator[Batch]) -> Iterator[Batch]:
    """The batches, with the last transaction cut off where the piece stops."""
    for batch in batches:
        if not piece.stop or batch.number < piece.last:
            yield batch
            continue
        entries = batch.entries[: max(0, piece.stop - batch.first_index)]
        if entries:
            yield Batch(batch.timestamp, batch.number, batch.origin, entries)


def _batch(
    piece: TaskShare, batches: Sequence[Batch], wanted: pa.Schema, kept: Any, needed: Sequence[str]
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
        if "tier" in columns:
            columns["tier"] += [piece.tier or origin.tier] * count
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
