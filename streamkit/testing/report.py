"""The result of a run of checks without pytest."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol
from unittest import SkipTest

__all__ = ["Checks", "Report", "Result", "run_checks"]


class Checks(Protocol):
    """A class of checks, as pytest would collect it: methods `test_…`, whose docstrings name the broken promise."""

    def setup_method(self, method: object = None) -> None:
        """Prepare the check `method`."""
        ...

    def teardown_method(self, method: object = None) -> None:
        """Clean up after the check `method`."""
        ...

    @classmethod
    def checks(cls) -> Mapping[str, str]:
        """Return the names of all checks; for each, the promise that is broken if it fails."""
        ...


@dataclass(frozen=True)
class Result:
    """One check: `outcome` is passed, failed or skipped; `detail` says why, if it did not pass."""

    name: str
    broken: str
    outcome: str
    detail: str
    seconds: float


@dataclass(frozen=True)
class Report:
    """Result of `run_conformance`: one `Result` for each check. `str(report)` lists them."""

    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return not self.failed

    @property
    def failed(self) -> dict[str, Result]:
        """The results of the checks that failed, by name."""
        return {result.name: result for result in self.results if result.outcome == "failed"}

    def __str__(self) -> str:
        lines = []
        for result in self.results:
            lines.append(f"{result.outcome:8}{result.name} ({result.seconds:.2f} s)")
            if result.outcome == "failed":
                lines.append(f"        {result.broken}")
            if result.detail:
                lines += [f"        {line}" for line in result.detail.splitlines()]
        counts = [f"{sum(r.outcome == kind for r in self.results)} {kind}" for kind in ("passed", "failed", "skipped")]
        return "\n".join([*lines, ", ".join(counts)])


def run_checks(kind: Callable[[], Checks], names: Mapping[str, str]) -> Report:
    """Run the checks `names` (with their broken promises), each on a fresh instance of `kind`. Raises nothing."""
    return Report(tuple(_run(kind(), name, broken) for name, broken in names.items()))


def _run(checks: Checks, name: str, broken: str) -> Result:
    check = getattr(checks, name)
    started = time.monotonic()
    outcome, detail = "passed", ""
    try:
        checks.setup_method(check)
        try:
            check()
        finally:
            checks.teardown_method(check)
    except SkipTest as reason:
        outcome, detail = "skipped", str(reason)
    except AssertionError as error:
        outcome, detail = "failed", str(error)
    except Exception:
        outcome, detail = "failed", traceback.format_exc()
    return Result(name, broken, outcome, detail, time.monotonic() - started)
