"""The seam to the index: the questions of the log to it. The store hands it in when it is composed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..backend import Range
from ..model import Entry
from .manifest import Manifest, RunGone

if TYPE_CHECKING:
    from .partition import Partition

__all__ = ["BlockRows", "Index", "MakeIndex", "RunGone"]


class BlockRows(Protocol):
    """Sorted rows in memory: a block of a run. Only the compiled codec reads the blocks that it made."""

    def between(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """The rows with start <= key < end."""
        ...


class Index(Protocol):
    """The rows of one partition as of one head. Each call raises RunGone if a run was merged into another one since."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows' values, in the order of `keys`."""
        ...

    def has_files(self) -> bool:
        """True if the storage has files of the partition's index, also if no head names them. It asks the storage."""
        ...

    def needed(self, segments: Sequence[str], load: bool) -> Mapping[bytes, Range]:
        """The ranges to read before the rows of `segments` can be looked up, each by a unique name; with `load`, also
        those for a scan of their data rows."""
        ...

    def receive(self, id: bytes, data: bytes) -> None:
        """Take the bytes of the range with this name."""
        ...

    def scan(self, start: bytes, end: bytes, subject: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of the rows with start <= key < end, in order.

        `subject`: the segment's name, if all are of one.
        """
        ...

    def blocks_of(self, segment: str, start: bytes, end: bytes) -> tuple[Sequence[BlockRows], int] | None:
        """The blocks with a segment's data rows, start <= key < end, in order, and how many of the last ones are of the
        newest run that may have the segment's status. If these have no data row, look up the status.

        None if there are many blocks, or if calls are requests.
        """
        ...

    def entries(
        self, reader: Any, segment: str, first: int, last: int, entries: list[Entry], most: int
    ) -> tuple[int, bool, int] | None:
        """`SegmentRows.in_blocks` of the blocks that `blocks_of` gives, in one step of the compiled codec. None if the
        codec cannot take it."""
        ...

    def last_entry(self, reader: Any, segment: str, most: int) -> Entry | None:
        """The last entry of the row that `last` gives, in one step of the compiled codec, if the row has at most `most`
        bytes. None if the codec cannot take it."""
        ...

    def last(self, segment: str, start: bytes, end: bytes) -> bytes | None:
        """The value of the last data row of a segment, start <= key < end, where a call is no request.

        None if there is none, if it may not be the last one, or if calls are requests: then look up the status.
        """
        ...


MakeIndex = Callable[["Partition", Manifest], Index]
"""The index that a manifest of the partition names; asks nothing."""
