"""The readable archived transactions of a damaged partition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ..archive.lost import LostLog
from ..errors import CorruptData, MissingDependency, PermanentError, UnsupportedVersion
from ..log.batches import Bounds
from ..log.rows import Settings
from ..model import Entry
from ..names import InternalName
from ..store import inner
from .log import IntactLog, Transaction

if TYPE_CHECKING:
    from ..archive.read import Archive
    from ..store import Store

__all__ = ["ArchivedPart"]


class ArchivedPart:
    """The archive of a partition. `problem` names the unreadable part. A file is readable as a whole, or not at all."""

    def __init__(self, store: Store, space: str, settings: Settings, log: IntactLog) -> None:
        self.problem = ""
        self.last = log.head.archived
        """The last archived transaction."""
        self._archive: Archive | None = None
        self._ranges: list[tuple[int, int]] = []
        self._lost: list[tuple[int, int]] = []
        if isinstance(space, InternalName) or not (self.last or inner(store).has_archive(space)):
            return
        try:
            self._archive = inner(store).archive(space)
            snapshot = self._archive.table.snapshot()
            if snapshot is not None:
                self.last = max(self.last, snapshot.archived.get(log.partition, 0))
                self._ranges = sorted({file.numbers for file in snapshot.files if file.partition == log.partition})
            elif self.last:
                raise CorruptData("its table is missing")
        except MissingDependency:
            raise
        except PermanentError as error:
            self.problem = f"the archive cannot be read: {error}"
            self._lost = [(1, self.last)]
        self._view: Any = LostLog(space, log.partition, settings, self.last)

    def transactions(self, first: int) -> Iterator[tuple[int, Transaction]]:
        """Yield (number, transaction) of those that can be read, in order, from `first` on."""
        for low, high in self._ranges:
            start = max(low, first)
            if self._archive is None or start > high:
                continue
            try:
                batches = self._archive.transactions(self._view, (start, 0), high, Bounds(gaps="skip"))
                for number, group in groupby(batches, key=lambda batch: batch.number):
                    # The archive gives a large frame as several batches.
                    frames: dict[str, list[Entry]] = {}
                    for batch in group:
                        if batch.entries:
                            frames.setdefault(batch.entries[0].segment, []).extend(batch.entries)
                    yield number, Transaction(None, list(frames.values()))
                    first = number + 1
            except (CorruptData, UnsupportedVersion) as error:
                self.problem = f"the archive cannot be read: {error}"
                self._lost.append((max(low, first), high))
            first = max(first, high + 1)

    def is_lost(self, number: int) -> bool:
        """True if the transaction may be in a file that cannot be read."""
        return any(first <= number <= last for first, last in self._lost)
