"""The report of a salvage."""

from __future__ import annotations

from ..html import Shown

__all__ = ["LostEntries", "LostTransactions", "SalvageReport"]


class LostTransactions(Shown, frozen=True):
    """The transactions `first` to `last` of a partition, which cannot be read."""

    partition: int
    first: int
    last: int
    problem: str
    segments: tuple[str, ...] = ()
    """The segments of these transactions, if known."""


class LostEntries(Shown, frozen=True):
    """The sequences `first` to `last` of a segment. In the new space they are as if they had been erased."""

    segment: str
    first: int
    last: int


class SalvageReport(Shown, frozen=True):
    """Report of a salvage: the entries that were copied, and those that are lost."""

    space: str
    target: str
    """The new space."""
    transactions: int = 0
    """The transactions that were copied, or would be. Those without a remaining entry do not count."""
    entries: int = 0
    lost: tuple[LostTransactions, ...] = ()
    missing: tuple[LostEntries, ...] = ()
    """Sequences of lost entries. They are known from later entries, or from the headers of lost transactions."""
    damage: tuple[str, ...] = ()
    """Damaged places that belong to no known transaction. At the end of a log such a place may have been one."""
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """True if everything was copied: no transaction is lost, and no damaged place may have been one."""
        return not (self.lost or self.damage)
