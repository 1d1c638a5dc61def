"""The data of a view is the fold of the entries before its position, wherever the process stopped."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from fix_covered import EXHAUSTIVE
from hypothesis import given, settings
from hypothesis import strategies as st

import streamkit
from harness.crashing_views import Steps, stopping
from harness.drivers import MEMORY
from streamkit import Entry, Record, Store
from streamkit.client import Client
from streamkit.testing import CRASHES, Crash, FaultyDriver, ManualClock, Plan, every_fault
from streamkit.views import Index, Latest, Links, Query, Reduce, Search, Vectors, View
from streamkit.views.database import State

Covered = Callable[[str, int], None]


class Fold(View):
    """All that it was given, as one text, and in rows."""

    def __init__(self, version: int = 1) -> None:
        self.version = version

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute("create table fold (text text)")
        db.execute("insert into fold values ('')")
        db.execute("create table rows (at integer primary key, payload text)")

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        for entry in entries:
            db.execute("update fold set text = text || ?", (entry.payload.decode(),))
        db.executemany("insert into rows (payload) values (?)", [(entry.payload.decode(),) for entry in entries])


def check(path: Path, log: str) -> int:
    """Check the database at `path`, if there is one: it is the fold of the entries up to its position."""
    if not path.exists():
        return 0
    with sqlite3.connect(path) as db:
        found = db.execute("select state from streamkit_view").fetchone()
        if found is None:
            return 0
        state = msgspec.json.decode(found[0], type=State)
        (text,) = db.execute("select text from fold").fetchone()
        rows = [payload for (payload,) in db.execute("select payload from rows order by at")]
    db.close()
    assert text == "".join(rows) == log[: state.entries]
    return state.entries


def letters(count: int, first: int = 0) -> str:
    return "".join(chr(ord("a") + at % 26) for at in range(first, first + count))


def write(store: Store, text: str) -> None:
    store.produce("log", "s", [Record(letter.encode()) for letter in text])


def two_rounds(store: Store, path: Path, log: str) -> None:
    """A first build of half the log, then the rest, a rebuild, another version."""
    with store.view("v", Fold(), ["log"], path / "v", batch=2) as view:
        view.catch_up()
        write(store, log[len(log) // 2 :])
        view.catch_up()
        view.rebuild()
    with store.view("v", Fold(2), ["log"], path / "v", batch=3) as view:
        view.catch_up()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_process_that_stops_at_any_statement_or_commit(tmp_path: Path, after: bool, covered: Covered) -> None:
    log = letters(8)
    stop, points = 0, 0
    while True:
        with streamkit.connect(f"memory://{uuid4().hex}") as client:
            store = client.store(uuid4())
            write(store, log[:4])
            alive = tmp_path / f"alive-{stop}"
            alive.mkdir()
            steps = Steps(alive, stop, after=after)
            with stopping(steps), suppress(Crash):
                two_rounds(store, alive, log)
            if steps.left is None:
                assert check(alive / "v", log) == len(log)
                break
            points += 1
            written = sum(1 for _ in store.consume_space("log"))
            if written < len(log):
                write(store, log[written:])
            # Links are relative, so the remaining files are read at their new place.
            check(steps.left / "v", log)
            for version in (1, 2):
                with store.view("v", Fold(version), ["log"], steps.left / "v") as view:
                    assert view.catch_up().entries == len(log)
            assert check(steps.left / "v", log) == len(log)
            left = [name for name in os.listdir(steps.left / "v.builds") if name.endswith(".sqlite")]
            assert len(left) <= 2, "builds that nobody needs are removed"
            shutil.rmtree(alive)
            shutil.rmtree(steps.left)
        stop += 1 if EXHAUSTIVE else 3
    assert points > 10
    covered("points at which a view's process stopped, SQLite", points)


@pytest.mark.parametrize("backend", ["memory", "remote"])
def test_a_process_that_stops_at_any_call_of_the_backend(tmp_path: Path, backend: str, covered: Covered) -> None:
    log = letters(9)
    clock = ManualClock()

    def run(plan: Plan) -> FaultyDriver:
        directory = Path(tempfile.mkdtemp(dir=tmp_path))
        id = uuid4()
        driver = MEMORY[backend](clock)
        store = Client("memory://", driver, 5.0, None, 64 << 20, clock).store(id)
        for at in range(0, len(log), 3):
            write(store, log[at : at + 3])
        faulty = FaultyDriver(MEMORY[backend](clock), plan)
        dying = Client("memory://", faulty, 5.0, None, 64 << 20, clock).store(id)
        view = dying.view("v", Fold(), ["log"], directory / "v", batch=2)
        with suppress(Crash):
            view.catch_up()
            view.wait_for(dying.end_offset("log"))
        check(directory / "v", log)
        with store.view("v", Fold(), ["log"], directory / "v") as view:
            assert view.catch_up().entries == len(log)
        assert check(directory / "v", log) == len(log)
        driver.delete(id)
        return faulty

    trace = run(Plan()).faults.trace
    plans = list(every_fault(trace, CRASHES))
    for plan in plans:
        run(plan)
    covered("points at which a view's process stopped, backend", len(plans))


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 5)),
        st.tuples(st.just("catch up"), st.integers(1, 4)),
        st.tuples(st.just("crash"), st.integers(0, 25)),
        st.tuples(st.just("rebuild"), st.just(0)),
        st.tuples(st.just("version"), st.just(0)),
        st.tuples(st.just("publish"), st.just(0)),
        st.tuples(st.just("lose the disk"), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    max_size=14,
)


@settings(max_examples=1500 if EXHAUSTIVE else 60)
@given(ACTIONS)
def test_whatever_happens_the_data_is_the_fold_of_the_first_entries(actions: list[tuple[str, int]]) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="view-") as folder,
        streamkit.connect(f"memory://{uuid4().hex}") as client,
    ):
        store, log, version, lives = client.store(uuid4()), "", 1, 0
        place = Path(folder) / "0"
        place.mkdir()
        view = store.view("v", Fold(version), ["log"], place / "v")
        for action, number in actions:
            if action == "write":
                log += letters(number, len(log))
                write(store, log[-number:])
            elif action == "catch up":
                view.close()
                view = store.view("v", Fold(version), ["log"], place / "v", batch=number)
                assert view.catch_up().entries == len(log)
            elif action == "crash":
                view.close()
                steps = Steps(place, number, after=bool(number % 2))
                with stopping(steps), suppress(Crash):
                    store.view("v", Fold(version), ["log"], place / "v", batch=2).catch_up()
                lives += 1
                if steps.left is not None:
                    place = steps.left.rename(Path(folder) / str(lives))
                view = store.view("v", Fold(version), ["log"], place / "v")
            elif action == "rebuild":
                assert view.rebuild().entries == len(log)
            elif action == "version":
                version += 1
                view.close()
                view = store.view("v", Fold(version), ["log"], place / "v")
            elif action == "publish":
                view.publish()
            elif action == "lose the disk":
                view.delete()
                view = store.view("v", Fold(version), ["log"], place / "v")
            elif action == "reopen":
                view.close()
                view = store.view("v", Fold(version), ["log"], place / "v")
            check(place / "v", log)
        view.catch_up()
        assert check(place / "v", log) == len(log)
        view.close()


def test_ready_made_kinds_are_whole_wherever_the_process_stopped(tmp_path: Path, covered: Covered) -> None:
    """Views read their row counts and states from the database again after a batch failed."""

    def fold(state: dict[str, int], entry: Entry) -> dict[str, int]:
        state[entry.payload.decode()] = state.get(entry.payload.decode(), 0) + 1
        return state

    makes: dict[str, Callable[[], View]] = {
        "Reduce": lambda: Reduce(fold, {}),
        "Latest": lambda: Latest(lambda entry: entry.payload.decode()),
        "Index": lambda: Index(lambda entry: [entry.payload.decode(), entry.segment]),
        "Search": lambda: Search(lambda entry: f"letter {entry.payload.decode()}"),
        "Vectors": lambda: Vectors(lambda entry: [1.0, float(entry.payload[0])], 2),
        "Links": lambda: Links(lambda entry: [entry.payload.decode()]),
        "Query": lambda: Query(["x"]),
    }
    points = 0
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        store = client.store(uuid4())
        write(store, letters(7))

        def contents(path: Path) -> list[str]:
            with sqlite3.connect(path) as db:
                tables = [name for (name,) in db.execute("select name from sqlite_master where type = 'table'")]
                skipped = {"streamkit_view", *(name for name in tables if name.startswith("words_"))}
                return [repr(list(db.execute(f'select * from "{name}"'))) for name in tables if name not in skipped]

        for kind, make in makes.items():
            with store.view(kind, make(), ["log"], tmp_path / f"{kind}-whole") as view:
                view.catch_up()
            wanted = contents(tmp_path / f"{kind}-whole")
            stop = 0
            while True:
                place = tmp_path / f"{kind}-{stop}"
                place.mkdir()
                steps = Steps(place, stop)
                failed = [1]
                definition = make()
                apply = definition.apply

                def once(db: sqlite3.Connection, entries: Sequence[Entry], apply=apply, failed=failed) -> None:  # type: ignore[no-untyped-def]
                    apply(db, entries)
                    if failed and len(entries) > 1:
                        failed.pop()
                        raise ValueError("once, after it was applied")

                definition.apply = once  # type: ignore[method-assign]
                with stopping(steps), suppress(Crash):
                    store.view(kind, definition, ["log"], place / "v", batch=2).catch_up()
                with store.view(kind, make(), ["log"], (steps.left or place) / "v", batch=3) as view:
                    view.catch_up()
                assert contents((steps.left or place) / "v") == wanted, (kind, stop)
                points += 1
                if steps.left is None:
                    break
                stop += 1 if EXHAUSTIVE else 4
    covered("points at which a ready-made view's process stopped", points)
