"""One version of a space's table: its files, and the content of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import CorruptData
from .errors import Damaged

if TYPE_CHECKING:
    from .delta_log import LogState

__all__ = ["File", "Gone", "Snapshot", "TrimmedMark", "is_own_name", "overlapping"]

_OWN_NAME = re.compile(r"[0-9a-f]{2}-(\d+-\d+-\d+|all)-[0-9a-f]{12}(-[0-9a-f]{16})?\.parquet")
"""The name of an own file. `all` stands for several partitions. Earlier releases read such a file as another
engine's."""


def is_own_name(path: str) -> bool:
    """True if streamkit gave the file its name."""
    return _OWN_NAME.fullmatch(path) is not None


class File(NamedTuple):
    """A Parquet file of one partition, and the least and greatest of its columns. Timestamps are in ms."""

    path: str
    size: int
    rows: int
    partition: int
    numbers: tuple[int, int]
    positions: tuple[int, int]
    segments: tuple[str, str]
    sequences: tuple[int, int]
    timestamps: tuple[int, int]
    shared: int = 0
    """The number of partitions that the file has rows of, if they are several. Then it stands here once for each of
    them, with its rows, and the size of the whole file."""
    groups: tuple[int, int] | None = None
    """The row groups that hold the partition's rows, and no others: the first, and the one after the last. None if
    that is not known, or the file is not shared."""

    @property
    def ours(self) -> bool:
        """True if streamkit wrote the file. Its rows are then sorted, and they fit in memory."""
        return is_own_name(self.path) and (not self.shared or self.groups is not None)


class Gone(Damaged):
    """A file of a version is not there: others have compacted the table, or it is damaged."""


def overlapping(files: Sequence[File], *, parted: bool) -> Iterator[list[File]]:
    """Files in the order of partition and positions, those together that have positions between each other's; `parted`:
    also those that have parts of one transaction."""
    found: list[File] = []
    position = number = 0
    for file in files:
        together = file.positions[0] <= position or (parted and file.numbers[0] <= number)
        if found and file.partition == found[0].partition and together:
            found.append(file)
            position, number = max(position, file.positions[1]), max(number, file.numbers[1])
            continue
        if found:
            yield found
        found, position, number = [file], file.positions[1], file.numbers[1]
    if found:
        yield found


class TrimmedMark(NamedTuple):
    """The extent to which a partition's table has lost the rows of trimmed entries."""

    until: int = 0
    """The last transaction that may lack rows."""
    position: int = 0
    """Entries of the partition up to it, the lost ones included."""
    removed_by: int = 0
    """The transaction that removed entries of segments last, as of then."""
    floor: int = 0
    """The first transaction that could be read then."""

    def named(self, partition: int) -> dict[str, int]:
        """The application transactions that say it."""
        return {f"streamkit/{partition}/trimmed/{name}": value for name, value in self._asdict().items()}

    @classmethod
    def of(cls, marks: Mapping[str, int], partition: int) -> TrimmedMark:
        return cls(*(marks.get(name, 0) for name in cls().named(partition)))


class Snapshot:
    """One version of the table: reads from it see one consistent state."""

    def __init__(self, where: str, archived: dict[int, int], files: Sequence[File], state: LogState) -> None:
        self.where = where
        self.version = state.version
        self.state = state
        """The state of the table's log; a commit builds on it."""
        self.archived = archived
        """The last archived transaction of each partition."""
        self.trimmed = {partition: TrimmedMark.of(state.marks, partition) for partition in archived}
        """The transaction of each partition up to which rows of trimmed entries may be missing."""
        self.paths = {file.path for file in files}
        self.files = sorted(files, key=lambda file: (file.partition, file.positions))
        self._clusters: dict[int, list[list[File]]] = {}
        # Files that others have compacted may overlap, or divide a transaction: overlapping files are read together.
        for files in overlapping(self.files, parted=True):
            self._clusters.setdefault(files[0].partition, []).append(files)

    @property
    def partitions(self) -> list[int]:
        """The partitions that have files."""
        return sorted(self._clusters)

    def clusters(self, partition: int) -> list[list[File]]:
        """The partition's files in the order of their numbers, those together that overlap. CorruptData for a hole."""
        clusters = self._clusters.get(partition, [])
        position, trimmed = 0, self.trimmed[partition].until if partition in self.trimmed else 0
        for cluster in clusters:
            first = min(file.positions[0] for file in cluster)
            last = max(file.positions[1] for file in cluster)
            rows, whole = sum(file.rows for file in cluster), last - first + 1
            sparse = min(file.numbers[0] for file in cluster) <= trimmed
            # Entries that were trimmed before they were archived are in no file. The table's log counts the others.
            if first < position or rows > whole or (rows < whole and not sparse):
                raise CorruptData(
                    f"{self.where}, version {self.version}: the files do not hold the entries {position} to {last} of "
                    f"partition {partition} once each; the table was changed by something else, restore a version"
                )
            position = last + 1
        return clusters
