"""Compaction: small files become large ones, sorted as every file is. Old files are removed when no reader needs them.

Neighbours of one partition are brought together. If the result is still small, it shares a file with other partitions,
so a space of many partitions has few files, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from . import scattered
from .joins import joins
from .parquet import write_file, write_shared
from .scattered import Wanted, windows
from .snapshot import File, Gone, Snapshot
from .spread import Rewrite, Rewritten, Spread

if TYPE_CHECKING:
    import pyarrow as pa

    from .file_reader import FileReader
    from .read import Archive
    from .table import Table

__all__ = ["compact_space", "part_file", "rewrite", "scattered_files", "sort_foreign"]

_TRIES = 20


def compact_space(
    archive: Archive,
    target_bytes: int,
    retention_hours: float,
    progress: Callable[[int, int], None] | None = None,
    spread: Spread | None = None,
) -> tuple[int, int, int]:
    """Return (files before, files after, old files removed). Archivers and readers may go on meanwhile.

    `target_bytes`: of payload in a file, before compression. ValueError for a negative retention.
    `progress(done, all)` counts files that are to be brought together. `spread` has the new files written elsewhere.
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
            _compact(archive, snapshot, target_bytes, progress, spread)
            break
        except Gone as error:  # an erasure, or another compaction, has replaced the file
            snapshot = archive.newer(snapshot, error)
    after = table.snapshot()
    # Files that no version names may be those of an archiver at work: they must be a day old.
    gone = table.vacuum(math.ceil(retention_hours), full=retention_hours >= 24)
    return before, len(after.paths) if after else 0, len(gone)


def _compact(
    archive: Archive,
    snapshot: Snapshot,
    target_bytes: int,
    progress: Callable[[int, int], None] | None,
    spread: Spread | None,
) -> None:
    """Bring files of a version together. Gone if a file is not there any more."""
    apart = scattered_files(archive, snapshot)
    tasks = [
        Rewrite(archive.table.store, archive.space, list(snapshot.state.types), old, new)
        for old, new in [*((files, []) for files in apart), *joins(archive.files, snapshot, apart, target_bytes)]
    ]
    done, total = 0, sum(len(_paths(task.old)) for task in tasks)
    gone = ""
    here = (rewrite(archive.files, task) for task in tasks)
    for rewritten in here if spread is None or not tasks else spread(tasks):
        assert isinstance(rewritten, Rewritten)
        if rewritten.gone:
            gone = rewritten.gone
            continue
        _replace(archive.table, rewritten.old, rewritten.new)
        done += len(_paths(rewritten.old))
        if progress is not None:
            progress(done, total)
    if gone:
        raise Gone(gone)


def _paths(files: Sequence[File]) -> set[str]:
    return {file.path for file in files}


def rewrite(files: FileReader, task: Rewrite) -> Rewritten:
    """Write the new files of `task`. No version of the table names them yet."""
    new: list[File] = []
    try:
        if not task.new:
            new += _sorted_files(files.table, task.old, task.columns)
        for parts in task.new:
            rows = (_joined(files, part, task.columns) for part in parts)
            new += write_shared(files.table, rows) if len(parts) > 1 else [write_file(files.table, next(rows))]
    except Gone as error:
        files.table.discard(new)
        return Rewritten(task.old, [], str(error))
    except BaseException:
        files.table.discard(new)
        raise
    return Rewritten(task.old, new)


def _joined(files: FileReader, part: Sequence[File], columns: list[str]) -> pa.Table:
    """The rows of some files of a partition, sorted."""
    import pyarrow as pa

    with files.table.mapped():
        tables = [files.read(file, columns) for file in part]
        rows = _with_long_payloads(pa.concat_tables(tables, promote_options="permissive")).unify_dictionaries()
        tables.clear()
        return _sorted(rows)


def _with_long_payloads(rows: pa.Table) -> pa.Table:
    """Use offsets of 64 bits: joined columns may have more than 2 GiB."""
    import pyarrow as pa

    return rows.set_column(rows.column_names.index("payload"), "payload", rows["payload"].cast(pa.large_binary()))


def _sorted(rows: pa.Table) -> pa.Table:
    import pyarrow as pa

    words = rows["segment"].cast(pa.string())  # dictionaries cannot be sorted by
    rows = rows.set_column(rows.column_names.index("segment"), "segment", words)
    return rows.sort_by([("segment", "ascending"), ("sequence", "ascending")]).combine_chunks()


def _replace(table: Table, old: Sequence[File], new: Sequence[File]) -> None:
    paths = _paths(old)
    for _ in range(_TRIES):
        snapshot = table.snapshot()
        if snapshot is None or not paths <= snapshot.paths:
            break
        if table.replace(snapshot.state, old, new):
            return
    # Another process replaced them, perhaps an erasure whose entries the new files still hold.
    table.discard(new)


def scattered_files(archive: Archive, snapshot: Snapshot) -> list[list[File]]:
    """Groups of files to be sorted. Files of one group are replaced together, because their ranges of rows overlap.

    A group holds files of another engine and the files that overlap them. An own file that exceeds a reader's memory
    is a group too: earlier releases limited files by their compressed size.
    """
    groups: list[list[File]] = []
    clusters = [cluster for partition in snapshot.partitions for cluster in snapshot.clusters(partition)]
    mixed = _with_scattered(clusters)
    for cluster in clusters:
        if len(cluster) == 1 and cluster[0].ours and cluster[0].path not in mixed:
            if not cluster[0].shared and _is_too_large(archive, cluster[0]):
                groups.append(cluster)
            continue
        paths, group = _paths(cluster), list(cluster)
        for other in [other for other in groups if paths & _paths(other)]:
            groups.remove(other)
            group += other
        groups.append(group)
    return groups


def _with_scattered(clusters: Sequence[Sequence[File]]) -> set[str]:
    """The shared files of ours that have to be replaced as a whole, because one of their partitions overlaps another
    engine's file."""
    mixed: set[str] = set()
    while True:
        before = len(mixed)
        for cluster in clusters:
            if len(cluster) > 1 or not cluster[0].ours or cluster[0].path in mixed:
                mixed |= {file.path for file in cluster if file.shared and file.ours}
        if len(mixed) == before:
            return mixed


def _is_too_large(archive: Archive, file: File) -> bool:
    several = file.numbers[0] < file.numbers[1]
    return several and file.rows > 1 and archive.files.payload_bytes(file) > 2 * scattered.WINDOW


def sort_foreign(archive: Archive, snapshot: Snapshot, file: File) -> None:
    """Have a file that another engine wrote replaced by files of our own, and those that share its rows' ranges."""
    for group in scattered_files(archive, snapshot):
        if file.path in {other.path for other in group}:
            _sort_files(archive, snapshot, group)


def part_file(archive: Archive, snapshot: Snapshot, file: File) -> None:
    """Have a file of several partitions that streamkit wrote replaced by one for each of them.

    Rows, and payloads, are removed from files of one partition only. A later compaction brings the files together.
    """
    _sort_files(archive, snapshot, [part for part in snapshot.files if part.path == file.path])


def _sort_files(archive: Archive, snapshot: Snapshot, files: Sequence[File]) -> None:
    """Rewrite the rows of `files` as an archiver would: each file has a range of transactions of a partition."""
    _replace(archive.table, files, list(_sorted_files(archive.table, files, list(snapshot.state.types))))


def _sorted_files(table: Table, files: Sequence[File], columns: list[str]) -> Iterator[File]:
    for partition in sorted({file.partition for file in files}):
        some = [file for file in files if file.partition == partition]
        numbers = Wanted(
            partition, "number", min(file.numbers[0] for file in some), max(file.numbers[1] for file in some)
        )
        for rows in windows(table, some, numbers, columns):
            with table.mapped():
                rows = _sorted(rows)
            yield write_file(table, rows)
