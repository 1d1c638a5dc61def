"""Counts of covered cases: tests add to them, and the run prints them at its end, also over several processes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

EXHAUSTIVE = os.environ.get("STREAMKIT_EXHAUSTIVE") == "1"
"""True for an exhaustive run (`make test-exhaustive`): every point, every schedule and many more seeds."""

KINDS = ("memory", "remote", "local") if EXHAUSTIVE else ("remote", "local")
"""The kinds of stores that judge an invariant of the engine. The engine treats a store on disk and one in memory alike.
The contract's suite checks the latter in every run, so it is a judge in exhaustive runs only."""

# Settings of Hypothesis: the same examples in every run of the sample, others in every exhaustive run. An example has
# no deadline, because the machine may be busy.
settings.register_profile(
    "here", derandomize=not EXHAUSTIVE, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("here")


_T = TypeVar("_T")


def sample(plans: Iterable[_T], one_in: int) -> Iterator[_T]:
    """All `cases` in an exhaustive run, else a sample."""
    return (plan for at, plan in enumerate(plans) if EXHAUSTIVE or at % one_in == 0)


@pytest.fixture
def covered(record_property: Callable[[str, object], None]) -> Callable[[str, int], None]:
    """A function: covered("crash points", 17) adds 17 to the count that is printed at the end under that name."""
    return lambda name, count: record_property(f"covered {name}", count)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    total: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        for name, count in report.user_properties:
            if name.startswith("covered "):
                total[name.removeprefix("covered ")] += count
    if total:
        terminalreporter.section("covered, every point" if EXHAUSTIVE else "covered, a sample")
        for name, count in sorted(total.items()):
            terminalreporter.line(f"{count:>10,} {name}")
