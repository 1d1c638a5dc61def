"""The errors that leave streamkit, by meaning. Catch the class that says what you can do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from .gaps import Gap
    from .model import SegmentStatus

__all__ = [
    "AccessDenied",
    "CorruptData",
    "CrossPartition",
    "DeliveryLost",
    "EntriesRemoved",
    "Fenced",
    "GroupExists",
    "InvalidName",
    "InvalidOffset",
    "InvalidRecord",
    "LeaseLost",
    "LeaseNotAcquired",
    "MissingDependency",
    "OutcomeUnknown",
    "PermanentError",
    "RecordTooLarge",
    "SequenceMismatch",
    "SpaceExists",
    "SpaceFull",
    "StoreClosed",
    "StreamkitError",
    "Throttled",
    "TransactionIdMismatch",
    "TransactionTooLarge",
    "TransientError",
    "Unavailable",
    "UnsupportedVersion",
]


class StreamkitError(Exception):
    """The root. `retryable` says whether the same call may simply be made again."""

    retryable = False


class TransientError(StreamkitError):
    """Nothing was written; the same call may succeed later."""

    retryable = True


class Unavailable(TransientError):
    """The storage could not be reached, or has no room, until the deadline."""


class Throttled(TransientError):
    """The storage asked to slow down until the deadline."""


class OutcomeUnknown(StreamkitError):
    """A commit's answer was lost and could not be read back. Ask `store.outcome(transaction_id)`."""

    def __init__(self, message: str, transaction_id: UUID) -> None:
        super().__init__(message)
        self.transaction_id = transaction_id

    def __reduce__(self) -> tuple[type, tuple[str, UUID]]:
        return type(self), (str(self), self.transaction_id)


class PermanentError(StreamkitError):
    """Refused. The same call will be refused again until something is changed."""


class SequenceMismatch(PermanentError):
    """The segment is not where the caller expected it: `expected` and `actual` are sequences."""

    def __init__(self, message: str, expected: int, actual: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual

    def __reduce__(self) -> tuple[type, tuple[str, int, int]]:
        return type(self), (str(self), self.expected, self.actual)


class TransactionIdMismatch(PermanentError):
    """The idempotency key was used before, with other content. `statuses` is the first call's result, by segment."""

    def __init__(self, message: str, statuses: Mapping[str, SegmentStatus]) -> None:
        super().__init__(message)
        self.statuses = statuses

    def __reduce__(self) -> tuple[type, tuple[str, Mapping[str, SegmentStatus]]]:
        return type(self), (str(self), self.statuses)


class Fenced(PermanentError):
    """A newer holder of the lease has written: this one may not write any more."""


class LeaseNotAcquired(PermanentError):
    """Another holder has the lease. Try again later, or wait longer for it."""


class LeaseLost(PermanentError):
    """The lease was held and is not any more."""


class InvalidName(PermanentError, ValueError):
    """A name of a space or segment is not allowed."""


class InvalidOffset(PermanentError, ValueError):
    """A damaged offset, one of another space, or one of a newer format."""


class InvalidRecord(PermanentError, ValueError):
    """A record that cannot be stored as it is."""


class RecordTooLarge(PermanentError, ValueError):
    """One record's payload is above the limit."""


class TransactionTooLarge(PermanentError, ValueError):
    """A transaction's payload is above the limit. Split it: streamkit never does so silently."""


class CrossPartition(PermanentError, ValueError):
    """The segments of a transaction are on different partitions."""


class SpaceExists(PermanentError):
    """The space exists with other settings."""


class EntriesRemoved(PermanentError):
    """Entries after the named place were removed. `gap` names them. Read on with gaps="skip" or gaps="yield"."""

    def __init__(self, message: str, gap: Gap) -> None:
        super().__init__(message)
        self.gap = gap

    def __reduce__(self) -> tuple[type, tuple[str, Gap]]:
        return type(self), (str(self), self.gap)


class SpaceFull(PermanentError):
    """The space is full, and its retention rejects further entries. Nothing was written: trim the space."""


class GroupExists(PermanentError):
    """The group exists with other settings."""


class DeliveryLost(PermanentError):
    """The delivery is another consumer's by now, or over: nothing was changed."""


class CorruptData(PermanentError):
    """Stored bytes are damaged or missing. The message names the key."""


class AccessDenied(PermanentError):
    """The storage refused the credentials or the permission."""


class StoreClosed(PermanentError):
    """The store or its client was closed, or the store or the space was deleted. Open the store again."""


class UnsupportedVersion(PermanentError):
    """The data has a newer format than this release reads, or the byte order of another kind of machine."""


class MissingDependency(PermanentError, ImportError):
    """An optional package is not installed. The message says which extra brings it."""


UNREADABLE = (CorruptData, UnsupportedVersion)
"""Errors that make one space unreadable and do not concern the others."""


def no_space(store: UUID, space: str) -> PermanentError:
    """The error for a space that does not exist."""
    return PermanentError(
        f"the store {store} has no space {space!r}: get_spaces(), or `streamkit spaces`, lists its spaces"
    )


def repair_for(space: str) -> str:
    """The next step for a space with a damaged index."""
    from shlex import quote

    name = "" if space < " " else f" {quote(space)}"
    return f"`streamkit repair{name}` builds the index again if the log is intact"


def remedy_for(space: str) -> str:
    """The next step for a space with a damaged log. Internal spaces cannot be salvaged."""
    from shlex import quote

    if space < " ":
        return "restore the store from a backup"
    return (
        f"`streamkit salvage {quote(space)} NEW` copies all but the lost transactions to a new space; or restore "
        "the space from a backup"
    )
