"""Faults by name, for tests of programs: "the next put loses its answer"."""

from __future__ import annotations

from dataclasses import replace

from .fault_plan import At, Call, Fault
from .faults import FaultyDriver

__all__ = ["NamedFaults"]


class NamedFaults:
    """The faults of a test's store. Each call of `next` adds one to those that are still to come."""

    def __init__(self, driver: FaultyDriver) -> None:
        self._driver = driver

    def next(self, fault: Fault | str, kind: str | None = None, *, after: int = 0, times: int = 1) -> None:
        """Let the next call of `kind` meet a fault; with `after`, the one after so many others, and `times` calls.

        `fault`: a `Fault` or its name, in any case: "lost_answer", "unavailable", "conflict". `kind`: "put", "get",
        "read", "scan", "delete", "acquire", "renew" or "release"; None: any call. ValueError for a name that does not
        exist, or a fault that cannot happen to the kind.
        """
        if isinstance(fault, str):
            names = {one.name.lower(): one for one in Fault}
            if fault.lower() not in names:
                raise ValueError(f"there is no fault {fault!r}; there are {', '.join(names)}")
            fault = names[fault.lower()]
        injector = self._driver.faults
        begun = sum(call.kind != "zombie" and kind in (None, call.kind) for call in injector.trace)
        plan = injector.plan
        injector.plan = replace(plan, faults=(*plan.faults, At(begun + after, fault, kind, times)))

    def release(self) -> tuple[Call, ...]:
        """Apply the writes that are late, now."""
        return self._driver.faults.release()

    @property
    def happened(self) -> tuple[Call, ...]:
        """The calls that met a fault so far."""
        return tuple(call for call in self._driver.faults.trace if call.fault is not None)
