"""Groups and queues: work that is shared, acknowledged and never lost. A client of the store: see `store.group`.

The feed hands blocks of the source to lanes; a lane is a chain of records of its own, so that consumers of different
lanes do not wait for each other. Both are pure functions of their records, which are kept in an internal space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..importing import importer

if TYPE_CHECKING:
    from .consumer import Consumer
    from .group import Group
    from .queue import Queue
    from .run import RunReport
    from .settings import GroupChanges, GroupOptions, GroupSettings, QueueOptions
    from .settling import Settled, Settlement
    from .values import ConsumerStatus, DeadLetter, Delivery, GroupGap, GroupStatus, Pending

__all__ = [
    "Consumer",
    "ConsumerStatus",
    "DeadLetter",
    "Delivery",
    "Group",
    "GroupChanges",
    "GroupGap",
    "GroupOptions",
    "GroupSettings",
    "GroupStatus",
    "Pending",
    "Queue",
    "QueueOptions",
    "RunReport",
    "Settled",
    "Settlement",
]

if not TYPE_CHECKING:  # a type checker tells of names that are not there
    __getattr__, __dir__ = importer(
        __name__,
        {
            ".consumer": ("Consumer",),
            ".group": ("Group",),
            ".queue": ("Queue",),
            ".run": ("RunReport",),
            ".settings": ("GroupChanges", "GroupOptions", "GroupSettings", "QueueOptions"),
            ".settling": ("Settled", "Settlement"),
            ".values": ("ConsumerStatus", "DeadLetter", "Delivery", "GroupGap", "GroupStatus", "Pending"),
        },
    )
