"""Event sourcing: aggregates whose state is the fold of their events, the repository that loads and
saves them, and process managers, which react to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..importing import importer

if TYPE_CHECKING:
    from .aggregate import Aggregate, event
    from .async_repository import AsyncRepository
    from .codecs import Codec, JsonCodec, MsgpackCodec, PydanticCodec
    from .executed import AggregateNotFound, Executed
    from .process import DomainEvent, ProcessManager
    from .repository import Repository

__all__ = [
    "Aggregate",
    "AggregateNotFound",
    "AsyncRepository",
    "Codec",
    "DomainEvent",
    "Executed",
    "JsonCodec",
    "MsgpackCodec",
    "ProcessManager",
    "PydanticCodec",
    "Repository",
    "event",
]

if not TYPE_CHECKING:  # a type checker tells of names that are not there
    __getattr__, __dir__ = importer(
        __name__,
        {
            ".aggregate": ("Aggregate", "event"),
            ".codecs": ("Codec", "JsonCodec", "MsgpackCodec", "PydanticCodec"),
            ".executed": ("AggregateNotFound", "Executed"),
            ".process": ("DomainEvent", "ProcessManager"),
            ".repository": ("Repository",),
            ".async_repository": ("AsyncRepository",),
        },
    )
