"""Event sourcing: aggregates whose state is the fold of their events, the repository that loads and
saves them, and process managers, which react to them."""

from __future__ import annotations

from .aggregate import Aggregate, event
from .codecs import Codec, JsonCodec, MsgpackCodec, PydanticCodec
from .process import DomainEvent, ProcessManager
from .repository import Repository

__all__ = [
    "Aggregate",
    "Codec",
    "DomainEvent",
    "JsonCodec",
    "MsgpackCodec",
    "ProcessManager",
    "PydanticCodec",
    "Repository",
    "event",
]
