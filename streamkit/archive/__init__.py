"""The cold tier: committed transactions in a Delta table, read by streamkit's readers and by every engine for Delta.

The table of a space is at `<root>/<store>/<space>`. deltalake and pyarrow (the extra `archive`) are imported when an
archive is written or read, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..importing import importer

if TYPE_CHECKING:
    from .report import ArchiveReport, CompactReport, RestoreReport
    from .spread import Processes, Spread

__all__ = ["ArchiveReport", "CompactReport", "Processes", "RestoreReport", "Spread"]

if not TYPE_CHECKING:  # a type checker tells of names that are not there
    __getattr__, __dir__ = importer(
        __name__,
        {
            ".report": ("ArchiveReport", "CompactReport", "RestoreReport"),
            ".spread": ("Processes", "Spread"),
        },
    )
