"""What archiving did."""

from __future__ import annotations

import msgspec

__all__ = ["ArchiveReport"]


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
