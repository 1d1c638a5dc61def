"""Rows of trimmed entries leave the table if the space's `trimmed_rows` is "remove": other engines read it directly.

Files that hold such rows are rewritten without them, in one version. If a run is stopped, the next one does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import Unavailable
from ..log.segments import indexed_segments
from .compact import part_file, sort_foreign
from .parquet import write_file
from .snapshot import File, Gone, Snapshot, TrimmedMark

if TYPE_CHECKING:
    import pyarrow as pa

    from ..leases import Lease
    from ..log.partition import Partition
    from .read import Archive

__all__ = ["remove_trimmed_rows"]

_TRIES = 20
_CLEAN = 32
"""Files without such rows. The table names them, and later runs do not look at them again."""


def remove_trimmed_rows(archive: Archive, partition: Partition, lease: Lease) -> int:
    """Remove the rows of entries that were trimmed, by the log, if the space's setting asks for it; how many.

    The caller holds the archiver's lease.
    """
    if partition.changed.trimmed_rows != "remove":
        return 0
    table, made = archive.table, dict[str, File | None]()
    """`made`: the new file by the path of the file that it replaces; None if no row is left."""
    clean, firsts = set[str](), None
    for _ in range(_TRIES):
        snapshot = table.snapshot()
        if snapshot is None:
            return 0
        mark = _mark(snapshot, partition)
        before = snapshot.trimmed[partition.partition]
        if mark is None:
            return 0
        if firsts is None:
            firsts = {name: row.first_sequence for name, row in indexed_segments(partition) if row.first_sequence > 1}
        try:
            old, shared = list[File](), list[File]()
            for file in _candidates(snapshot, partition, before, mark, firsts):
                if file.path not in made and file.path not in clean:
                    if not _holds(archive, file, mark.floor, firsts):
                        clean.add(file.path)
                    elif not file.ours:
                        break
                    elif file.shared:
                        shared.append(file)
                    else:
                        made[file.path] = _written(archive, snapshot, file, mark.floor, firsts)
                if file.path in made:
                    old.append(file)
            else:
                for file in shared:
                    part_file(archive, snapshot, file)
                if shared:
                    continue
                if not old and len(clean) < _CLEAN:
                    return 0
                if not table.allow_holes(snapshot.state):
                    continue
                new = [found for file in old if (found := made[file.path]) is not None]
                # After the look: a later holder of the lease moves the table on, and then this commit fails.
                lease.check()
                if table.thin(snapshot.state, old, new, partition.partition, mark):
                    table.sync()
                    return sum(file.rows for file in old) - sum(file.rows for file in new)
                continue
            sort_foreign(archive, snapshot, file)
        except Gone:
            continue
    raise Unavailable(f"{table.url} is changed by others all the time; archive, or maintain, again later")


def _mark(snapshot: Snapshot, partition: Partition) -> TrimmedMark | None:
    """The table's mark after these rows are removed; None if no new mark is needed."""
    mine = [file for file in snapshot.files if file.partition == partition.partition]
    before = snapshot.trimmed.get(partition.partition)
    if not mine or before is None:
        return None
    head = partition.head
    mark = TrimmedMark(
        snapshot.archived[partition.partition],
        max(before.position, *(file.positions[1] + 1 for file in mine)),
        head.thinned,
        head.floor.number,
    )
    return None if before == mark or (mark.removed_by, mark.floor) == (0, 1) else mark


def _candidates(
    snapshot: Snapshot, partition: Partition, before: TrimmedMark, mark: TrimmedMark, firsts: Mapping[str, int]
) -> Iterator[File]:
    """The files that may hold rows of trimmed entries."""
    same = (before.removed_by, before.floor) == (mark.removed_by, mark.floor)
    for file in snapshot.files:
        if file.partition != partition.partition or (same and file.numbers[1] <= before.until):
            continue
        if file.numbers[0] < mark.floor or any(
            file.segments[0] <= segment <= file.segments[1] and file.sequences[0] < first
            for segment, first in firsts.items()
        ):
            yield file


def _holds(archive: Archive, file: File, floor: int, firsts: Mapping[str, int]) -> bool:
    parts = archive.files.narrow(file, ["number", "segment", "sequence"])
    return any(not _kept(rows, floor, firsts).all() for rows in parts)


def _written(archive: Archive, snapshot: Snapshot, file: File, floor: int, firsts: Mapping[str, int]) -> File | None:
    """A new file with the rows of `file` that stay; None if none does."""
    import pyarrow as pa

    rows = archive.files.read(file, list(snapshot.state.types))
    rows = rows.filter(pa.array(_kept(rows, floor, firsts)))
    return write_file(archive.table, rows) if rows.num_rows else None


def _kept(rows: pa.Table, floor: int, firsts: Mapping[str, int]) -> Any:
    """A mask of the rows whose entries were not trimmed."""
    import numpy as np

    segments = rows["segment"].combine_chunks()
    segments = segments.chunk(0) if hasattr(segments, "chunks") else segments
    if not hasattr(segments, "dictionary"):
        segments = segments.dictionary_encode()
    least = np.array([firsts.get(name, 0) for name in segments.dictionary.to_pylist()], np.int64)
    return (rows["number"].to_numpy() >= floor) & (rows["sequence"].to_numpy() >= least[segments.indices.to_numpy()])
