"""The protocol's own suite, `@durable-streams/server-conformance-tests`, against the server."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest
from fix_browser import npm_folder
from fix_covered import EXHAUSTIVE

from harness.balanced import Balanced

TESTS = 338
SECONDS = 1_200
"""Much longer than it takes: a machine may be busy."""


def run_suite(address: str, tmp_path: Path) -> None:
    node, modules = npm_folder("durable_streams")
    report = tmp_path / "report.json"
    command = [node, f"{modules}/vitest/vitest.mjs", "run", "conformance.test.js", "--testTimeout=60000"]
    ran = subprocess.run(
        [*command, "--reporter=json", f"--outputFile={report}"],
        cwd=modules.parent,
        env={**os.environ, "DURABLE_STREAMS_URL": address, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert report.exists(), ran.stdout + ran.stderr
    results = [test for file in json.loads(report.read_text())["testResults"] for test in file["assertionResults"]]
    failed = {test["fullName"]: test["failureMessages"] for test in results if test["status"] != "passed"}
    assert failed == {}
    assert len(results) == TESTS


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    "kind", ["local", pytest.param("s3", marks=pytest.mark.s3), pytest.param("azure", marks=pytest.mark.azure)]
)
def test_the_suite_of_the_protocol_passes(
    kind: str, processes: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if not EXHAUSTIVE and (kind != "local" or processes == 1):
        pytest.skip("every run has two processes on a local disk; the others are STREAMKIT_EXHAUSTIVE=1")
    if kind == "local":
        url = f"file://{tmp_path}/root"
    else:
        url = request.getfixturevalue("s3_bucket" if kind == "s3" else "azurite").url()
    with Balanced(url, uuid4(), processes) as balanced:
        run_suite(balanced.address, tmp_path)
