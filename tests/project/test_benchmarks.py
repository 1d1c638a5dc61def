"""The benchmarks run, every row of them, and the published figures are the measured ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fix_covered import EXHAUSTIVE

from benchmarks.measure import PYTHON, Result, at_least
from benchmarks.readme import BEGIN, END, ROWS, with_figures
from benchmarks.report import Run, markdown
from streamkit import speed

ROOT = Path(__file__).parents[2]
MACHINE = {"processor": "a processor", "disk": "a disk", "python": "3.11"}


def test_every_subject_runs(tmp_path: Path) -> None:
    pytest.importorskip("eventsourcing")
    pytest.importorskip("matplotlib")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    works = ("append, 1 a commit, 16 threads", "peek", "memory, reading", "bytes on disk / payload, 1 a commit")
    for work in (*works, "group: claim and acknowledge 1", "aio: append, 1 a commit, p50"):
        assert work in done.stdout
    if speed.twin is not None:
        assert PYTHON in done.stdout


@pytest.mark.s3
@pytest.mark.azure
@pytest.mark.skipif(not EXHAUSTIVE, reason="four processes and two servers; STREAMKIT_EXHAUSTIVE=1 starts them")
def test_processes_compete_on_both_emulators() -> None:
    program = "from benchmarks.cost_processes import main; main([(2, 2)], (0.1, 1.0), models=False)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for emulator in ("moto", "Azurite"):
        assert f"| {emulator} | 2 | 2 | " in done.stdout


def test_the_figures_in_the_readme_are_those_of_the_run_that_is_published() -> None:
    rounds = {"streamkit, in its way": [1e6, 1.23e6, 2e6], "SQLite": [456.0]}
    results = [Result(work, "entries/s", "", rounds, []) for work in ROWS]
    run = Run("today", False, MACHINE, results)
    page = with_figures((ROOT / "README.md").read_text(encoding="utf-8"), run)
    figures = page.partition(BEGIN)[2].partition(END)[0]
    assert figures.count("| 1.23 M | 456 |") == len(ROWS)
    assert with_figures(page, run) == page
    with pytest.raises(ValueError, match="no row"):
        with_figures(page, Run("today", False, MACHINE, results[1:]))


def test_the_figures_of_the_server_stay_when_the_others_are_published() -> None:
    run = Run("today", False, MACHINE, [Result("peek", "peeks/s", "", {"streamkit": [30.0]}, [])])
    page = markdown(run, "x.png", "older figures\n\n## The server\n\nits figures\n")
    assert page == markdown(run, "x.png") + "\n## The server\n\nits figures\n"
    assert markdown(run, "x.png", page) == page


@pytest.mark.skipif(not EXHAUSTIVE, reason="four servers and a load; STREAMKIT_EXHAUSTIVE=1 starts them")
def test_the_server_is_measured_beside_others(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.serve", "--quick", "--dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for work in ("append, 64 connections, 1 stream", "POST of a record, 1 connection", "memory with 1,000 watchers"):
        assert f"| {work}" in done.stdout


def test_a_row_without_a_target_is_shown() -> None:
    alone = Result("group: claim and acknowledge 1", "entries/s", "", {"streamkit": [10.0]}, [])
    assert "| group: claim and acknowledge 1 | 10.0/s |" in markdown(Run("today", False, MACHINE, [alone]), "x.png")


def test_a_target_of_another_contender_names_it() -> None:
    rounds = {"streamkit": [10.0], PYTHON: [30.0], "SQLite": [15.0]}
    row = Result("peek", "peeks/s", "", rounds, [at_least(1, "SQLite"), at_least(2, "SQLite", PYTHON)])
    page = markdown(Run("today", False, MACHINE, [row]), "x.png")
    assert "| ≥ 1 × SQLite | 0.67 × | **no** |" in page
    assert f"| ≥ 2 × SQLite ({PYTHON}) | 2.00 × | yes |" in page
    del rounds[PYTHON]  # the twin is not installed: streamkit itself is without it
    assert row.value(row.targets[1]) == row.value(row.targets[0])


def test_a_target_that_was_missed_is_said_to_be() -> None:
    slow = Result("peek", "peeks/s", "", {"streamkit": [10.0]}, [at_least(20)])
    assert "measured 10.0, target ≥ 20 peeks/s." in markdown(Run("today", False, MACHINE, [slow]), "x.png")
    fast = Result("peek", "peeks/s", "", {"streamkit": [30.0]}, [at_least(20)])
    assert "measured 30.0" not in markdown(Run("today", False, MACHINE, [fast]), "x.png")


def test_queues_over_http_are_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.serve_queues", "--quick", "--dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "| 60 | 3 | 20 | " in done.stdout


@pytest.mark.s3
@pytest.mark.azure
@pytest.mark.skipif(not EXHAUSTIVE, reason="two servers and four processes; STREAMKIT_EXHAUSTIVE=1 starts them")
def test_clients_of_the_clouds_are_measured_beside_the_sdks() -> None:
    command = [sys.executable, "-m", "benchmarks.cloud_cpu", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| ≤ ") == 4


@pytest.mark.s3
@pytest.mark.skipif(not EXHAUSTIVE, reason="a server and twelve processes; STREAMKIT_EXHAUSTIVE=1 starts them")
def test_the_ways_to_the_end_of_the_log_are_compared() -> None:
    command = [sys.executable, "-m", "benchmarks.cold_append", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" at once | ") == 1
    assert done.stdout.count(", then ") == 6
