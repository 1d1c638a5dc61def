"""What archiving, compaction and restoring did."""

from __future__ import annotations

import msgspec

__all__ = ["ArchiveReport", "CompactReport", "RestoreReport"]


class ArchiveReport(msgspec.Struct, frozen=True):
    space: str
    transactions: int = 0
    """Moved into the table by this call."""
    entries: int = 0
    files: int = 0
    bytes: int = 0
    """Of the files."""
    commits: int = 0
    """To the table."""
    removed: int = 0
    """Transactions removed from the log, because the grace after their archiving is over."""
    archived: tuple[int, ...] = ()
    """For each partition: the archive holds the transactions up to this number."""
    busy: tuple[int, ...] = ()
    """Partitions that were left alone, because another archiver is at them."""


class CompactReport(msgspec.Struct, frozen=True):
    space: str
    before: int = 0
    """Files in the table's newest version, before."""
    after: int = 0
    removed: int = 0
    """Old files that were deleted, because no version needs them any more."""


class RestoreReport(msgspec.Struct, frozen=True):
    space: str
    transactions: int = 0
    """Copied by this call."""
    entries: int = 0
    present: int = 0
    """Transactions that were there already, with the same content."""
    keys: int = 0
    """Transactions that were copied with their idempotency key."""
    keys_left: int = 0
    """Transactions that were copied without: several keys share them. Those of the archive alone are not counted."""
