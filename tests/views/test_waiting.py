"""Readers wait while another process makes the database, and closing waits for a builder, with a bound."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from harness.drivers import MEMORY
from streamkit import Entry, Record, Store, StoreClosed, Unavailable, View
from streamkit.client import Client
from streamkit.testing import ManualClock
from streamkit.views import Latest, OpenView, open_view


class Slow(View):
    """Stops in each batch until it may go on."""

    def __init__(self) -> None:
        self.batches = 0
        self.entered = threading.Event()
        self.goes_on = threading.Event()

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        self.batches += 1
        self.entered.set()
        assert self.goes_on.wait(30)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Store:
    store = Client("memory://", MEMORY["memory"](clock), 5.0, None, 64 << 20, clock).store(uuid4())
    for at in range(40):
        store.produce("log", "s", [Record(b"%d" % at)])
    return store


@contextmanager
def building(view: OpenView, slow: Slow) -> Iterator[list[BaseException]]:
    """Another thread catches up, and is in its first batch."""
    raised: list[BaseException] = []

    def catch_up() -> None:
        try:
            view.catch_up()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=catch_up)
    thread.start()
    assert slow.entered.wait(30)
    yield raised
    slow.goes_on.set()
    thread.join(30)


def test_closing_ends_a_catch_up_of_another_thread_after_its_batch(store: Store, tmp_path: Path) -> None:
    slow = Slow()
    view = store.view("v", slow, ["log"], tmp_path / "v", batch=1)
    with building(view, slow) as raised:
        closing = threading.Thread(target=view.close)
        closing.start()
        while not view.closed:
            pass
        slow.goes_on.set()
        closing.join(30)
        assert not closing.is_alive()
    assert slow.batches == 1
    assert [type(error) for error in raised] == [StoreClosed]
    with store.view("v", Latest(lambda entry: entry.segment), ["log"], tmp_path / "w") as other:
        assert other.catch_up().entries == 40


def test_closing_does_not_wait_for_ever(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_view, "_LONGEST_CLOSE", 0.0)
    slow = Slow()
    view = store.view("v", slow, ["log"], tmp_path / "v", batch=1)
    with building(view, slow):
        view.close()
        assert view._build is not None, "it is in use"
        with pytest.raises(Unavailable, match="still builds"):
            view.delete()
    assert view._build is None, "the thread that built has let go of it"
    view.delete()
    assert not (tmp_path / "v").exists()


def test_a_reader_waits_while_another_process_fetches_a_published_view(
    store: Store, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one holds the lock, and nothing is there yet; time passes in the pauses of the reader."""
    view = store.view("v", Latest(lambda entry: entry.segment), ["log"], tmp_path / "v")
    other = store.view("v", Latest(lambda entry: entry.segment), ["log"], tmp_path / "v")
    fetched = clock.monotonic() + 20.0
    held = [other._files.building()]
    held[0].__enter__()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if held and clock.monotonic() >= fetched:
            held.pop().__exit__(None, None, None)
            other.catch_up()

    monkeypatch.setattr(view, "_sleep", sleep)
    assert view.db.execute("select count(*) from latest").fetchone() == (1,)
    assert clock.monotonic() >= fetched


def test_a_reader_gives_up_after_a_minute_and_may_ask_again(store: Store, tmp_path: Path) -> None:
    view = store.view("v", Latest(lambda entry: entry.segment), ["log"], tmp_path / "v")
    other = store.view("v", Latest(lambda entry: entry.segment), ["log"], tmp_path / "v")
    with other._files.building(), pytest.raises(Unavailable, match="ask again"):
        view.db  # noqa: B018
    assert view.db.execute("select count(*) from latest").fetchone() is not None
