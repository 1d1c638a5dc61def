"""Rounds: catching up with spaces again and again, with a wait for new entries between two rounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ..arguments import check_seconds
from ..errors import OutcomeUnknown, StoreClosed, TransientError
from ..log.follow import PollTimer
from ..store import Store, inner
from ..warn import warn

__all__ = ["Stop", "check_stop", "run_rounds"]

_LONGEST_PAUSE = 30.0


def check_stop(stop: object) -> None:
    """Raise TypeError for anything but a Stop, a `threading.Event`, or None."""
    if stop is not None and not (hasattr(stop, "is_set") and hasattr(stop, "set")):
        raise TypeError(f"stop is a Stop of new_stop(), or None, not {type(stop).__name__}")


class Stop:
    """A stop ends a `run`, from any thread or signal handler, and wakes its waiters. A stop that is `part_of` another
    is set with that one, and not the other way round."""

    def __init__(self, store: Store, part_of: Stop | None = None) -> None:
        self._notifier = inner(store).notifier
        self._event = threading.Event()
        self._whole = part_of

    def set(self) -> None:
        self._event.set()
        self._notifier.notify_waiters()

    def is_set(self) -> bool:
        return self._event.is_set() or (self._whole is not None and self._whole.is_set())


def run_rounds(
    store: Store, spaces: Sequence[str], round: Callable[[], bool], stop: Stop, seconds: float | None, what: str
) -> None:
    """Call `round` now, and whenever there may be more, until `stop` is set, the store is closed, or `seconds` are
    over.

    `round` says whether it did something. A transient error is tried again, with growing pauses. ValueError if
    `seconds` is negative or NaN: a comparison with NaN is always false, and the run would never end.
    """
    if seconds is not None:
        seconds = check_seconds("seconds", seconds, endless=True)
    shared = inner(store)
    clock = shared.clock
    end = None if seconds is None else clock.monotonic() + seconds

    def known() -> tuple[int, ...]:
        numbers = [number for space in spaces for number in shared.numbers(space)]
        return (*numbers, stop.is_set(), shared.closed)

    timer = PollTimer(clock, shared.notifier, shared.poll, None, known, spaces[0], lambda: None)
    pause = shared.poll[1]
    while not stop.is_set() and not shared.closed:
        seen, again = known(), 0.0
        try:
            if round():
                timer.reset()
            pause = shared.poll[1]
        except StoreClosed:
            return
        except (TransientError, OutcomeUnknown) as error:
            warn("%s: trying again in %.1f s: %s", what, pause, error)
            again = clock.monotonic() + pause
            pause = min(pause * 2, _LONGEST_PAUSE)
        if end is not None:
            rest = end - clock.monotonic()
            if rest <= 0:
                return
            timer.pause, again = min(timer.pause, rest), min(again, end)
        if not again:
            timer.wait(seen)
        while (rest := again - clock.monotonic()) > 0:  # that there is more is no reason to try it again
            seen = known()
            if stop.is_set() or shared.closed:
                break
            timer.pause = rest
            timer.wait(seen)
