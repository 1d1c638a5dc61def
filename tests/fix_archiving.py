"""An archiver that runs all the time, with hardly a grace, while others work: for stores of every kind."""

from __future__ import annotations

import threading
import time
import traceback
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from harness.frames import frames_of_threads
from harness.store_conformance import StoreConformance
from streamkit import Record
from streamkit.errors import LeaseNotAcquired, StreamkitError


class Archiving:
    """Archives every space of every store under a root, again and again."""

    def __init__(self, client: streamkit.Client, pause: float = 0.02) -> None:
        self.client = client
        self.runs = 0
        """Spaces that were archived, each time counted."""
        self.removed = 0
        """Transactions that left a log."""
        self.errors: list[BaseException] = []
        self._pause = pause
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                for id in list(self.client.stores()):
                    store = self.client.store(id)
                    for space in list(store.get_spaces()):
                        if not self._stop.is_set():
                            self.removed += store.archive(space).removed
                            self.runs += 1
            except StreamkitError as error:
                if not isinstance(error, LeaseNotAcquired):
                    self.errors.append(error)
            self._stop.wait(self._pause)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(300)
        where = frames_of_threads().get(self._thread.ident or 0)
        assert not self._thread.is_alive(), "the archiver hangs:\n" + "".join(traceback.format_stack(where))


@pytest.fixture
def hardly_a_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give spaces a grace of 50 ms, unless a test chooses another."""
    from streamkit import space, store

    monkeypatch.setattr(space.settings_of, "__defaults__", (0.05,))
    monkeypatch.setitem(store.Store.create_space.__kwdefaults__, "archive_grace", 0.05)


@pytest.mark.usefixtures("hardly_a_grace")
class ArchivedConformance(StoreConformance):
    """All of the contract, with an archiver running all the time. `root` is a test's own URL."""

    sample: tuple[type, ...] = ()
    """The checks of an ordinary run; empty for all of them."""

    archivers: list[Archiving]
    pause = 0.02

    def __init_subclass__(cls) -> None:
        if cls.sample and not EXHAUSTIVE:
            kept = {name for part in cls.sample for name in vars(part)}
            for name in cls.checks():
                if name not in kept:
                    setattr(cls, name, None)

    def setup_method(self, method: object = None) -> None:
        self.archivers = []
        super().setup_method(method)

    def teardown_method(self, method: object = None) -> None:
        for archiver in self.archivers:
            archiver.stop()
            archiver.client.close()
        super().teardown_method(method)

    def root(self) -> str:
        raise NotImplementedError

    def make_client(self) -> streamkit.Client:
        if not self.archivers:
            self.archivers.append(Archiving(streamkit.connect(self.root()), self.pause))
        return streamkit.connect(self.root())


def race(url: str, space: str, partitions: int, *, writers: int = 3, each: int = 60) -> Archiving:
    """Writers, readers of pages, and a reader of whole segments, beside an archiver; each entry is read once by all.

    Returns the archiver, stopped, to be asked what it did.
    """
    id = uuid4()
    with streamkit.connect(url) as client:
        store = client.store(id)
        store.create_space(space, partitions, archive_grace=0.1)
        archiver = Archiving(streamkit.connect(url))
        done = threading.Event()
        failed: list[BaseException] = []
        seen: list[list[tuple[str, int]]] = [[], []]

        def trying(work: Any, *arguments: Any) -> threading.Thread:
            def run() -> None:
                try:
                    with streamkit.connect(url) as mine:
                        work(mine.store(id), *arguments)
                except BaseException as error:
                    failed.append(error)

            return threading.Thread(target=run)

        def write(store: streamkit.Store, name: int) -> None:
            for at in range(each):
                end = time.monotonic() + 120
                while at == each // 2 and archiver.runs < 2 and time.monotonic() < end:
                    time.sleep(0.01)  # half of it is written beside an archiver that has begun
                store.produce(space, f"w{name}-{at % 4}", [Record(b"%d" % at)] * 2)
                time.sleep(0.01)

        def page(store: streamkit.Store, into: list[tuple[str, int]]) -> None:
            offset = None
            while True:
                last = done.is_set()
                found = list(store.consume_space(space, offset=offset, limit=17))
                if found:
                    offset = found[-1].space_offset
                    into += [(entry.segment, entry.sequence) for entry in found]
                elif last:
                    return
                else:
                    done.wait(0.005)

        def load(store: streamkit.Store) -> None:
            while not done.is_set():
                for segment in list(store.get_segments(space)):
                    status = store.segment_status(space, segment)
                    found = [entry.sequence for entry in store.consume_segment(space, segment)]
                    assert found == list(range(1, len(found) + 1))
                    assert len(found) >= status.last_sequence
                    assert store.peek(space, segment).sequence >= len(found)
                done.wait(0.005)

        writing = [trying(write, name) for name in range(writers)]
        reading = [*(trying(page, into) for into in seen), trying(load)]
        for thread in writing + reading:
            thread.start()
        for thread in writing:
            thread.join()
        done.set()
        for thread in reading:
            thread.join()
        archiver.stop()
        archiver.client.close()
        assert not failed, failed
        assert not archiver.errors, archiver.errors
        assert archiver.runs >= 2
        if "cold" not in {entry.tier for entry in store.consume_space(space)}:
            with streamkit.connect(url) as stranger:
                assert "cold" in {entry.tier for entry in stranger.store(id).consume_space(space)}
        wanted = {
            (f"w{name}-{at}", sequence)
            for name in range(writers)
            for at in range(4)
            for sequence in range(1, each // 4 * 2 + 1)
        }
        for into in seen:
            assert len(into) == len(set(into))
            assert set(into) == wanted
            for segment in {segment for segment, _ in into}:
                mine = [sequence for name, sequence in into if name == segment]
                assert mine == sorted(mine)
        return archiver
