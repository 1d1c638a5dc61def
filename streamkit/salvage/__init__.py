"""Salvage: the copy of a damaged space's intact transactions to a new space."""

from __future__ import annotations

from .report import LostEntries, LostTransactions, SalvageReport

__all__ = ["LostEntries", "LostTransactions", "SalvageReport"]
