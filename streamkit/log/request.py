"""Requests: the transactions that callers want to commit, each with its own result and error."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec

from ..digest import blake2b
from ..errors import OutcomeUnknown
from ..model import TRX, SegmentStatus
from .floors import Control
from .idempotency import digest_of
from .record_format import Body
from .rows import SegmentRow

__all__ = ["Part", "Request", "wake_first"]

_TOGETHER = 1024
"""Parts that are hashed at once."""


class Part(msgspec.Struct, eq=False, gc=False):
    """The part of a request for one segment. Without a body it only states the segment's expected sequence."""

    segment: str
    body: Body | None
    size: int
    """Bytes of payload."""
    expected: int | None
    """The segment's last sequence, if the caller insists."""


class Request:
    """One caller's transaction, from its validation to its result."""

    key: bytes | None
    """The digest of the idempotency key."""
    content: bytes
    """The digest of the records, if there is a key."""
    fence: tuple[str, int] | None
    """(lease, token)"""
    result: dict[str, SegmentRow]
    trx: TRX | None = None
    status: SegmentStatus | None = None
    """The status of the only segment of its transaction; None where `result` has to tell."""
    count = 0
    """Entries of the transaction, which neighbours may share; 0 if it is not known."""
    error: BaseException | None
    replayed = False
    """True if the request's idempotency key was used before: the result is the first one."""
    done: bool
    """Set last: a thread that sees it sees the result or the error."""
    thread = 0
    """The caller's thread."""
    arrived = 0
    """The last look at the end of the log that had begun when it was queued."""
    leads = False
    """True if the request's thread has begun to lead. A thread that is only named as the next one does not."""
    control: Control | None
    """The change to the partition itself. The parts of such a request have no bodies."""
    condition: Callable[[], bool] | None = None
    """A condition on the partition's settings before the request. If it is false, the request is refused with
    SpaceExists."""
    withdrawn: bool
    """True if the caller has given up: the request must not be written any more."""
    id: bytes | None = None
    """The id under which it is posted in the inbox. Then others may commit it, up to `since` + WINDOW."""
    since = 0
    """The last transaction when it was posted."""
    checked = 0
    """No transaction up to this one holds it."""
    foreign = False
    """True if another process posted the request."""
    chosen: bool
    """True if its process brings the index forward, for all processes whose requests the transaction answers."""
    void: bytes | None = None
    """The id of a request, or of a transaction, that is never to be committed after this one."""
    turn: threading.Lock | None
    """Held while the caller waits for another thread; released when it may be done, or may lead."""
    following: Request | None
    """Another one of its transaction, whose caller is woken up when its own caller leaves."""

    def __init__(
        self,
        parts: Sequence[Part],
        key: str | None = None,
        fence: tuple[str, int] | None = None,
        control: Control | None = None,
    ) -> None:
        self.parts = parts
        self.key = None if key is None else digest_of(key)
        self.content = b"" if key is None else _content(parts)
        self.fence = fence
        self.control = control
        # What every commit reads is the instance's own: Python finds that several times sooner than a class's.
        self.turn = self.error = self.following = None
        self.done = self.withdrawn = self.chosen = False
        self.alive = threading.Lock()
        """Held by the caller's thread while it is inside; the interpreter releases it, however the thread leaves."""

    @property
    def abandoned(self) -> bool:
        """True if no caller waits for the request any more."""
        return not self.alive.locked()

    def board(self, id: bytes, number: int) -> bool:
        """Tell the caller that the request is about to be posted under `id`, or written with the transaction of this id
        and number (0: any number). False: it was withdrawn."""
        return True

    def leave(self) -> None:
        """Tell the caller that the transaction was not written, and never will be."""

    def succeed(self, result: dict[str, SegmentRow], trx: TRX | None, count: int) -> None:
        self.result, self.trx, self.count = result, trx, count
        self.done = True

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.done = True

    def fail_like(self, error: BaseException) -> None:
        """Fail with an error of its own: several threads raise it, and each adds its traceback."""
        if self.id is not None:
            unknown = self.unknown(self.id)
            unknown.__cause__ = error
            self.fail(unknown)
            return
        try:
            own = copy.copy(error)
            own.__cause__ = error.__cause__
        except Exception:
            own = error  # not ours, and cannot be copied
        self.fail(own)

    def unknown(self, id: bytes) -> OutcomeUnknown:
        """The error for a request that was posted under `id`: another process may still commit it."""
        transaction_id = UUID(bytes=id)
        return OutcomeUnknown(
            "other processes were to commit it, and the outcome could not be found; ask "
            f"store.outcome({str(transaction_id)!r})",
            transaction_id,
        )

    def wake(self) -> None:
        """Make the caller look again. It is only a hint: it may come twice, too early, or never."""
        turn = self.turn
        if turn is not None and turn.locked():
            with contextlib.suppress(RuntimeError):
                turn.release()


def wake_first(request: Request | None) -> None:
    """Wake the caller of `request`, or of the first one that follows it and has a caller."""
    while request is not None and request.abandoned:
        request = request.following
    if request is not None:
        request.wake()


def _content(parts: Sequence[Part]) -> bytes:
    """The digest of the records' raw bytes. It is the same however they were compressed."""
    content = blake2b(digest_size=16)
    for at in range(0, len(parts), _TOGETHER):
        told: list[bytes] = []
        for part in parts[at : at + _TOGETHER]:
            body = part.body
            if body is not None:
                name = part.segment.encode()
                told += (b"%d %d %d " % (len(name), body.count, body.hashed), name, body.digest)
        content.update(b"".join(told))
    return content.digest()
