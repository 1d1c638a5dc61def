"""Rows of single Parquet files of the table, by the statistics of their row groups, no more at once than asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .batches import WORDS, have_texts
from .columns import as_ours, check_rows, with_words
from .parquet import PAYLOAD_BYTES, parts_of, sealed
from .schema import COLUMNS
from .snapshot import File
from .table import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FileReader", "own_groups"]

_KEYS = ["segment", "sequence"]
_REST = [name for name in COLUMNS if name not in _KEYS]
_NARROW_ROWS = 262_144
_COUNTED_ROWS = 4096
_FOOTERS = 256
_SMALL = 1 << 20
"""Bytes up to which a file is read with one request."""
_SLAB = 16 << 20
"""Bytes of rows that are decoded together. Some row groups are decoded to learn the sizes of the others."""


class FileReader:
    """The files of one table; remembers the descriptions of those that were read last. Safe to share by threads."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._lock = threading.Lock()
        self._footers: OrderedDict[str, Any] = OrderedDict()

    def open(self, file: File) -> Any:
        footer = self._footers.get(file.path)
        known = None if footer is None else footer[0]
        found = self.table.open(
            file.path, whole=file.size <= _SMALL, metadata=known, read_dictionary=WORDS, pre_buffer=True
        )
        if footer is None:
            with self._lock:
                self._footers[file.path] = (found.metadata, None)
                if len(self._footers) > _FOOTERS:
                    self._footers.popitem(last=False)
        return found

    def payload_bytes(self, file: File) -> int:
        """Bytes of the file's payloads, decoded. They are counted if the file does not tell."""
        import pyarrow as pa
        import pyarrow.compute as pc

        source = self.open(file)
        if file.ours and file.shared:
            said_parts = parts_of(file.path, file.size, source.metadata)
            return next(payload for part, payload in said_parts if part.partition == file.partition)
        said = (source.metadata.metadata or {}).get(PAYLOAD_BYTES.encode(), b"").decode(errors="replace")
        number = said.partition(" ")[0]
        # Another engine that rewrites a file may copy this metadata, which then describes the old rows.
        if file.ours and number.isdecimal() and said == sealed(int(number)):
            return int(number)
        with self.table.reading(file.path):
            batches = source.iter_batches(_COUNTED_ROWS, columns=["payload"])
            parts = (as_ours(pa.Table.from_batches([batch]))["payload"] for batch in batches)
            return sum(pc.sum(pc.binary_length(part)).as_py() or 0 for part in parts)

    def measured(self, file: File, columns: list[str]) -> Iterator[pa.Table]:
        """Small columns of the file's rows that are of its partition, with the bytes of their payloads as `size`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        source = self.table.open(file.path, whole=file.size <= _SMALL, buffer_size=1 << 20, pre_buffer=False)
        with self.table.reading(file.path):
            groups = own_groups(file, source)
            for batch in source.iter_batches(_COUNTED_ROWS, groups, columns=[*columns, "partition", "payload"]):
                rows = as_ours(pa.Table.from_batches([batch]))
                sizes = pc.fill_null(pc.binary_length(rows["payload"]).cast("int64"), 0)
                rows = rows.append_column("size", sizes).filter(pc.field("partition") == file.partition)
                if rows.num_rows:
                    yield rows.select([*columns, "size"])

    def groups(self, file: File, source: Any) -> list[tuple[str, str, int, int]]:
        """Least and greatest segment and sequence of each row group, also of those of other partitions."""
        metadata, known = self._footers.get(file.path, (source.metadata, None))
        if known is None:
            names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
            segment, sequence = names.index("segment"), names.index("sequence")
            known = []
            for at in range(metadata.num_row_groups):
                group = metadata.row_group(at)
                words, numbers = group.column(segment).statistics, group.column(sequence).statistics
                if words is None or numbers is None or not words.has_min_max or not numbers.has_min_max:
                    known.append(("", "\U0010ffff", 0, 1 << 63))
                else:
                    known.append((words.min, words.max, numbers.min, numbers.max))
            with self._lock:
                self._footers[file.path] = (metadata, known)
        return known  # type: ignore[no-any-return]

    def read(self, file: File, columns: list[str]) -> pa.Table:
        """All rows of the partition in a file that streamkit wrote; of the columns those that it has."""
        source = self.open(file)
        with self.table.reading(file.path):
            # Each row group has its own words.
            rows = source.read_row_groups(own_groups(file, source), columns=columns)
            return check_rows(rows).unify_dictionaries()

    def rows_with(
        self, file: File, low: int, high: int, columns: Sequence[str], texts: Sequence[str]
    ) -> Iterator[tuple[tuple[Any, Any], pa.Table | None]]:
        """Read the rows of transactions low..high whose metadata has `texts`: an item for each row group of an own
        file.

        Each item also has the numbers and positions of all rows of these transactions. The other columns are read only
        if a row has the texts.
        """
        import pyarrow as pa

        source = self.open(file)
        for group in self._groups_with(file, source, low, high):
            with self.table.reading(file.path):
                narrow = source.read_row_group(group, columns=["number", "position", "metadata"], use_threads=False)
                check_rows(narrow)
                number = narrow["number"].to_numpy()
                inside = (number >= low) & (number <= high)
                wanted = inside & have_texts(narrow["metadata"], texts)
                places = number[inside], narrow["position"].to_numpy()[inside]
                del narrow
                rows = None
                if wanted.any():
                    rows = check_rows(source.read_row_group(group, columns=list(columns), use_threads=False))
                    rows = rows.filter(pa.array(wanted))
            yield places, rows

    def rows(self, file: File, low: int, high: int, columns: Sequence[str], most: int) -> pa.Table | None:
        """Transactions low..high of a file that streamkit wrote, in its order; None if they are more than `most` bytes.

        Row groups are decoded a few at a time, as many as the ones before let expect little of.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        source = self.open(file)
        whole = low <= file.numbers[0] and high >= file.numbers[1]
        groups = self._groups_with(file, source, low, high)
        parts: list[pa.Table] = []
        size = decoded = at = 0
        each = 1.0
        while at < len(groups):
            some = groups[at : at + max(1, int(_SLAB / each))] if at else groups[:1]
            with self.table.reading(file.path):
                rows = check_rows(source.read_row_groups(some, columns=list(columns), use_threads=len(some) > 1))
                at += len(some)
                decoded += rows.nbytes
                each = decoded / at
                if not whole:
                    rows = rows.filter((pc.field("number") >= low) & (pc.field("number") <= high))
            if rows.num_rows:
                parts.append(rows)
                size += rows.nbytes
                if size > most:
                    return None
        if not parts:
            return self.empty(file, columns)
        with self.table.mapped():
            rows = pa.concat_tables(parts).unify_dictionaries()
            parts.clear()
            return rows.combine_chunks()

    def empty(self, file: File, columns: Sequence[str]) -> pa.Table:
        return self.open(file).schema_arrow.empty_table().select(columns)

    def _groups_with(self, file: File, source: Any, low: int, high: int) -> list[int]:
        """The row groups of the partition that may have transactions low..high."""
        metadata = source.metadata
        names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
        number = names.index("number")
        found = []
        for at in own_groups(file, source):
            known = metadata.row_group(at).column(number).statistics
            if known is None or not known.has_min_max or (known.min <= high and known.max >= low):
                found.append(at)
        return found

    def segment_rows(self, file: File, segment: str, first: int, last: int) -> pa.Table | None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        source = self.open(file)
        known = self.groups(file, source)
        groups = [
            at
            for at, (least, most, low, high) in ((at, known[at]) for at in own_groups(file, source))
            if least <= segment <= most and low <= last and high >= first
        ]
        if not groups:
            return None
        with self.table.reading(file.path):
            # First two narrow columns: most files have other segments before and after, and not this one.
            keys = check_rows(source.read_row_groups(groups, columns=_KEYS, use_threads=False))
            keys = keys.unify_dictionaries().combine_chunks()
            names = keys["segment"].chunk(0)
            code = pc.index(names.dictionary, segment).as_py()
            sequence = keys["sequence"].to_numpy()
            wanted = (names.indices.to_numpy() == code) & (sequence >= first) & (sequence <= last)
            if code < 0 or not wanted.any():
                return None
            group = np.repeat(groups, [source.metadata.row_group(at).num_rows for at in groups])
            hit = np.unique(group[wanted])
            rest = check_rows(source.read_row_groups(hit.tolist(), columns=_REST, use_threads=False))
            rest = rest.unify_dictionaries()
            rows = rest.filter(pa.array(wanted[np.isin(group, hit)]))
            some = keys.filter(pa.array(wanted))
            for name in _KEYS:
                rows = rows.append_column(name, some[name])
            return rows.combine_chunks()

    def narrow(self, file: File, columns: list[str]) -> Iterator[pa.Table]:
        """Read small columns of the rows of the file's partition: an own file at once, another engine's file in
        batches."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if file.ours:
            yield self.read(file, columns)
            return
        source = self.table.open(file.path, whole=file.size <= _SMALL, buffer_size=1 << 20, pre_buffer=False)
        with self.table.reading(file.path):
            for batch in source.iter_batches(_NARROW_ROWS, columns=[*columns, "partition"]):
                rows = as_ours(pa.Table.from_batches([batch]))
                rows = rows.filter(pc.field("partition") == file.partition).select(columns)
                if rows.num_rows:
                    yield with_words(rows)


def own_groups(file: File, source: Any) -> list[int]:
    """The row groups that may have rows of the file's partition."""
    return list(range(*(file.groups or (0, source.metadata.num_row_groups))))
