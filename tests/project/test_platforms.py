"""Definitions for Spark platforms in infra/: they are well formed, and the jobs take their arguments."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

INFRA = Path(__file__).parent.parent.parent / "infra"
ID = "00000000-0000-0000-0000-000000000001"


class Template(yaml.SafeLoader):
    """YAML with CloudFormation's tags, which are dropped."""


Template.add_multi_constructor("!", lambda loader, tag, node: getattr(node, "value", None))


def emr_jobs() -> Iterator[list[str]]:
    template = yaml.load((INFRA / "aws" / "emr-serverless.yaml").read_text(), Template)
    defaults = {name: str(said.get("Default", name)) for name, said in template["Parameters"].items()}
    for resource in template["Resources"].values():
        if resource["Type"] == "AWS::Scheduler::Schedule":
            text = re.sub(
                r"\$\{(\w+)[.\w]*\}",
                lambda found: defaults.get(found[1], "x"),
                resource["Properties"]["Target"]["Input"],
            )
            run = json.loads(text)
            assert run["JobDriver"]["SparkSubmit"]["EntryPoint"].endswith("/job.py")
            yield run["JobDriver"]["SparkSubmit"]["EntryPointArguments"]


def databricks_jobs() -> Iterator[list[str]]:
    bundle = yaml.safe_load((INFRA / "databricks" / "databricks.yml").read_text())
    values = {name: said.get("default") or ID for name, said in bundle["variables"].items()}
    for job in bundle["resources"]["jobs"].values():
        for task in job["tasks"]:
            work = task["spark_python_task"]
            file = (INFRA / "databricks" / work["python_file"]).resolve()
            assert file in (INFRA / "spark" / "job.py", INFRA.parent / "examples" / "spark" / "rollup.py")
            assert task["job_cluster_key"] in [cluster["job_cluster_key"] for cluster in job["job_clusters"]]
            name = ["rollup"] if file.stem == "rollup" else []
            yield name + [
                re.sub(r"\$\{var\.(\w+)\}", lambda found: values[found[1]], word) for word in work["parameters"]
            ]


def synapse_jobs() -> Iterator[list[str]]:
    for path in sorted((INFRA / "synapse").glob("*.json")):
        job = json.loads(path.read_text())["properties"]["jobProperties"]
        assert job["file"].endswith("/job.py")
        assert job["args"][0] == path.stem
        yield job["args"]


JOBS = [
    pytest.param(given, id=f"{platform.__name__}-{given[0]}")
    for platform in (emr_jobs, databricks_jobs, synapse_jobs)
    for given in platform()
]


class Parsed(Exception):
    pass


@pytest.mark.parametrize("given", JOBS)
def test_a_job_takes_the_arguments_that_it_is_given(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    inner = argparse.ArgumentParser.parse_args

    def parse(self: argparse.ArgumentParser, *args: Any) -> Any:
        inner(self, *args)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    job = import_module(given[0] if given[0] == "rollup" else f"streamkit.spark.jobs.{given[0]}").job
    with pytest.raises(Parsed):
        job(given[1:])


def test_every_job_is_run_by_its_name() -> None:
    names = {path.stem for path in (INFRA.parent / "streamkit" / "spark" / "jobs").glob("*.py")}
    job = [sys.executable, str(INFRA / "spark" / "job.py")]
    refused = subprocess.run([*job, "archives"], capture_output=True, text=True, timeout=120, check=False)
    assert refused.returncode == 1
    for name in names - {"__init__", "command"}:
        assert name in refused.stderr
    helped = subprocess.run([*job, "compact", "--help"], capture_output=True, text=True, timeout=120, check=False)
    assert (helped.returncode, "--retention-hours" in helped.stdout) == (0, True)


def test_the_template_of_emr_serverless_has_no_finding() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "cfn-lint"), str(INFRA / "aws" / "emr-serverless.yaml")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def bundle_files(bundle: dict[str, Any]) -> Iterator[str]:
    """The local files of a Databricks bundle, relative to its folder."""
    for job in bundle["resources"]["jobs"].values():
        for task in job["tasks"]:
            yield task["spark_python_task"]["python_file"]
            yield from (library["whl"] for library in task["libraries"] if "whl" in library)


def test_the_databricks_bundle_names_no_file_outside_its_sync_root() -> None:
    """The rules of `databricks bundle validate`, by its documentation.

    The sync root is the deepest folder above the bundle's folder and all of `sync.paths`. Each file must be in it,
    and in a path that is synchronized. The sync paths must be in the git checkout.
    """
    folder = INFRA / "databricks"
    bundle = yaml.safe_load((folder / "databricks.yml").read_text())
    synchronized = [(folder / path).resolve() for path in bundle.get("sync", {}).get("paths", ["."])]
    root = Path(os.path.commonpath([folder, *synchronized]))
    assert root.is_relative_to(INFRA.parent)
    files = {(folder / path).resolve() for path in bundle_files(bundle)}
    assert {path.name for path in files} == {"job.py", "rollup.py", "streamkit_store-*.whl"}
    assert [path for path in files if not path.is_relative_to(root)] == []
    assert [path for path in files if not any(path.is_relative_to(there) for there in synchronized)] == []
