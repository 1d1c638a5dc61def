"""What the drivers of one name share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from uuid import UUID

from .rows import Rows

__all__ = ["Service", "tokens"]

# One counter for all: a token grows for ever, also when the store is deleted in between.
tokens: Iterator[int] = count(1)


class Service:
    """Guarded by its lock, which is held for the time of one request and never while a caller thinks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stores: dict[UUID, dict[bytes, Rows]] = {}
        self.leases: dict[tuple[UUID, str], tuple[int, float]] = {}
        """(store, name) to (token, deadline)."""
        self.forked = False
