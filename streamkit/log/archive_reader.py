"""The seam to the archive: the questions of the readers. The engine knows no table format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..errors import StreamkitError
from .rows import SegmentRow

if TYPE_CHECKING:
    from .batches import Batch, Bounds, RequiredText
    from .view import LogView

__all__ = ["Amount", "ArchiveReader", "ArchiveUnreadable", "Contents"]


class ArchiveUnreadable(StreamkitError):
    """The archive is missing or cannot be read.

    A walk continues with another view, which reads archived transactions from the log if the log still has them.
    """


class Amount(NamedTuple):
    """The entries and bytes of one transaction in an archive. An erased entry has no bytes there."""

    number: int
    timestamp: int
    entries: int
    size: int


class Contents:
    """The archived content of a partition's first transactions, and its problems."""

    def __init__(self) -> None:
        self.last = 0
        """The last transaction in the table."""
        self.entries = 0
        self.position = 0
        """Entries in the partition up to there, those of them that were trimmed before they were archived too."""
        self.timestamp = 0
        self.segments: dict[str, SegmentRow] = {}
        self.sparse = False
        """True if rows of trimmed entries may have left the table. Then `segments` may show less than was archived."""
        self.elsewhere = False
        """True if the archive may only be at another location than the one that was read."""
        self.problems: list[tuple[str, str]] = []
        """(file, its fault); a fault of the table itself has an empty name."""


class ArchiveReader(Protocol):
    """A space's archive. Each answer is about transactions up to the view's `cold_until`.

    ArchiveUnreadable if the archive cannot be read, CorruptData if rows are missing or damaged, Moved if entries were
    removed since the view was taken, UnsupportedVersion for an archive of a newer format.
    """

    def transactions(
        self, view: LogView, start: tuple[int, int], last: int, bounds: Bounds, required: RequiredText | None = None
    ) -> Iterator[Batch]:
        """The log from (number, index) `start` up to transaction `last`, in commit order, within the time bounds. With
        `required` some entries that lack that text are left out."""
        ...

    def segment(self, view: LogView, segment: str, first: int, last: int) -> Iterator[Batch]:
        """The entries `first` to `last` (sequences) of a segment, in order, as far as they are archived."""
        ...

    def transactions_backwards(self, view: LogView, start: tuple[int, int], last: int) -> Iterator[Batch]:
        """Read the batches from (number, index) `start` up to transaction `last`, the last batch first."""
        ...

    def segment_backwards(self, view: LogView, segment: str, first: int, last: int) -> Iterator[Batch]:
        """The entries `first` to `last` of a segment, the last batch first. All of them are archived."""
        ...

    def first_at(self, view: LogView, timestamp: int, first: int, last: int) -> int:
        """The first transaction in first..last that is not older than `timestamp`; last + 1 if there is none."""
        ...

    def first_of(self, view: LogView, segment: str, least: int) -> int | None:
        """The first sequence of a segment that a transaction from `least` on wrote; None if none did."""
        ...

    def entries_until(self, view: LogView, number: int) -> int:
        """Entries of the partition up to transaction `number`."""
        ...

    def place(self, view: LogView, number: int) -> tuple[int, int, int]:
        """Return (entries before a transaction, its own entries, its timestamp), as far as they are archived; (…, 0, 0)
        if it has no entry there."""
        ...

    def number_of(self, view: LogView, position: int) -> int | None:
        """The transaction that wrote the entry at `position` of the partition; None if it is not there any more."""
        ...

    def bytes_between(self, view: LogView, first: int, last: int) -> int:
        """Bytes of payload of transactions first..last."""
        ...

    def first_within(self, view: LogView, first: int, last: int, most: int) -> int:
        """The first transaction of first..last from which on they have at most `most` bytes of payload; last + 1 if the
        last one has more."""
        ...

    def amounts_backwards(self, view: LogView, first: int, last: int, sized: bool) -> Iterator[Amount]:
        """The amounts of the transactions first..last that have entries, the last first. Sizes are 0 without
        `sized`."""
        ...

    def segment_bytes(self, view: LogView, segment: str, first: int, last: int) -> tuple[int, int]:
        """Return (entries, bytes of their payloads) that the archive has of the sequences `first` to `last` of a
        segment."""
        ...

    def touched(self, view: LogView, first: int, last: int) -> Iterator[str]:
        """The segments that transactions first..last wrote to, each once, the last touched last."""
        ...

    def has(self, view: LogView, id: bytes, number: int | None, made: int) -> bool:
        """True if the archive has transaction `id`, made at `made` (ms); at `number`, if that is given."""
        ...

    def examine(self, partition: int, last: int) -> Contents:
        """Check every byte of the partition's archive. The result has its content up to transaction `last`.

        The result names the faults. Unavailable, Throttled or AccessDenied if the archive cannot be read now.
        """
        ...

    def warn_unreadable(self, where: str, error: ArchiveUnreadable) -> None:
        """Warn once that the log is read in place of the archive."""
        ...
