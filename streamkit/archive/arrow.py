"""A space as Arrow record batches: the archive's columns as they are, the log's tail put into the same columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..errors import CorruptData, EntriesRemoved
from ..log.batches import Batch, Bounds, gap_batch, without_removed
from ..log.offsets import Offset
from ..log.read_partition import ReadPosition, logged, partition_batches
from ..log.read_space import is_named, position_of
from ..log.visible import floor_of, may_hide_entries, number_gap, stops_readers
from .schema import COLUMNS, check_installed, schema

if TYPE_CHECKING:
    import pyarrow as pa

    from ..log.partition import Partition
    from ..log.view import LogView
    from .read import Archive

__all__ = ["ARROW_COLUMNS", "arrow_schema", "batches_as_table", "read_arrow"]

ARROW_COLUMNS = ("store", "space", "partition", *COLUMNS, "tier")
_TIERS = ("all", "cold", "hot")
_ROWS = 65_536
"""The most rows in one record batch."""
_BYTES = 32 << 20
"""Bytes of one record batch, about."""
_GATHERED = 16 << 20
"""Bytes of payload of the log that are put into columns together."""


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    kinds = {field.name: field.type for field in schema()}
    kinds |= dict.fromkeys(("store", "space", "tier"), pa.string())
    return pa.schema([pa.field(name, kinds[name]) for name in columns])


def read_arrow(
    store: UUID,
    space: str,
    partitions: Sequence[Partition],
    offset: Offset | None,
    columns: Sequence[str] | None,
    tier: str,
) -> pa.RecordBatchReader:
    """The entries after `offset` that are committed now. ValueError for an unknown column or tier, InvalidOffset,
    EntriesRemoved where some behind it were trimmed."""
    check_installed()
    import pyarrow as pa

    names = _checked(columns)
    if tier not in _TIERS:
        raise ValueError(f'tier is "all", "cold" or "hot", not {tier!r}')
    ends = [partition.refresh() for partition in partitions]
    starts = [position_of(partition, offset, end) for partition, end in zip(partitions, ends, strict=True)]
    for partition, start in zip(partitions, starts, strict=True):
        gap = (
            number_gap(partition.space, start, partition.ask(floor_of)) if is_named(partition, offset, start) else None
        )
        if gap is not None and stops_readers(gap):
            raise EntriesRemoved(
                f"{gap}: entries after the offset were removed. Without an offset the result begins at the first entry",
                gap,
            )
    several = len(partitions) > 1
    needed = [*names, "timestamp"] if several else names
    logs = [
        _tables(partition, start, end, needed, tier)
        for partition, start, end in zip(partitions, starts, ends, strict=True)
    ]
    fixed = {"store": str(store), "space": space}
    merged = [name for name in dict.fromkeys(needed) if name not in fixed]
    tables = _merged(logs, merged) if several else chain.from_iterable(logs)
    wanted = arrow_schema(names)
    return pa.RecordBatchReader.from_batches(wanted, _record_batches(tables, wanted, fixed))


def _checked(columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(ARROW_COLUMNS)
    if isinstance(columns, str):
        raise TypeError(f"columns is a list of names, not the name {columns!r} alone")
    names = list(dict.fromkeys(columns))
    for name in names:
        if name not in ARROW_COLUMNS:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(ARROW_COLUMNS)}")
    if not names:
        raise ValueError(f"columns names none; there are {', '.join(ARROW_COLUMNS)}")
    return names


def _tables(
    partition: Partition, start: tuple[int, int], end: int, columns: Sequence[str], tier: str
) -> Iterator[pa.Table]:
    """A partition's entries from (number, index) `start` up to transaction `end`, in order."""
    if may_hide_entries(partition.view()):
        # Only the reader of entries knows the removed ones.
        for gathered in _gathered(partition_batches(partition, start, end, Bounds())):
            for name in ("cold", "hot"):
                some = [batch for batch in gathered if batch.origin.tier == name and tier in (name, "all")]
                if some:
                    rows = _with_constant(batches_as_table(some, columns), "tier", name)
                    yield _with_constant(rows, "partition", partition.partition)
        return
    number, skip = start = max(start, (partition.ask(floor_of).number, 0))
    archived = min(partition.head.archived, end)
    erased = partition.head.erased > 0
    if number <= archived:
        if tier != "hot":
            needed = [*columns, "payload"] if erased else columns
            for part in _archived(partition, start, archived, needed):
                if isinstance(part, Batch):
                    rest = list(without_removed([part]))
                    if not rest:
                        continue
                    rows = batches_as_table(rest, columns)
                else:
                    # Erased before this began, or in the middle of it.
                    holes = "payload" in part.column_names and part["payload"].null_count
                    rows = part.filter(part["payload"].is_valid()) if holes else part
                    if not rows.num_rows:
                        continue
                yield _with_constant(_with_constant(rows, "tier", "cold"), "partition", partition.partition)
                del part, rows  # before the next ones are read
        number, skip = archived + 1, 0
    if number > end or tier == "cold":
        return
    for gathered in _gathered(partition_batches(partition, (number, skip), end, Bounds())):
        rows = batches_as_table(gathered, columns)
        yield _with_constant(_with_constant(rows, "tier", "hot"), "partition", partition.partition)


def _archived(
    partition: Partition, start: tuple[int, int], last: int, columns: Sequence[str]
) -> Iterator[pa.Table | Batch]:
    """The archived transactions up to `last`: as tables, and as batches if the log is read in place of the archive.

    EntriesRemoved if a trim has overtaken the reader.
    """
    at = ReadPosition(*start)

    def walk(view: LogView) -> Iterator[pa.Table | Batch]:
        gap = number_gap(partition.space, (at.number, at.index), view.floor) if (at.number, at.index) > (1, 0) else None
        if gap is not None:
            gap_batch(gap, "raise")
        if at.number < view.floor.number:
            at.number, at.index = view.floor.number, 0
        cold = min(last, view.cold_until)
        if at.number <= cold:
            archive: Archive = view.archive()  # type: ignore[assignment]
            for rows in archive.tables(view, (at.number, at.index), cold, columns):
                yield rows
                at.number, at.index = rows["number"][-1].as_py() + 1, 0
                del rows
            at.number, at.index = cold + 1, 0
        yield from logged(view, at, last, Bounds())
        if at.number <= last:
            raise view.missing(at.number)

    return partition.walk(walk)


def _gathered(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Groups of batches, each with a limited number of rows and bytes."""
    found: list[Batch] = []
    size = rows = 0
    for batch in without_removed(batches):
        found.append(batch)
        rows += len(batch.entries)
        size += sum([len(entry.payload) for entry in batch.entries])
        if rows >= _ROWS or size >= _GATHERED:
            yield found
            found, size, rows = [], 0, 0
    if found:
        yield found


def batches_as_table(batches: Sequence[Batch], columns: Iterable[str]) -> pa.Table:
    """The entries of `batches` in the table's columns, of those that are asked for; ids and segments as words."""
    import numpy as np
    import pyarrow as pa

    names = set(columns)
    entries = [entry for batch in batches for entry in batch.entries]
    counts = np.fromiter((len(batch.entries) for batch in batches), np.int64, len(batches))
    within = np.arange(len(entries)) - np.repeat(np.cumsum(counts) - counts, counts)

    def numbers(values: Iterable[int], *, rising: bool = False) -> pa.Array:
        first = np.repeat(np.fromiter(values, np.int64, len(batches)), counts)
        return pa.array(first + within if rising else first)

    def words(values: Sequence[str]) -> pa.Array:
        known = {word: code for code, word in enumerate(dict.fromkeys(values))}
        codes = np.repeat(np.fromiter((known[word] for word in values), np.int32, len(values)), counts)
        return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(list(known), pa.string()))

    firsts = [batch.entries[0] for batch in batches]
    shifts = [first.sequence - batch.origin.first_sequence for first, batch in zip(firsts, batches, strict=True)]
    columns_made: dict[str, pa.Array] = {"number": numbers(batch.number for batch in batches)}
    pairs = list(zip(batches, shifts, strict=True))
    if "index" in names:
        columns_made["index"] = numbers((batch.origin.index + shift for batch, shift in pairs), rising=True)
    if "position" in names:
        columns_made["position"] = numbers((batch.origin.position + shift for batch, shift in pairs), rising=True)
    if "sequence" in names:
        columns_made["sequence"] = numbers((first.sequence for first in firsts), rising=True)
    if "timestamp" in names:
        moments = numbers(batch.timestamp * 1000 for batch in batches)
        columns_made["timestamp"] = moments.cast(pa.timestamp("us", "UTC"))
    if "segment" in names:
        columns_made["segment"] = words([first.segment for first in firsts])
    if "trx_id" in names:
        columns_made["trx_id"] = words([_text(first.trx.raw_id) for first in firsts])
    if "trx_node" in names:
        columns_made["trx_node"] = words([_text(first.trx.raw_node) for first in firsts])
    if "payload" in names:
        columns_made["payload"] = pa.array([entry.payload for entry in entries], pa.large_binary())
    if "metadata" in names:
        kind = schema().field("metadata").type
        metadata = [entry.metadata for entry in entries]
        columns_made["metadata"] = (
            pa.array([list(data.items()) or None for data in metadata], kind)
            if any(metadata)
            else pa.nulls(len(entries), kind)
        )
    return pa.table(columns_made)


def _text(raw: bytes) -> str:
    """A UUID's text, without making the UUID."""
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _with_constant(rows: pa.Table, name: str, value: Any) -> pa.Table:
    """`rows` with another column `name` that has the same value in each row."""
    import numpy as np
    import pyarrow as pa

    if isinstance(value, str):
        codes = pa.array(np.zeros(rows.num_rows, np.int32))
        return rows.append_column(name, pa.DictionaryArray.from_arrays(codes, pa.array([value])))
    return rows.append_column(name, pa.array(np.full(rows.num_rows, value, np.int32)))


def _merged(logs: Sequence[Iterator[pa.Table]], names: Sequence[str]) -> Iterator[pa.Table]:
    """The columns `names` of the partitions' tables as one log: by timestamp, each in its own order; at one timestamp
    in their order. A table may have further columns, which others lack."""
    import numpy as np
    import pyarrow as pa

    heads: dict[int, pa.Table] = {}
    for at, log in enumerate(logs):
        head = next(log, None)
        if head is not None:
            heads[at] = head
    while heads:
        times = {at: head["timestamp"].cast("int64").to_numpy() for at, head in heads.items()}
        if any((np.diff(moments) < 0).any() for moments in times.values()):
            raise CorruptData("timestamps of a partition go backwards: check the store with `streamkit verify`")
        # No later row can come before the end of the head that ends first.
        end, first = min((int(moments[-1]), at) for at, moments in times.items())
        parts, order = [], []
        for at, moments in sorted(times.items()):
            count = int(np.searchsorted(moments, end, "right" if at <= first else "left"))
            if count:
                parts.append(heads[at].slice(0, count))
                order.append(moments[:count])
                heads[at] = heads[at].slice(count)
        for at in [at for at, head in heads.items() if not head.num_rows]:
            del heads[at]
            following = next(logs[at], None)
            if following is not None:
                heads[at] = following
        if len(parts) == 1:
            yield parts[0]
            continue
        # Files of other engines say of their columns that they may be null.
        whole = pa.concat_tables([_plain(part.select(names)) for part in parts], promote_options="permissive")
        yield whole.take(pa.array(np.argsort(np.concatenate(order), kind="stable")))


def _plain(rows: pa.Table) -> pa.Table:
    """`rows` with the table's own types. In its files, payloads may have shorter offsets, and parts of a map other
    names."""
    import pyarrow as pa

    types = {"payload": pa.large_binary(), "metadata": schema().field("metadata").type}
    for at, field in enumerate(rows.schema):
        if field.name in types:
            if not field.type.equals(types[field.name]) or pa.types.is_map(field.type):
                rows = rows.set_column(at, field.name, rows.column(at).cast(types[field.name]))
        elif pa.types.is_dictionary(field.type):
            rows = rows.set_column(at, field.name, rows.column(at).cast(field.type.value_type))
    return rows


def _record_batches(tables: Iterable[pa.Table], wanted: pa.Schema, fixed: dict[str, str]) -> Iterator[pa.RecordBatch]:
    """`tables` with exactly the columns that are wanted, in parts of a modest size."""
    for rows in tables:
        step = max(1, min(_ROWS, rows.num_rows * _BYTES // max(1, rows.nbytes)))
        for begin in range(0, rows.num_rows, step):
            yield from _typed(rows.slice(begin, step), wanted, fixed)
        del rows  # before the next ones are read


def _typed(rows: pa.Table, wanted: pa.Schema, fixed: dict[str, str]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    arrays = []
    try:
        for field in wanted:
            if field.name in fixed:
                arrays.append(pa.repeat(pa.scalar(fixed[field.name]), rows.num_rows))
                continue
            column = rows[field.name].combine_chunks()
            if isinstance(column, pa.ChunkedArray):
                column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
            if column.type != field.type:
                column = column.cast(field.type)
            arrays.append(column)
    except pa.ArrowInvalid:
        if rows.num_rows == 1:
            raise
        # Payloads of more than 2 GiB: one batch cannot hold them.
        middle = rows.num_rows // 2
        yield from _typed(rows.slice(0, middle), wanted, fixed)
        yield from _typed(rows.slice(middle), wanted, fixed)
        return
    yield pa.RecordBatch.from_arrays(arrays, schema=wanted)
