"""Following: history, then new entries. A follower looks, waits a little longer after each vain look, and repeats.

News from the same process wakes it at once. It holds nothing while it waits, and never keeps a writer waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from ..clock import Clock
from ..model import SegmentStatus
from .notifier import Notifier
from .partition import Partition
from .view import LogView
from .visible import floor_of

__all__ = ["Following", "PollTimer", "watch", "watch_all"]

T = TypeVar("T")

_TOLD = 100_000
"""Segments whose last status is remembered."""


class PollTimer:
    """Waits for new entries, and ends after `timeout` seconds without any (None: never)."""

    def __init__(
        self,
        clock: Clock,
        notifier: Notifier,
        poll: tuple[float, float],
        timeout: float | None,
        known: Callable[[], tuple[int, ...]],
        space: str,
        refresh: Callable[[], None],
    ) -> None:
        self.clock = clock
        self.notifier = notifier
        self._least, self._most = poll
        self._timeout = timeout
        self.known = known
        """Returns how far this process knows the followed logs. It does no I/O."""
        self.space = space
        self.refresh = refresh
        """Reads the new transactions of the logs, for a caller that looks only where more is known."""
        self.since: int | None = None
        """The earliest look that a follower accepts. None: one that begins with the call. 0: any completed look."""
        self.pause = self._least
        """Seconds until the next look."""
        self._heard = clock.monotonic()

    def reset(self) -> None:
        """Something came."""
        self.pause = self._least
        self._heard = self.clock.monotonic()

    def until(self) -> float | None:
        """The time of the next look, in the clock's monotonic seconds. The pause grows with each call.

        None: nothing has come for `timeout` seconds.
        """
        end = self.clock.monotonic() + self.pause
        if self._timeout is not None:
            if self.clock.monotonic() >= self._heard + self._timeout:
                return None
            end = min(end, self._heard + self._timeout)
        self.pause = min(self.pause * 2, self._most)
        return end

    def wait(self, seen: tuple[int, ...]) -> bool:
        """Wait until it is time to look again: after a pause, or as soon as more than `seen` is known.

        False if nothing has come for `timeout` seconds.
        """
        end = self.until()
        if end is None:
            return False
        with self.notifier.mutex:
            self.notifier.waiting += 1
            try:
                while self.known() == seen:
                    rest = end - self.clock.monotonic()
                    if rest <= 0:
                        break
                    self.clock.wait(self.notifier, rest)
            finally:
                self.notifier.waiting -= 1
        return True


class Following(Generic[T]):
    """An iterator over the items that `look` finds, call after call. Each call finds only new items.

    It waits in its caller's thread. A caller that waits in another way uses `timer` and `look`.
    """

    def __init__(self, timer: PollTimer, look: Callable[[], Iterator[Iterable[T]]]) -> None:
        self.timer = timer
        self.look = look
        self._items = _poll(timer, look)

    def __iter__(self) -> Iterator[T]:
        return self._items

    def __next__(self) -> T:
        return next(self._items)

    def close(self) -> None:
        self._items.close()


def _poll(timer: PollTimer, look: Callable[[], Iterator[Iterable[T]]]) -> Generator[T, None, None]:
    while True:
        seen = timer.known()
        for found in look():
            yield from found
            timer.reset()
        if not timer.wait(seen):
            return


def watch(timer: PollTimer, latest: Callable[[int | None], SegmentStatus]) -> Following[SegmentStatus]:
    """A status, and again when it is another one."""
    told: SegmentStatus | None = None

    def look() -> Iterator[tuple[SegmentStatus]]:
        nonlocal told
        status = latest(timer.since)
        if status != told:
            told = status
            yield (status,)

    return Following(timer, look)


def watch_all(
    timer: PollTimer,
    partitions: Callable[[], Sequence[Partition]],
    segments: Callable[[], Iterator[str]],
    latest: Callable[[str, int | None], SegmentStatus],
) -> Following[SegmentStatus]:
    """The status of each segment, then the latest status of each segment that was written to or lost its first entries
    since. No partitions: there is no space yet.

    `latest` takes how old a look may be, as PollTimer.since.
    """
    told: dict[str, tuple[int, int]] = {}

    def tell(segment: str) -> Iterator[tuple[SegmentStatus]]:
        status = latest(segment, timer.since)
        place = status.last_sequence, status.first_sequence
        if place > told.get(segment, (0, 1)):
            if len(told) >= _TOLD:
                told.clear()
            told[segment] = place
            yield (status,)

    known: Sequence[Partition] = ()
    reached: list[int] = []
    begun = False

    def look() -> Iterator[tuple[SegmentStatus]]:
        nonlocal known, reached, begun
        if not begun:
            begun = True
            known = partitions()
            reached = [partition.refresh() for partition in known]
            for segment in segments():
                yield from tell(segment)
        if not known:
            known = partitions()
            reached = [0] * len(known)
        for at, partition in enumerate(known):
            until = partition.refresh((), timer.since)
            for segment in _touched(partition, reached[at], until) if until > reached[at] else ():
                yield from tell(segment)
            reached[at] = until

    return Following(timer, look)


def _touched(partition: Partition, after: int, until: int) -> Iterator[str]:
    """The segments that transactions after `after` up to `until` wrote to, each once, the last touched last."""
    found: dict[str, None] = {}

    def touch(segment: str) -> None:
        found.pop(segment, None)
        found[segment] = None

    def read(view: LogView) -> None:
        nonlocal after
        while after < until:
            after = max(after, floor_of(view).number - 1)
            cold = min(view.cold_until, until)
            if after < cold:
                for segment in view.archive().touched(view, after + 1, cold):
                    touch(segment)
                after = cold
                continue
            for number, record in view.records(after + 1, until):
                header = partition.decode_header(record, number)
                for removal in header.control.removals if header.control is not None else ():
                    touch(removal.segment)
                for ref in header.frames:
                    touch(ref.segment)
                after = number
            if after < until:
                raise view.missing(after + 1)

    partition.ask(read)
    yield from found
