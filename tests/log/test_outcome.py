"""What became of a transaction whose answer was lost: the truth, finally, and without a trace where it cannot be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest

from harness.processes import Process, Service
from streamkit import Client, Record, Store
from streamkit.backend import Ambiguous, Delete
from streamkit.errors import CorruptData, OutcomeUnknown
from streamkit.log.keys import partition_key

SPACE = "space"
KINDS = ["batch", "rows", "key"]


class World:
    def __init__(self, atomic: Any) -> None:
        self.service = Service(atomic)
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
        """In all logs."""
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

        setattr(self.process, "after_write" if applied else "before_write", lost)
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
    before, written = world.transactions(), store.statistics().requests.get("write", 0)
    soon = int(world.service.clock() * 1000).to_bytes(6, "big")
    for id in (
        uuid4(),
        UUID("00000000-0000-7000-8000-000000000000"),
        UUID(bytes=soon + bytes.fromhex("7abc8123456789abcdef")),
        UUID(bytes=b"\xff" * 6 + bytes.fromhex("7abc8123456789abcdef")),
    ):
        assert store.outcome(id) == "absent"
    assert world.transactions() == before
    assert store.statistics().requests.get("write", 0) == written


def test_every_committed_transaction_is_found_by_a_stranger(world: World) -> None:
    world.service.clock.sleep(5)
    trxs = [world.store.produce(SPACE, f"s{number}", [Record(b"x")]).trx for number in range(12)]
    stranger = world.open()[1]
    assert {stranger.outcome(trx.id) for trx in trxs if trx} == {"committed"}


def test_a_transaction_that_is_missing_from_the_log_is_not_called_absent(world: World) -> None:
    id = world.lose(applied=True)
    world.open()[1].maintain()
    assert world.open()[1].outcome(id) == "committed"
    backend = world.open()[0].open(world.service.id)
    for number in range(4):
        key = bytes(partition_key(SPACE, number))
        rows = [row.key for row in backend.scan(key, b"TXN\x00", b"TXN\x01", values=False)]
        backend.write(key, [Delete(row) for row in rows])
    for store in (world.store, world.open()[1]):
        with pytest.raises(CorruptData, match="missing"):
            store.outcome(id)
