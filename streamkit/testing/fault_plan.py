"""A plan of faults by call: an immutable value, so that a failing run can be repeated.

Plan.at(3, Fault.LOST_ANSWER)                     the fourth call, of whatever kind
Plan.at(0, Fault.LATE, kind="put", delay=5)       the first put; it lands five calls later
Plan.random(seed=7, rate=0.1, menu=SURVIVABLE)    one call in ten, chosen by the seed
for plan in every_fault(trace): ...               each fault at each call of a run that was recorded
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

__all__ = ["CRASHES", "DAMAGE", "FAULTS", "SURVIVABLE", "At", "Call", "Fault", "Plan", "every_fault"]


class Fault(Enum):
    """A fault of a call. A fault of a write has two parts: whether it was applied, and the answer."""

    UNAVAILABLE = "nothing was sent: Unavailable"
    THROTTLED = "nothing was applied: Throttled"
    LOST_REQUEST = "a timeout or a 5xx, and nothing was applied: Ambiguous"
    LOST_ANSWER = "a timeout or a 5xx, but it was applied: Ambiguous"
    LATE = "Ambiguous now; it is applied some calls later, or when it is released"
    TWICE = "delivered twice; the answer is the second's, which met the first"
    CONFLICT = "Conflict although the precondition holds; an acquire gets None, a renew LeaseLost"
    PARTIAL = "a delete removed some of its rows: Ambiguous or Unavailable"
    TRUNCATED = "a value that was read is cut short"
    CORRUPT = "a value that was read has one bit flipped"
    CRASH_BEFORE = "the process stops before the call has an effect: Crash, for this and every later call"
    CRASH_PARTIAL = "the process stops when a delete has removed some of its rows"
    CRASH_AFTER = "the process stops after the call had its effect, before the answer"


SURVIVABLE: Final = (
    Fault.UNAVAILABLE,
    Fault.THROTTLED,
    Fault.LOST_REQUEST,
    Fault.LOST_ANSWER,
    Fault.LATE,
    Fault.TWICE,
    Fault.CONFLICT,
    Fault.PARTIAL,
)
"""Bad days of a service: nothing may be lost, doubled or torn by them."""
DAMAGE: Final = (Fault.TRUNCATED, Fault.CORRUPT)
"""Must be noticed, and never taken for data."""
CRASHES: Final = (Fault.CRASH_BEFORE, Fault.CRASH_PARTIAL, Fault.CRASH_AFTER)
"""The end of the process. The next process that opens the store must find it undamaged."""

_ANY: Final = (Fault.UNAVAILABLE, Fault.THROTTLED, Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
_CHANGE: Final = (*_ANY, Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.LATE, Fault.TWICE)
FAULTS: Final[Mapping[str, tuple[Fault, ...]]] = MappingProxyType(
    {
        "get": (*_ANY, *DAMAGE),
        "read": (*_ANY, *DAMAGE),
        "scan": (*_ANY, *DAMAGE),
        "put": (*_CHANGE, Fault.CONFLICT),
        "delete": (*_CHANGE, Fault.PARTIAL, Fault.CRASH_PARTIAL),
        "scrub": _ANY,
        "remove_leftovers": _ANY,
        "acquire": (*_CHANGE, Fault.CONFLICT),
        "is_held": _ANY,
        "renew": (*_CHANGE, Fault.CONFLICT),
        "release": _CHANGE,
        "stores": _ANY,
        "delete_store": _CHANGE,
    }
)
"""The kinds of call of Backend and Driver (`delete_store` is Driver.delete), and the faults that can happen to each."""


class Call(NamedTuple):
    """One call as the trace shows it. Values and etags are left out: they differ between two equal runs."""

    number: int
    """The number of the call, from 0, over calls of all kinds. A zombie has the number of the call that it comes
    from."""
    kind: str
    """A key of FAULTS, or "zombie"."""
    what: str
    fault: Fault | None
    """The fault that took effect."""
    outcome: str
    """"ok", or the error's class. If the answer did not show it, "after" and the service's action follow."""

    def __str__(self) -> str:
        fault = f" !{self.fault.name}" if self.fault else ""
        return f"{self.number:4} {self.kind} {self.what}{fault} -> {self.outcome}"


@dataclass(frozen=True)
class At:
    """A fault at `call`, counted from 0 among the calls of that `kind`, or of all kinds. It lasts for `times` calls."""

    call: int
    fault: Fault
    kind: str | None = None
    times: int = 1
    delay: int | None = None
    """LATE: how many calls later it is applied, before that call; None: when it is released."""
    rows: int = 0
    """A scan: how many rows it gives before it fails, or before the row that is damaged."""

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in FAULTS:
            raise ValueError(f"a kind of call is one of {', '.join(FAULTS)}, not {self.kind!r}")
        if self.kind is not None and self.fault not in FAULTS[self.kind]:
            names = ", ".join(fault.name for fault in FAULTS[self.kind])
            raise ValueError(f"{self.fault.name} cannot happen to {self.kind}; these can: {names}")
        if self.call < 0 or self.times < 1 or self.rows < 0 or (self.delay is not None and self.delay < 1):
            raise ValueError(f"call and rows are from 0, times and delay from 1: {self}")


@dataclass(frozen=True)
class Plan:
    """A plan of faults. The first of `faults` that fits a call counts, then chance.

    A share `rate` of the other calls, 0 to 1, meets a fault of `menu`. `seed` decides which, and also the details of a
    fault: the flipped bit, the rows that a delete removes. A fault that cannot happen to its call does not happen.
    Calls are numbered, so with one thread the same plan gives the same trace.
    """

    faults: tuple[At, ...] = ()
    seed: int = 0
    rate: float = 0.0
    menu: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate is from 0 to 1, not {self.rate}")
        if self.rate and not self.menu:
            raise ValueError("a plan with a rate needs a menu of faults, such as SURVIVABLE")

    @classmethod
    def at(
        cls,
        call: int,
        fault: Fault,
        *,
        kind: str | None = None,
        times: int = 1,
        delay: int | None = None,
        rows: int = 0,
        seed: int = 0,
    ) -> Plan:
        """Return a plan with one fault: see `At`."""
        return cls((At(call, fault, kind, times, delay, rows),), seed)

    @classmethod
    def random(cls, seed: int, rate: float, menu: Iterable[Fault] = SURVIVABLE) -> Plan:
        """Return a plan in which a share `rate` of the calls, 0 to 1, meets a fault of `menu`."""
        return cls((), seed, rate, tuple(menu))

    def dice(self, number: int, purpose: str) -> Random:
        """The dice of call `number`. Throws for different purposes are independent."""
        return Random(f"{self.seed}/{number}/{purpose}")

    def choose(self, number: int, kind: str, nth: int, possible: Sequence[Fault]) -> At | None:
        """Choose the fault of call `number`, the `nth` of its kind, out of the `possible` ones."""
        for at in self.faults:
            count = number if at.kind is None else nth
            if at.kind in (None, kind) and at.call <= count < at.call + at.times and at.fault in possible:
                return at
        menu = [fault for fault in self.menu if fault in possible]
        if not menu:
            return None
        dice = self.dice(number, "fault")
        if dice.random() >= self.rate:
            return None
        return At(number, dice.choice(menu), delay=dice.choice((None, 1, 2, 5)), rows=dice.randrange(4))


def every_fault(
    trace: Iterable[Call],
    menu: Iterable[Fault] = tuple(Fault),
    *,
    delays: Sequence[int | None] = (None, 1),
    rows: Sequence[int] = (0, 1),
) -> Iterator[Plan]:
    """A plan for each fault of `menu` at each call of `trace`, the record of a run without faults.

    `delays` are tried where the fault is LATE, `rows` where the call is a scan.
    """
    menu = tuple(menu)
    for call in trace:
        for fault in FAULTS.get(call.kind, ()):
            if fault not in menu:
                continue
            for delay in delays if fault is Fault.LATE else (None,):
                for some in rows if call.kind == "scan" else (0,):
                    yield Plan.at(call.number, fault, delay=delay, rows=some)
