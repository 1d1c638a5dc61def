"""Event sourcing: aggregates whose state is the fold of their events, the repository that loads and
saves them, and process managers, which react to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .aggregate import Aggregate, event
from .codecs import Codec, JsonCodec, MsgpackCodec, PydanticCodec
from .executed import AggregateNotFound, Executed
from .process import DomainEvent, ProcessManager
from .repository import Repository

if TYPE_CHECKING:
    from .async_repository import AsyncRepository

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


def __getattr__(name: str) -> Any:
    """`AsyncRepository` is imported when it is asked for: asyncio takes time to load."""
    if name == "AsyncRepository":
        from .async_repository import AsyncRepository

        return AsyncRepository
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
