"""Small files that follow each other become one, sorted as every file is; old files go when nobody reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .parquet import write_file
from .table import File, Snapshot

if TYPE_CHECKING:
    from .read import Archive

__all__ = ["compact_space"]

_ROWS = 1_000_000
_TRIES = 20


def compact_space(archive: Archive, target_bytes: int, retention_hours: float) -> tuple[int, int, int]:
    """(files before, files after, old files removed). Archivers and readers may go on meanwhile.

    `target_bytes`: of the file, roughly a fifth of the payload for JSON. ValueError for a negative retention.
    """
    if retention_hours < 0:
        raise ValueError(f"retention is 0 hours or more, not {retention_hours}")
    table = archive.table
    snapshot = table.snapshot()
    if snapshot is None:
        return 0, 0, 0
    before = len(snapshot.files)
    for group in list(_groups(snapshot, target_bytes)):
        _merge(archive, snapshot, group)
    after = table.snapshot()
    # Files that no version names may be those of an archiver at work: they must be a day old.
    gone = table.vacuum(int(retention_hours), full=retention_hours >= 24)
    return before, len(after.files) if after else 0, len(gone)


def _groups(snapshot: Snapshot, target_bytes: int) -> Iterator[list[File]]:
    """Neighbours that together are no more than a file should be."""
    for partition in {file.partition for file in snapshot.files}:
        group: list[File] = []
        for cluster in snapshot.clusters(partition):
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
    with table.mapped():
        rows = pa.concat_tables([archive.read(snapshot, file) for file in group]).unify_dictionaries()
        words = rows["segment"].cast(pa.string())  # dictionaries cannot be sorted by
        rows = rows.set_column(rows.column_names.index("segment"), "segment", words)
        rows = rows.sort_by([("segment", "ascending"), ("sequence", "ascending")]).combine_chunks()
    merged = write_file(table, rows)
    for _ in range(_TRIES):
        loaded = table.load()
        there = table.snapshot(None if loaded is None else loaded.version())
        if loaded is None or there is None or not {file.path for file in group} <= {file.path for file in there.files}:
            # Someone else compacted them; ours is in no version, and goes with the next vacuum.
            return
        if table.replace(loaded, group, [merged]):
            return
