"""Chooses the small files that compaction joins.

Neighbours of a partition that fill at least half of a file become a file of that partition. Smaller files share one
file with other partitions. A shared file that is less than half full is joined with later files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .file_reader import FileReader
from .snapshot import File, Snapshot

__all__ = ["Join", "joins"]

_ROWS = 1_000_000


class Join(NamedTuple):
    """Files of a version, and the files that are to take their place."""

    old: list[File]
    new: list[list[list[File]]]
    """The source files of each new file, for each of its partitions."""


class _Run(NamedTuple):
    """Neighbours of one partition."""

    files: list[File]
    payload: int
    rows: int


class _Shared:
    """A file that is to have rows of several partitions, or of one."""

    def __init__(self) -> None:
        self.runs: list[_Run] = []
        self.payload = self.rows = 0
        self.partitions: set[int] = set()

    def takes(self, run: _Run, target_bytes: int) -> bool:
        """True if `run` fits. A file holds one range of transactions per partition."""
        fits = self.payload + run.payload <= target_bytes and self.rows + run.rows <= _ROWS
        return fits and run.files[0].partition not in self.partitions

    def add(self, run: _Run) -> None:
        self.runs.append(run)
        self.payload, self.rows = self.payload + run.payload, self.rows + run.rows
        self.partitions.add(run.files[0].partition)


def joins(files: FileReader, snapshot: Snapshot, apart: Sequence[Sequence[File]], target_bytes: int) -> Iterator[Join]:
    """The joins to make, without the files that are `apart`. They are independent and can run in any order."""
    left = {file.path for group in apart for file in group}
    parts: dict[str, list[File]] = {}
    for file in snapshot.files:
        if file.shared and file.ours and file.path not in left:
            parts.setdefault(file.path, []).append(file)
    half = target_bytes // 2
    full = {path for path, some in parts.items() if sum(map(files.payload_bytes, some)) >= half}
    shared: list[_Shared] = []
    for partition in snapshot.partitions:
        for run in _runs(files, snapshot, partition, target_bytes, left | full):
            if run.payload >= half and not any(file.shared for file in run.files):
                if len(run.files) > 1:
                    yield Join(run.files, [[run.files]])
                continue
            target = next((join for join in shared if join.takes(run, target_bytes)), None)
            if target is None:
                shared.append(target := _Shared())
            target.add(run)
    for some in _connected(shared):
        old = [file for join in some for run in join.runs for file in run.files]
        if len({file.path for file in old}) > len(some):
            yield Join(old, [[run.files for run in join.runs] for join in some])


def _connected(shared: Sequence[_Shared]) -> list[list[_Shared]]:
    """Groups of shared files that get parts of one old file, because an old file is only replaced as a whole."""
    found: list[tuple[set[str], list[_Shared]]] = []
    for one in shared:
        paths, group = {file.path for run in one.runs for file in run.files}, [one]
        for other in [other for other in found if paths & other[0]]:
            found.remove(other)
            paths, group = paths | other[0], other[1] + group
        found.append((paths, group))
    return [group for _, group in found]


def _runs(files: FileReader, snapshot: Snapshot, partition: int, target_bytes: int, left: set[str]) -> Iterator[_Run]:
    """Neighbours that together have no more payload than a file should. The payload bounds their memory."""
    trimmed = snapshot.trimmed[partition].until
    run = _Run([], 0, 0)
    for cluster in snapshot.clusters(partition):
        file = cluster[0]
        # A compressed file is no larger than its decoded rows: a large file need not be opened.
        large = file.size >= target_bytes and not file.shared
        if len(cluster) > 1 or not file.ours or file.path in left or large:
            if run.files:
                yield run
            run = _Run([], 0, 0)
            continue
        payload = files.payload_bytes(file)
        # Entries that were trimmed before they were archived are between files, never in one.
        apart = bool(run.files) and run.files[-1].positions[1] + 1 != file.positions[0]
        apart = apart and run.files[-1].numbers[1] > trimmed
        if run.files and (apart or run.payload + payload > target_bytes or run.rows + file.rows > _ROWS):
            yield run
            run = _Run([], 0, 0)
        run = _Run([*run.files, file], run.payload + payload, run.rows + file.rows)
    if run.files:
        yield run
