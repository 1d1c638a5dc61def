"""Reading the archive: the readers' batches from Parquet files, found by the statistics of files and row groups."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..errors import CorruptData
from ..log.read import Batch, Bounds
from ..model import NO_TRX, TRX, Entry, Origin
from .place import Place
from .table import File, Snapshot, Table

if TYPE_CHECKING:
    import pyarrow as pa

    from ..log.partition import Partition

__all__ = ["Archive"]

_COLUMNS = [
    "number",
    "index",
    "position",
    "segment",
    "sequence",
    "timestamp",
    "trx_id",
    "trx_node",
    "payload",
    "metadata",
]
_KEYS = ["segment", "sequence"]
_REST = [name for name in _COLUMNS if name not in _KEYS]
_WORDS = ["segment", "trx_id", "trx_node"]
_ROWS = 8192
_WINDOW = 1_500_000
"""Rows that are read together, if others have compacted files so that they overlap."""
_FOOTERS = 256


class Archive:
    """A space's archive as `streamkit.log.archive_reader.Cold`. Safe to share between threads."""

    def __init__(self, place: Place, store: UUID, space: str) -> None:
        self.space = space
        self.table = Table(place, store, space)
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._footers: OrderedDict[str, Any] = OrderedDict()
        self._numbers: tuple[str, Any] | None = None
        """The sorted numbers of the file that was last asked for them."""

    # -- versions -----------------------------------------------------------------------------------------------

    def snapshot(self, partition: int, archived: int) -> Snapshot:
        """A version that holds `partition` up to `archived`."""
        found = self._snapshot
        if found is None or found.archived.get(partition, 0) < archived:
            found = self._load()
        if found is None or found.archived.get(partition, 0) < archived:
            there = "is not there" if found is None else f"ends at transaction {found.archived.get(partition, 0)}"
            raise CorruptData(
                f"{self.table.url} {there}, but the log says that transactions up to {archived} of partition "
                f"{partition} are archived; restore the table"
            )
        return found

    def _load(self) -> Snapshot | None:
        with self._lock:
            self._snapshot = self.table.snapshot()
            return self._snapshot

    def _retry(self, partition: Partition, walk: Callable[[Snapshot], Iterator[Batch]]) -> Iterator[Batch]:
        """walk(snapshot); again with a newer version if one of the files is gone, because others compacted it."""
        snapshot = self.snapshot(partition.partition, partition.head.archived)
        while True:
            try:
                yield from walk(snapshot)
                return
            except _Gone as error:
                newer = self._load()
                if newer is None or newer.version == snapshot.version:
                    raise CorruptData(
                        f"{self.table.url}, version {snapshot.version}: the file {error} is missing; restore it, or an "
                        "earlier version of the table"
                    ) from None
                snapshot = newer

    # -- the log ------------------------------------------------------------------------------------------------

    def transactions(self, partition: Partition, start: tuple[int, int], last: int, bounds: Bounds) -> Iterator[Batch]:
        here = start

        def walk(snapshot: Snapshot) -> Iterator[Batch]:
            nonlocal here
            for files, low, high in _windows(snapshot, partition.partition, here[0], last, bounds):
                rows = self._rows(snapshot, files, low, high)
                for batch in self._batches(partition, rows, here, bounds):
                    yield batch
                    end = batch.entries[-1]
                    here = (batch.number, batch.origin.index + end.sequence - batch.origin.first_sequence + 1)

        return self._retry(partition, walk)

    def _rows(self, snapshot: Snapshot, files: Sequence[File], low: int, high: int) -> pa.Table:
        """The rows with numbers low..high, in commit order."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        parts = []
        for file in files:
            rows = self._read(snapshot, file, _COLUMNS)
            if low > file.numbers[0] or high < file.numbers[1]:
                rows = rows.filter((pc.field("number") >= low) & (pc.field("number") <= high))
            parts.append(rows)
        with self.table.mapped():
            rows = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
        # Positions are dense: where each row belongs is known without sorting.
        position = rows["position"].to_numpy()
        where = position - (position.min() if len(position) else 0)
        order = np.full(len(where), -1)
        order[where[where < len(order)]] = np.flatnonzero(where < len(order))
        if len(order) and order.min() < 0:
            raise CorruptData(
                f"{self.table.url}, version {snapshot.version}: transactions {low} to {high} are not there once each"
            )
        with self.table.mapped():
            return rows if (where == np.arange(len(where))).all() else rows.take(pa.array(order))

    def _batches(self, partition: Partition, rows: pa.Table, start: tuple[int, int], bounds: Bounds) -> Iterator[Batch]:
        """Rows in commit or in sequence order, as batches of consecutive entries of one segment and transaction."""
        import numpy as np
        import pyarrow as pa

        space, index, partitions = partition.space, partition.partition, partition.settings.partitions
        number, at, position, sequence = (rows[name].to_numpy() for name in ("number", "index", "position", "sequence"))
        timestamp = rows["timestamp"].cast("int64").to_numpy() // 1000
        keep = (number > start[0]) | ((number == start[0]) & (at >= start[1]))
        keep &= timestamp >= bounds.min_timestamp
        if bounds.max_timestamp:
            keep &= timestamp <= bounds.max_timestamp
        if not keep.all():
            rows = rows.filter(pa.array(keep))
            number, at, position, sequence, timestamp = (
                column[keep] for column in (number, at, position, sequence, timestamp)
            )
        words = {name: rows[name].combine_chunks() for name in _WORDS}
        words = {name: word.chunk(0) if hasattr(word, "chunks") else word for name, word in words.items()}
        codes = {name: word.indices.to_numpy() for name, word in words.items()}
        names, ids, nodes = (words[name].dictionary.to_pylist() for name in _WORDS)
        raw_ids = [bytes.fromhex(id.replace("-", "")) for id in ids]
        raw_nodes = [bytes.fromhex(node.replace("-", "")) for node in nodes]
        plain = rows["metadata"].null_count == rows.num_rows
        breaks = (
            (np.diff(number) != 0) | (np.diff(at) != 1) | (np.diff(sequence) != 1) | (np.diff(codes["segment"]) != 0)
        )
        cuts = np.flatnonzero(breaks) + 1
        trx, trx_code = NO_TRX, -1
        for begin in range(0, rows.num_rows, _ROWS):
            end = min(begin + _ROWS, rows.num_rows)
            payloads = rows["payload"].slice(begin, end - begin).to_pylist()
            metadata = None if plain else rows["metadata"].slice(begin, end - begin).to_pylist()
            inner = cuts[np.searchsorted(cuts, begin, "right") : np.searchsorted(cuts, end, "left")]
            starts = np.concatenate(([begin], inner))
            fields = zip(
                (starts - begin).tolist(),
                [*(inner - begin).tolist(), end - begin],
                number[starts].tolist(),
                at[starts].tolist(),
                position[starts].tolist(),
                sequence[starts].tolist(),
                timestamp[starts].tolist(),
                codes["segment"][starts].tolist(),
                codes["trx_id"][starts].tolist(),
                codes["trx_node"][starts].tolist(),
                strict=True,
            )
            # Readers of small transactions spend their time here.
            for here, stop, trx_number, trx_index, place, first, moment, segment_code, id_code, node_code in fields:
                if id_code != trx_code:
                    trx, trx_code = TRX(raw_ids[id_code], raw_nodes[node_code], trx_number), id_code
                segment = names[segment_code]
                origin = Origin(index, partitions, place, trx_index, first, "cold")
                if metadata is None:
                    entries = [
                        Entry(space, segment, number_, moment, trx, payload, {}, origin)
                        for number_, payload in enumerate(payloads[here:stop], first)
                    ]
                else:
                    entries = [
                        Entry(space, segment, number_, moment, trx, payload, dict(data or ()), origin)
                        for number_, (payload, data) in enumerate(
                            zip(payloads[here:stop], metadata[here:stop], strict=True), first
                        )
                    ]
                yield Batch(moment, trx_number, origin, entries)

    def first_at(self, partition: Partition, timestamp: int, first: int, last: int) -> int:
        import pyarrow.compute as pc

        snapshot = self.snapshot(partition.partition, last)
        moment = _moment(timestamp)
        for cluster in snapshot.clusters(partition.partition):
            found: list[int] = []
            for file in cluster:
                if file.numbers[1] >= first and file.timestamps[1] >= timestamp:
                    rows = self._read(snapshot, file, ["number", "timestamp"])
                    rows = rows.filter((pc.field("timestamp") >= moment) & (pc.field("number") >= first))
                    if rows.num_rows:
                        found.append(pc.min(rows["number"]).as_py())
            if found:
                return min(min(found), last + 1)
        return last + 1

    def entries_until(self, partition: Partition, number: int) -> int:
        """Entries of the partition up to transaction `number`, which is archived."""
        import numpy as np

        snapshot = self.snapshot(partition.partition, number)
        total = 0
        for cluster in snapshot.clusters(partition.partition):
            for file in cluster:
                if file.numbers[1] <= number:
                    total += file.rows
                elif file.numbers[0] <= number:
                    with self._lock:
                        known = self._numbers if self._numbers and self._numbers[0] == file.path else None
                    if known is None:
                        numbers = np.sort(self._read(snapshot, file, ["number"])["number"].to_numpy())
                        known = self._numbers = (file.path, numbers)
                    total += int(np.searchsorted(known[1], number, "right"))
        return total

    def touched(self, partition: Partition, first: int, last: int) -> Iterator[str]:
        import pyarrow.compute as pc

        snapshot = self.snapshot(partition.partition, last)
        latest: dict[str, int] = {}
        for files, low, high in _windows(snapshot, partition.partition, first, last, Bounds()):
            for file in files:
                rows = self._read(snapshot, file, ["segment", "position", "number"])
                rows = rows.filter((pc.field("number") >= low) & (pc.field("number") <= high))
                for row in rows.group_by("segment").aggregate([("position", "max")]).to_pylist():
                    latest[row["segment"]] = max(row["position_max"], latest.get(row["segment"], -1))
        yield from sorted(latest, key=lambda segment: latest[segment])

    def spans(self, partition: Partition, first: int, last: int) -> Iterator[dict[str, tuple[int, int]]]:
        """For each file: the first and the last sequence of each segment in transactions first..last."""
        import pyarrow.compute as pc

        snapshot = self.snapshot(partition.partition, last)
        for files, low, high in _windows(snapshot, partition.partition, first, last, Bounds()):
            for file in files:
                rows = self._read(snapshot, file, ["segment", "sequence", "number"])
                rows = rows.filter((pc.field("number") >= low) & (pc.field("number") <= high))
                found = rows.group_by("segment").aggregate([("sequence", "min"), ("sequence", "max")])
                yield {
                    name: (least, greatest)
                    for name, least, greatest in zip(
                        found["segment"].to_pylist(),
                        found["sequence_min"].to_pylist(),
                        found["sequence_max"].to_pylist(),
                        strict=True,
                    )
                }

    def has(self, partition: Partition, id: bytes, number: int | None, made: int) -> bool:
        import pyarrow.compute as pc

        snapshot = self.snapshot(partition.partition, max(partition.head.archived, number or 0))
        name = str(UUID(bytes=id))
        for cluster in snapshot.clusters(partition.partition):
            for file in cluster:
                if number is None and file.timestamps[1] < made - 3_600_000:
                    continue
                if number is not None and not file.numbers[0] <= number <= file.numbers[1]:
                    continue
                if pc.index(self._read(snapshot, file, ["trx_id"])["trx_id"].cast("string"), name).as_py() >= 0:
                    return True
        return False

    # -- one segment --------------------------------------------------------------------------------------------

    def segment(self, partition: Partition, segment: str, first: int, last: int) -> Iterator[Batch]:
        expected = first

        def walk(snapshot: Snapshot) -> Iterator[Batch]:
            nonlocal expected
            for cluster in snapshot.clusters(partition.partition):
                files = [file for file in cluster if _may_hold(file, segment, expected, last)]
                rows = self._segment_rows(snapshot, files, segment, expected, last) if files else None
                if rows is None:
                    continue
                for batch in self._batches(partition, rows, (0, 0), Bounds()):
                    if batch.number > partition.head.archived:
                        return
                    if batch.entries[0].sequence != expected:
                        raise CorruptData(
                            f"{self.table.url}: sequence {expected} of segment {segment!r} is not where it must be; "
                            "check the store with `streamkit verify`"
                        )
                    yield batch
                    expected = batch.entries[-1].sequence + 1
                if expected > last:
                    return

        return self._retry(partition, walk)

    def _segment_rows(
        self, snapshot: Snapshot, files: Sequence[File], segment: str, first: int, last: int
    ) -> pa.Table | None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        parts = []
        for file in files:
            source = self._open(snapshot, file)
            groups = [
                at
                for at, (least, most, low, high) in enumerate(self._groups(file, source))
                if least <= segment <= most and low <= last and high >= first
            ]
            if not groups:
                continue
            with self.table.mapped():
                # First two narrow columns: most files have other segments before and after, and not this one.
                keys = source.read_row_groups(groups, columns=_KEYS, use_threads=False)
                keys = keys.unify_dictionaries().combine_chunks()
                names = keys["segment"].chunk(0)
                code = pc.index(names.dictionary, segment).as_py()
                sequence = keys["sequence"].to_numpy()
                wanted = (names.indices.to_numpy() == code) & (sequence >= first) & (sequence <= last)
                if code < 0 or not wanted.any():
                    continue
                group = np.repeat(groups, [source.metadata.row_group(at).num_rows for at in groups])
                hit = np.unique(group[wanted])
                rest = source.read_row_groups(hit.tolist(), columns=_REST, use_threads=False).unify_dictionaries()
                rows = rest.filter(pa.array(wanted[np.isin(group, hit)]))
                some = keys.filter(pa.array(wanted))
                for name in _KEYS:
                    rows = rows.append_column(name, some[name])
                parts.append(rows)
        if not parts:
            return None
        with self.table.mapped():
            rows = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
            return rows.take(pc.sort_indices(rows["sequence"])) if len(parts) > 1 else rows

    # -- files --------------------------------------------------------------------------------------------------

    def _open(self, snapshot: Snapshot, file: File) -> Any:
        import pyarrow.parquet as pq

        footer = self._footers.get(file.path)
        known = None if footer is None else footer[0]
        try:
            with self.table.mapped():
                try:
                    source = self.table.filesystem.open_input_file(file.path)
                except FileNotFoundError:
                    raise _Gone(file.path) from None
                found = pq.ParquetFile(
                    source,
                    metadata=known,
                    read_dictionary=_WORDS,
                    pre_buffer=True,
                    page_checksum_verification=True,
                )
        except _Gone:
            raise
        if footer is None:
            with self._lock:
                self._footers[file.path] = (found.metadata, None)
                if len(self._footers) > _FOOTERS:
                    self._footers.popitem(last=False)
        return found

    def _groups(self, file: File, source: Any) -> list[tuple[str, str, int, int]]:
        """Least and greatest segment and sequence of each row group."""
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

    def read(self, snapshot: Snapshot, file: File) -> pa.Table:
        """All rows and columns of a file."""
        return self._read(snapshot, file, ["partition", *_COLUMNS])

    def _read(self, snapshot: Snapshot, file: File, columns: list[str]) -> pa.Table:
        source = self._open(snapshot, file)
        with self.table.mapped():
            # Each row group has its own words.
            return source.read(columns=columns).unify_dictionaries()


class _Gone(CorruptData):
    """A file of a version is not there."""


def _moment(timestamp: int) -> pa.Scalar:
    import pyarrow as pa

    return pa.scalar(timestamp * 1000, pa.timestamp("us", "UTC"))


def _overlaps(file: File, bounds: Bounds) -> bool:
    low, high = bounds.min_timestamp, bounds.max_timestamp
    return file.timestamps[1] >= low and not (high and file.timestamps[0] > high)


def _may_hold(file: File, segment: str, first: int, last: int) -> bool:
    return file.segments[0] <= segment <= file.segments[1] and file.sequences[0] <= last and file.sequences[1] >= first


def _windows(
    snapshot: Snapshot, partition: int, first: int, last: int, bounds: Bounds
) -> Iterator[tuple[list[File], int, int]]:
    """(files, low number, high number): pieces of the log, in order, that are small enough to be sorted in memory."""
    for cluster in snapshot.clusters(partition):
        low = max(first, min(file.numbers[0] for file in cluster))
        high = min(last, max(file.numbers[1] for file in cluster))
        if low > high or not any(_overlaps(file, bounds) for file in cluster):
            continue
        parts = 1 if len(cluster) == 1 else -(-sum(file.rows for file in cluster) // _WINDOW)
        step = -(-(high - low + 1) // parts)
        for begin in range(low, high + 1, step):
            end = min(begin + step - 1, high)
            files = [file for file in cluster if file.numbers[0] <= end and file.numbers[1] >= begin]
            if files:
                yield files, begin, end
