"""An interrupt (Ctrl-C, a handler that raises) anywhere in a view's own code: the next call of the process goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from uuid import uuid4

import streamkit
from harness.interrupts import Interrupt
from streamkit import Entry, Record, View, views


class Names(View):
    def setup(self, db: sqlite3.Connection) -> None:
        db.execute("create table names (at integer primary key, name text)")

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        db.executemany("insert into names (name) values (?)", [(entry.payload.decode(),) for entry in entries])


def test_after_an_interrupt_the_view_goes_on(tmp_path: Path, covered: Callable[[str, int], None]) -> None:
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        for at in count(1):
            store, interrupt = client.store(uuid4()), Interrupt(Path(views.__file__).parent, at)
            store.produce("orders", "s", [Record(b"a"), Record(b"b")])
            with store, store.view("names", Names(), ["orders"], tmp_path / f"{at}") as view:
                interrupt.within(view.catch_up)
                store.produce("orders", "s", [Record(b"c")])
                status = view.wait_for(store.end_offset("orders"), timeout=20)
                found = [name for (name,) in view.db.execute("select name from names order by at")]
                assert (status.state, found) == ("current", ["a", "b", "c"]), f"interrupted at place {at}"
            if not interrupt.came:
                break
    covered("places at which a view was interrupted", at)
