"""Reading the archive: the readers' batches from Parquet files, found by the statistics of files and row groups."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from ..errors import CorruptData, StreamkitError
from ..log.archive_reader import Contents
from ..log.read import Batch, Bounds
from ..metadata import NO_METADATA, Metadata
from ..model import NO_TRX, TRX, Entry, Origin
from .columns import as_ours, with_words
from .errors import UNDECODABLE, Damaged, Elsewhere
from .place import Place
from .scattered import Wanted, windows
from .table import File, Gone, Snapshot, Table

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
_NARROW_ROWS = 262_144
_FOOTERS = 256
_PART = 500_000
"""Rows of files that others wrote, which are held at a time by who reads them backwards."""
_T = TypeVar("_T")


class Archive:
    """A space's archive as `streamkit.log.archive_reader.Cold`. Safe to share between threads."""

    def __init__(self, place: Place, store: UUID, space: str) -> None:
        self.space = space
        self._place = place
        self._store = store
        self.table = Table(place, store, space)
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._footers: OrderedDict[str, Any] = OrderedDict()
        self._numbers: tuple[tuple[str, int], Any] | None = None
        """The sorted numbers of the file that was last asked for them."""

    # -- versions -----------------------------------------------------------------------------------------------

    def snapshot(self, partition: int, archived: int) -> Snapshot:
        """A version that holds `partition` up to `archived`."""
        found = self._snapshot
        if found is None or found.archived.get(partition, 0) < archived:
            found = self._load()
        if found is None:
            raise self.missing(archived)
        if found.archived.get(partition, 0) < archived:
            raise Damaged(
                f"{self.table.url} ends at transaction {found.archived.get(partition, 0)}, but the log says that "
                f"transactions up to {archived} of partition {partition} are archived; restore the table"
            )
        return found

    def check_place(self, partition: Partition) -> None:
        """PermanentError if the log says that something is archived, and here is no table."""
        if partition.head.archived and self.table.load() is None:
            raise self.missing(partition.head.archived)

    def missing(self, archived: int) -> Damaged | Elsewhere:
        """What to say where transactions up to `archived` are archived and there is no table."""
        with self.table.mapped():
            return self._place.missing(self._store, self.space, archived)

    def _load(self) -> Snapshot | None:
        with self._lock:
            before = None
            while True:
                try:
                    self._snapshot = self.table.snapshot()
                    return self._snapshot
                except Gone as error:
                    # Replaced by others between the look at the table and that at the file; or really missing.
                    table = self.table.load()
                    version = None if table is None else table.version()
                    if version == before:
                        raise self._missing(error, version) from None
                    before = version

    def _missing(self, error: Gone, version: int | None) -> Damaged:
        return Damaged(
            f"{self.table.url}, version {version}: the file {error} is missing; restore it, or an earlier version of "
            "the table"
        )

    def _unreadable(self, error: Exception) -> StreamkitError:
        """Where a damaged page was decoded into what is not in the file's dictionaries, or is no UUID."""
        if isinstance(error, StreamkitError):
            return error
        return Damaged(f"{self.table.url}: a file of the table is damaged: {error}")

    def _newer(self, snapshot: Snapshot, error: Gone) -> Snapshot:
        """The version to go on with where a file of `snapshot` is gone, because others compacted the table."""
        newer = self._load()
        if newer is None or newer.version == snapshot.version:
            raise self._missing(error, snapshot.version) from None
        return newer

    def _retry(self, partition: Partition, last: int, walk: Callable[[Snapshot], Iterator[Batch]]) -> Iterator[Batch]:
        """walk(a version that holds transaction `last`); again with a newer one if one of the files is gone.

        `walk` goes on where it was.
        """
        snapshot = self.snapshot(partition.partition, last)
        while True:
            try:
                yield from walk(snapshot)
                return
            except Gone as error:
                snapshot = self._newer(snapshot, error)
            except UNDECODABLE as error:
                raise self._unreadable(error) from error

    def _asked(self, partition: Partition, last: int, ask: Callable[[Snapshot], _T]) -> _T:
        """ask(a version that holds transaction `last`); again with a newer one if one of the files is gone."""
        snapshot = self.snapshot(partition.partition, last)
        while True:
            try:
                return ask(snapshot)
            except Gone as error:
                snapshot = self._newer(snapshot, error)
            except UNDECODABLE as error:
                raise self._unreadable(error) from error

    # -- the log ------------------------------------------------------------------------------------------------

    def transactions(self, partition: Partition, start: tuple[int, int], last: int, bounds: Bounds) -> Iterator[Batch]:
        here = start

        def walk(snapshot: Snapshot) -> Iterator[Batch]:
            nonlocal here
            for rows in self.in_order(snapshot, partition.partition, here[0], last, bounds):
                for batch in self._batches(partition, rows, here, bounds):
                    yield batch
                    end = batch.entries[-1]
                    here = (batch.number, batch.origin.index + end.sequence - batch.origin.first_sequence + 1)

        return self._retry(partition, last, walk)

    def in_order(self, snapshot: Snapshot, partition: int, first: int, last: int, bounds: Bounds) -> Iterator[pa.Table]:
        """The rows of transactions first..last in commit order, in pieces that fit in memory."""
        for files, low, high in _windows(snapshot, partition, first, last, bounds):
            if _alone(files):
                yield self._dense(snapshot, self._rows(files[0], low, high))
                continue
            for rows in windows(self.table, files, Wanted(partition, "number", low, high), _COLUMNS):
                yield self._dense(snapshot, rows)

    def _rows(self, file: File, low: int, high: int) -> pa.Table:
        import pyarrow.compute as pc

        rows = self._read(file, _COLUMNS)
        with self.table.mapped():
            if low > file.numbers[0] or high < file.numbers[1]:
                rows = rows.filter((pc.field("number") >= low) & (pc.field("number") <= high))
            return rows.combine_chunks()

    def _dense(self, snapshot: Snapshot, rows: pa.Table) -> pa.Table:
        """`rows` in commit order. CorruptData if they are not all those of their transactions, once each."""
        import numpy as np
        import pyarrow as pa

        # Positions are dense: where each row belongs is known without sorting.
        position = rows["position"].to_numpy()
        where = position - (position.min() if len(position) else 0)
        order = np.full(len(where), -1)
        order[where[where < len(order)]] = np.flatnonzero(where < len(order))
        if len(order) and order.min() < 0:
            numbers = rows["number"].to_numpy()
            raise CorruptData(
                f"{self.table.url}, version {snapshot.version}: transactions {numbers.min()} to {numbers.max()} are "
                "not there once each"
            )
        with self.table.mapped():
            return rows if (where == np.arange(len(where))).all() else rows.take(pa.array(order))

    def _batches(self, partition: Partition, rows: pa.Table, start: tuple[int, int], bounds: Bounds) -> Iterator[Batch]:
        """Rows in commit or in sequence order, as batches of consecutive entries of one segment and transaction."""
        import numpy as np
        import pyarrow as pa

        space, index, partitions = partition.space, partition.partition, partition.settings.partitions
        incarnation = partition.settings.incarnation
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
                origin = Origin(index, partitions, place, trx_index, first, "cold", 0, None, incarnation)
                if metadata is None:
                    entries = [
                        Entry(space, segment, number_, moment, trx, payload, NO_METADATA, origin)
                        for number_, payload in enumerate(payloads[here:stop], first)
                    ]
                else:
                    entries = [
                        Entry(space, segment, number_, moment, trx, payload, Metadata(data or ()), origin)
                        for number_, (payload, data) in enumerate(
                            zip(payloads[here:stop], metadata[here:stop], strict=True), first
                        )
                    ]
                yield Batch(moment, trx_number, origin, entries)

    def first_at(self, partition: Partition, timestamp: int, first: int, last: int) -> int:
        import pyarrow.compute as pc

        moment = _moment(timestamp)

        def ask(snapshot: Snapshot) -> int:
            for cluster in snapshot.clusters(partition.partition):
                found: list[int] = []
                for file in cluster:
                    if file.numbers[1] >= first and file.timestamps[1] >= timestamp:
                        for rows in self._narrow(file, ["number", "timestamp"]):
                            rows = rows.filter((pc.field("timestamp") >= moment) & (pc.field("number") >= first))
                            if rows.num_rows:
                                found.append(pc.min(rows["number"]).as_py())
                if found:
                    return min(min(found), last + 1)
            return last + 1

        return self._asked(partition, last, ask)

    def entries_until(self, partition: Partition, number: int) -> int:
        """Entries of the partition up to transaction `number`, which is archived."""
        import numpy as np

        def ask(snapshot: Snapshot) -> int:
            total = 0
            for cluster in snapshot.clusters(partition.partition):
                for file in cluster:
                    if file.numbers[1] <= number:
                        total += file.rows
                    elif file.numbers[0] <= number:
                        which = (file.path, file.partition)
                        with self._lock:
                            known = self._numbers if self._numbers and self._numbers[0] == which else None
                        if known is None:
                            numbers = [rows["number"].to_numpy() for rows in self._narrow(file, ["number"])]
                            known = self._numbers = (which, np.sort(np.concatenate(numbers)))
                        total += int(np.searchsorted(known[1], number, "right"))
            return total

        return self._asked(partition, number, ask)

    def touched(self, partition: Partition, first: int, last: int) -> Iterator[str]:
        def ask(snapshot: Snapshot) -> dict[str, int]:
            latest: dict[str, int] = {}
            for rows in self._between(snapshot, partition.partition, first, last, ["segment", "position"]):
                for row in rows.group_by("segment").aggregate([("position", "max")]).to_pylist():
                    latest[row["segment"]] = max(row["position_max"], latest.get(row["segment"], -1))
            return latest

        latest = self._asked(partition, last, ask)
        yield from sorted(latest, key=lambda segment: latest[segment])

    def spans(self, partition: Partition, first: int, last: int) -> Iterator[dict[str, tuple[int, int]]]:
        """For some transactions of first..last at a time: the first and the last sequence of each segment."""

        def ask(snapshot: Snapshot) -> Iterator[dict[str, tuple[int, int]]]:
            for rows in self._between(snapshot, partition.partition, first, last, ["segment", "sequence"]):
                found = rows.group_by("segment").aggregate([("sequence", "min"), ("sequence", "max")])
                ends = (found[name].to_pylist() for name in ("segment", "sequence_min", "sequence_max"))
                yield {name: (least, greatest) for name, least, greatest in zip(*ends, strict=True)}

        snapshot = self.snapshot(partition.partition, last)
        while True:
            try:
                yield from ask(snapshot)
                return
            except Gone as error:  # what was given already may be given again
                snapshot = self._newer(snapshot, error)

    def _between(
        self, snapshot: Snapshot, partition: int, first: int, last: int, columns: list[str]
    ) -> Iterator[pa.Table]:
        """These columns of transactions first..last, in no order."""
        import pyarrow.compute as pc

        for files, low, high in _windows(snapshot, partition, first, last, Bounds()):
            for file in files:
                for rows in self._narrow(file, [*columns, "number"]):
                    rows = rows.filter((pc.field("number") >= low) & (pc.field("number") <= high))
                    if rows.num_rows:
                        yield rows

    def has(self, partition: Partition, id: bytes, number: int | None, made: int) -> bool:
        import pyarrow.compute as pc

        name = str(UUID(bytes=id))

        def ask(snapshot: Snapshot) -> bool:
            for cluster in snapshot.clusters(partition.partition):
                for file in cluster:
                    if number is None and file.timestamps[1] < made - 3_600_000:
                        continue
                    if number is not None and not file.numbers[0] <= number <= file.numbers[1]:
                        continue
                    for rows in self._narrow(file, ["trx_id"]):
                        if pc.index(rows["trx_id"].cast("string"), name).as_py() >= 0:
                            return True
            return False

        return self._asked(partition, max(partition.head.archived, number or 0), ask)

    def check(self, partition: Partition, first: int, last: int) -> None:
        """Read transactions first..last, every byte of them. CorruptData if they are not there, whole."""

        def ask(snapshot: Snapshot) -> None:
            for _ in self.in_order(snapshot, partition.partition, first, last, Bounds()):
                pass

        self._asked(partition, last, ask)

    def examine(self, partition: Partition, last: int) -> Contents:
        from .examine import examine

        return examine(self, partition.partition, last)

    # -- backwards ----------------------------------------------------------------------------------------------

    def transactions_backwards(self, partition: Partition, start: tuple[int, int], last: int) -> Iterator[Batch]:
        end = last

        def walk(snapshot: Snapshot) -> Iterator[Batch]:
            nonlocal end
            for files, least, most in reversed(list(_windows(snapshot, partition.partition, start[0], end, Bounds()))):
                parts = 1 if _alone(files) else -(-sum(file.rows for file in files) // _PART)
                for low, high in _downwards(least, most, -(-(most - least + 1) // parts)):
                    for rows in reversed(list(self.in_order(snapshot, partition.partition, low, high, Bounds()))):
                        yield from self._backwards(partition, rows, start)
                    end = low - 1

        return self._retry(partition, last, walk)

    def segment_backwards(self, partition: Partition, segment: str, first: int, last: int) -> Iterator[Batch]:
        end = last

        def walk(snapshot: Snapshot) -> Iterator[Batch]:
            nonlocal end
            for cluster in reversed(list(snapshot.clusters(partition.partition))):
                files = [file for file in cluster if _may_hold(file, segment, first, end)]
                least = max(first, min((file.sequences[0] for file in files), default=end + 1))
                for low, high in _downwards(least, end, end if _alone(files) else _PART):
                    for rows in reversed(list(self._of_segment(files, partition.partition, segment, low, high))):
                        for batch in self._backwards(partition, rows, (0, 0)):
                            if batch.entries[-1].sequence != end:
                                raise CorruptData(
                                    f"{self.table.url}, version {snapshot.version}: sequence {end} of segment "
                                    f"{segment!r} is not where it must be; check the store with `streamkit verify`"
                                )
                            yield batch
                            end = batch.entries[0].sequence - 1
                if end < first:
                    return

        return self._retry(partition, partition.head.archived, walk)

    def _backwards(self, partition: Partition, rows: pa.Table, start: tuple[int, int]) -> Iterator[Batch]:
        """The batches of `rows`, the last first, of which few are made at a time."""
        for begin in reversed(range(0, rows.num_rows, _ROWS)):
            part = rows.slice(begin, _ROWS)
            for name in _WORDS:
                # Only the words of these rows: a file may have a million.
                words = part[name].cast(rows.schema.field(name).type.value_type).dictionary_encode()
                part = part.set_column(part.schema.get_field_index(name), name, words)
            yield from reversed(list(self._batches(partition, part, start, Bounds())))

    # -- one segment --------------------------------------------------------------------------------------------

    def segment(
        self, partition: Partition, segment: str, first: int, last: int, archived: int | None = None
    ) -> Iterator[Batch]:
        """As in Cold; `archived`: the transaction that the table must hold at least, instead of the watermark."""
        expected = first

        def walk(snapshot: Snapshot) -> Iterator[Batch]:
            nonlocal expected
            for cluster in snapshot.clusters(partition.partition):
                files = [file for file in cluster if _may_hold(file, segment, expected, last)]
                for rows in self._of_segment(files, partition.partition, segment, expected, last):
                    for batch in self._batches(partition, rows, (0, 0), Bounds()):
                        if batch.number > partition.head.archived:
                            return
                        if batch.entries[0].sequence != expected:
                            raise CorruptData(
                                f"{self.table.url}, version {snapshot.version}: sequence {expected} of segment "
                                f"{segment!r} is not where it must be; check the store with `streamkit verify`"
                            )
                        yield batch
                        expected = batch.entries[-1].sequence + 1
                if expected > last:
                    return

        return self._retry(partition, partition.head.archived if archived is None else archived, walk)

    def _of_segment(
        self, files: Sequence[File], partition: int, segment: str, first: int, last: int
    ) -> Iterator[pa.Table]:
        """The rows first..last of a segment, in order."""
        if _alone(files):
            rows = self._segment_rows(files[0], segment, first, last)
            if rows is not None:
                yield rows
        elif files:
            low = max(first, min(file.sequences[0] for file in files))
            high = min(last, max(file.sequences[1] for file in files))
            yield from windows(self.table, files, Wanted(partition, "sequence", low, high, segment), _COLUMNS)

    def _segment_rows(self, file: File, segment: str, first: int, last: int) -> pa.Table | None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        source = self.open(file)
        groups = [
            at
            for at, (least, most, low, high) in enumerate(self.groups(file, source))
            if least <= segment <= most and low <= last and high >= first
        ]
        if not groups:
            return None
        with self.table.reading(file.path):
            # First two narrow columns: most files have other segments before and after, and not this one.
            keys = source.read_row_groups(groups, columns=_KEYS, use_threads=False)
            keys = keys.unify_dictionaries().combine_chunks()
            names = keys["segment"].chunk(0)
            code = pc.index(names.dictionary, segment).as_py()
            sequence = keys["sequence"].to_numpy()
            wanted = (names.indices.to_numpy() == code) & (sequence >= first) & (sequence <= last)
            if code < 0 or not wanted.any():
                return None
            group = np.repeat(groups, [source.metadata.row_group(at).num_rows for at in groups])
            hit = np.unique(group[wanted])
            rest = source.read_row_groups(hit.tolist(), columns=_REST, use_threads=False).unify_dictionaries()
            rows = rest.filter(pa.array(wanted[np.isin(group, hit)]))
            some = keys.filter(pa.array(wanted))
            for name in _KEYS:
                rows = rows.append_column(name, some[name])
            return rows.combine_chunks()

    # -- files --------------------------------------------------------------------------------------------------

    def open(self, file: File) -> Any:
        footer = self._footers.get(file.path)
        known = None if footer is None else footer[0]
        found = self.table.open(file.path, metadata=known, read_dictionary=_WORDS, pre_buffer=True)
        if footer is None:
            with self._lock:
                self._footers[file.path] = (found.metadata, None)
                if len(self._footers) > _FOOTERS:
                    self._footers.popitem(last=False)
        return found

    def groups(self, file: File, source: Any) -> list[tuple[str, str, int, int]]:
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

    def read(self, file: File, columns: list[str]) -> pa.Table:
        """All rows of a file that streamkit wrote; of the columns those that it has."""
        return self._read(file, columns)

    def _read(self, file: File, columns: list[str]) -> pa.Table:
        source = self.open(file)
        with self.table.reading(file.path):
            # Each row group has its own words.
            return source.read(columns=columns).unify_dictionaries()

    def _narrow(self, file: File, columns: list[str]) -> Iterator[pa.Table]:
        """Some small columns of the file's rows that are of its partition: at once, or in batches if it is not ours."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if file.ours:
            yield self._read(file, columns)
            return
        source = self.table.open(file.path, buffer_size=1 << 20, pre_buffer=False)
        with self.table.reading(file.path):
            for batch in source.iter_batches(_NARROW_ROWS, columns=[*columns, "partition"]):
                rows = as_ours(pa.Table.from_batches([batch]))
                rows = rows.filter(pc.field("partition") == file.partition).select(columns)
                if rows.num_rows:
                    yield with_words(rows)


def _alone(files: Sequence[File]) -> bool:
    """Whether it is one file that streamkit wrote: sorted, without overlaps, of one partition."""
    return len(files) == 1 and files[0].ours


def _moment(timestamp: int) -> pa.Scalar:
    import pyarrow as pa

    return pa.scalar(timestamp * 1000, pa.timestamp("us", "UTC"))


def _overlaps(file: File, bounds: Bounds) -> bool:
    low, high = bounds.min_timestamp, bounds.max_timestamp
    return file.timestamps[1] >= low and not (high and file.timestamps[0] > high)


def _may_hold(file: File, segment: str, first: int, last: int) -> bool:
    return file.segments[0] <= segment <= file.segments[1] and file.sequences[0] <= last and file.sequences[1] >= first


def _downwards(first: int, last: int, step: int) -> Iterator[tuple[int, int]]:
    """first..last in parts of `step`, the last one first."""
    while last >= first:
        yield max(first, last - step + 1), last
        last -= step


def _windows(
    snapshot: Snapshot, partition: int, first: int, last: int, bounds: Bounds
) -> Iterator[tuple[list[File], int, int]]:
    """(files, low number, high number): pieces of the log, in order."""
    for cluster in snapshot.clusters(partition):
        low = max(first, min(file.numbers[0] for file in cluster))
        high = min(last, max(file.numbers[1] for file in cluster))
        files = [file for file in cluster if file.numbers[0] <= high and file.numbers[1] >= low]
        if files and any(_overlaps(file, bounds) for file in files):
            yield files, low, high
