"""Small files that follow each other become one, sorted as every file is; old files go when nobody reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from .parquet import write_file
from .scattered import Wanted, windows
from .table import File, Snapshot

if TYPE_CHECKING:
    from .read import Archive

__all__ = ["compact_space"]

_ROWS = 1_000_000
_TRIES = 20


def compact_space(
    archive: Archive, target_bytes: int, retention_hours: float, progress: Callable[[int, int], None] | None = None
) -> tuple[int, int, int]:
    """(files before, files after, old files removed). Archivers and readers may go on meanwhile.

    `target_bytes`: of the file, roughly a fifth of the payload for JSON. ValueError for a negative retention.
    `progress(done, all)` counts files that are to be brought together.
    """
    if retention_hours < 0:
        raise ValueError(f"retention is 0 hours or more, not {retention_hours}")
    table = archive.table
    snapshot = table.snapshot()
    if snapshot is None:
        return 0, 0, 0
    before = len(snapshot.paths)
    small, scattered = list(_groups(snapshot, target_bytes)), _scattered(snapshot)
    done, total = 0, sum(map(len, small + scattered))
    for group in small + scattered:
        (_merge if all(file.ours for file in group) else _sort)(archive, snapshot, group)
        done += len(group)
        if progress is not None:
            progress(done, total)
    after = table.snapshot()
    # Files that no version names may be those of an archiver at work: they must be a day old.
    gone = table.vacuum(int(retention_hours), full=retention_hours >= 24)
    return before, len(after.paths) if after else 0, len(gone)


def _groups(snapshot: Snapshot, target_bytes: int) -> Iterator[list[File]]:
    """Neighbours that together are no more than a file should be."""
    for partition in {file.partition for file in snapshot.files}:
        group: list[File] = []
        for cluster in snapshot.clusters(partition):
            if len(cluster) > 1 or not cluster[0].ours:
                if len(group) > 1:
                    yield group
                group = []
                continue
            size, rows = sum(file.size for file in cluster), sum(file.rows for file in cluster)
            full = sum(file.size for file in group) + size > target_bytes
            if group and (full or sum(file.rows for file in group) + rows > _ROWS):
                if len(group) > 1:
                    yield group
                group = []
            group += cluster
        if len(group) > 1:
            yield group


def _merge(archive: Archive, snapshot: Snapshot, group: Sequence[File]) -> None:
    import pyarrow as pa

    table = archive.table
    columns = table.columns(snapshot.version)
    with table.mapped():
        parts = [archive.read(file, columns) for file in group]
        rows = pa.concat_tables(parts, promote_options="permissive").unify_dictionaries()
        words = rows["segment"].cast(pa.string())  # dictionaries cannot be sorted by
        rows = rows.set_column(rows.column_names.index("segment"), "segment", words)
        rows = rows.sort_by([("segment", "ascending"), ("sequence", "ascending")]).combine_chunks()
    _replace(archive, group, [write_file(table, rows)])


def _replace(archive: Archive, old: Sequence[File], new: Sequence[File]) -> None:
    table, paths = archive.table, {file.path for file in old}
    for _ in range(_TRIES):
        loaded = table.load()
        there = table.snapshot(None if loaded is None else loaded.version())
        if loaded is None or there is None or not paths <= there.paths:
            # Someone else compacted them; ours are in no version, and go with the next vacuum.
            return
        if table.replace(loaded, old, new):
            return


def _scattered(snapshot: Snapshot) -> list[list[File]]:
    """What other engines have laid out: files that can only be replaced together, for they share rows' ranges."""
    found: list[list[File]] = []
    for partition in sorted({file.partition for file in snapshot.files}):
        for cluster in snapshot.clusters(partition):
            if all(file.ours for file in cluster) and len(cluster) == 1:
                continue
            paths, group = {file.path for file in cluster}, list(cluster)
            for other in [other for other in found if paths & {file.path for file in other}]:
                found.remove(other)
                group += other
            found.append(group)
    return found


def _sort(archive: Archive, snapshot: Snapshot, files: Sequence[File]) -> None:
    """Write the rows of `files` anew, as an archiver would have: each file a range of transactions of a partition."""
    import pyarrow as pa

    table = archive.table
    columns = table.columns(snapshot.version)
    new: list[File] = []
    for partition in sorted({file.partition for file in files}):
        some = [file for file in files if file.partition == partition]
        numbers = Wanted(
            partition, "number", min(file.numbers[0] for file in some), max(file.numbers[1] for file in some)
        )
        for rows in windows(table, some, numbers, columns):
            with table.mapped():
                words = rows["segment"].cast(pa.string())
                rows = rows.set_column(rows.column_names.index("segment"), "segment", words)
                rows = rows.sort_by([("segment", "ascending"), ("sequence", "ascending")]).combine_chunks()
            new.append(write_file(table, rows))
    _replace(archive, files, new)
