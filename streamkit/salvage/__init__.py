"""Salvage: what is intact of a damaged space, copied to a new one."""

from __future__ import annotations

from .report import LostEntries, LostTransactions, SalvageReport

__all__ = ["LostEntries", "LostTransactions", "SalvageReport"]
