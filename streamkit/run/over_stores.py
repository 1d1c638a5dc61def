"""Programs over many stores: the parts of all of them share a few threads, and one thread looks for new entries."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Any

import msgspec

from ..arguments import check_count, check_function, check_seconds, check_type
from ..errors import OutcomeUnknown, StoreClosed, TransientError
from ..open_store import OpenStore
from ..signals import on_signals
from ..store import Store, inner
from ..warn import warn
from .program import PartStatus

__all__ = ["ProgramOverStores", "ProgramStatistics"]

_SLICE = 1.0
"""Seconds for which a group's part works before other parts have their turn."""
_IDLE = 60.0
"""Seconds after which a part has a turn though nothing was seen: for example, a paused view may have been resumed."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_LAST_LOOK = 2.0
"""Seconds for which the end of `run` waits for a look that is under way. A look writes nothing, so it can be left."""


class ProgramStatistics(msgspec.Struct, frozen=True):
    """Counts since the program was made."""

    stores: int
    parts: int
    looks: int
    """Looks at the end of a space's log."""
    turns: int
    """Calls of `catch_up` of a part."""


class _FollowedSpace:
    """A space that parts follow. The thread that looks alone uses it."""

    def __init__(self, shared: OpenStore, space: str) -> None:
        self.shared = shared
        self.space = space
        self.failing = False

    def look(self) -> None:
        """Read the transactions of other processes. A space that does not exist yet is looked for."""
        known = self.shared.spaces.get(self.space)
        if known is None:
            known, _ = self.shared.look_up(self.space)
        for partition in known.partitions if known is not None else ():
            partition.refresh()


class _Turn:
    """A part, and when it has its next turn. Guarded by the program's lock, except `seen`."""

    def __init__(self, part: Any, store: Store, spaces: tuple[str, ...]) -> None:
        self.part = part
        self.store = store
        self.shared = inner(store)
        self.spaces = spaces
        self.seen: tuple[int, ...] | None = None
        """The numbers of the spaces before the latest turn; None before the first one."""
        self.due = 0.0
        """The clock's monotonic time of a turn though nothing is new."""
        self.alarm = float("inf")
        """The time of its earliest entry among the program's alarms."""
        self.blocked = 0.0
        """No turn before this time: the part has failed."""
        self.busy = False
        """True if the part waits for a thread, or has one."""
        self.gone = False
        self.pause = _FIRST_PAUSE
        self.restarts = 0
        self.state = "stopped"
        self.error: str | None = None

    def numbers(self) -> tuple[int, ...]:
        """The last numbers of the spaces that this process knows."""
        return tuple([number for space in self.spaces for number in self.shared.numbers(space)])


def _spaces_of(part: Any) -> tuple[str, ...]:
    """The spaces that a part follows."""
    spaces = getattr(part, "spaces", None)
    if spaces is None:
        group = getattr(part, "group", None)
        source = getattr(part, "source", None)
        spaces = [group.consumer().group.space] if group is not None else [source] if isinstance(source, str) else None
    if spaces is None:
        raise TypeError(f"{part!r:.60} does not name the spaces that it follows: give it a tuple of names, `spaces`")
    return tuple(spaces)


class ProgramOverStores:
    """The same parts for each of many stores: `ProgramOverStores(stores, make)`, where `make(store)` gives the parts.

    A part is a view, a route, a process manager or a Worker, or an object with `name`, `spaces` and `catch_up()`.
    `threads` threads call `catch_up` of the parts that have something to do, a group's part for a second at a time. One
    thread looks for entries of other processes every `poll` seconds; entries of this process need no look. On a local
    disk a look is no system call, and 0.25 is the default; elsewhere it is a request for each space, and 5 seconds are.
    A part that raises has its next turn after a pause that grows. Any number of processes may run the same program.
    """

    def __init__(
        self,
        stores: Iterable[Store],
        make: Callable[[Store], Iterable[Any]],
        *,
        threads: int = 8,
        poll: float | None = None,
    ) -> None:
        check_function("make", make, "a store that gives its parts", iterated=True)
        self._make = make
        self._threads = check_count("threads", threads)
        self._poll = None if poll is None else check_seconds("poll", poll, positive=True)
        self._changed = threading.Condition()
        """Guards the turns, and wakes the threads."""
        self._ready: deque[_Turn] = deque()
        self._alarms: list[tuple[float, int, _Turn]] = []
        """A heap of the times at which parts have a turn though nothing is new."""
        self._set = count()
        self._turns: dict[Any, list[_Turn]] = {}
        self._places: dict[tuple[int, str], _FollowedSpace] = {}
        self._notifier: deque[Any] = deque()
        """The stores with new entries, written or seen by this process, since turns were given for them."""
        self._wake = threading.Lock()
        """Held while nothing is new: the thread that gives turns waits for it."""
        self._listeners: dict[Any, Callable[[], None]] = {}
        self._stop = threading.Event()
        self._running = False
        self._looks = self._count = 0
        if isinstance(stores, Store):
            raise TypeError("stores are several, as in ProgramOverStores([store], make)")
        for store in stores:
            self.add(store)

    def add(self, store: Store) -> None:
        """Add a store and its parts, also while the program runs. ValueError if the program has it already."""
        check_type(store, Store, "a store is what client.store(…) gives")
        turns = [self._turn(part, store) for part in self._make(store)]
        with self._changed:
            if store.id in self._turns:
                raise ValueError(f"the program has the store {store.id} already")
            self._turns[store.id] = turns
            shared = inner(store)
            for turn in turns:
                for space in turn.spaces:
                    self._places.setdefault((id(shared), space), _FollowedSpace(shared, space))

        def listen() -> None:
            self._notifier.append(store.id)
            self._rouse()

        self._listeners[store.id] = listen
        shared.notifier.listen(listen)
        listen()

    def _rouse(self) -> None:
        """Wake the thread that gives turns. It takes no lock that a signal handler could wait for."""
        if self._wake.locked():
            with contextlib.suppress(RuntimeError):  # another thread was faster
                self._wake.release()

    @staticmethod
    def _turn(part: Any, store: Store) -> _Turn:
        if isinstance(part, type) or not hasattr(part, "name") or not callable(getattr(part, "catch_up", None)):
            raise TypeError(f"a part of a program over stores has a name and a method catch_up(), not {part!r:.60}")
        return _Turn(part, store, _spaces_of(part))

    def remove(self, store: Store) -> None:
        """Remove a store and its parts. A turn that has begun runs to its end. An unknown store is no error."""
        with self._changed:
            turns = self._turns.pop(store.id, [])
            for turn in turns:
                turn.gone = True
            gone = {id(turn.shared) for turn in turns}
            self._places = {key: place for key, place in self._places.items() if key[0] not in gone}
        listener = self._listeners.pop(store.id, None)
        if listener is not None:
            (turns[0].shared if turns else inner(store)).notifier.unlisten(listener)

    @property
    def stores(self) -> list[Store]:
        """The stores, each once."""
        with self._changed:
            return [turns[0].store for turns in self._turns.values() if turns]

    def statistics(self) -> ProgramStatistics:
        """Return counts of the work: looks and turns."""
        with self._changed:
            parts = sum(len(turns) for turns in self._turns.values())
            return ProgramStatistics(len(self._turns), parts, self._looks, self._count)

    def status(self) -> list[PartStatus]:
        """Return the state of each part, without the part's own status: that may take requests."""
        with self._changed:
            return [
                PartStatus(f"{store_id}/{turn.part.name}", turn.state, turn.restarts, turn.error)
                for store_id, turns in self._turns.items()
                for turn in turns
            ]

    def stop(self) -> None:
        """End `run`. If none is under way, the next one ends at once."""
        self._stop.set()
        self._rouse()
        with self._changed:
            self._changed.notify_all()

    def run(self, *, seconds: float | None = None, signals: bool = False) -> None:
        """Run the parts of all stores until `stop()`, for `seconds` if given.

        With `signals` (main thread only) SIGTERM and SIGINT stop it: each part finishes its current work. A store that
        does not answer delays the end by two seconds at most.
        """
        if seconds is not None:
            seconds = check_seconds("seconds", seconds, endless=True)
        with self._changed:
            if self._running:
                raise RuntimeError("the program is running: stop it before it runs again")
            self._running = True
        threads = [
            threading.Thread(target=self._work, name=f"streamkit-stores-{number}") for number in range(self._threads)
        ]
        ended = threading.Event()
        looking = threading.Thread(target=self._look_on, args=(ended,), name="streamkit-stores-looks", daemon=True)
        try:
            with on_signals(self.stop, signal.SIGTERM, signal.SIGINT) if signals else contextlib.nullcontext():
                try:
                    for thread in (*threads, looking):
                        thread.start()
                    self._give_on(seconds)
                finally:
                    self.stop()
                    ended.set()
                    for thread in threads:
                        if thread.ident is not None:
                            thread.join()
                    if looking.ident is not None:
                        looking.join(_LAST_LOOK)
        finally:
            with self._changed:
                self._ready.clear()
                self._alarms.clear()
                for store_id, turns in self._turns.items():
                    self._notifier.append(store_id)
                    for turn in turns:
                        turn.busy, turn.state, turn.seen, turn.alarm = False, "stopped", None, float("inf")
                self._running = False
                self._stop.clear()

    # -- looking ------------------------------------------------------------------------------------------------

    def _give_on(self, seconds: float | None) -> None:
        """Give turns, in the thread that called `run`."""
        end = None if seconds is None else monotonic() + seconds
        while not self._stop.is_set() and (end is None or monotonic() < end):
            told: set[Any] = set()
            with contextlib.suppress(IndexError):
                while True:
                    told.add(self._notifier.popleft())
            rest = min(self._give_turns(told), end or float("inf")) - monotonic()
            if not self._notifier and rest > 0:
                self._wake.acquire(timeout=min(rest, _IDLE))

    def _look_on(self, ended: threading.Event) -> None:
        """Look until the run has `ended`, in a thread of its own, because a store may answer late.

        The thread that gives turns learns of new entries as it learns of a write by this process.
        """
        while not ended.is_set():
            ended.wait(self._look(ended))

    def _look(self, ended: threading.Event) -> float:
        """Look at each space once. Returns the seconds until the next look."""
        with self._changed:
            places = list(self._places.values())
        pause = 0.25
        for place in places:
            if ended.is_set():
                break
            if place.shared.backend.limits.remote:
                pause = max(pause, place.shared.poll[1])
            try:
                place.look()
                place.failing = False
            except StoreClosed:
                continue  # the turns of its parts end
            except Exception as error:  # whatever it is, the other stores are looked at
                if not place.failing:
                    message = "the space %r cannot be looked at, and will be again: %s"
                    warn(message, place.space, error, store=place.shared.id, space=place.space)
                place.failing = True
        self._looks += len(places)
        return self._poll or pause

    def _give_turns(self, stores: set[Any]) -> float:
        """Give a turn to each part of these stores that has new entries, and to each part that is due. Returns the time
        of the next alarm.
        """
        now = monotonic()
        with self._changed:
            chosen = [turn for id in stores for turn in self._turns.get(id, []) if turn.numbers() != turn.seen]
            while self._alarms and self._alarms[0][0] <= now:
                _, _, turn = heappop(self._alarms)
                turn.alarm = float("inf")
                if turn.due <= now:
                    chosen.append(turn)
                else:
                    self._set_alarm(turn)
            given = 0
            for turn in chosen:
                if not (turn.busy or turn.gone or turn.blocked > now):
                    turn.busy = True
                    self._ready.append(turn)
                    given += 1
            if given:
                self._changed.notify(given)
            return self._alarms[0][0] if self._alarms else float("inf")

    def _set_alarm(self, turn: _Turn) -> None:
        """Have the thread that gives turns see when the part is due. The caller holds the lock."""
        if turn.due < turn.alarm:
            turn.alarm = turn.due
            heappush(self._alarms, (turn.due, next(self._set), turn))

    # -- working ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._ready and not self._stop.is_set():
                    self._changed.wait()
                if self._stop.is_set():
                    return
                turn = self._ready.popleft()
                self._count += 1
            if not turn.gone:
                self._take(turn)

    def _take(self, turn: _Turn) -> None:
        """Call `catch_up` of a part, and find out when it has its next turn."""
        seen, rest = turn.numbers(), _IDLE
        error: BaseException | None = None
        turn.state = "running"
        try:
            if getattr(turn.part, "group", None) is None:
                turn.part.catch_up()
            else:
                report = turn.part.catch_up(seconds=_SLICE, stop=self._stop)
                more = report.acked or report.failed or report.lost
                rest = 0.0 if more else min(_IDLE, turn.part.group.consumer().until_change())
        except StoreClosed:
            turn.gone, turn.state = True, "stopped"
            return
        except BaseException as failure:  # also SystemExit, which would be lost in this thread
            error = failure
        with self._changed:
            now = monotonic()
            turn.busy, turn.seen, turn.due = False, seen, now + rest
            if error is None:
                turn.state, turn.error, turn.pause = "running", None, _FIRST_PAUSE
                if rest == 0 or turn.numbers() != seen:  # there is more: the other parts have their turns first
                    turn.busy = True
                    self._ready.append(turn)
            else:
                turn.state, turn.error = "failed", f"{type(error).__name__}: {error}"
                turn.restarts += 1
                turn.blocked = turn.due = now + turn.pause
                turn.seen = None
            if not turn.busy:
                self._set_alarm(turn)
                if self._alarms[0][2] is turn:
                    self._rouse()
        if error is not None:
            message = "%s failed, and has its next turn in %.1f s: %s"
            warn(message, turn.part.name, turn.pause, turn.error, store=turn.store.id)
            if not isinstance(error, (TransientError, OutcomeUnknown)):
                turn.pause = min(turn.pause * 2, _LONGEST_PAUSE)

    def __repr__(self) -> str:
        return f"<ProgramOverStores of {len(self._turns)} stores, {'running' if self._running else 'stopped'}>"
