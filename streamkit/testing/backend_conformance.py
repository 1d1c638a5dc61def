"""The conformance suite of the contract `streamkit.backend`, for authors of backends, with pytest or without.

With pytest, subclass and say how a driver is made; all checks are collected as tests:

    class TestMine(BackendConformance):
        def make_driver(self):
            return mine.connect("mine://localhost/test", timeout=10)

Without:

    report = run_conformance(lambda: mine.connect("mine://localhost/test", timeout=10))
    print(report)

`make_driver` is called several times in a check, and every driver must reach the same root: they stand for processes
that share it. Each check has stores of its own and deletes them at the end. A small page of scans makes them faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import ClassVar
from unittest import SkipTest

from ..backend import Driver
from .backend_checks.leasing import Leasing
from .backend_checks.logs import Logs
from .backend_checks.racing import Racing
from .backend_checks.reading import Reading
from .backend_checks.scanning import Scanning
from .backend_checks.storing import Storing
from .backend_checks.writing import Writing
from .report import Report, Result, run_checks

__all__ = ["BackendConformance", "Report", "Result", "run_conformance"]


class BackendConformance(Writing, Logs, Reading, Scanning, Racing, Leasing, Storing):
    """All checks of the conformance suite. Override `make_driver`; and `clock` and `sleep` if an injected clock ends
    leases."""

    skip: ClassVar[Mapping[str, str]] = {}
    """Checks to skip, with the reason, because the service under test (an emulator, for example) is known to fail
    them."""

    def setup_method(self, method: object = None) -> None:
        """Prepare the check, or skip it if `skip` names it."""
        reason = self.skip.get(getattr(method, "__name__", ""))
        if reason is not None:
            raise SkipTest(reason)
        super().setup_method(method)

    @classmethod
    def checks(cls) -> dict[str, str]:
        """Return the names of all checks, each with the promise that is broken if it fails."""
        names = [name for name in dir(cls) if name.startswith("test_")]
        return {name: " ".join((getattr(cls, name).__doc__ or "").split()) for name in names}


def run_conformance(
    make_driver: Callable[[], Driver],
    *,
    only: str = "",
    skip: Mapping[str, str] | None = None,
    lease_ttl: float = 1.0,
    patience: float = 120.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Report:
    """Run all checks whose name contains `only`, one after the other. It raises nothing: see `Report.ok`.

    `skip`: check to reason. `lease_ttl`: seconds; `patience`: seconds after which threads are taken to hang. `clock`
    and `sleep`: the clock by which leases end, if it is an injected one.
    """

    class Conformance(BackendConformance):
        def make_driver(self) -> Driver:
            return make_driver()

        def clock(self) -> float:
            return clock()

        def sleep(self, seconds: float) -> None:
            sleep(seconds)

    Conformance.skip = skip or {}
    Conformance.lease_ttl = lease_ttl
    Conformance.patience = patience
    chosen = {name: broken for name, broken in Conformance.checks().items() if only in name}
    return run_checks(Conformance, chosen)
