"""Following: history, then what comes. A follower looks, waits a little longer each time nothing came, and looks again.

News from the same process wakes it at once. It holds nothing while it waits, and never keeps a writer waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .clock import Clock
from .errors import CorruptData
from .keys import transaction_key, transaction_number
from .partition import News, Partition

__all__ = ["Patience", "touched"]


class Patience:
    """Waits for news, and ends after `timeout` seconds of silence (None: never)."""

    def __init__(
        self,
        clock: Clock,
        news: News,
        poll: tuple[float, float],
        timeout: float | None,
        known: Callable[[], tuple[int, ...]],
    ) -> None:
        self._clock = clock
        self._news = news
        self._least, self._most = poll
        self._timeout = timeout
        self._known = known
        """What this process knows of the logs that are followed; does no I/O."""
        self._pause = self._least
        self._heard = clock.monotonic()

    def reset(self) -> None:
        """Something came."""
        self._pause = self._least
        self._heard = self._clock.monotonic()

    def wait(self, seen: tuple[int, ...]) -> bool:
        """True when it is time to look again: after a pause, or as soon as more than `seen` is known.

        False when there was silence for too long.
        """
        end = self._clock.monotonic() + self._pause
        if self._timeout is not None:
            if self._clock.monotonic() >= self._heard + self._timeout:
                return False
            end = min(end, self._heard + self._timeout)
        self._pause = min(self._pause * 2, self._most)
        with self._news:
            self._news.waiting += 1
            try:
                while self._known() == seen:
                    rest = end - self._clock.monotonic()
                    if rest <= 0:
                        break
                    self._clock.wait(self._news, rest)
            finally:
                self._news.waiting -= 1
        return True


def touched(partition: Partition, after: int, until: int) -> Iterator[str]:
    """The segments that transactions after `after` up to `until` wrote to, each once, the last touched last."""
    found: dict[str, None] = {}
    while after < until:
        archived = min(partition.head.archived, until)
        if after < archived:
            for segment in partition.archive().touched(partition, after + 1, archived):
                found.pop(segment, None)
                found[segment] = None
            after = archived
            continue
        for row in partition.backend.scan(partition.key, transaction_key(after + 1), transaction_key(until + 1)):
            number = transaction_number(row.key)
            if number != after + 1:
                break
            for ref in partition.decode_header(row.data, number).frames:
                found.pop(ref.segment, None)
                found[ref.segment] = None
            after = number
        if after < until and not partition.archived_since(after + 1):
            raise CorruptData(f"{partition.where(after + 1)} is missing from the log")
    yield from found
