"""The results of archiving, compaction and restoring."""

from __future__ import annotations

from ..html import Shown

__all__ = ["ArchiveReport", "CompactReport", "RestoreReport"]


class ArchiveReport(Shown, frozen=True):
    """Report of `store.archive`: the amounts that this call moved from the log to the table."""

    space: str
    transactions: int = 0
    """Moved into the table by this call."""
    entries: int = 0
    files: int = 0
    bytes: int = 0
    """Bytes of the files."""
    commits: int = 0
    """Commits to the table."""
    removed: int = 0
    """Transactions removed from the log after their grace."""
    archived: tuple[int, ...] = ()
    """The last archived transaction of each partition."""
    busy: tuple[int, ...] = ()
    """Partitions that were skipped because another archiver was working on them."""


class CompactReport(Shown, frozen=True):
    """Report of `store.compact`: the number of files before and after."""

    space: str
    before: int = 0
    """Files in the table's newest version, before."""
    after: int = 0
    removed: int = 0
    """Old files that were deleted, because no version needs them any more."""


class RestoreReport(Shown, frozen=True):
    """Report of a restore from the archive: the amounts that were copied back into the log."""

    space: str
    transactions: int = 0
    """Copied by this call."""
    entries: int = 0
    present: int = 0
    """Transactions that the target had already, with the same content."""
    keys: int = 0
    """Transactions that were copied with their idempotency key."""
    keys_left: int = 0
    """Transactions that were copied without: several keys share them. Those of the archive alone are not counted."""
