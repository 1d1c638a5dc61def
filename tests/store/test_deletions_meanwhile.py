"""Another process deletes a space, and makes it again, at any moment of a deletion."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
import streamkit_local
from streamkit import Record, Store
from streamkit.backend import Backend, Driver
from streamkit.client import Client
from streamkit.clock import SYSTEM_CLOCK
from streamkit.errors import StoreClosed, Unavailable
from streamkit.index.verify import HALF_DELETED
from streamkit.log.keys import CATALOG, HEAD, partition_key, space_key, transaction_prefix
from streamkit.store import inner
from streamkit.testing import ManualClock
from streamkit_memory import MemoryDriver

SPACE = "a"
HEAD_OF_SPACE = bytes(partition_key(SPACE, 0))
CALLS = {"get", "read", "scan", "put", "delete", "delete_if", "scrub"}
Before = Callable[[str, bytes], None]


class _Watched:
    """A backend that tells the name and the partition of each call before it."""

    def __init__(self, inner: Backend, before: Before) -> None:
        self._inner, self._before = inner, before

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in CALLS:
            return found

        def call(partition: bytes, *args: Any, **kwargs: Any) -> Any:
            self._before(name, partition)
            return found(partition, *args, **kwargs)

        return call


class World:
    """A root with a filled space, and processes."""

    def __init__(self, kind: str, path: Path, partitions: int) -> None:
        self.kind, self.path, self.name, self.id = kind, path, uuid4().hex, uuid4()
        self.clock = SYSTEM_CLOCK if kind == "local" else ManualClock(1_800_000_000.0)
        self.make(self.process(), partitions)

    def _driver(self) -> Driver:
        if self.kind == "local":
            return streamkit_local.connect((self.path / self.name).as_uri(), timeout=30.0)
        return MemoryDriver(self.name, remote=self.kind == "remote", clock=self.clock, sleep=self.clock.sleep)

    def process(self, before: Before = lambda name, partition: None) -> Store:
        driver = self._driver()
        opened = driver.open
        driver.open = lambda store: _Watched(opened(store), before)  # type: ignore[method-assign, assignment, return-value]
        return Client("memory://", driver, 30.0, None, 64 << 20, self.clock, None).store(self.id)

    def make(self, store: Store, partitions: int) -> None:
        store.create_space(SPACE, partitions)
        for at in range(70):
            store.produce(SPACE, f"s{at % 5}", [Record(b"%d" % at)])
        store.maintain()
        store.produce(SPACE, "s1", [Record(b"last")])


class Deletion:
    """A deletion, and something that happens before its nth call after it has found the space."""

    def __init__(self, world: World, at: int = -1, action: Callable[[Store], None] = lambda store: None) -> None:
        self._world, self._at, self._action = world, at, action
        self._found = self._acting = False
        self.calls = 0
        with world.process(self._before) as store:
            store.delete_space(SPACE)

    def _before(self, name: str, partition: bytes) -> None:
        if self._found and not self._acting:
            self.calls += 1
            if self.calls == self._at + 1:
                self._acting = True
                self._action(self._world.process())
                self._acting = False
        self._found = self._found or partition == HEAD_OF_SPACE


def entries(store: Store) -> int:
    return len(list(store.consume_space(SPACE)))


@pytest.mark.exhaustive_only("memory")
@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("kind", ["memory", "remote", "local"])
def test_a_space_that_is_made_again_within_a_deletion_stays_whole(
    tmp_path: Path, kind: str, partitions: int, covered: Callable[[str, int], None]
) -> None:
    calls = Deletion(World(kind, tmp_path, partitions)).calls
    chosen = range(calls) if EXHAUSTIVE else [*range(0, calls - 4, max(1, calls // 6)), *range(calls - 4, calls)]
    for at in chosen:
        world = World(kind, tmp_path, partitions)

        def make_again(store: Store, world: World = world) -> None:
            store.delete_space(SPACE)
            world.make(store, 3 - partitions)

        Deletion(world, at, make_again)
        other = world.process()
        assert entries(other) == 71, f"call {at} of {calls}"
        assert list(other.get_spaces()) == [SPACE]
        assert other.verify().findings == ()
        assert other.produce(SPACE, "new", [Record(b"x")]).last_sequence == 1
        other.delete_space(SPACE)
        assert other.verify().findings == ()
        assert list(other.get_spaces()) == []
    covered("spaces made again within a deletion", len(chosen))


@pytest.mark.exhaustive_only("memory")
@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("kind", ["memory", "remote", "local"])
@pytest.mark.parametrize("use", ["delete", "make"])
def test_a_deletion_ends_whatever_another_process_does_with_the_space(
    tmp_path: Path, kind: str, partitions: int, use: str, covered: Callable[[str, int], None]
) -> None:
    calls = Deletion(World(kind, tmp_path, partitions)).calls
    chosen = range(calls) if EXHAUSTIVE else [*range(2, calls - 4, max(1, calls // 4)), *range(calls - 4, calls)]
    for at in chosen:
        world, made = World(kind, tmp_path, partitions), False

        def act(store: Store, world: World = world) -> None:
            nonlocal made
            if use == "delete":
                store.delete_space(SPACE)
            else:
                with suppress(StoreClosed):  # the space refuses writes until the end
                    world.make(store, partitions)
                    made = True

        Deletion(world, at, act)
        other = world.process()
        assert entries(other) in ((0, 71) if made else (0,)), f"call {at} of {calls}"
        assert other.verify().findings == ()
        assert other.produce(SPACE, "new", [Record(b"x")]).last_sequence == 1
        assert other.verify().findings == ()
    covered("acts of another process within a deletion", len(chosen))


@pytest.mark.parametrize("kind", ["remote", "local"])
def test_a_space_that_is_listed_again_before_its_old_head_is_gone_stays_listed(tmp_path: Path, kind: str) -> None:
    """Another deletion was stopped after it had removed the space from the list."""
    calls = Deletion(World(kind, tmp_path, 1)).calls

    def list_again(store: Store) -> None:
        inner(store).backend.delete(bytes(CATALOG), [bytes(space_key(SPACE))])
        store.create_space(SPACE, 3)

    for at in range(calls - 9, calls - 1):
        world = World(kind, tmp_path, 1)
        Deletion(world, at, list_again)
        other = world.process()
        assert list(other.get_spaces()) == [SPACE], f"call {at} of {calls}"
        assert other.produce(SPACE, "new", [Record(b"x")]).last_sequence == 1
        assert other.space_settings(SPACE).partitions == 3
        assert other.verify().findings == ()


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_space_can_be_written_to_that_another_one_came_and_went_before(tmp_path: Path, kind: str) -> None:
    """The other one of this name has a later incarnation, because this process was slow to put its own."""
    world = World(kind, tmp_path, 1)
    world.process().delete_space(SPACE)
    done = False

    def come_and_go(name: str, partition: bytes) -> None:
        nonlocal done
        if not done and (name, partition) == ("put", bytes(CATALOG)):
            done = True
            other = world.process()
            other.produce(SPACE, "s", [Record(b"x")] * 3)
            other.delete_space(SPACE)

    assert world.process(come_and_go).produce(SPACE, "s", [Record(b"x")]).last_sequence == 1
    assert done
    assert world.process().produce(SPACE, "s", [Record(b"x")]).last_sequence == 2
    assert world.process().verify().findings == ()


@pytest.mark.parametrize("kind", ["remote", "local"])
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made-again"])
def test_a_process_that_completes_the_creation_of_a_space_makes_no_head_of_a_deleted_one(
    tmp_path: Path, kind: str, again: bool
) -> None:
    world = World(kind, tmp_path, 1)
    store = world.process()
    store.delete_space(SPACE)
    store.create_space(SPACE)
    inner(store).backend.delete(HEAD_OF_SPACE, [bytes(HEAD)])  # the creation was stopped
    done = False

    def delete_it(name: str, partition: bytes) -> None:
        nonlocal done
        if not done and (name, partition) == ("put", HEAD_OF_SPACE):
            done = True
            other = world.process()
            other.produce(SPACE, "s", [Record(b"x")])
            other.delete_space(SPACE)
            if again:
                other.produce(SPACE, "s", [Record(b"x")])

    with suppress(Unavailable, StoreClosed):
        world.process(delete_it).create_space(SPACE)
    assert done
    assert world.process().verify().findings == ()
    assert list(world.process().get_spaces()) == ([SPACE] if again else [])
    assert world.process().produce(SPACE, "s", [Record(b"x")]).last_sequence == 1 + again
    assert world.process().verify().findings == ()


@pytest.mark.parametrize("kind", ["remote", "local"])
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made-again"])
def test_a_space_that_is_deleted_while_it_is_verified_is_not_damaged(tmp_path: Path, kind: str, again: bool) -> None:
    calls, at = 0, -1

    def act(name: str, partition: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            other = world.process()
            other.delete_space(SPACE)
            if again:
                other.produce(SPACE, "s", [Record(b"x")])

    world = World(kind, tmp_path, 2)
    world.process(act).verify()
    for at in range(1, calls + 1, 1 if EXHAUSTIVE else max(1, calls // 8)):
        world, calls = World(kind, tmp_path, 2), 0
        assert world.process(act).verify().findings == (), f"call {at}"
        assert world.process().verify().findings == ()


@pytest.mark.parametrize("kind", ["memory", "local", "remote"])
def test_a_space_is_made_again_after_the_clock_was_set_back(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local log takes no key below those of the deleted space."""
    now = time.time_ns
    url = {
        "memory": f"memory://{uuid4().hex}",
        "local": tmp_path.as_uri(),
        "remote": f"memory://{uuid4().hex}?remote=1",
    }
    with streamkit.connect(url[kind]) as client, client.store(uuid4()) as store:
        for hours in 1, 2:
            store.create_space(SPACE, partitions=2)
            for segment in "a", "b", "c":
                store.produce(SPACE, segment, [Record(b"%d" % hours)])
            assert {entry.payload for entry in store.consume_space(SPACE)} == {b"%d" % hours}
            store.delete_space(SPACE)
            monkeypatch.setattr(time, "time_ns", lambda hours=hours: now() - hours * 3600 * 10**9)
        assert store.produce(SPACE, "a", [Record(b"3")]).last_sequence == 1


@pytest.mark.parametrize("kind", ["remote", "local"])
def test_upkeep_completes_a_deletion_that_was_killed_and_the_size_of_the_store_does_not_count_the_space(
    tmp_path: Path, kind: str, covered: Callable[[str, int], None]
) -> None:
    def killed(store: Store) -> None:
        raise KeyboardInterrupt

    calls = Deletion(World(kind, tmp_path, 2)).calls
    chosen = range(calls) if EXHAUSTIVE else [*range(0, calls - 4, max(1, calls // 5)), *range(calls - 4, calls)]
    ended = 0
    for at in chosen:
        world = World(kind, tmp_path, 2)
        world.process().produce("other", "s", [Record(b"x")])
        with suppress(KeyboardInterrupt):
            Deletion(world, at, killed)
        try:
            whole = entries(world.process())
        except StoreClosed:
            whole, ended = 0, ended + 1
        assert world.process().size().entries == 1 + whole, f"call {at} of {calls}"
        assert {found.problem for found in world.process().verify().findings} <= {HALF_DELETED}
        world.process().maintain()
        assert list(world.process().get_spaces()) == ([SPACE, "other"] if whole else ["other"])
        if at >= calls - 4:
            world.process().maintain(SPACE)  # it may be in the list of spaces no more
        assert world.process().verify().findings == ()
        assert world.process().produce(SPACE, "new", [Record(b"x")]).last_sequence == 1
        assert world.process().verify().findings == ()
    assert ended
    covered("killed deletions that upkeep completes", len(chosen))


@pytest.mark.parametrize("kind", ["remote", "local"])
def test_upkeep_deletes_nothing_of_a_space_that_was_made_again_since_this_process_opened_it(
    tmp_path: Path, kind: str
) -> None:
    world = World(kind, tmp_path, 1)
    store = world.process()
    assert entries(store) == 71
    other = world.process()
    other.delete_space(SPACE)
    world.make(other, 1)
    with pytest.raises(StoreClosed):
        store.maintain()
    assert entries(world.process()) == 71


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_stale_writer_learns_soon_of_a_later_space_also_if_it_does_not_meet_the_end_of_its_own(
    tmp_path: Path, kind: str, partitions: int
) -> None:
    world = World(kind, tmp_path, partitions)
    stale, other = world.process(), world.process()
    assert entries(stale) == 71
    other.delete_space(SPACE)
    world.make(other, partitions)
    start = bytes(transaction_prefix(inner(stale).spaces[SPACE].settings.incarnation))
    for number in range(partitions):
        key, backend = bytes(partition_key(SPACE, number)), inner(other).backend
        backend.delete(key, [row.key for row in backend.scan(key, start, start + b"\xff" * 8, values=False)])
    for segment in ("s0", "s1"):
        before = stale.statistics().conflicts
        with pytest.raises(StoreClosed):
            stale.produce(SPACE, segment, [Record(b"x")])
        assert stale.statistics().conflicts - before <= 20
    assert entries(world.process()) == 71
