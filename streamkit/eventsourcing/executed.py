"""The outcome of a command, and the error for an aggregate that does not exist."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from ..errors import PermanentError
from ..lexkey import LexKey
from ..model import SegmentStatus

__all__ = ["AggregateNotFound", "Executed"]

R = TypeVar("R")


class AggregateNotFound(PermanentError, LookupError):
    """No aggregate has this id. Check the id, or load it without `must_exist`."""


class Executed(msgspec.Struct, Generic[R], frozen=True):
    """The outcome of `Repository.perform`."""

    result: R | None
    """The result of the command. None on a replay: results are not stored, events are."""
    status: SegmentStatus
    """The aggregate's segment after the command. On a replay: after the first execution."""
    events: tuple[tuple[str, dict[str, Any]], ...]
    """(name, arguments) of each event of the command. On a replay: those of the first execution."""
    replayed: bool = False
    """True if the command was executed before with this idempotency key; it was not executed again."""

    @property
    def version(self) -> int:
        """The aggregate's version after the command."""
        return self.status.last_sequence

    @property
    def offset(self) -> LexKey:
        """The offset in the space after the command: `view.wait_for(offset)` waits until a view has seen it."""
        return self.status.space_offset
