"""The conformance suite is worth what it catches: every backend that is broken on purpose, by a check with a name."""

from __future__ import annotations

import pytest

from harness.broken import BROKEN, Sound, broken_driver
from streamkit.testing import BackendConformance, ManualClock, Report, run_conformance


def report_on(kind: type[Sound], only: str = "", patience: float = 1.0) -> Report:
    clock = ManualClock()
    make_driver = broken_driver(kind, page=20, clock=clock)
    return run_conformance(make_driver, only=only, clock=clock, sleep=clock.sleep, patience=patience)


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_backend_is_caught_by_its_check(kind: type[Sound]) -> None:
    report = report_on(kind, kind.caught_by)
    assert [*report.failed] == [kind.caught_by], f"{kind.__name__} ({kind.__doc__}) passes:\n{report}"
    result = report.failed[kind.caught_by]
    assert result.detail
    assert result.broken in str(report)


def test_what_the_broken_ones_are_made_from_is_sound() -> None:
    report = report_on(Sound, patience=120.0)
    assert report.ok, str(report)


def test_every_broken_backend_names_a_check_that_exists() -> None:
    assert {kind.caught_by for kind in BROKEN} <= set(BackendConformance.checks())
    assert len({kind.__name__ for kind in BROKEN}) == len(BROKEN) >= 40


@pytest.mark.slow
def test_nearly_every_check_has_teeth() -> None:
    toothless = set(BackendConformance.checks()) - {kind.caught_by for kind in BROKEN}
    for kind in BROKEN:
        toothless -= {name for name in toothless if report_on(kind, name).failed}
    assert toothless <= {
        "test_closing_a_driver_again_is_fine",
        "test_requests_are_counted",
        "test_the_limits_are_constant_and_make_sense",
    }
