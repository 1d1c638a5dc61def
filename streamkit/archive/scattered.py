"""Rows that another engine has laid out, in any order, in files that overlap: found by looking, sorted here.

A window of rows that would not fit in memory is read as two halves, again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .columns import as_ours, with_words
from .schema import schema

if TYPE_CHECKING:
    import pyarrow as pa

    from .snapshot import File
    from .table import Table

__all__ = ["WINDOW", "Wanted", "windows"]

WINDOW = 128 << 20
"""Bytes of rows that are held and sorted at once."""
_BATCH = 16_384
_BATCH_BYTES = 16 << 20
_BUFFER = 4 << 20


class Wanted(NamedTuple):
    """Rows of one partition with `key` (number or sequence) in low..high; of one segment, if it is named."""

    partition: int
    key: str
    low: int
    high: int
    segment: str | None = None

    def columns(self) -> list[str]:
        return ["partition", self.key] + ([] if self.segment is None else ["segment"])

    def mask(self, rows: pa.Table) -> Any:
        """A mask of the wanted rows."""
        import pyarrow.compute as pc

        values = rows[self.key].to_numpy()
        found = (rows["partition"].to_numpy() == self.partition) & (values >= self.low) & (values <= self.high)
        if self.segment is not None and found.any():
            found &= pc.equal(rows["segment"], self.segment).to_numpy()
        return found

    def may_be_in(self, group: Any) -> bool:
        """False if the statistics of a row group say that it has none; there may be no statistics."""
        bounds: dict[str, tuple[Any, Any]] = {
            "partition": (self.partition, self.partition),
            self.key: (self.low, self.high),
            "segment": (self.segment, self.segment),
        }
        for at in range(group.num_columns):
            column = group.column(at)
            least, most = bounds.get(column.path_in_schema, (None, None))
            known = column.statistics
            if least is None or known is None or not known.has_min_max:
                continue
            if type(known.min) is type(known.max) is type(least) and (known.min > most or known.max < least):
                return False
        return True


def windows(
    table: Table, files: Sequence[File], wanted: Wanted, columns: Sequence[str], most: int | None = None
) -> Iterator[pa.Table]:
    """The wanted rows of `files`, those of one segment by sequence, else by position, in pieces of `most` bytes.

    A piece may be larger if a single transaction, or entry, is.
    """
    import pyarrow.compute as pc

    order = "position" if wanted.segment is None else "sequence"
    waiting = [wanted]
    while waiting:
        part = waiting.pop()
        rows = _gather(table, files, part, columns, (most or WINDOW) if part.low < part.high else 0)
        if rows is None:
            middle = (part.low + part.high) // 2
            waiting += [part._replace(low=middle + 1), part._replace(high=middle)]
        elif rows.num_rows:
            with table.mapped():
                rows = with_words(rows.combine_chunks().take(pc.sort_indices(rows[order])))
            yield rows


def _gather(table: Table, files: Sequence[File], wanted: Wanted, columns: Sequence[str], most: int) -> pa.Table | None:
    """The rows, in any order; None if they are more than `most` bytes (0: however many there are)."""
    import pyarrow as pa

    ours = schema()
    parts = [as_ours(pa.schema([ours.field(name) for name in columns if name in ours.names]).empty_table())]
    size = 0
    for file in files:
        source = table.open(file.path, buffer_size=_BUFFER, pre_buffer=False)
        for group, hits in _hits(table, file, source, wanted):
            about = source.metadata.row_group(group)
            rows = max(1, min(_BATCH, _BATCH_BYTES * about.num_rows // max(1, about.total_byte_size)))
            begin = 0
            with table.reading(file.path):
                for batch in source.iter_batches(rows, row_groups=[group], columns=list(columns)):
                    kept = hits[begin : begin + batch.num_rows]
                    begin += batch.num_rows
                    if not kept.any():
                        continue
                    parts.append(as_ours(pa.Table.from_batches([batch])).filter(pa.array(kept)))
                    size += parts[-1].nbytes
                    if most and size > most:
                        return None
    with table.mapped():
        return pa.concat_tables(parts, promote_options="permissive")


def _hits(table: Table, file: File, source: Any, wanted: Wanted) -> Iterator[tuple[int, Any]]:
    """Yield (row group, which of its rows are wanted) for each row group that has any; narrow columns are read for
    it."""
    import numpy as np
    import pyarrow as pa

    for group in range(source.metadata.num_row_groups):
        if not wanted.may_be_in(source.metadata.row_group(group)):
            continue
        with table.reading(file.path):
            masks = [
                wanted.mask(as_ours(pa.Table.from_batches([batch])))
                for batch in source.iter_batches(4 * _BATCH, row_groups=[group], columns=wanted.columns())
            ]
        found = np.concatenate(masks) if masks else np.zeros(0, dtype=bool)
        if found.any():
            yield group, found
