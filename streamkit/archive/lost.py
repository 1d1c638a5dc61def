"""A partition whose log is missing or damaged, for readers of its archive."""

from __future__ import annotations

from ..log.rows import Settings

__all__ = ["LostLog"]


class LostLog:
    """A view of a partition without a readable log. It has all fields that the archive's reader needs."""

    def __init__(self, space: str, partition: int, settings: Settings, archived: int) -> None:
        self.space = space
        self.partition = partition
        self.settings = settings
        self.cold_until = archived
        self.log = self

    def look_again(self) -> None:
        """No floor, because a lost log is not trimmed."""
