"""Trims the archive: files whose entries are all below a space's floor leave the table and are deleted."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from .compact import part_file
from .snapshot import Gone, overlapping

if TYPE_CHECKING:
    from ..log.partition import Partition
    from .read import Archive

__all__ = ["trim_archive"]

_TRIES = 20


def trim_archive(archive: Archive, partition: Partition) -> int:
    """Remove files whose entries were all trimmed, and return their count. The caller holds the archiver's lease.

    A file with remaining entries stays as it is. A reader within a removed file gets a gap.
    """
    table, floor = archive.table, partition.head.floor.number
    for _ in range(_TRIES):
        snapshot = table.snapshot()
        if snapshot is None:
            return 0
        mine = [file for file in snapshot.files if file.partition == partition.partition]
        shared = [file for file in mine if file.shared and file.ours and file.numbers[1] < floor]
        if shared:
            with contextlib.suppress(Gone):
                for file in shared:
                    part_file(archive, snapshot, file)
            continue
        # Overlapping files go together, or the rest would have a hole.
        old = [
            file
            for files in overlapping(mine, parted=False)
            if all(file.numbers[1] < floor and not file.shared for file in files)
            for file in files
        ]
        if not old:
            return 0
        if table.drop(snapshot.state, old, partition.partition):
            for file in old:
                with table.mapped(), contextlib.suppress(FileNotFoundError):
                    table.filesystem.delete_file(file.path)
            return len(old)
    return 0
