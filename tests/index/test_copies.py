"""Copies of committed transactions: damage, a late answer or another process's upkeep never takes the last one."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
from fix_covered import KINDS

from streamkit import Client, Record, Store
from streamkit.backend import Ambiguous, Etag, Expect
from streamkit.errors import CorruptData, StoreClosed, Unavailable
from streamkit.index import sweep as sweeping
from streamkit.index import upkeep
from streamkit.log.keys import HEAD, RUNS, partition_key, run_key
from streamkit.log.partition import Partition
from streamkit.testing import ManualClock
from streamkit_local.driver import LocalDriver
from streamkit_memory import MemoryDriver
from streamkit_memory.backend import MemoryBackend

P = bytes(partition_key("sp", 0))
HOUR = 3600


class World:
    """One store, and processes that use it. Time is the test's."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.clock = ManualClock()
        self.id = uuid4()
        if kind == "local":
            self.driver: LocalDriver | MemoryDriver = LocalDriver(str(folder), 5.0)
        else:
            self.driver = MemoryDriver(remote=kind == "remote", clock=self.clock, sleep=self.clock.sleep)
        self.backend = self.driver.open(self.id)

    def open(self) -> Store:
        return Client("memory://", self.driver, 5.0, None, 64 << 20, self.clock).store(self.id)

    def clear(self, store: Store) -> None:
        """Packed transactions leave the log."""
        store.maintain()
        store.maintain()
        self.clock.sleep(HOUR + 10)
        store.maintain()

    def numbers(self) -> list[int]:
        return [entry.trx.number for entry in self.open().consume_space("sp")]

    def files(self) -> int:
        return sum(1 for _ in self.backend.scan(P, *RUNS.children(), values=False))

    def flip(self, key: bytes, at: int) -> None:
        value = self.backend.get(P, [key])[0]
        assert value is not None
        data = bytearray(value.data)
        data[at] ^= 1
        self.backend.put(P, key, bytes(data))

    def damage_head(self) -> None:
        self.flip(bytes(HEAD), 30)


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(request.param, tmp_path)


@pytest.fixture
def remote(tmp_path: Path) -> World:
    return World("remote", tmp_path)


def write(store: Store, transactions: int, size: int = 5000) -> None:
    for _ in range(transactions):
        store.produce("sp", "a", [Record(os.urandom(size))])


def partition_of(store: Store) -> Partition:
    store.segment_status("sp", "a")
    return store._shared.spaces["sp"].partitions[0]


def stop_upkeep(store: Store) -> None:
    """Stop the upkeep of a store, so that only the test brings the index forward."""
    partition_of(store)
    store._shared.spaces["sp"].committers[0].keep_index = lambda: None  # type: ignore[method-assign]


def test_what_is_behind_a_large_transaction_is_packed_with_what_is_before_it(world: World) -> None:
    store = world.open()
    write(store, 1, 10)
    write(store, 1, 2 << 20)  # packed is what is smaller
    write(store, 1, 10)
    world.clear(store)
    write(store, 1, 10)
    world.clear(store)
    packs = partition_of(store).packs
    assert [number for number in range(1, 5) if packs.holds(number)] == [1, 3, 4]
    assert world.numbers() == [1, 2, 3, 4]
    assert world.open().verify().ok


@pytest.mark.parametrize("before", [0, 60])
def test_a_damaged_head_is_never_the_only_copy(world: World, before: int) -> None:
    store = world.open()
    write(store, before)
    store.maintain()
    write(store, 10, 10)
    world.clear(store)
    world.damage_head()
    with pytest.raises(CorruptData):
        world.numbers()
    assert world.open().repair() == 1
    assert world.numbers() == list(range(1, before + 11))
    assert world.open().verify().ok
    assert world.open().produce("sp", "a", [Record(b"")]).last_sequence == before + 11


def test_a_file_of_an_upkeep_that_was_stopped_hides_no_other_one(
    remote: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head is lost and files give the packs; a file that no head named may hold a part of two real ones."""
    first, second = remote.open(), remote.open()
    write(first, 20, 6000)
    stop_upkeep(second)
    upkeep.bring_forward(partition_of(second))
    partition_of(first).read_head()
    stop_upkeep(first)
    write(first, 5, 6000)
    partition_of(second)  # it knows 21 to 25
    write(first, 10, 6000)

    class Stopped(BaseException):
        pass

    def stop(*_: object) -> bool:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "_move", stop)
        with pytest.raises(Stopped):
            upkeep.bring_forward(partition_of(first))  # a file with 21 to 35
    behind = second._shared.spaces["sp"].partitions[0]
    assert behind.number == 25
    upkeep.bring_forward(behind)
    third = remote.open()
    stop_upkeep(third)
    write(third, 15, 6000)
    upkeep.bring_forward(partition_of(third))
    assert [(file.first, file.last) for file in partition_of(third).head.packs] == [(1, 20), (21, 25), (26, 50)]
    for _ in range(2):  # without the sweep that follows in `maintain`
        head, etag = partition_of(third).known_head()
        cleared = upkeep.clear_log(partition_of(third), head)
        marked = upkeep._marked(partition_of(third), head, cleared)
        upkeep._move(partition_of(third), head, etag, upkeep.replace(head, cleared=cleared, packed=marked), ())
        remote.clock.sleep(HOUR + 10)
    assert partition_of(third).head.cleared == 50
    remote.damage_head()
    assert remote.open().repair() == 1
    assert remote.numbers() == list(range(1, 51))
    assert remote.open().verify().ok


@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_a_pack_that_cannot_be_read_is_made_again_from_the_log(remote: World, harm: str) -> None:
    store = remote.open()
    write(store, 60)
    file = partition_of(store).head.packs[0]
    if harm == "gone":
        remote.backend.delete(P, [run_key(file.id)])
    else:
        remote.flip(run_key(file.id), file.start + 5000)
    with pytest.raises(CorruptData):
        remote.numbers()
    assert not remote.open().verify().ok
    assert remote.open().repair()
    assert remote.numbers() == list(range(1, 61))
    assert remote.open().verify().ok


Put = Callable[..., Etag]


def intercept(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Put, bytes, Expect | Etag], None]) -> None:
    """Call `meanwhile` before each put of a head, with the put, its data and its precondition."""
    put = MemoryBackend.put

    def intercepted(
        self: MemoryBackend, partition: bytes, key: bytes, value: bytes, *rest: object, **more: object
    ) -> Etag:
        if key == HEAD:
            meanwhile(lambda: put(self, partition, key, value, *rest, **more), value, rest[0])  # type: ignore[arg-type]
        return put(self, partition, key, value, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryBackend, "put", intercepted)


def test_repair_and_the_maintenance_of_another_process_do_each_other_no_harm(
    remote: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = remote.open()
    write(store, 60)
    remote.clear(store)
    file = next(iter(partition_of(store).head.manifest.files()))
    remote.flip(run_key(file.id), file.start + 30)
    turns = count()

    def maintain(*_: object) -> None:
        if next(turns) == 0:
            remote.open().maintain()

    intercept(monkeypatch, maintain)
    assert remote.open().repair()
    assert remote.numbers() == list(range(1, 61))
    assert remote.open().verify().ok


def test_the_answer_to_repairs_head_is_lost_and_it_lands_much_later(
    remote: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(remote.open(), 50)
    remote.damage_head()
    late: list[Callable[[], Etag]] = []

    def lose(put: Callable[[], Etag], *_: object) -> None:
        if not late:
            late.append(put)
            raise Ambiguous("lost")

    intercept(monkeypatch, lose)
    assert remote.open().repair() == 1
    store = remote.open()
    write(store, 150)
    store.maintain()
    with pytest.raises(Exception, match="precondition"):
        late[0]()
    assert remote.numbers() == list(range(1, 201))


def test_maintenance_ends_where_no_answer_comes(remote: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = remote.open()
    write(store, 1)
    stop_upkeep(store)
    for _ in range(5):
        write(store, 25)
        upkeep.bring_forward(partition_of(store))
    tries = count()

    def lose(*_: object) -> None:
        assert next(tries) < 100
        raise Ambiguous("lost")

    with monkeypatch.context() as patch:
        intercept(patch, lose)
        before = remote.files()
        with pytest.raises(Unavailable, match="lost"):
            store.maintain()
        assert remote.files() <= before + 1
    store.maintain()
    assert remote.open().verify().ok


def test_an_upkeep_that_goes_on_after_the_store_was_deleted_leaves_nothing(
    remote: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = remote.open()
    write(store, 20, 6000)
    store_file = upkeep.store_file

    def paused(*arguments: object) -> Etag:
        Client("memory://", remote.driver, 5.0, None, 64 << 20, remote.clock).delete_store(remote.id)
        return store_file(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(upkeep, "store_file", paused)
    with pytest.raises(StoreClosed, match="was deleted"):
        upkeep.bring_forward(partition_of(store))
    assert remote.files() == 0
    assert remote.id not in list(remote.driver.stores())


def test_the_late_head_of_a_space_that_is_gone_is_replaced(remote: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upkeep was stopped before the first head of a partition; the store was deleted and made again meanwhile."""
    store = remote.open()
    store.create_space("sp", 2)
    names = [f"s{at}" for at in range(40)]
    for name in names[:20]:
        store.produce("sp", name, [Record(b"x")])
    partition = store._shared.spaces["sp"].partitions[1]
    assert partition.number
    move = upkeep._move

    def paused(*arguments: object) -> bool:
        Client("memory://", remote.driver, 5.0, None, 64 << 20, remote.clock).delete_store(remote.id)
        remote.open().create_space("sp", 2)
        return move(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "_move", paused)
        assert upkeep.bring_forward(partition)
    again = remote.open()
    for name in names:
        assert again.produce("sp", name, [Record(b"new")]).last_sequence == 1
    assert {entry.payload for entry in remote.open().consume_space("sp")} == {b"new"}
    again.maintain()
    assert {entry.payload for entry in remote.open().consume_space("sp")} == {b"new"}
    assert remote.open().verify().ok
    for name in names[:2]:
        with pytest.raises((CorruptData, StoreClosed), match=r"gone|deleted"):
            store.produce("sp", name, [Record(b"late")])


def test_a_follower_forgets_what_others_have_indexed(world: World) -> None:
    writer, reader = world.open(), world.open()
    write(writer, 1)
    following = reader.follow_space("sp", timeout=1e9)
    most = 3 * partition_of(writer).policy.upkeep
    for number in range(1, most + 300):
        writer.produce("sp", f"s{number}", [Record(b"x")], idempotency_key=f"k{number}")
        next(following)
        tail = reader._shared.spaces["sp"].partitions[0].tail
        assert max(len(part) for part in (tail.records, tail.pieces, tail.keys)) <= most


def test_a_sweep_that_comes_second_removes_no_file_of_an_upkeep(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sweeps of one head put equal heads, so the second one must not take the first one's head for its own."""
    first, second = world.open(), world.open()
    write(first, 20, 6000)
    first.maintain()
    partition, other = partition_of(second), partition_of(first)
    world.backend.put(P, run_key(os.urandom(16)), b"of a stopped upkeep")
    new = run_key(os.urandom(16))
    listed = sweeping._files

    def late(partition: Partition) -> list[bytes]:
        with monkeypatch.context() as patch:
            patch.setattr(sweeping, "_files", listed)
            assert sweeping.sweep(other) == 1
        world.backend.put(P, new, b"of an upkeep that builds on the head of the first sweep")
        return listed(partition)

    monkeypatch.setattr(sweeping, "_files", late)
    assert sweeping.sweep(partition) is None
    assert world.backend.get(P, [new])[0] is not None
