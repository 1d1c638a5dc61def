"""The parts of a route's OpenAPI description that the route itself does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["JSON", "NUMBER", "TEXT", "Operation"]

JSON = "application/json"
TEXT: Mapping[str, Any] = {"type": "string"}
NUMBER: Mapping[str, Any] = {"type": "integer", "minimum": 0, "maximum": (1 << 53) - 1}


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters, the body and the answers of a route. Refusals are problems, which need not be named."""

    query: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    """The schema of each parameter."""
    headers: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    body: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The type of the body by media type: None for any bytes, a mapping for a schema."""
    needs_body: bool = True
    answers: Mapping[int, Any] = msgspec.field(default_factory=dict)
    """The type of the answer by status: None for an empty one."""
    media: str = JSON
    others: tuple[str, ...] = ()
    """Further media types of the first answer."""
