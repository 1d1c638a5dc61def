"""Fixtures for tests of programs that use streamkit. pytest finds them by itself.

| fixture | |
|---|---|
| `streamkit_store` | a store in memory, of this test alone |
| `streamkit_client` | its client |
| `streamkit_clock` | its clock: a `ManualClock`, which begins at 2026-01-01 and moves by `sleep(seconds)` |
| `streamkit_faults` | its faults by name: `streamkit_faults.next("lost_answer", "put")` |

`@pytest.mark.streamkit(remote=True)`: the store behaves as one on S3 or Azure does, where a call is a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from .client import Client
    from .store import Store
    from .testing import FaultyDriver, ManualClock
    from .testing.named_faults import NamedFaults

__all__ = ["streamkit_client", "streamkit_clock", "streamkit_faults", "streamkit_store"]

_START = 1_767_225_600.0
"""2026-01-01, in seconds."""


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    config.addinivalue_line("markers", "streamkit(remote=False): the kind of store that streamkit_store is")


@pytest.fixture
def streamkit_clock() -> ManualClock:
    """The clock of the test's store. It moves only by `sleep`."""
    from .testing import ManualClock

    return ManualClock(_START)


@pytest.fixture
def _streamkit_driver(request: pytest.FixtureRequest, streamkit_clock: ManualClock) -> FaultyDriver:
    from streamkit_memory import MemoryDriver

    from .testing import FaultyDriver, Plan

    mark = request.node.get_closest_marker("streamkit")
    remote = bool(mark is not None and mark.kwargs.get("remote"))
    inner = MemoryDriver(uuid4().hex, clock=streamkit_clock, sleep=streamkit_clock.sleep, remote=remote)
    return FaultyDriver(inner, Plan())


@pytest.fixture
def streamkit_faults(_streamkit_driver: FaultyDriver) -> NamedFaults:
    """The faults of the test's store, by name."""
    from .testing.named_faults import NamedFaults

    return NamedFaults(_streamkit_driver)


@pytest.fixture
def streamkit_client(_streamkit_driver: FaultyDriver, streamkit_clock: ManualClock) -> Iterator[Client]:
    """A client of the test's own storage in memory."""
    from .client import Client

    with Client("memory://", _streamkit_driver, 30.0, None, 64 << 20, streamkit_clock) as client:
        yield client


@pytest.fixture
def streamkit_store(streamkit_client: Client) -> Iterator[Store]:
    """A store of the test's own, in memory."""
    with streamkit_client.store(uuid4()) as store:
        yield store
