"""The public conformance suite, on the backends that need no service: one class each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

import pytest

import streamkit_memory
from streamkit.backend import Driver
from streamkit.testing import BackendConformance, ManualClock, run_conformance


class InMemory(BackendConformance):
    """Time passes only where a check says so."""

    options: ClassVar[dict[str, Any]]

    def setup_method(self, method: object = None) -> None:
        self.time = ManualClock()
        super().setup_method(method)

    def make_driver(self) -> Driver:
        name = type(self).__name__
        return streamkit_memory.MemoryDriver(name, clock=self.time, sleep=self.sleep, **self.options)

    def clock(self) -> float:
        return self.time()

    def sleep(self, seconds: float) -> None:
        self.time.sleep(seconds)


class TestMemory(InMemory):
    options: ClassVar = {"page": 7}


class TestMemoryOfManyRowsAPage(InMemory):
    options: ClassVar = {}


class TestMemoryFarAway(InMemory):
    options: ClassVar = {"page": 20, "remote": True}


class TestMemoryFarAwayWithSmallPages(InMemory):
    options: ClassVar = {"page": 1, "latency": 0.01}


class TestLocal(BackendConformance):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.root = tmp_path

    def make_driver(self) -> Driver:
        import streamkit_local

        return streamkit_local.connect(f"file://{self.root}", timeout=10)


def test_the_suite_runs_without_pytest_and_reports_every_check() -> None:
    clock = ManualClock()
    report = run_conformance(
        lambda: streamkit_memory.MemoryDriver("report", clock=clock), clock=clock, sleep=clock.sleep
    )
    assert report.ok, str(report)
    assert [result.name for result in report.results] == sorted(BackendConformance.checks())
    assert all(result.broken for result in report.results)
    assert "passed, 0 failed" in str(report)


def test_the_report_names_the_check_that_failed_and_what_is_broken() -> None:
    class Forgetful(streamkit_memory.MemoryDriver):
        def delete(self, store: object, keep: object = ()) -> None:
            pass

    report = run_conformance(lambda: Forgetful("forgetful"), only="store")
    assert not report.ok
    assert "test_a_deleted_store_is_gone" in report.failed
    assert "A deleted store is still listed" in str(report)
    assert "the deleted store is still listed" in report.failed["test_a_deleted_store_is_gone"].detail


def test_a_foreign_exception_fails_the_check() -> None:
    class Leaky(streamkit_memory.MemoryDriver):
        def open(self, store: object) -> Any:
            raise ConnectionError("foreign")

    report = run_conformance(lambda: Leaky(), only="put_creates")
    assert "ConnectionError: foreign" in next(iter(report.failed.values())).detail


def test_a_check_can_be_skipped_with_a_reason() -> None:
    name = "test_no_update_is_lost"
    report = run_conformance(lambda: streamkit_memory.MemoryDriver(), only=name, skip={name: "known"})
    (result,) = report.results
    assert (result.outcome, result.detail) == ("skipped", "known")


def test_a_skipped_check_is_skipped_by_pytest_too() -> None:
    class Known(InMemory):
        options: ClassVar = {}
        skip: ClassVar = {"test_no_update_is_lost": "known"}

    with pytest.raises(SkipTest, match="known"):
        Known().setup_method(Known.test_no_update_is_lost)
