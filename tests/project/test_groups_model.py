"""Groups in the cloud: the engine in virtual time, and the page that has its figures."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from benchmarks import groups_page
from benchmarks.cost_services import services
from benchmarks.groups_model import Case

S3 = services()[0]


def test_consumers_of_several_processes_take_few_requests_an_entry() -> None:
    """The requests are counted until the log is empty, those of the start included. It is long enough that the shares
    of the consumers do not depend on chance."""
    result = Case(S3, 4, 10, 24_000).run()
    assert result.reads + result.writes <= 0.25
    assert result.writes <= 0.15
    assert result.rate >= 700
    assert result.spread < 0.4


def test_of_entries_that_are_taken_one_by_one_each_is_little_more_than_a_commit() -> None:
    result = Case(S3, 1, 1, 400).run()
    assert result.writes <= 1.25


def test_figures_are_put_between_their_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "groups.md"
    shutil.copy(groups_page.PAGE, page)
    monkeypatch.setattr(groups_page, "PAGE", page)
    before = page.read_text()
    for command in ("benchmarks.groups_model", "benchmarks.groups_beside"):
        groups_page.publish(command, ["| a table |"])
    assert page.read_text().count("| a table |\n<!-- end of figures -->") == 2
    assert len(page.read_text()) < len(before)
    with pytest.raises(ValueError, match="there is no"):
        groups_page.publish("benchmarks.nothing", [])
