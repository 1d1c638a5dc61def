"""Event sourcing: aggregates whose state is the fold of their events, and the repository that loads and saves them."""

from __future__ import annotations

from .aggregate import Aggregate, event
from .codecs import Codec, JsonCodec, MsgpackCodec, PydanticCodec
from .repository import Repository

__all__ = ["Aggregate", "Codec", "JsonCodec", "MsgpackCodec", "PydanticCodec", "Repository", "event"]
