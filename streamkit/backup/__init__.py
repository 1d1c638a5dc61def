"""Backup and restore of a whole store, exactly as it was at one point."""

from __future__ import annotations

from .report import BackupPoint, BackupReport, BackupRestored

__all__ = ["BackupPoint", "BackupReport", "BackupRestored"]
