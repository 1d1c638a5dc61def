"""The outcome of a transaction with a lost answer: the truth, finally, and no trace of one that cannot be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest

from harness.cramped import CLEAR, cramped
from harness.processes import Process, Service
from streamkit import Client, Record, Store
from streamkit.backend import Ambiguous
from streamkit.errors import CorruptData, OutcomeUnknown
from streamkit.log.ids import is_id, is_posted, made_at, new_id
from streamkit.log.keys import partition_key

SPACE = "space"
KINDS = ["memory", "remote"]


class World:
    def __init__(self, kind: str) -> None:
        self.service = Service(kind)
        self._clients: list[Client] = []
        self.process, self.store = self.open()
        self.store.create_space(SPACE, 4)
        self.store.create_space("other", 3)
        for number in range(20):
            self.store.produce(SPACE, f"s{number}", [Record(b"%d" % number)])
            self.store.produce("other", f"s{number}", [Record(b"%d" % number)])

    def open(self) -> tuple[Process, Store]:
        process, client = self.service.process()
        self._clients.append(client)
        return process, client.store(self.service.id)

    def transactions(self) -> int:
        """The number of transactions in all logs."""
        backend = self.open()[0].open(self.service.id)
        return sum(
            sum(1 for _ in backend.scan(bytes(partition_key(space, number)), b"TXN\x00", b"TXN\x01", values=False))
            for space, partitions in ((SPACE, 4), ("other", 3))
            for number in range(partitions)
        )

    def lose(self, *, applied: bool) -> UUID:
        """The id of a transaction whose answer was lost, and that could not be read back."""

        def lost() -> None:
            self.process.deaf = True
            raise Ambiguous("the answer was lost")

        setattr(self.process, "after_put" if applied else "before_put", lost)
        with pytest.raises(OutcomeUnknown) as error:
            self.store.produce(SPACE, "s1", [Record(b"lost")])
        self.process.deaf = False
        return error.value.transaction_id

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    yield world
    world.close()


@pytest.mark.parametrize("applied", [True, False])
def test_threads_that_ask_at_once_all_get_the_answer(world: World, applied: bool) -> None:
    id = world.lose(applied=applied)
    together = threading.Barrier(8)

    def ask(_: int) -> str:
        together.wait()
        return world.store.outcome(id)

    with ThreadPoolExecutor(8) as threads:
        answers = set(threads.map(ask, range(8)))
    assert answers == {"committed" if applied else "absent"}
    assert world.store.outcome(id) in answers


@pytest.mark.parametrize("applied", [True, False])
def test_another_process_takes_no_place_but_the_one_it_could_have_got(world: World, applied: bool) -> None:
    id = world.lose(applied=applied)
    before = world.transactions()
    stranger = world.open()[1]
    assert stranger.outcome(id) == ("committed" if applied else "absent")
    assert world.transactions() == before + (not applied)
    assert world.store.outcome(id) == ("committed" if applied else "absent")


@pytest.mark.parametrize("opened", [True, False])
def test_an_id_that_is_nobodys_is_absent_and_nothing_is_written_for_it(world: World, opened: bool) -> None:
    store = world.store if opened else world.open()[1]
    before, written = world.transactions(), store.statistics().requests.get("put", 0)
    soon = int(world.service.clock() * 1000).to_bytes(6, "big")
    for id in (
        uuid4(),
        UUID("00000000-0000-7000-8000-000000000000"),
        UUID(bytes=soon + bytes.fromhex("7abc8123456789abcdef")),
        UUID(bytes=b"\xff" * 6 + bytes.fromhex("7abc8123456789abcdef")),
    ):
        assert store.outcome(id) == "absent"
    assert world.transactions() == before
    assert store.statistics().requests.get("put", 0) == written


def test_every_committed_transaction_is_found_by_a_stranger(world: World) -> None:
    world.service.clock.sleep(5)
    trxs = [world.store.produce(SPACE, f"s{number}", [Record(b"x")]).trx for number in range(12)]
    stranger = world.open()[1]
    assert {stranger.outcome(trx.id) for trx in trxs if trx} == {"committed"}


def _lose_rows(world: World, start: bytes, end: bytes) -> None:
    backend = world.open()[0].open(world.service.id)
    for number in range(4):
        key = bytes(partition_key(SPACE, number))
        backend.delete(key, [row.key for row in backend.scan(key, start, end, values=False)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_transaction_that_is_missing_from_the_log_is_not_called_absent(kind: str) -> None:
    with cramped(inline=0):
        world = World(kind)
        id = world.lose(applied=True)
        world.open()[1].maintain()
        assert world.open()[1].outcome(id) == "committed"
        _lose_rows(world, b"TXN\x00", b"TXN\x01")
        assert world.open()[1].outcome(id) == "committed", "it was packed"
        _lose_rows(world, b"RUN\x00", b"RUN\x01")
        for store in (world.store, world.open()[1]):
            with pytest.raises(CorruptData, match="not there any more"):
                store.outcome(id)
        world.close()


def test_a_large_transaction_that_is_missing_is_not_called_absent() -> None:
    """A large transaction is in no pack, so its missing row does not prove that it is absent."""
    with cramped():
        service = Service("remote")
        client = service.process()[1]
        store = client.store(service.id)
        with store.transaction(SPACE) as trx:
            for number in range(20):
                trx.produce(f"s{number}", [Record(b"large")])
        store.produce(SPACE, "s", [Record(b"small")])
        store.maintain()
        backend = service.process()[0].open(service.id)
        key = bytes(partition_key(SPACE, 0))
        service.clock.sleep(2 * CLEAR)
        store.maintain()
        (row,) = backend.scan(key, b"TXN\x00", b"TXN\x01")
        assert trx.trx is not None
        assert [store.outcome(trx.trx.id), service.process()[1].store(service.id).outcome(trx.trx.id)] == [
            "committed"
        ] * 2
        backend.delete(key, [row.key])
        for asked in (store, service.process()[1].store(service.id)):
            with pytest.raises(CorruptData, match="missing"):
                asked.outcome(trx.trx.id)


def _write_large(store: Store) -> None:
    """More than a pack takes."""
    with store.transaction(SPACE) as trx:
        for number in range(20):
            trx.produce(f"s{number}", [Record(b"large")])


def test_who_wrote_it_does_not_call_a_large_transaction_absent_that_is_missing_either() -> None:
    """A process that knows the number looks at that number only."""
    with cramped():
        service = Service("remote")
        process, client = service.process()
        store = client.store(service.id)
        store.create_space(SPACE)

        def lost() -> None:
            process.deaf = True
            raise Ambiguous("the answer was lost")

        process.after_put = lost
        with pytest.raises(OutcomeUnknown) as error:
            _write_large(store)
        process.deaf = False
        store.produce(SPACE, "s", [Record(b"small")])
        for _ in range(2):
            store.maintain()
            service.clock.sleep(2 * CLEAR)
        assert store.outcome(error.value.transaction_id) == "committed"
        backend = service.process()[0].open(service.id)
        key = bytes(partition_key(SPACE, 0))
        (row,) = backend.scan(key, b"TXN\x00", b"TXN\x01")
        backend.delete(key, [row.key])
        with pytest.raises(CorruptData, match="missing"):
            store.outcome(error.value.transaction_id)


@pytest.mark.parametrize("milliseconds", [0, 1, 1_700_000_000_000, (1 << 48) - 1])
@pytest.mark.parametrize("tag", [0, 1, (1 << 24) - 1])
@pytest.mark.parametrize("posted", [False, True])
def test_an_id_is_a_version_7_uuid_that_tells_its_time_its_partition_and_its_kind(
    milliseconds: int, tag: int, posted: bool
) -> None:
    for _ in range(100):
        id = new_id(milliseconds, tag, posted=posted)
        assert (len(id), is_id(id), made_at(id), is_posted(id)) == (16, True, milliseconds, posted)
        assert int.from_bytes(id[9:12], "big") == tag
        assert UUID(bytes=id).version == 7
