"""Examine every byte of a partition's archive: its files are whole, and hold each entry of the log once, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import CorruptData, UnsupportedVersion
from ..log.archive_reader import Contents
from ..log.batches import Bounds
from ..log.rows import SegmentRow
from .columns import check_rows
from .errors import UNDECODABLE, Elsewhere
from .file_reader import own_groups
from .parquet import check_digest
from .schema import schema
from .snapshot import File, Gone, Snapshot, TrimmedMark

if TYPE_CHECKING:
    import pyarrow as pa

    from .read import Archive

__all__ = ["examine"]

_TRIES = 5


def examine(archive: Archive, partition: int, last: int) -> Contents:
    """Implements `examine` of ArchiveReader. Other processes may archive and compact meanwhile."""
    for attempt in range(_TRIES):
        contents = Contents()
        try:
            snapshot = archive.table.snapshot()
            if snapshot is None:
                error = archive.missing(last)
                contents.elsewhere = isinstance(error, Elsewhere)
                contents.problems.append(("", str(error)))
            else:
                _Walk(archive, snapshot, partition, last, contents).run()
        except Gone as gone:
            # Compacted by others since the look at the table; or really missing.
            if attempt < _TRIES - 1:
                continue
            contents.problems.append((str(gone), "the file is missing"))
        except (CorruptData, UnsupportedVersion) as damage:
            contents.problems.append(("", str(damage)))
        return contents
    raise AssertionError


class _Walk:
    def __init__(self, archive: Archive, snapshot: Snapshot, partition: int, last: int, contents: Contents) -> None:
        self._archive = archive
        self._snapshot = snapshot
        self._partition = partition
        self._last = last
        self._contents = contents
        self._number = 0
        self._position = 0
        self._timestamp = 0
        self._rows = 0
        self._trimmed = False
        """True if transactions were trimmed before they were archived."""
        self._segments: dict[str, list[int]] = {}
        """The segments up to transaction `last`: first sequence and timestamp, last sequence and timestamp."""
        self._reached: dict[str, int] = {}

    def found(self, path: str, problem: str) -> None:
        self._contents.problems.append((path, problem))

    def run(self) -> None:
        archive, snapshot, contents = self._archive, self._snapshot, self._contents
        contents.last = snapshot.archived.get(self._partition, 0)
        if contents.last < self._last:
            self.found("", f"{archive.table.url} ends at transaction {contents.last} and not at {self._last}")
        for cluster in snapshot.clusters(self._partition):
            low, high = min(file.numbers[0] for file in cluster), max(file.numbers[1] for file in cluster)
            try:
                problems = [(file, problem) for file in cluster if (problem := check_digest(archive.table, file))]
                for file, problem in problems:
                    self.found(file.path, problem)
                if problems:
                    # Arrow ends the process where some descriptions are damaged.
                    self._position = -1
                    continue
                if len(cluster) == 1 and cluster[0].ours:
                    self._check_own(cluster[0])
                for rows in archive.in_order(snapshot, self._partition, low, high, Bounds()):
                    self._take(cluster, rows)
            except Gone:
                raise
            except CorruptData as error:
                self.found(cluster[0].path, str(error))
                self._position = -1
            except UNDECODABLE as error:
                self.found(cluster[0].path, f"it cannot be decoded: {error!r}")
                self._position = -1
        entries = archive.table.entries(snapshot.state, self._partition)
        if self._position != -1 and self._rows != entries:
            self.found("", f"the table says that it has {entries} entries and has {self._rows}")
        trimmed = snapshot.trimmed.get(self._partition, TrimmedMark())
        if trimmed.until:
            contents.sparse = True
            if self._last >= trimmed.until:
                contents.position = max(contents.position, trimmed.position)
        if self._number > contents.last:
            self.found("", f"the table says that it ends at {contents.last} and has transaction {self._number}")
        contents.segments = {
            name: SegmentRow(ends[0], ends[1], ends[2], ends[3]) for name, ends in self._segments.items()
        }

    def _check_own(self, file: File) -> None:
        """Check that the file's content agrees with its descriptions: readers choose their reads by them."""
        import pyarrow.compute as pc

        source = self._archive.files.open(file)
        table = self._archive.table
        with table.reading(file.path):
            for field in schema():
                kind = source.schema_arrow.field(field.name).type
                if getattr(kind, "value_type", kind) != field.type and kind != field.type:
                    self.found(file.path, f"its column {field.name!r} is {kind} and not {field.type}")
            groups = self._archive.files.groups(file, source)
            own = own_groups(file, source)
            for at, said in ((at, groups[at]) for at in own):
                rows = check_rows(source.read_row_group(at, columns=["segment", "sequence"]))
                ends = [pc.min_max(rows["segment"].cast("string")), pc.min_max(rows["sequence"])]
                measured_ends = tuple(end[name].as_py() for end in ends for name in ("min", "max"))
                if measured_ends != said:
                    self.found(file.path, f"row group {at} has {measured_ends}, and its description says {said}")
            names = ["partition", "number", "position", "segment", "sequence", "timestamp"]
            rows = check_rows(source.read_row_groups(own, columns=names)).unify_dictionaries()
            actual: dict[str, tuple[Any, Any]] = {}
            for name in names:
                end = pc.min_max(rows[name].cast("string" if name == "segment" else "int64"))
                actual[name] = (end["min"].as_py(), end["max"].as_py())
        moments = (actual["timestamp"][0] // 1000, actual["timestamp"][1] // 1000)
        measured = (actual["number"], actual["position"], actual["segment"], actual["sequence"], moments)
        said_so = (file.numbers, file.positions, file.segments, file.sequences, file.timestamps)
        if measured != said_so or actual["partition"] != (file.partition, file.partition) or rows.num_rows != file.rows:
            self.found(file.path, f"it holds {measured}, and the table's log says {said_so}")

    def _take(self, cluster: list[File], rows: pa.Table) -> None:
        """Rows in commit order, whole transactions."""
        import numpy as np

        number, index, position, sequence = (
            rows[name].to_numpy() for name in ("number", "index", "position", "sequence")
        )
        timestamp = rows["timestamp"].cast("int64").to_numpy() // 1000
        trx = rows["trx_id"].combine_chunks()
        codes = (trx.chunk(0) if hasattr(trx, "chunks") else trx).indices.to_numpy()
        path = cluster[0].path
        if int(position[0]) < self._position:
            self.found(path, f"it begins at entry {position[0]} and not at {self._position}")
        if int(position[0]) > max(self._position, 0):
            self._trimmed = True
        self._rows += rows.num_rows
        next_one = np.diff(number)
        same = next_one == 0
        until = self._snapshot.trimmed[self._partition].until
        # Trimmed entries may be missing before and between these.
        before, after = number[:-1] > until, number[1:] > until
        steps = np.diff(position)
        wrong = (next_one < 0) | (steps < 1) | (before & (steps != 1)) | (np.diff(timestamp) < 0)
        wrong |= same & ((np.diff(index) != steps) | (np.diff(codes) != 0) | (np.diff(timestamp) != 0))
        wrong |= ~same & after & (index[1:] != 0)
        if until and number[0] <= until:
            self._trimmed = True
        late = index[0] and number[0] > until
        if wrong.any() or late or number[0] <= self._number or timestamp[0] < self._timestamp:
            at = int(np.flatnonzero(wrong)[0]) + 1 if wrong.any() else 0
            self.found(path, f"transaction {number[at]} does not follow on the one before it")
        self._number, self._position, self._timestamp = int(number[-1]), int(position[-1]) + 1, int(timestamp[-1])
        contents = self._contents
        some = number <= self._last
        contents.entries += int(some.sum())
        if some.any():
            contents.timestamp = int(timestamp[some][-1])
            contents.position = int(position[some][-1]) + 1
        self._take_segments(path, rows, sequence, timestamp, some)

    def _take_segments(self, path: str, rows: pa.Table, sequence: Any, timestamp: Any, some: Any) -> None:
        import numpy as np

        segment = rows["segment"].combine_chunks()
        segment = segment.chunk(0) if hasattr(segment, "chunks") else segment
        names, codes = segment.dictionary.to_pylist(), segment.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
            of_it = order[begin:end]
            name, numbers = names[codes[of_it[0]]], sequence[of_it]
            first = self._reached.get(name, 0) + 1
            if self._trimmed and numbers[0] > first:
                first = int(numbers[0])
            if numbers[0] != first or (np.diff(numbers) != 1).any():
                self.found(path, f"segment {name!r} does not go on at {first} without a gap")
            self._reached[name] = int(numbers[-1])
            of_it = of_it[some[of_it]]
            if len(of_it):
                ends = self._segments.setdefault(name, [int(numbers[0]), int(timestamp[of_it[0]]), 0, 0])
                ends[2:] = [int(sequence[of_it[-1]]), int(timestamp[of_it[-1]])]
