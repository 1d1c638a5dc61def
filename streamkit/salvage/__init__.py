"""Salvage: the copy of a damaged space's intact transactions to a new space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..importing import importer

if TYPE_CHECKING:
    from .report import LostEntries, LostTransactions, SalvageReport

__all__ = ["LostEntries", "LostTransactions", "SalvageReport"]

if not TYPE_CHECKING:  # a type checker tells of names that are not there
    __getattr__, __dir__ = importer(
        __name__,
        {
            ".report": ("LostEntries", "LostTransactions", "SalvageReport"),
        },
    )
