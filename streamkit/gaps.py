"""Gaps: values that stand for removed entries in a read."""

from __future__ import annotations

import msgspec

__all__ = ["Gap"]


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Entries that were removed: `first_sequence` to `last_sequence` of a segment.

    `reason` is "trimmed", "expired", "erased" or "deleted". If a space was trimmed, `segment` is empty, and the numbers
    are those of transactions (`Entry.trx.number`): their entries in all segments were removed.
    """

    space: str
    segment: str
    first_sequence: int
    last_sequence: int
    reason: str

    def __str__(self) -> str:
        what = f"segment {self.segment!r}, sequences" if self.segment else "transactions"
        return f"space {self.space!r}: {what} {self.first_sequence} to {self.last_sequence} were {self.reason}"
