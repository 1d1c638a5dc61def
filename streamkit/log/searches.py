"""Results of searches in a partition. The next search begins there."""

from __future__ import annotations

from .floors import Floor, Retained
from .rows import EntryPlace

__all__ = ["Searches"]

_FIRSTS = 4096
"""Segments whose first entry after a floor is cached."""


class Searches:
    """Shared by all views of a partition. Each result names the state that it depends on; a lost one is searched for
    again."""

    def __init__(self) -> None:
        self._firsts: dict[str, tuple[int, EntryPlace]] = {}
        self._floor: tuple[Retained | None, Floor] = (None, Floor())
        self._archive_end: tuple[int, tuple[int, int, int]] = (-1, (0, 0, 0))

    def first(self, segment: str, floor: int) -> EntryPlace | None:
        """The first entry of a segment in the transactions from `floor` on; None if it must be searched for."""
        known = self._firsts.get(segment)
        return known[1] if known is not None and known[0] <= floor <= known[1].number else None

    def keep_first(self, segment: str, floor: int, place: EntryPlace) -> None:
        if len(self._firsts) >= _FIRSTS:
            self._firsts = {}
        self._firsts[segment] = (floor, place)

    def floor(self, retention: Retained | None) -> Floor:
        """The latest floor that this retention has drawn; the first transaction if none is known."""
        known, floor = self._floor
        return floor if known == retention else Floor()

    def keep_floor(self, retention: Retained | None, floor: Floor) -> None:
        if (floor.number, floor.size) > (self.floor(retention).number, self.floor(retention).size):
            self._floor = retention, floor

    def archive_end(self, archived: int) -> tuple[int, int, int] | None:
        """Return (entries, bytes of payload) before the first transaction after `archived`, and its timestamp; None if
        it must be searched for."""
        known, found = self._archive_end
        return found if known == archived else None

    def keep_archive_end(self, archived: int, found: tuple[int, int, int]) -> None:
        self._archive_end = archived, found
