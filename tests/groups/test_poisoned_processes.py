"""One bad job that kills the processes that work on it, as real ones: it dies, and no other job does."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from uuid import uuid4

import pytest
from fix_azurite import Azurite
from fix_covered import EXHAUSTIVE
from fix_s3 import S3Bucket

import streamkit
from harness import poison_worker, warm
from harness.poison import DOORS, JOBS, MODES, fill, open_group, worked_off

Case = tuple[str, str, str]
EVERY: list[Case] = list(product(MODES, (*DOORS, "aio"), ("kills", "raises")))
SECONDS = 1200 if EXHAUSTIVE else 120
"""How long a process may take: an exhaustive run shares its machine, and Azurite is slow then."""
LOCAL: list[Case] = [("key_shared", "block", "kills"), ("queue", "aio", "kills"), ("shared", "threads", "raises")]


@pytest.fixture(autouse=True)
def _whole_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkit.groups.chain.Chain._trim", lambda chain, snapshot: None)


def killed(url: str, case: Case, most: int = 2) -> None:
    mode, door, ends = case
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        open_group(store, mode, ack_timeout=4.0, retry_delay=0.01, max_deliveries=most)
        fill(store, mode, random.Random(most).randrange(JOBS))
        kills = 0
        for _ in range(20):
            program = warm.start(poison_worker.__file__, url, str(store.id), mode, door, ends, url=url)
            with program:
                code = program.wait(SECONDS)
            kills += code != 0
            if not code:
                break
        assert kills == (most if ends == "kills" else 0)
        worked_off(store, mode, most, None, ends)


@pytest.mark.parametrize("case", EVERY if EXHAUSTIVE else LOCAL, ids="-".join)
def test_no_other_job_dies_on_a_local_disk(tmp_path: Path, case: Case, covered: Callable[[str, int], None]) -> None:
    killed(f"file://{tmp_path}/root", case)
    covered("processes with a poison job", 1)


@pytest.mark.s3
@pytest.mark.parametrize("case", EVERY if EXHAUSTIVE else [("shared", "block", "kills")], ids="-".join)
def test_no_other_job_dies_on_s3(s3_bucket: S3Bucket, case: Case, covered: Callable[[str, int], None]) -> None:
    killed(s3_bucket.url(f"poison{uuid4().hex[:8]}"), case)
    covered("processes with a poison job, S3", 1)


@pytest.mark.exhaustive_only  # S3 is the service of every run
@pytest.mark.azure
@pytest.mark.parametrize("case", EVERY if EXHAUSTIVE else [("key_shared", "run", "kills")], ids="-".join)
def test_no_other_job_dies_on_azure(azurite: Azurite, case: Case, covered: Callable[[str, int], None]) -> None:
    killed(azurite.url(f"poison{uuid4().hex[:8]}"), case)
    covered("processes with a poison job, Azure", 1)
