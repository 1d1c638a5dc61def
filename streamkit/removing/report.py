"""What was removed."""

from __future__ import annotations

import msgspec

__all__ = ["EraseReport", "StoreSize", "Tier", "TrimReport"]


class TrimReport(msgspec.Struct, frozen=True):
    """What a trim removed, or would remove. Bytes are of payload."""

    space: str
    segment: str
    """Empty where the space was trimmed."""
    entries: int = 0
    bytes: int = 0
    transactions: int = 0
    """Of a space: so many are gone."""
    first_sequence: int = 0
    """Of a segment: its first one by now; one more than the last where none is left."""
    dry_run: bool = False


class EraseReport(msgspec.Struct, frozen=True):
    """What an erasure removed, or would remove, as evidence. Bytes are of payload."""

    space: str
    entries: int = 0
    bytes: int = 0
    segments: int = 0
    transactions: int = 0
    """In which entries were erased."""
    rows: int = 0
    """Log records, packs and runs of the index that were written anew."""
    files: int = 0
    """Files of the archive that were written anew; the old ones are deleted."""
    searched: int = 0
    """Entries that were looked at."""
    started: int = 0
    """By the store's clock, in ms since the epoch."""
    completed: int = 0
    dry_run: bool = False


class Tier(msgspec.Struct, frozen=True):
    """Stored bytes of one tier: "log" (transactions), "index", or "archive"."""

    name: str
    bytes: int


class StoreSize(msgspec.Struct, frozen=True):
    """How much is kept. `bytes` are of payload, as it was written; what is stored is mostly compressed."""

    entries: int
    segments: int
    bytes: int
    tiers: tuple[Tier, ...]

    @property
    def stored(self) -> int:
        """Bytes in all tiers."""
        return sum(tier.bytes for tier in self.tiers)
