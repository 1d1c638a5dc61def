"""Changes of a space's settings at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import streamkit
from harness.held_store import held_store
from streamkit import Record, Retention, SpaceExists
from streamkit.store import Store

STORE = "7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55"


@pytest.mark.parametrize("kind", ["memory", "local"])
@pytest.mark.parametrize("partitions", [1, 3])
def test_of_changes_that_expect_the_same_settings_one_wins(
    make_url: Callable[[str], str], kind: str, partitions: int
) -> None:
    with streamkit.connect(make_url(kind)) as client, ThreadPoolExecutor(8) as pool:
        store = client.store(STORE)
        store.create_space("s", partitions=partitions)
        for start in range(100, 500, 100):
            settings = store.space_settings("s")

            def change(entries: int, settings: Any = settings) -> int:
                try:
                    store.set_retention("s", Retention(max_entries=entries), expected=settings)
                except SpaceExists:
                    return 0
                return entries

            (winner,) = filter(None, pool.map(change, range(start, start + 8)))
            assert _limits(store) == [winner] * partitions


def test_an_expectation_of_another_process_that_was_overtaken_is_refused(make_url: Callable[[str], str]) -> None:
    url = make_url("local")
    with streamkit.connect(url) as first, streamkit.connect(url) as second:
        store, other = first.store(STORE), second.store(STORE)
        store.create_space("s")
        settings = store.space_settings("s")
        other.change_space("s", idempotency_window=50_000.0)
        with pytest.raises(SpaceExists, match="read them again"):
            store.set_retention("s", Retention(max_entries=1), expected=settings)
        assert store.space_settings("s").retention == Retention()  # type: ignore[union-attr]
        store.set_retention("s", Retention(max_entries=1), expected=store.space_settings("s"))


def test_changes_that_wait_for_the_same_commit_are_judged_one_after_the_other() -> None:
    async def scenario() -> None:
        async with held_store("memory") as held:
            await held.hold()
            settings = await held.store.space_settings("s")
            first = asyncio.ensure_future(held.store.produce("s", "a", [Record(b"held back")]))
            await held.held()
            changes = [
                asyncio.ensure_future(held.store.set_retention("s", Retention(max_entries=n), expected=settings))
                for n in (1, 2, 3)
            ]
            while len(held.store.sync._shared.ready("s", ()).committers[0]._queue) < 3:
                await asyncio.sleep(0.001)
            held.release()
            await first
            found = await asyncio.gather(*changes, return_exceptions=True)
            assert [type(result) for result in found if result is not None] == [SpaceExists, SpaceExists]

    asyncio.run(scenario())


def test_calls_at_once_leave_one_retention_in_all_partitions(make_url: Callable[[str], str]) -> None:
    with streamkit.connect(make_url("memory")) as client:
        store = client.store(STORE)
        store.create_space("s", partitions=3)
        second = store._shared.ready("s", ()).committers[1]
        commit, calls = second.commit, [1]

        def interrupted(request: Any) -> Any:
            if calls:
                calls.pop()
                store.set_retention("s", Retention(max_entries=2))
            return commit(request)

        second.commit = interrupted  # type: ignore[method-assign]
        store.set_retention("s", Retention(max_entries=1))
        assert _limits(store) == [2, 2, 2]


def test_an_expectation_that_is_none_is_refused(make_url: Callable[[str], str]) -> None:
    with streamkit.connect(make_url("memory")) as client, pytest.raises(TypeError, match="space_settings"):
        client.store(STORE).set_retention("s", Retention(), expected={})  # type: ignore[arg-type]


def _limits(store: Store) -> list[int]:
    """The entries that each partition keeps at most."""
    partitions = store._shared.ready("s", ()).partitions
    for partition in partitions:
        partition.refresh()
    return [partition.retention.max_entries for partition in partitions if partition.retention is not None]
