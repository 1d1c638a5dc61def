"""Small files that follow each other become one, sorted as every file is; old files go when nobody reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from . import scattered
from .parquet import write_file
from .scattered import Wanted, windows
from .snapshot import File, Gone, Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

    from .read import Archive

__all__ = ["compact_space"]

_ROWS = 1_000_000
_TRIES = 20


def compact_space(
    archive: Archive, target_bytes: int, retention_hours: float, progress: Callable[[int, int], None] | None = None
) -> tuple[int, int, int]:
    """(files before, files after, old files removed). Archivers and readers may go on meanwhile.

    `target_bytes`: of payload in a file, before compression. ValueError for a negative retention.
    `progress(done, all)` counts files that are to be brought together.
    """
    if retention_hours < 0:
        raise ValueError(f"retention is 0 hours or more, not {retention_hours}")
    table = archive.table
    snapshot = table.snapshot()
    if snapshot is None:
        return 0, 0, 0
    before = len(snapshot.paths)
    while True:
        try:
            _compact(archive, snapshot, target_bytes, progress)
            break
        except Gone as error:  # an erasure, or another compaction, has replaced the file
            snapshot = archive.newer(snapshot, error)
    after = table.snapshot()
    # Files that no version names may be those of an archiver at work: they must be a day old.
    gone = table.vacuum(math.ceil(retention_hours), full=retention_hours >= 24)
    return before, len(after.paths) if after else 0, len(gone)


def _compact(
    archive: Archive, snapshot: Snapshot, target_bytes: int, progress: Callable[[int, int], None] | None
) -> None:
    """Bring files of a version together. Gone if a file is not there any more."""
    small, apart = list(_groups(archive, snapshot, target_bytes)), scattered_files(archive, snapshot)
    done, total = 0, sum(map(len, small + apart))
    for group in small + apart:
        (_merge if len(group) > 1 and all(file.ours for file in group) else sort_files)(archive, snapshot, group)
        done += len(group)
        if progress is not None:
            progress(done, total)


def _groups(archive: Archive, snapshot: Snapshot, target_bytes: int) -> Iterator[list[File]]:
    """Neighbours that together have no more payload than a file should: what they take in memory is told by that."""
    for partition in {file.partition for file in snapshot.files}:
        trimmed = snapshot.trimmed[partition].until
        group: list[File] = []
        size = rows = 0
        for cluster in snapshot.clusters(partition):
            # Compressed it is no more than decoded: what is large enough need not be opened.
            if len(cluster) > 1 or not cluster[0].ours or cluster[0].size >= target_bytes:
                if len(group) > 1:
                    yield group
                group = []
                continue
            payload = archive.files.payload_bytes(cluster[0])
            # What was trimmed before it was archived is between files, never in one.
            apart = bool(group) and group[-1].positions[1] + 1 != cluster[0].positions[0]
            apart = apart and group[-1].numbers[1] > trimmed
            if group and (apart or size + payload > target_bytes or rows + cluster[0].rows > _ROWS):
                if len(group) > 1:
                    yield group
                group = []
            if not group:
                size = rows = 0
            group += cluster
            size, rows = size + payload, rows + cluster[0].rows
        if len(group) > 1:
            yield group


def _merge(archive: Archive, snapshot: Snapshot, group: Sequence[File]) -> None:
    import pyarrow as pa

    table = archive.table
    columns = list(snapshot.state.types)
    with table.mapped():
        parts = [archive.files.read(file, columns) for file in group]
        rows = _with_long_payloads(pa.concat_tables(parts, promote_options="permissive")).unify_dictionaries()
        parts.clear()
        rows = _sorted(rows)
    _replace(archive, group, [write_file(table, rows)])


def _with_long_payloads(rows: pa.Table) -> pa.Table:
    """Offsets of 64 bits: what is put together may have more than 2 GiB."""
    import pyarrow as pa

    return rows.set_column(rows.column_names.index("payload"), "payload", rows["payload"].cast(pa.large_binary()))


def _sorted(rows: pa.Table) -> pa.Table:
    import pyarrow as pa

    words = rows["segment"].cast(pa.string())  # dictionaries cannot be sorted by
    rows = rows.set_column(rows.column_names.index("segment"), "segment", words)
    return rows.sort_by([("segment", "ascending"), ("sequence", "ascending")]).combine_chunks()


def _replace(archive: Archive, old: Sequence[File], new: Sequence[File]) -> None:
    table, paths = archive.table, {file.path for file in old}
    for _ in range(_TRIES):
        there = table.snapshot()
        if there is None or not paths <= there.paths:
            break
        if table.replace(there.state, old, new):
            return
    # Someone else replaced them: an erasure perhaps, of what ours still hold.
    table.discard(new)


def scattered_files(archive: Archive, snapshot: Snapshot) -> list[list[File]]:
    """What other engines have laid out: files that can only be replaced together, for they share rows' ranges.

    And files of our own that no reader can hold: earlier releases made them, by their size compressed.
    """
    found: list[list[File]] = []
    for partition in sorted({file.partition for file in snapshot.files}):
        for cluster in snapshot.clusters(partition):
            if len(cluster) == 1 and cluster[0].ours:
                if _is_too_large(archive, cluster[0]):
                    found.append(cluster)
                continue
            paths, group = {file.path for file in cluster}, list(cluster)
            for other in [other for other in found if paths & {file.path for file in other}]:
                found.remove(other)
                group += other
            found.append(group)
    return found


def _is_too_large(archive: Archive, file: File) -> bool:
    several = file.numbers[0] < file.numbers[1]
    return several and file.rows > 1 and archive.files.payload_bytes(file) > 2 * scattered.WINDOW


def sort_files(archive: Archive, snapshot: Snapshot, files: Sequence[File]) -> None:
    """Write the rows of `files` anew, as an archiver would have: each file a range of transactions of a partition."""
    table = archive.table
    columns = list(snapshot.state.types)
    new: list[File] = []
    for partition in sorted({file.partition for file in files}):
        some = [file for file in files if file.partition == partition]
        numbers = Wanted(
            partition, "number", min(file.numbers[0] for file in some), max(file.numbers[1] for file in some)
        )
        for rows in windows(table, some, numbers, columns):
            with table.mapped():
                rows = _sorted(rows)
            new.append(write_file(table, rows))
    _replace(archive, files, new)
