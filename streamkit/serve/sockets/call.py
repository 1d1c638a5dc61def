"""A call: the request over HTTP that does the same as a message of a WebSocket."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ..responses import Answer

__all__ = ["LONGEST_ID", "Call", "Interface", "Message"]

LONGEST_ID = 100
"""Characters of the longest id."""


class Message(msgspec.Struct):
    """The part of a message that every message has. `id` names the request, or the subscription that it makes."""

    id: str | int
    op: str


class Call(msgspec.Struct, kw_only=True):
    """A request over HTTP. `path` and `query` are percent-encoded."""

    method: str = "POST"
    path: str
    query: str = ""
    headers: list[tuple[bytes, bytes]] = []
    body: bytes = b""
    streams: bool = False
    """True for a subscription: its answer is a stream of events."""
    waits: bool = False
    """True for a call that may wait for new entries, and counts like a subscription meanwhile."""
    order: frozenset[str] = frozenset()
    """Calls of a connection that share one of these texts are handled in their order."""
    group: str = ""
    """The path of the group whose deliveries it receives or settles. Unsettled deliveries go back at the end."""
    then: str = ""
    """The member of the answer that is the path of the stream to open."""

    @property
    def is_subscription(self) -> bool:
        return self.streams or bool(self.then)


class Interface(NamedTuple):
    """The meaning of the messages of one path."""

    call_of: Callable[[str, bytes], Call]
    """(op, message) → the call. Raises an error if the message is not valid."""
    refusal: Callable[[Exception], Answer]
    """The answer that reports an error."""
