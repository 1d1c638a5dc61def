"""Removing points, and the copies that no point needs any more."""

from __future__ import annotations

from collections.abc import Sequence

from .format import FILE, LOG, PartitionBackup, table_key
from .report import BackupPoint
from .repository import Repository

__all__ = ["remove_points", "remove_unfinished"]

_NUMBER = slice(5, 13)
_NAME = slice(14, -9)


def remove_unfinished(repository: Repository, points: Sequence[BackupPoint]) -> None:
    """Remove the parts of a stopped backup. Its copies stay, because the next backup needs most of them."""
    after = points[-1].number + 1 if points else 1
    for key in list(repository.part_keys(after)):
        repository.remove_part(*_place(key))


def remove_points(repository: Repository, points: Sequence[BackupPoint], keep: int) -> int:
    """Keep the last `keep` points; how many were removed. Interrupted, it is completed by the next call."""
    gone, kept = points[:-keep], [point.number for point in points[-keep:]]
    for point in gone:
        repository.remove_point(point.number)
    places: dict[tuple[str, int], list[int]] = {}
    for key in repository.part_keys():
        number, space, partition = _place(key)
        places.setdefault((space, partition), []).append(number)
    for (space, partition), numbers in places.items():
        needed: set[bytes] = set()
        for number in set(numbers) & set(kept):
            part = repository.part(number, space, partition)
            needed.update(() if part is None else _copies(part))
        repository.remove_copies(space, partition, repository.data_keys(space, partition) - needed)
        for number in set(numbers) - set(kept):
            repository.remove_part(number, space, partition)
    return len(gone)


def _place(key: bytes) -> tuple[int, str, int]:
    """Return (point, space, partition) of a part's key."""
    return int.from_bytes(key[_NUMBER], "big"), key[_NAME].decode(), int.from_bytes(key[-8:], "big")


def _copies(part: PartitionBackup) -> set[bytes]:
    found = {FILE + bytes.fromhex(id) for id in part.files} | {LOG + bytes.fromhex(chunk.id) for chunk in part.chunks}
    for file in part.table.files if part.table is not None else ():
        found |= {table_key(file.path, at) for at in range(file.parts)}
    return found
