"""Fences: a deposed leader never writes again, however long ago that was, and they cost the head nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject

import streamkit
from harness.cramped import cramped
from streamkit import Lease, Record, Store
from streamkit.errors import Fenced
from streamkit.index.sweep import sweep
from streamkit.log.keys import HEAD, partition_key
from streamkit.log.partition import Partition
from streamkit.log.rows import Head, decode_row


@pytest.fixture
def small() -> Iterator[None]:
    """Runs of a few rows, so that a few writes make many, and they are merged."""
    with cramped(inline=0):
        yield


def leaders(store: Store, name: str) -> list[Lease]:
    """One after the other; the last one is it now."""
    found = []
    for _ in range(2):
        with store.lease(name) as lease:
            found.append(lease)
    return found


def _nothing(store: Store) -> None:
    pass


def _maintain(store: Store) -> None:
    store.maintain()


def _repair(store: Store) -> None:
    store.maintain()
    backend, key = store._backend, bytes(partition_key("space", 0))
    backend.delete(key, [bytes(HEAD)])
    store.repair("space")


@pytest.mark.parametrize("brought", [_nothing, _maintain, _repair])
@pytest.mark.parametrize("behind", [0, 100])
def test_a_deposed_leader_is_refused_by_every_process(
    small: None, subject: Subject, behind: int, brought: Callable[[Store], None]
) -> None:
    store = subject.store
    names = [f"leader {number}" for number in range(5)]
    held = {name: leaders(store, name) for name in names}
    for name, (_, new) in held.items():
        store.produce("space", "s", [Record(b"new")], lease=new)
        assert name == new.key
    for number in range(behind):
        store.produce("space", f"s{number % 9}", [Record(b"x")])
    brought(store)
    for process in (store, subject.stranger()):
        for old, new in held.values():
            with pytest.raises(Fenced):
                process.produce("space", "s", [Record(b"old")], lease=old)
            with pytest.raises(Fenced):
                process.produce("space", "s", [], expected_sequence=5, lease=old)
            process.produce("space", "s", [Record(b"new")], lease=new)
            with pytest.raises(Fenced):
                process.produce("space", "s", [Record(b"old")], lease=old)
    store.maintain()
    assert subject.stranger().verify().findings == ()


@pytest.mark.parametrize("kind", ["memory", "remote"])
def test_a_lease_for_each_segment_does_not_grow_the_head(make_url: Callable[[str], str], kind: str) -> None:
    """The token is read when a space is opened, and written again at each upkeep."""
    with streamkit.connect(make_url(kind)) as client:
        store = client.store(uuid4())
        lengths = []
        for turn in range(2):
            for number in range(400):
                with store.lease(f"order {turn} {number}") as lease:
                    store.produce("space", "s", [Record(b"x")], lease=lease)
            store.maintain()
            (head,) = store._backend.get(bytes(partition_key("space", 0)), [bytes(HEAD)])
            assert head is not None
            decoded = decode_row(Head, bytes(HEAD), head.data)
            # Beside what is newest, which it holds while that is little.
            lengths.append(len(head.data) - len(decoded.manifest.inline) - len(decoded.pack))
        assert lengths[1] < lengths[0] + 2000
        assert lengths[1] < 400 * 12


def test_who_looks_a_fence_up_while_the_index_moves_on_is_not_misled(
    small: None, make_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others write with a higher token and bring the index forward between a process's look at the index and the
    answer."""
    url, id = make_url("remote"), uuid4()
    with streamkit.connect(url) as one, streamkit.connect(url) as two:
        store, other = one.store(id), two.store(id)
        old, new = leaders(store, "leader")
        other.produce("space", "s", [Record(b"1")], lease=old)
        other.maintain()
        store.peek("space", "s")
        partition: Partition = store._known("space").partitions[0]  # type: ignore[union-attr]
        index = type(partition.index)
        get = index.get
        once = []

        def late(self: Any, keys: Any) -> Any:
            found = get(self, keys)
            if not once and b"FENCES" in keys[0]:
                once.append(True)
                other.produce("space", "s", [Record(b"2")], lease=new)
                other.maintain()
                partition.read_head()
            return found

        monkeypatch.setattr(index, "get", late)
        with pytest.raises(Fenced):
            store.produce("space", "s", [Record(b"3")], lease=old)
        assert once
        sweep(partition)


def test_who_goes_on_from_the_index_of_others_knows_no_fence_of_before(
    small: None, make_url: Callable[[str], str]
) -> None:
    url, id = make_url("remote"), uuid4()
    with streamkit.connect(url) as one, streamkit.connect(url) as two:
        store, other = one.store(id), two.store(id)
        old, new = leaders(store, "leader")
        store.produce("space", "s", [Record(b"1")], lease=old)
        store.maintain()
        store.produce("space", "s", [Record(b"2")], lease=old)
        other.produce("space", "s", [Record(b"3")], lease=new)
        other.maintain()
        store._known("space").partitions[0].read_head()  # type: ignore[union-attr]
        with pytest.raises(Fenced):
            store.produce("space", "s", [Record(b"4")], lease=old)
