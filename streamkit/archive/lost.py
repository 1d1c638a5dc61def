"""A partition whose log is missing or damaged, for readers of its archive."""

from __future__ import annotations

from ..clock import SYSTEM_CLOCK
from ..log.floors import Floor
from ..log.rows import Head, Settings

__all__ = ["LostPartition"]


class LostPartition:
    """The facts that the archive's reader needs about a partition without a readable log."""

    def __init__(self, space: str, partition: int, settings: Settings, archived: int) -> None:
        self.space = space
        self.partition = partition
        self.settings = settings
        self.head = Head(settings, archived=archived)
        self.clock = SYSTEM_CLOCK
        self.floor = Floor()

    def refresh(self) -> int:
        return self.head.archived
