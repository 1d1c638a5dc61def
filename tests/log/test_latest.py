"""The cache of the entries that peeks return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pytest

import streamkit
from harness.cramped import cramped
from streamkit import Record
from streamkit.index.runs import Runs
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


def test_a_segment_that_a_newer_run_seems_to_have_is_looked_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter says of one segment in a few hundred that its run may have it, although the run does not have it."""
    names = [f"segment-{number * 1009 % 3000}" for number in range(3000)]
    with cramped(upkeep_after=10), streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        for first in range(0, len(names), 50):
            with store.transaction("space") as trx:
                for name in names[first : first + 50]:
                    trx.produce(name, [Record(name.encode())])
    looked_up: list[Sequence[bytes]] = []
    get = Runs.get

    def counted(index: Runs, keys: Sequence[bytes]) -> list[bytes | None]:
        looked_up.append(keys)
        return get(index, keys)

    monkeypatch.setattr(Runs, "get", counted)
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(store.id)
        assert all(store.peek("space", name).payload == name.encode() for name in names)
        assert looked_up, "no filter was wrong, so this test shows nothing"
        looked_up.clear()
        assert all(store.peek("space", name).payload == name.encode() for name in names)
        assert not looked_up
