"""The process that follows a plan: its calls, its late writes, and its end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from random import Random
from typing import NamedTuple, TypeVar

from ..backend import Ambiguous
from ..errors import StreamkitError, Throttled, Unavailable
from .fault_plan import FAULTS, At, Call, Fault, Plan

__all__ = ["Crash", "Injector", "Turn", "effect_of", "name_of"]

T = TypeVar("T")


class Crash(BaseException):
    """The process has stopped. Not an Exception: a program that is dead handles nothing."""


class _Zombie(NamedTuple):
    call: Call
    due: int | None
    deliver: Callable[[], object]


class Turn:
    """A call in progress: its place in the trace, and its fault."""

    def __init__(self, slot: int, at: At | None, roll: Callable[[], Random]) -> None:
        self.slot = slot
        self.at = at
        self.fault = None if at is None else at.fault
        self._roll = roll

    @cached_property
    def dice(self) -> Random:
        """Made when they are first thrown: most calls need none, and making them takes longer than the call."""
        return self._roll()


def name_of(error: BaseException) -> str:
    return type(error).__name__


def effect_of(apply: Callable[[], object]) -> str:
    """Apply the late write. Only the trace gets the outcome."""
    try:
        apply()
    except StreamkitError as error:
        return name_of(error)
    return "ok"


class Injector:
    """The state of a process that follows a plan: its calls, its late writes, and whether it still runs."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._trace: list[Call] = []
        self._zombies: list[_Zombie] = []
        self._closers: list[Callable[[], None]] = []
        self._calls = 0
        self._crashed = False

    def __repr__(self) -> str:
        state = "crashed" if self._crashed else "running"
        return f"<Injector {state} after {self._calls} calls, {len(self._zombies)} on their way>"

    @property
    def trace(self) -> tuple[Call, ...]:
        """All calls so far, in the order in which they began. A running call counts as ok."""
        with self._lock:
            return tuple(self._trace)

    @property
    def zombies(self) -> tuple[Call, ...]:
        """The calls that are LATE and not applied yet."""
        with self._lock:
            return tuple(zombie.call for zombie in self._zombies)

    @property
    def crashed(self) -> bool:
        """True if the plan has stopped this process."""
        return self._crashed

    def release(self) -> tuple[Call, ...]:
        """Apply the late writes in the order in which they were sent, also after a crash."""
        return self._land(None)

    def check(self) -> None:
        """Raise Crash if the plan has stopped this process."""
        if self._crashed:
            raise Crash("this process has stopped")

    def close(self, close: Callable[[], None]) -> None:
        """Call `close` when all late writes have arrived."""
        if self._crashed:
            return
        with self._lock:
            self._closers.append(close)
        self._settle()

    def begin(self, kind: str, what: str, impossible: Sequence[Fault] = ()) -> Turn:
        """Number a call, and return its turn with the fault that the plan chose for it. Crash after a crash."""
        self.check()
        with self._lock:
            number, nth = self._calls, self._counts[kind]
            self._calls += 1
            self._counts[kind] += 1
        self._land(number)
        possible = FAULTS[kind]
        if impossible:
            possible = tuple(fault for fault in possible if fault not in impossible)
        at = self.plan.choose(number, kind, nth, possible)
        with self._lock:
            self._trace.append(Call(number, kind, what, None, "ok"))
            return Turn(len(self._trace) - 1, at, lambda: self.plan.dice(number, kind))

    def end(self, turn: Turn, outcome: str, fault: Fault | None) -> None:
        """Record the outcome of a turn. `fault`: the one that took effect."""
        with self._lock:
            self._trace[turn.slot] = self._trace[turn.slot]._replace(outcome=outcome, fault=fault)

    def crash(self, turn: Turn, effect: str = "nothing") -> Crash:
        """End the turn with a crash: every later call raises Crash. Return the exception to raise."""
        self._crashed = True
        self.end(turn, f"Crash after {effect}", turn.fault)
        return Crash("this process has stopped")

    def ambiguous(self, turn: Turn, effect: str) -> Ambiguous:
        """End the turn with a lost answer. Return the exception to raise."""
        self.end(turn, f"Ambiguous after {effect}", turn.fault)
        return Ambiguous("injected: the answer was lost")

    def perform(self, turn: Turn, apply: Callable[[], T]) -> T:
        """Perform the call as the plan says. The caller has handled the faults of its kind before."""
        match turn.fault:
            case Fault.UNAVAILABLE:
                self.end(turn, "Unavailable", turn.fault)
                raise Unavailable("injected: the service cannot be reached")
            case Fault.THROTTLED:
                self.end(turn, "Throttled", turn.fault)
                raise Throttled("injected: slow down")
            case Fault.LOST_REQUEST:
                raise self.ambiguous(turn, "nothing")
            case Fault.LOST_ANSWER:
                raise self.ambiguous(turn, effect_of(apply))
            case Fault.LATE:
                self._postpone(turn, apply)
                raise self.ambiguous(turn, "nothing yet")
            case Fault.CRASH_BEFORE:
                raise self.crash(turn)
            case Fault.CRASH_AFTER:
                raise self.crash(turn, effect_of(apply))
        twice = turn.fault if turn.fault is Fault.TWICE else None
        if twice:
            effect_of(apply)
        try:
            answer = apply()
        except BaseException as error:
            self.end(turn, name_of(error), twice)
            raise
        if twice:
            self.end(turn, "ok", twice)
        return answer

    def _postpone(self, turn: Turn, apply: Callable[[], object]) -> None:
        assert turn.at is not None
        with self._lock:
            call = self._trace[turn.slot]._replace(fault=turn.fault)
            due = None if turn.at.delay is None else call.number + turn.at.delay
            self._zombies.append(_Zombie(call, due, apply))

    def _land(self, number: int | None) -> tuple[Call, ...]:
        with self._lock:
            if not self._zombies:
                return ()
            due = [z for z in self._zombies if number is None or (z.due is not None and z.due <= number)]
            self._zombies = [z for z in self._zombies if z not in due]
        landed = []
        for zombie in due:
            call = zombie.call
            landed.append(Call(call.number, "zombie", call.what, call.fault, effect_of(zombie.deliver)))
        with self._lock:
            self._trace += landed
        self._settle()
        return tuple(landed)

    def _settle(self) -> None:
        with self._lock:
            closers, self._closers = ([], self._closers) if self._zombies else (self._closers, [])
        for close in closers:
            close()
