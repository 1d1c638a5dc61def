"""Stores for coroutines, on every backend that needs no service. Tests are coroutine functions under `in_loop`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import KINDS

import streamkit.aio
from streamkit.aio import AsyncClient, AsyncStore

PATIENCE = 60.0
"""Seconds after which something hangs."""


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine function as a test, in an event loop of its own. Tasks or threads that it leaves behind are an
    error."""

    @functools.wraps(test)
    def run(*args: Any, **options: Any) -> None:
        async def whole() -> None:
            before = asyncio.all_tasks()
            faults: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
            async with asyncio.timeout(PATIENCE):
                await test(*args, **options)
            assert asyncio.all_tasks() == before, "tasks are left behind"
            assert not faults, faults

        asyncio.run(whole())

    return run


class AsyncSubject:
    """One store, under a root of the test's own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.id = uuid4()

    def connect(self, **options: Any) -> AsyncClient:
        return streamkit.aio.connect(self.url, **options)

    @asynccontextmanager
    async def store(self, **options: Any) -> AsyncIterator[AsyncStore]:
        """Open the store as a process that connects now."""
        async with self.connect(**options) as client:
            yield client.store(self.id)


@pytest.fixture(params=KINDS)
def aio(request: pytest.FixtureRequest, make_url: Callable[[str], str]) -> AsyncSubject:
    """An empty store of each kind."""
    return AsyncSubject(make_url(request.param))


@pytest.fixture
def memory(make_url: Callable[[str], str]) -> AsyncSubject:
    """An empty store in memory."""
    return AsyncSubject(make_url("remote"))
