"""Reports of removals."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from ..html import Shown

__all__ = ["EraseReport", "Rewritten", "StoreSize", "Tier", "TrimReport", "total_of"]


class TrimReport(Shown, frozen=True):
    """Report of a trim or of its dry run. Bytes are of payload."""

    space: str
    segment: str
    """Empty where the space was trimmed."""
    entries: int = 0
    bytes: int = 0
    transactions: int = 0
    """Transactions that are gone, for a trim of a space."""
    first_sequence: int = 0
    """The segment's first sequence after the trim; one more than the last if none is left."""
    dry_run: bool = False


class Rewritten(NamedTuple):
    """The rows and files that one erasure rewrote or deleted."""

    records: int = 0
    """Transactions of the log that are rows of their own."""
    packs: int = 0
    runs: int = 0
    """Files of the index."""
    files: int = 0
    """Files of the archive."""
    views: int = 0
    """Published views that were deleted."""
    unreached: tuple[str, ...] = ()
    unfinished: bool = False
    """True if the next call must go on with it: a place of `unreached` can be reached later."""

    def plus(self, other: Rewritten) -> Rewritten:
        """Return the sum of two counts."""
        return Rewritten(
            self.records + other.records,
            self.packs + other.packs,
            self.runs + other.runs,
            self.files + other.files,
            self.views + other.views,
            tuple(dict.fromkeys(self.unreached + other.unreached)),
            self.unfinished or other.unfinished,
        )


class EraseReport(Shown, frozen=True):
    """Report of an erasure or of its dry run, as evidence. Bytes are of payload."""

    space: str
    entries: int = 0
    """Entries that readers could still get."""
    bytes: int = 0
    segments: int = 0
    transactions: int = 0
    """Transactions with erased entries."""
    rows: int = 0
    """Log records, packs and runs of the index that were rewritten."""
    files: int = 0
    """Files of the archive that were rewritten; the old ones are deleted."""
    searched: int = 0
    """Entries that were looked at."""
    started: int = 0
    """The time of the beginning, by the store's clock, in ms since the epoch."""
    completed: int = 0
    dry_run: bool = False
    hidden: int = 0
    """Sequences that were trimmed, expired or deleted before, and are erased too: their bytes may still be stored.
    Sequences that an earlier erasure has removed do not count."""
    records: int = 0
    """Transactions of the log that were rewritten; part of `rows`."""
    packs: int = 0
    """Packs that were rewritten; part of `rows`."""
    runs: int = 0
    """Files of the index that were rewritten; part of `rows`."""
    views: int = 0
    """Published views that were deleted. The next `publish` of each view writes it again, without the entries."""
    unreached: tuple[str, ...] = ()
    """A sentence for each place that may still hold entries, with the next step."""
    store: str = ""
    """The UUID of the store."""
    selector: dict[str, Any] = msgspec.field(default_factory=dict)
    """The arguments that named the entries: segment, first, last, metadata, sequences; those that were given."""

    def of(
        self,
        store: UUID,
        segment: str | None,
        first: int,
        last: int | None,
        metadata: Mapping[str, str] | None,
        sequences: Iterable[int] | None,
    ) -> EraseReport:
        """The report with the store, and the arguments that named the entries."""
        selector: dict[str, Any] = {"segment": segment, "first": first if first != 1 else None, "last": last}
        selector["metadata"] = None if metadata is None else dict(metadata)
        selector["sequences"] = None if sequences is None else sorted(sequences)
        given = {name: value for name, value in selector.items() if value is not None}
        return msgspec.structs.replace(self, store=str(store), selector=given)

    @property
    def digest(self) -> str:
        """SHA-256 of all fields, in hexadecimal: a report that was kept has not changed if its digest is the same."""
        return hashlib.sha256(self._document()).hexdigest()

    def proof(self) -> str:
        """The report as one line of JSON with its digest, to be kept. `sha256` is of the line without `sha256`."""
        fields = msgspec.json.decode(self._document())
        return _proofs.encode({**fields, "sha256": self.digest}).decode()

    def _document(self) -> Any:
        return _proofs.encode(self)


_proofs = msgspec.json.Encoder(order="sorted")


class Tier(Shown, frozen=True):
    """Stored bytes of one tier: "log" (transactions), "index", or "archive".

    On a local disk "log" leaves out transactions of 16 KiB or more that are in no pack.

    The size of a whole store also has the tier "internal". It sums all tiers of the internal spaces, which hold the
    state of groups, queues, views and routes.
    """

    name: str
    bytes: int


class StoreSize(Shown, frozen=True):
    """The size of a space or of a store.

    Entries, segments and bytes of payload are those of the user's own spaces, as `status` counts them. Payload counts
    as it was written; stored bytes are mostly compressed, and include internal spaces.
    """

    entries: int
    segments: int
    payload_bytes: int
    tiers: tuple[Tier, ...]
    damaged: tuple[str, ...] = ()
    """The spaces of the store that cannot be read. They are not counted."""

    @property
    def stored_bytes(self) -> int:
        """Bytes in all tiers."""
        return sum(tier.bytes for tier in self.tiers)

    @property
    def bytes(self) -> int:
        """The earlier name of `payload_bytes`."""
        return self.payload_bytes

    @property
    def stored(self) -> int:
        """The earlier name of `stored_bytes`."""
        return self.stored_bytes


def total_of(sizes: Sequence[StoreSize], internal: int, damaged: Sequence[str]) -> StoreSize:
    """Add up the sizes of a store's spaces. The bytes of its internal spaces are a tier of their own."""
    tiers = tuple(
        Tier(name, sum(tier.bytes for size in sizes for tier in size.tiers if tier.name == name))
        for name in ("log", "index", "archive")
    )
    return StoreSize(
        sum(size.entries for size in sizes),
        sum(size.segments for size in sizes),
        sum(size.payload_bytes for size in sizes),
        (*tiers, Tier("internal", internal)),
        tuple(damaged),
    )
