"""What a salvage found."""

from __future__ import annotations

import msgspec

__all__ = ["LostEntries", "LostTransactions", "SalvageReport"]


class LostTransactions(msgspec.Struct, frozen=True):
    """The transactions `first` to `last` of a partition, which cannot be read."""

    partition: int
    first: int
    last: int
    problem: str
    segments: tuple[str, ...] = ()
    """Those that they wrote to, if that is known."""


class LostEntries(msgspec.Struct, frozen=True):
    """The sequences `first` to `last` of a segment. In the new space they are as if they had been erased."""

    segment: str
    first: int
    last: int


class SalvageReport(msgspec.Struct, frozen=True):
    space: str
    target: str
    """The new space."""
    transactions: int = 0
    """That were copied, or would be. Those whose entries were all removed are not among them."""
    entries: int = 0
    lost: tuple[LostTransactions, ...] = ()
    missing: tuple[LostEntries, ...] = ()
    """Sequences of lost entries, as far as entries after them or the headers of lost transactions tell."""
    damage: tuple[str, ...] = ()
    """Damaged places of files that belong to no transaction that is known: at the end of a log such a place may have
    held a transaction."""
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is lost, as far as can be told."""
        return not (self.lost or self.damage)
