"""Types: entries as objects of your classes, for every reader of a store.

events: Registry[Placed | Paid] = Registry([Placed, Paid])
typed = store.typed(events)
typed.produce("orders", "42", [Placed("tea", 3)])
for event in typed.consume_space("orders"):
    print(event.value, event.entry.sequence)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..importing import importer

if TYPE_CHECKING:
    from .aggregates import types_of
    from .cloudevents import from_cloudevent, to_cloudevent
    from .groups import TypedConsumer, TypedDelivery, TypedGroup, TypedQueue
    from .registry import Registry, Type, Typed, Unknown, UnknownType
    from .store import TypedStore, TypedTransaction
    from .view import TypedView

__all__ = [
    "Registry",
    "Type",
    "Typed",
    "TypedConsumer",
    "TypedDelivery",
    "TypedGroup",
    "TypedQueue",
    "TypedStore",
    "TypedTransaction",
    "TypedView",
    "Unknown",
    "UnknownType",
    "from_cloudevent",
    "to_cloudevent",
    "types_of",
]

if not TYPE_CHECKING:  # a type checker tells of names that are not there
    __getattr__, __dir__ = importer(
        __name__,
        {
            ".aggregates": ("types_of",),
            ".cloudevents": ("from_cloudevent", "to_cloudevent"),
            ".groups": ("TypedConsumer", "TypedDelivery", "TypedGroup", "TypedQueue"),
            ".registry": ("Registry", "Type", "Typed", "Unknown", "UnknownType"),
            ".store": ("TypedStore", "TypedTransaction"),
            ".view": ("TypedView",),
        },
    )
