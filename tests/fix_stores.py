"""A store of a test's own, on every backend that needs no service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_covered import KINDS

import streamkit
from streamkit import Client, Store


class Subject:
    """One store; `store` is as one process has it open, `stranger` as another one that opens it now."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.id: UUID = uuid4()
        self._open = ExitStack()
        self.client = self.connect()
        self.store = self.client.store(self.id)

    def connect(self, **options: Any) -> Client:
        return self._open.enter_context(streamkit.connect(self.url, **options))

    def stranger(self, **options: Any) -> Store:
        return self.connect(**options).store(self.id)

    def seen(self) -> tuple[list[UUID], dict[str, list[Any]]]:
        """All that is there: the stores, and the entries by space, as a stranger reads them."""
        with streamkit.connect(self.url) as client:
            store = client.store(self.id)
            return sorted(client.stores()), {space: list(store.consume_space(space)) for space in store.get_spaces()}

    @contextmanager
    def nothing_written(self) -> Iterator[None]:
        before = self.seen()
        yield
        assert self.seen() == before

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def make_url(tmp_path: Path) -> Callable[[str], str]:
    """The URL of a root of this test's own, by the kind of store."""
    name = uuid4().hex
    urls = {
        "memory": f"memory://{name}-memory",
        "remote": f"memory://{name}-remote?remote=1",
        "local": f"file://{tmp_path}/root",
    }
    return urls.__getitem__


@pytest.fixture(params=KINDS)
def subject(request: pytest.FixtureRequest, make_url: Callable[[str], str]) -> Iterator[Subject]:
    """An empty store of each kind."""
    found = Subject(make_url(request.param))
    yield found
    found.close()


@pytest.fixture
def in_memory(make_url: Callable[[str], str]) -> Iterator[Subject]:
    """One empty store, for arguments that are refused before any storage is asked."""
    found = Subject(make_url("remote"))
    yield found
    found.close()
