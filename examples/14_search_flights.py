"""Views of flights: words, keys, paths into JSON, and a view of one's own that starts from a published one."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Sequence
from uuid import uuid4

import streamkit
from streamkit import Entry, Record, Store, View
from streamkit.views import Index, Latest, Query, Search

FLIGHTS = [
    ("UA", 1545, "EWR", "IAH", "United Air Lines to Houston", 2),
    ("AA", 1141, "JFK", "MIA", "American Airlines to Miami", 33),
    ("B6", 725, "JFK", "BQN", "JetBlue Airways to Aguadilla", -1),
    ("UA", 1696, "EWR", "ORD", "United Air Lines to Chicago", -4),
    ("DL", 461, "LGA", "ATL", "Delta Air Lines to Atlanta", -6),
    ("UA", 1714, "LGA", "IAH", "United Air Lines to Houston", 20),
]


class Delays(View):
    version = 1

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute("create table delays (carrier text primary key, flights integer, minutes integer)")

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        flights = [json.loads(entry.payload) for entry in entries]
        db.executemany(
            "insert into delays values (?, 1, ?) "
            "on conflict do update set flights = flights + 1, minutes = minutes + excluded.minutes",
            [(flight["carrier"], flight["delay"]) for flight in flights],
        )


def write(store: Store) -> None:
    for carrier, number, origin, destination, text, delay in FLIGHTS:
        flight = {"carrier": carrier, "number": number, "to": destination, "text": text, "delay": delay}
        store.produce("departures", origin, [Record(json.dumps(flight).encode())])


def show(what: str, entries: Sequence[Entry]) -> None:
    print(what, [json.loads(entry.payload)["number"] for entry in entries])


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        streamkit.connect(f"file://{folder}/stores") as client,
        client.store(uuid4()) as store,
    ):
        write(store)
        words = Search(lambda entry: json.loads(entry.payload)["text"])
        carriers = Index(lambda entry: json.loads(entry.payload)["carrier"])
        newest = Latest(lambda entry: json.loads(entry.payload)["to"])
        paths = Query(["to", "delay"])
        for name, kind in (("words", words), ("carriers", carriers), ("newest", newest), ("paths", paths)):
            store.view(name, kind, spaces=["departures"]).catch_up()

        show("united houston:", words.search("united houston", order="oldest"))
        show("of UA, the last two:", carriers.get("UA", limit=2, reverse=True))
        last = newest.get("IAH")
        assert last is not None
        show("the last to Houston:", [last])
        show("late by ten minutes:", paths.find({"delay": {"gte": 10}}))
        print(paths.explain(to="IAH")[0])

        # The work of a function: it has no database yet, takes the published one, and reads the new entries.
        with store.view("delays", Delays(), spaces=["departures"], path=f"{folder}/machine one") as view:
            view.catch_up()
            print("published:", view.publish().entries, "entries")
        write(store)
        with store.view("delays", Delays(), spaces=["departures"], path=f"{folder}/machine two") as view:
            view.catch_up()
            print(view.db.execute("select * from delays order by minutes desc").fetchall())


if __name__ == "__main__":
    main()
