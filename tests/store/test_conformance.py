"""The public contract on every kind of store: one class each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest
from fix_azurite import Azurite
from fix_s3 import S3Bucket

import streamkit
import streamkit_memory
from harness.store_conformance import StoreConformance, run_store_conformance
from streamkit import Client


class TestMemory(StoreConformance):
    def make_client(self) -> Client:
        return streamkit.connect("memory://conformance")


class TestMemoryFarAway(StoreConformance):
    def make_client(self) -> Client:
        return streamkit.connect("memory://conformance-remote?remote=1&page=3")


class TestLocal(StoreConformance):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.root = tmp_path

    def make_client(self) -> Client:
        return streamkit.connect(f"file://{self.root}")


# A store in memory that behaves like S3 and Azure makes all checks, and the suite of their rows is whole on both.
@pytest.mark.s3
@pytest.mark.sampled(10)
class TestS3(StoreConformance):
    rounds = 3
    keeps = True
    partitions = (1,)

    @pytest.fixture(autouse=True)
    def _bucket(self, s3_bucket: S3Bucket) -> None:
        self.url = s3_bucket.url("conformance")

    def make_client(self) -> Client:
        return streamkit.connect(self.url)


@pytest.mark.azure
@pytest.mark.sampled(10)
class TestAzure(StoreConformance):
    rounds = 3
    keeps = True
    partitions = (1,)

    @pytest.fixture(autouse=True)
    def _server(self, azurite: Azurite) -> None:
        self.url = azurite.url("storeconformance")

    def make_client(self) -> Client:
        return streamkit.connect(self.url)


def connect() -> Client:
    return streamkit.connect("memory://conformance-report")


def test_the_suite_runs_without_pytest_and_reports_every_check() -> None:
    report = run_store_conformance(connect, only="status")
    assert report.ok, str(report)
    assert [result.name for result in report.results] == ["test_the_status_says_what_was_written"]
    assert "1 passed, 0 failed" in str(report)
    assert all(StoreConformance.checks().values()), "every check says what is broken if it fails"


def test_a_check_can_be_skipped_with_a_reason() -> None:
    name = "test_stores_are_apart"
    (result,) = run_store_conformance(connect, only=name, skip={name: "known"}).results
    assert (result.outcome, result.detail) == ("skipped", "known")


def test_a_skipped_check_is_skipped_by_pytest_too() -> None:
    class Known(TestLocal):
        skip = {"test_stores_are_apart": "known"}  # noqa: RUF012

    with pytest.raises(SkipTest, match="known"):
        Known().setup_method(Known.test_stores_are_apart)


def _without_last_row(scan: Any) -> Any:
    def broken(self: Any, *args: Any, **options: Any) -> Iterator[Any]:
        rows = list(scan(self, *args, **options))
        return iter(rows[:-1] if len(rows) > 1 else rows)

    return broken


def _without_first_row(scan: Any) -> Any:
    def broken(self: Any, *args: Any, **options: Any) -> Iterator[Any]:
        rows = list(scan(self, *args, **options))
        return iter(rows[1:] if len(rows) > 1 else rows)

    return broken


@pytest.mark.parametrize(
    ("method", "broken", "only"),
    [
        ("scan", _without_last_row, "test_names_are_kept_apart_on_four_partitions"),
        ("scan", _without_first_row, "test_pages_hold_every_entry_once"),
    ],
)
def test_a_backend_that_breaks_its_word_is_found_out(
    monkeypatch: pytest.MonkeyPatch, method: str, broken: Any, only: str
) -> None:
    original = getattr(streamkit_memory.backend.MemoryBackend, method)
    monkeypatch.setattr(streamkit_memory.backend.MemoryBackend, method, broken(original))
    assert only in run_store_conformance(connect, only=only).failed
