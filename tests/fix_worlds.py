"""A root of each kind of backend, whose every byte can be searched."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from harness.worlds import KINDS, World, account_of, bucket_of, directory, memory


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory in memory, if this machine has one, because the tests sync all the time."""
    root = Path(tempfile.mkdtemp(prefix="erased-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    yield root
    shutil.rmtree(root)


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, scratch: Path) -> World:
    return world_of(request, scratch)


def world_of(request: pytest.FixtureRequest, scratch: Path) -> World:
    """The world of the kind that is the parameter of `request`."""
    match request.param:
        case "memory" | "remote":
            return memory(f"memory://{uuid4()}" + ("?remote=1" if request.param == "remote" else ""), scratch)
        case "local":
            return directory(scratch)
        case "s3":
            return bucket_of(request.getfixturevalue("s3_bucket"), scratch)
        case _:
            return account_of(request.getfixturevalue("azurite"), scratch)
