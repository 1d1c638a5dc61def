"""The results of a backup and of a restore."""

from __future__ import annotations

from uuid import UUID

from ..html import Shown

__all__ = ["BackupPoint", "BackupReport", "BackupRestored"]


class BackupPoint(Shown, frozen=True):
    """A state of a store that can be restored."""

    number: int
    """1, 2, 3 … Older points may have been removed."""
    store: UUID
    timestamp: int
    """The time of the point in ms. The point holds the transactions up to it."""
    spaces: int
    """Internal spaces included."""
    transactions: int
    """The sum of the last transaction numbers of all partitions."""
    skipped: tuple[str, ...] = ()
    """Damaged spaces that the point does not hold."""


class BackupReport(Shown, frozen=True):
    """The point that a backup made, and the amount that it copied."""

    point: BackupPoint
    files: int = 0
    bytes: int = 0
    removed: int = 0
    """Older points that were removed."""


class BackupRestored(Shown, frozen=True):
    """The report of a restore."""

    point: BackupPoint
    spaces: int
    files: int
    bytes: int
    erasures: int
    """Erasures after the point that the backup knows and that were repeated."""
