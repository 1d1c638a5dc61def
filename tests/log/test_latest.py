"""The cache of the entries that peeks return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record
from streamkit.log import latest

FEW = [f"few-{number}" for number in range(30)]
MANY = [f"many-{number}" for number in range(300)]
"""More segments than the cache has room for."""


@pytest.fixture
def is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], bool]]:
    """Peeks at a segment of a new store: True if the entry was in the cache."""
    monkeypatch.setattr(latest, "_BYTES", 620 * 200)
    client = streamkit.connect("memory://")
    store = client.store(uuid4())
    for name in FEW + MANY:
        store.produce("space", name, [Record(name.encode())])

    def peek(name: str) -> bool:
        before = store.statistics().cache_misses
        assert store.peek("space", name).payload == name.encode()
        return store.statistics().cache_misses == before

    yield peek
    client.close()


def test_peeks_here_and_there_leave_the_entries_that_are_peeked_at_again(is_known: Callable[[str], bool]) -> None:
    assert not any(is_known(name) for name in MANY[:100])
    assert not any(is_known(name) for name in FEW)
    assert not any(is_known(name) for name in MANY[100:])
    assert all(is_known(name) for name in FEW)


def test_a_full_cache_takes_an_entry_that_is_peeked_at_twice(is_known: Callable[[str], bool]) -> None:
    for name in MANY:
        is_known(name)
    assert [is_known("few-1") for _ in range(3)] == [False, False, True]
