"""The spaces that a backup copies: all of them, or all that can be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import UNREADABLE, CorruptData
from ..log.partition import Partition
from ..store import Store, inner
from ..warn import warn

__all__ = ["ReadableSpaces"]

_BYTES = 64 << 20
_PARTITIONS = 1000
"""The tails and the partitions that are kept in memory."""


class ReadableSpaces:
    """The spaces of a store without those that were found damaged, if these are to be skipped."""

    def __init__(self, store: Store, skip_damaged: bool) -> None:
        self.skipped: set[str] = set()
        self._store = store
        self._skip = skip_damaged
        self._partitions: dict[str, list[Partition]] = {}

    def partitions(self, space: str) -> list[Partition]:
        """The partitions of a space, none if it was removed. They are cached, so that they read only new
        transactions."""
        found = self._partitions.get(space)
        if found is None:
            kept = [partition.tail.bytes for partitions in self._partitions.values() for partition in partitions]
            if sum(kept) > _BYTES or len(kept) > _PARTITIONS:
                self._partitions.clear()
            found = self._partitions[space] = list(inner(self._store).unread_partitions(space))
        return found

    def forget(self, space: str) -> bool:
        """Read a space again: it may be another one of its name by now. True if its partitions were known."""
        return self._partitions.pop(space, None) is not None

    def names(self) -> list[str]:
        return [space for space in inner(self._store).space_names() if space not in self.skipped]

    @contextmanager
    def reading(self, space: str) -> Iterator[None]:
        """Damage that the block finds is damage of `space`: the space is skipped, or CorruptData names it."""
        try:
            yield
        except UNREADABLE as error:
            if not self._skip:
                raise CorruptData(
                    f"space {space!r} is damaged, and the backup has no new point: {error}. To back up the other "
                    "spaces now, pass skip_damaged=True (--skip-damaged)"
                ) from error
            warn("the backup skips the damaged space %r: %s", space, error, space=space)
            self.skipped.add(space)
