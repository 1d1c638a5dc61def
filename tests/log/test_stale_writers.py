"""A late row in the place of one that was packed or archived and then removed: no reader returns it.

A writer was stopped before it sent a transaction, for longer than the grace; it sends it, and dies before it can find
out that the number was taken. A reader was stopped too, between a look at the head and a read of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from harness.cramped import CLEAR, cramped
from harness.processes import Process, Service
from streamkit import Record, Store
from streamkit.testing import ManualClock

SPACE = "space"
GRACE = 600.0
OURS, THEIRS = b"o" * 200, b"t" * 200
LARGE = Random(1).randbytes(1000)
"""Too large for a pack here."""


class Died(BaseException):
    pass


class World:
    def __init__(self) -> None:
        self.service = Service("remote")

    def open(self) -> tuple[Process, Store]:
        process, client = self.service.process(ManualClock(1_000.0))
        return process, client.store(self.service.id)

    def write(self, *payloads: bytes) -> None:
        store = self.open()[1]
        for payload in payloads:
            store.produce(SPACE, "s", [Record(payload)])

    def late_write(self) -> Callable[[], None]:
        """Stop a commit before it is sent. A call of the returned function sends it, and then its process ends."""
        process, store = self.open()
        store.segment_status(SPACE, "s")
        sent: list[tuple[Any, ...]] = []

        def put(*arguments: Any, **options: Any) -> str:
            sent.append(arguments)
            raise Died

        store._shared.spaces[SPACE].partitions[0].backend.put = put  # type: ignore[method-assign]
        with pytest.raises(Died):
            store.produce(SPACE, "s", [Record(THEIRS)])
        (arguments,) = sent
        backend = process.open(self.service.id)
        return lambda: (backend.put(*arguments), None)[1]

    def clear(self) -> None:
        """Pack the entries, and remove them from the log after the grace."""
        store = self.open()[1]
        for _ in range(2):
            store.maintain()
            self.service.clock.sleep(2 * CLEAR)
        store.maintain()

    def archive(self) -> None:
        store = self.open()[1]
        store.archive(SPACE)
        self.service.clock.sleep(GRACE + 2)
        assert store.archive(SPACE).removed


@pytest.fixture
def world() -> Iterator[World]:
    with cramped(upkeep_after=10):
        world = World()
        world.open()[1].create_space(SPACE, archive_grace=GRACE)
        world.write(b"first")
        yield world


def payloads(entries: Iterator[Any]) -> list[bytes]:
    return [entry.payload for entry in entries]


def read_segment(store: Store) -> list[bytes]:
    return payloads(store.consume_segment(SPACE, "s"))


def read_space(store: Store) -> list[bytes]:
    return payloads(store.consume_space(SPACE))


def read_backwards(store: Store) -> list[bytes]:
    return payloads(store.consume_space(SPACE, reverse=True))[::-1]


SPACE_READERS = [(read_space, "before_scan"), (read_backwards, "before_scan")]


def peek(store: Store) -> list[bytes]:
    return [b"first", store.peek(SPACE, "s").payload]


@pytest.mark.parametrize(("read", "hook"), [(read_segment, "before_read"), (peek, "before_read"), *SPACE_READERS])
def test_a_stopped_reader_takes_no_late_row(world: World, read: Callable[[Store], list[bytes]], hook: str) -> None:
    between = [] if hook == "before_read" else [LARGE]
    for payload in between:
        world.write(payload)
    land = world.late_write()
    world.write(OURS)
    process, store = world.open()
    store.segment_status(SPACE, "s")

    def meanwhile() -> None:
        world.clear()
        land()

    setattr(process, hook, meanwhile)
    assert read(store) == [b"first", *between, OURS]
    assert process.before_read is process.before_scan is None
    assert world.open()[1].verify().ok


@pytest.mark.parametrize(("read", "hook"), [(read_segment, "before_read"), *SPACE_READERS])
def test_a_stopped_reader_takes_no_late_row_for_what_was_archived(
    world: World, read: Callable[[Store], list[bytes]], hook: str
) -> None:
    pytest.importorskip("deltalake")
    land = world.late_write()
    world.write(LARGE)
    process, store = world.open()
    store.segment_status(SPACE, "s")

    def meanwhile() -> None:
        world.archive()
        land()

    setattr(process, hook, meanwhile)
    assert read(store) == [b"first", LARGE]
    assert process.before_scan is process.before_read is None
    assert world.open()[1].verify().ok


def test_a_process_that_was_stopped_takes_no_late_row_for_a_transaction(world: World) -> None:
    land = world.late_write()
    world.write(LARGE)
    _, store = world.open()
    store.segment_status(SPACE, "s")
    partition = store._shared.spaces[SPACE].partitions[0]
    world.clear()
    world.archive()
    land()
    assert partition.record(2) is None
    assert partition.archived_since(2)
