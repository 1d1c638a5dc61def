"""Doing again and again what catches up with spaces: a round, then waiting until there is more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ..errors import OutcomeUnknown, StoreClosed, TransientError
from ..log.follow import PollTimer
from ..store import Store, inner
from ..warn import warn

__all__ = ["Stop", "run_rounds"]

_LONGEST_PAUSE = 30.0


class Stop:
    """Ends a `run`, from any thread or signal handler; whoever waits is woken."""

    def __init__(self, store: Store) -> None:
        self._news = inner(store).news
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()
        self._news.tell()

    def is_set(self) -> bool:
        return self._event.is_set()


def run_rounds(
    store: Store, spaces: Sequence[str], round: Callable[[], bool], stop: Stop, seconds: float | None, what: str
) -> None:
    """Call `round` now, and whenever there may be more, until `stop` is set, the store is closed, or `seconds` are
    over.

    `round` says whether it did something. What is transient is tried again, with growing pauses.
    """
    shared = inner(store)
    end = None if seconds is None else shared.clock.monotonic() + seconds

    def known() -> tuple[int, ...]:
        numbers = [number for space in spaces for number in shared.numbers(space)]
        return (*numbers, stop.is_set(), shared.closed)

    timer = PollTimer(shared.clock, shared.news, shared.poll, None, known, spaces[0], lambda: None)
    pause = shared.poll[1]
    while not stop.is_set() and not shared.closed:
        seen = known()
        try:
            if round():
                timer.reset()
            pause = shared.poll[1]
        except StoreClosed:
            return
        except (TransientError, OutcomeUnknown) as error:
            warn("%s: trying again in %.1f s: %s", what, pause, error)
            timer.pause = pause
            pause = min(pause * 2, _LONGEST_PAUSE)
        if end is not None:
            rest = end - shared.clock.monotonic()
            if rest <= 0:
                return
            timer.pause = min(timer.pause, rest)
        timer.wait(seen)
