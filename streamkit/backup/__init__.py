"""Backup and restore of a whole store, exactly as it was at one point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..importing import importer

if TYPE_CHECKING:
    from .report import BackupPoint, BackupReport, BackupRestored

__all__ = ["BackupPoint", "BackupReport", "BackupRestored"]

if not TYPE_CHECKING:  # a type checker tells of names that are not there
    __getattr__, __dir__ = importer(
        __name__,
        {
            ".report": ("BackupPoint", "BackupReport", "BackupRestored"),
        },
    )
