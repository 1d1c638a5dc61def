"""docs/pipeline.md: its jobs take the arguments that they are given there, by a shell, by Airflow and by Dagster."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("pyspark")

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "pipeline.md").read_text()
JOB = "streamkit.spark.jobs."


class Parsed(Exception):
    """The arguments are those of the job."""


def block(kind: str, heading: str) -> str:
    """The first block of that kind below a heading."""
    found = re.search(rf"^```{kind}\n(.*?)^```", PAGE.partition(f"## {heading}\n")[2] or PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def jobs_of(script: str) -> list[list[str]]:
    """The modules and arguments of the jobs and of the rollup that a shell runs."""
    lines = re.sub(r"^python \S+/rollup.py", "python -m rollup", script.replace("\\\n", " "), flags=re.MULTILINE)
    found = re.findall(
        rf"^(?=python -m (?:{re.escape(JOB)}|rollup))((?:[^\n\"']|\"[^\"]*\"|'[^']*')*)", lines, re.MULTILINE
    )
    return [shlex.split(line)[2:] for line in found]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, list[str]], argparse.Namespace]:
    """Parse the arguments of a job; SystemExit if they are not its own."""
    inner = argparse.ArgumentParser.parse_args

    def parse(self: argparse.ArgumentParser, *args: Any) -> Any:
        raise Parsed(inner(self, *args))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)

    def work(name: str, arguments: list[str]) -> argparse.Namespace:
        with pytest.raises(Parsed) as ended:
            import_module(name).job(arguments)
        assert isinstance(ended.value.args[0], argparse.Namespace)
        return ended.value.args[0]

    return work


def test_the_shell_runs_jobs_as_they_are(parsed: Callable[..., argparse.Namespace]) -> None:
    jobs = jobs_of(block("sh", ""))
    assert [name for name, *_ in jobs] == [f"{JOB}archive", "rollup"]
    given = [parsed(name, arguments) for name, *arguments in jobs][1]
    assert (given.merge_on, given.add) == ("date,carrier", "departures,delay")


def test_airflow_runs_jobs_as_they_are(
    parsed: Callable[..., argparse.Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: dict[str, str] = {}
    order: list[tuple[str, str]] = []

    class BashOperator:
        def __init__(self, *, task_id: str, bash_command: str, **_: Any) -> None:
            self.task_id = task_id
            commands[task_id] = bash_command

        def __rshift__(self, other: BashOperator) -> BashOperator:
            order.append((self.task_id, other.task_id))
            return other

    stand_in(monkeypatch, "airflow.sdk", dag=lambda **_: lambda work: work)
    stand_in(monkeypatch, "airflow.providers.standard.operators.bash", BashOperator=BashOperator)
    exec(compile(block("python", "Airflow"), "Airflow", "exec"), {"__name__": "dags"})
    assert order == [("archive", "daily")]
    for command in commands.values():
        [[name, *arguments]] = jobs_of(command)
        parsed(name, arguments)


def test_dagster_runs_jobs_as_they_are(
    parsed: Callable[..., argparse.Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    assets: dict[str, Callable[..., None]] = {}

    def asset(work: Any = None, **_: Any) -> Any:
        if work is None:
            return asset
        assets[work.__name__] = work
        return work

    names = ("AssetExecutionContext", "Definitions", "Failure", "ScheduleDefinition", "define_asset_job")
    anything = {name: lambda *_, **__: None for name in names}
    stand_in(monkeypatch, "dagster", asset=asset, **anything)
    exec(compile(block("python", "Dagster"), "Dagster", "exec"), {"__name__": "definitions"})
    assert sorted(assets) == ["archived", "orders_daily", "verified"]
    for name, work in assets.items():
        with pytest.raises(Parsed):
            work(*[None] * (name == "archived"))


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """A module of that name, and those that it is in."""
    parts = name.split(".")
    for at in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:at]))
        module.__dict__.update(content if at == len(parts) else {"__path__": []})
        monkeypatch.setitem(sys.modules, module.__name__, module)


def test_the_days_are_drawn_from_the_table(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    import pyarrow as pa

    rows = [
        {"date": date(2013, 1, day), "carrier": c, "departures": 10, "delay": day * 10.0}
        for day in (1, 2)
        for c in "AB"
    ]
    deltalake.write_deltalake(str(tmp_path / "daily"), pa.Table.from_pylist(rows))
    program = [sys.executable, str(ROOT / "examples" / "spark" / "daily.py"), str(tmp_path / "daily")]
    said = subprocess.run(program, capture_output=True, text=True, check=True, timeout=120).stdout
    assert said.splitlines()[:2] == ["40 departures on 2 days", "2013-01-02: 20 departures, 2.0 minutes late"]
