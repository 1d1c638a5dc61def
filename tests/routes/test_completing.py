"""A batch that was begun by a process that ended: the next process completes this batch, after any later change."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject

from harness.cramped import cramped
from harness.drivers import MEMORY
from harness.sweep import StillClock
from streamkit import Record, Store, Unavailable
from streamkit.client import Client
from streamkit.routes import Route


def write(store: Store, space: str, *payloads: str) -> None:
    store.produce(space, "s", [Record(payload.encode()) for payload in payloads])


def read(store: Store, space: str) -> list[str]:
    return [entry.payload.decode() for entry in store.consume_space(space)]


@pytest.mark.parametrize("before", [0, 1])
def test_a_source_that_was_made_again_after_a_batch_was_begun_is_copied_anew(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    store = subject.store
    if before:
        write(store, "a", "1")
        store.route("copy", "a", "b").catch_up()
    write(store, "a", "lost with its space")

    def stop(*arguments: object) -> None:
        raise Unavailable("the process ends here")

    with monkeypatch.context() as patch:
        patch.setattr(Route, "_write", stop)
        with pytest.raises(Unavailable):
            store.route("copy", "a", "b").catch_up()
    store.delete_space("a")
    write(store, "a", "x", "y", "z")
    assert subject.stranger().route("copy", "a", "b").catch_up().state == "current"
    assert read(store, "b") == ["1", "x", "y", "z"][1 - before :]


def crash_behind_the_target(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends when a batch has been copied, and has not said so yet."""
    write = Route._write

    def stop(self: Route, key: str, copies: Any) -> None:
        write(self, key, copies)
        raise Unavailable("the process ends here")

    with monkeypatch.context() as patch:
        patch.setattr(Route, "_write", stop)
        with pytest.raises(Unavailable):
            store.route("copy", "a", "b").catch_up()


def test_a_batch_that_the_target_has_only_in_part_by_now_is_not_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch's first entries were removed from the target, and its key is forgotten."""
    clock = StillClock()
    driver, id = MEMORY["memory"](clock), uuid4()
    with cramped():
        store = Client("memory://", driver, 5.0, None, 64 << 20, clock).store(id)
        store.create_space("b", idempotency_window=1.0)
        store.produce("a", "s", [Record(b"%d" % at) for at in range(5)])
        crash_behind_the_target(store, monkeypatch)
        for at in range(12):
            clock.sleep(86_400.0)
            store.produce("b", "others", [Record(b"%d" % at)])
            store.maintain("b")
        store.erase("b", "s", first=1, last=1)
        store.trim("b", "s", before=3)
        assert store.route("copy", "a", "b").catch_up().state == "current"
        assert [entry.payload for entry in store.consume_segment("b", "s")] == [b"2", b"3", b"4"]
    driver.delete(id)


@pytest.mark.parametrize(("later", "reads"), [(4000.0, 0), (5000.0, 1)])
def test_the_target_is_searched_where_it_may_have_forgotten(
    monkeypatch: pytest.MonkeyPatch, later: float, reads: int
) -> None:
    """A twentieth of a day after the batch was begun."""
    clock = StillClock()
    driver, id = MEMORY["memory"](clock), uuid4()
    store = Client("memory://", driver, 5.0, None, 64 << 20, clock).store(id)
    store.produce("b", "others", [Record(b"1")])
    store.produce("a", "s", [Record(b"1")])
    crash_behind_the_target(store, monkeypatch)
    clock.sleep(later)
    consume, read_from = Store.consume_space, list[str]()

    def watched(self: Store, space: str, **options: Any) -> Any:
        read_from.append(space)
        return consume(self, space, **options)

    monkeypatch.setattr(Store, "consume_space", watched)
    assert store.route("copy", "a", "b").catch_up().copied == 1
    assert read_from.count("b") == reads
    driver.delete(id)
