"""A search of every byte of a view's files, and of its published copies, finds nothing of erased entries."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from harness.crashing_views import Steps, stopping
from streamkit import Entry, Gap, Record, Store
from streamkit.compression import load_zstd
from streamkit.testing import Crash
from streamkit.views import Index, Latest, Links, OpenView, Query, Search, Vectors, View

ERASURES = 1000 if EXHAUSTIVE else 24
"""A view of each kind."""


class Notes(View):
    """A user's own view: its text is in a table, in an index and in FTS5, and its keys are implicit."""

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute("create table notes (segment text, sequence integer, note text)")
        db.execute("create index by_note on notes (note)")
        db.execute("create virtual table found using fts5 (note, content = notes)")

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        for entry in entries:
            note = entry.payload.decode()
            at = db.execute("insert into notes values (?, ?, ?)", (entry.segment, entry.sequence, note)).lastrowid
            db.execute("insert into found (rowid, note) values (?, ?)", (at, note))

    def erase(self, db: sqlite3.Connection, gap: Gap) -> None:
        where = "where segment = ? and sequence between ? and ?"
        gone = (gap.segment, gap.first_sequence, gap.last_sequence)
        for at, note in db.execute(f"select rowid, note from notes {where}", gone).fetchall():
            db.execute("insert into found (found, rowid, note) values ('delete', ?, ?)", (at, note))
        db.execute(f"delete from notes {where}", gone)


def text(entry: Entry) -> str:
    return entry.payload.decode()


MAKES: dict[str, Callable[[], View]] = {
    "Index": lambda: Index(lambda entry: [text(entry), text(entry)[9:]]),
    "Latest": lambda: Latest(lambda entry: text(entry)[:10]),
    "Links": lambda: Links(lambda entry: text(entry)[1:-1].split()[:2]),
    "Notes": Notes,
    "Query": lambda: Query(["words"]),
    "Search": lambda: Search(text),
    "Vectors": lambda: Vectors(lambda entry: [1.0, float(entry.sequence)], 2),
}


def words(payload: bytes) -> list[bytes]:
    return payload.replace(b'"', b" ").split()


def stored(*directories: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield every file below a folder, decompressed if it is compressed."""
    for directory in directories:
        for path in directory.rglob("*"):
            if path.is_file() and not path.is_symlink():
                data = path.read_bytes()
                yield path, load_zstd().decompress(data) if path.name.endswith(".zst") else data


def found(places: Sequence[Path], secrets: Sequence[bytes]) -> list[tuple[Path, bytes]]:
    """The secrets that are found, in any case: FTS5 keeps words in lower case."""
    return [
        (path, secret)
        for path, data in stored(*places)
        for here in (data.lower(),)
        for secret in secrets
        if secret in here
    ]


def produce(store: Store, chance: random.Random, count: int) -> None:
    """JSON texts of words, each of which is in one entry only: some short, some of several pages."""
    for _ in range(count):
        few = chance.choice([1, 3, 8, 40, 400]) if chance.random() < 0.3 else 3
        sentence = " ".join(f"w{chance.getrandbits(40):010x}" for _ in range(few))
        store.produce("log", f"s{chance.randrange(4)}", [Record(b'"%s"' % sentence.encode())])


def erase(store: Store, chance: random.Random, most: int) -> tuple[int, list[bytes]]:
    """Erases some ranges; how many, and the words of the entries."""
    done, gone = 0, []
    for _ in range(most):
        segment = f"s{chance.randrange(4)}"
        entries = list(store.consume_segment("log", segment))
        if not entries:
            continue
        first = chance.choice(entries).sequence
        last = min(first + chance.choice([0, 0, 1, 5]), entries[-1].sequence)
        for entry in entries:
            if first <= entry.sequence <= last:
                gone += words(entry.payload)
        store.erase("log", segment, first=first, last=last)
        done += 1
    return done, gone


@pytest.mark.parametrize("kind", sorted(MAKES))
def test_nothing_is_found_of_what_was_erased(tmp_path: Path, kind: str, covered: Callable[[str, int], None]) -> None:
    chance = random.Random(f"{kind} {os.environ.get('STREAMKIT_SEED', 4)}")
    local, archive = tmp_path / "local", tmp_path / "stores" / "archive"
    erasures = searches = 0
    while erasures < ERASURES:
        with streamkit.connect(f"file://{tmp_path}/stores") as client:
            store = client.store(uuid4())
            secrets: list[bytes] = []
            view = store.view(kind, MAKES[kind](), ["log"], local / str(erasures), batch=chance.choice([3, 20, 1000]))
            produce(store, chance, chance.randrange(20, 120))
            view.catch_up()
            for _ in range(chance.randrange(1, 4)):
                if chance.random() < 0.5:
                    view.publish()
                reader = view.db.execute("select state from streamkit_view") if chance.random() < 0.3 else None
                count, gone = erase(store, chance, chance.randrange(1, 6))
                erasures, secrets = erasures + count, secrets + gone
                assert found([archive / str(store.id) / "_published"], secrets) == []
                if chance.random() < 0.5:
                    produce(store, chance, chance.randrange(30))
                if chance.random() < 0.5:
                    view.publish()
                else:
                    view.catch_up()
                assert found([local, archive / str(store.id) / "_published"], secrets) == []
                del reader
                searches += 1
            answers(view, store)
            view.publish()
            assert found([local, archive / str(store.id) / "_published"], secrets) == []
            with store.view(kind, MAKES[kind](), ["log"], local / f"{erasures}-fresh") as fresh:
                fresh.catch_up()
                answers(fresh, store)
            view.delete()
            fresh.delete()
    covered(f"erasures after which a view's files were searched, {kind}", erasures)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["Index", "Search"])
def test_wherever_a_process_stops_while_it_erases_the_next_one_completes_it(
    tmp_path: Path, kind: str, after: bool, covered: Callable[[str, int], None]
) -> None:
    chance, stop, points = random.Random(kind), 0, 0
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        while True:
            store = client.store(uuid4())
            produce(store, chance, 30)
            alive = tmp_path / f"alive-{stop}"
            alive.mkdir()
            with store.view(kind, MAKES[kind](), ["log"], alive / "v") as view:
                view.catch_up()
            _, secrets = erase(store, chance, 3)
            steps = Steps(alive, stop, after=after)
            with stopping(steps), suppress(Crash), store.view(kind, MAKES[kind](), ["log"], alive / "v") as view:
                view.catch_up()
            place = steps.left or alive
            with store.view(kind, MAKES[kind](), ["log"], place / "v") as view:
                view.catch_up()
                answers(view, store)
                assert found([place], secrets) == [], stop
                assert len(list(place.glob("v.builds/*.sqlite"))) == 1
            if steps.left is None:
                break
            points += 1
            stop += 1 if EXHAUSTIVE else 3
    assert points > 5
    covered("points at which a view's process stopped while it erased", points)


def answers(view: OpenView, store: Store) -> None:
    """Check that the view holds the entries of the log."""
    left = sorted(entry.payload for entry in store.consume_space("log"))
    if isinstance(view.view, Notes):
        kept = view.db.execute("select rowid, note from notes order by note").fetchall()
        assert [note.encode() for _, note in kept] == left
        for at, note in kept[:20]:
            wanted = note.strip('"').split()[0]
            assert view.db.execute("select rowid from found where found match ?", (wanted,)).fetchall() == [(at,)]
    elif isinstance(view.view, Latest):
        assert sorted(entry.payload for entry in view.entries()) == left
    else:
        assert sorted(payload for (payload,) in view.db.execute("select payload from entries")) == left
    if isinstance(view.view, Search):
        assert all(view.count(words(payload)[0].decode()) == 1 for payload in left[:20])
