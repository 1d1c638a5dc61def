"""Members, routes, views and operations over HTTP."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import websockets.sync.client
from fix_serve import Served

import streamkit
from streamkit import Entry, Record


def test_a_member_joins_is_listed_stays_and_leaves(served: Served) -> None:
    made = served.ask("PUT", "members/workers/a", {"metadata": {"host": "h"}, "ttl": 30})
    assert made.status == 201
    token = {"Lease-Token": made.json["token"]}
    (member,) = served.ask("GET", "members/workers").json["members"]
    assert (member["name"], member["metadata"]) == ("a", {"host": "h"})
    assert [one.name for one in served.store.members("workers").list()] == ["a"]
    refused = served.ask("PUT", "members/workers/a")
    assert (refused.status, refused.json["type"]) == (409, "urn:streamkit:lease-held")
    renewed = served.ask("PUT", "members/workers/a", None, token)
    assert (renewed.status, renewed.json["ttl"]) == (200, 30)
    assert served.ask("PUT", "members/workers/b", None, token).status == 400, "the token is of another member"
    assert served.ask("DELETE", "members/workers/a").status == 400
    assert served.ask("DELETE", "members/workers/a", None, {"Lease-Token": "x"}).status == 400
    assert served.ask("DELETE", "members/workers/a", None, token).status == 204
    assert served.ask("DELETE", "members/workers/a", None, token).status == 204
    assert served.ask("GET", "members/workers").json == {"members": []}
    assert served.ask("PUT", "members/workers/a", None, token).status == 409
    assert served.ask("PUT", "members/workers/a").status == 201


def test_members_are_watched(served: Served) -> None:
    events = served.events("members/workers")
    assert next(events).data == []
    served.ask("PUT", "members/workers/a")
    assert [member["name"] for member in events.until("members")[-1].data] == ["a"]


def fails_at(entry: Entry) -> bool:
    if entry.payload == b"poison":
        raise ValueError("cannot be routed")
    return True


def test_a_route_tells_why_it_is_paused_and_is_resumed_without_the_entry(served: Served) -> None:
    store = served.store
    store.produce("orders", "a", [Record(b"1"), Record(b"poison"), Record(b"3")])
    with store.route("audit", "orders", "copies", fails_at) as route:
        route.catch_up()
        (listed,) = served.ask("GET", "routes").json["routes"]
        assert (listed["name"], listed["state"]) == ("audit", "paused")
        found = served.ask("GET", "routes/audit").json
        assert (found["state"], found["copied"]) == ("paused", 1)
        assert "cannot be routed" in found["error"]["error"]
        assert found["error"]["sequence"] == 2
        assert served.ask("POST", "routes/audit", {"action": "resume", "skip": True}).json["state"] == "behind"
        route.catch_up()
        found = served.ask("GET", "routes/audit").json
        assert (found["state"], found["copied"], found["skipped"]) == ("current", 2, 1)
        assert served.ask("POST", "routes/audit", {"action": "pause"}).json["state"] == "paused"
        assert served.ask("POST", "routes/audit", {"action": "stop"}).status == 400
        assert served.ask("DELETE", "routes/audit").status == 204
    assert served.ask("GET", "routes/audit").status == 404
    assert served.ask("GET", "routes").json == {"routes": []}


class Totals(streamkit.View):
    version = 1

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute("create table totals (segment text primary key, n int, raw blob) strict")

    def apply(self, db: sqlite3.Connection, entries: Any) -> None:
        for entry in entries:
            db.execute(
                "insert into totals values (?, 1, x'ff') on conflict (segment) do update set n = n + 1",
                (entry.segment,),
            )


@pytest.fixture
def viewed(make_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Served]:
    """A server of a store that has a view."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    served = Served(make_url("local"))
    for segment in "abc":
        served.store.produce("orders", segment, [Record(b"1"), Record(b"2")])
    with served.store.view("totals", Totals(), ["orders"]) as view:
        view.catch_up()
        yield served
    served.close()


def ask(served: Served, sql: str, **more: Any) -> Any:
    return served.ask("POST", "views/totals/query", {"sql": sql, **more})


def test_a_view_is_listed_and_asked_in_sql(viewed: Served) -> None:
    (listed,) = viewed.ask("GET", "views").json["views"]
    assert (listed["name"], listed["spaces"], listed["entries"], listed["here"]) == ("totals", ["orders"], 6, True)
    assert viewed.ask("GET", "views/totals").json == listed
    found = ask(viewed, "select segment, n, raw from totals where segment > ? order by 1", parameters=["a"]).json
    assert found["columns"] == ["segment", "n", "raw"]
    assert found["rows"] == [["b", 2, {"base64": "/w=="}], ["c", 2, {"base64": "/w=="}]]
    assert found["complete"] is True
    few = ask(viewed, "select segment from totals order by 1", limit=2).json
    assert (few["rows"], few["complete"]) == ([["a"], ["b"]], False)
    large = (
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 20) select zeroblob(3000000) from n"
    )
    few = ask(viewed, large).json
    assert (len(few["rows"]), few["complete"]) == (3, False), "an answer has about 8 MiB"
    recursive = "with recursive c(x) as (select 1 union all select x + 1 from c where x < 5) select sum(x) from c"
    assert ask(viewed, recursive).json["rows"] == [[15]]
    assert viewed.ask("GET", "views/nothing").status == 404
    assert viewed.ask("POST", "views/nothing/query", {"sql": "select 1"}).status == 404


def test_a_query_does_not_list_the_published_views(viewed: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    listings = []
    monkeypatch.setattr("streamkit.views.catalog.published_views", lambda store: listings.append(store) or {})
    assert ask(viewed, "select 1").status == 200
    assert listings == []
    assert viewed.ask("GET", "views").status == 200
    assert len(listings) == 1


@pytest.mark.parametrize(
    "sql",
    [
        "delete from totals",
        "insert into totals values ('x', 1, null)",
        "update totals set n = 7",
        "drop table totals",
        "create table more (x)",
        "create temp table more (x)",
        "attach database '/tmp/other.sqlite' as other",
        "attach ':memory:' as other",
        "vacuum into '/tmp/copy.sqlite'",
        "pragma query_only = off",
        "pragma database_list",
        "select * from pragma_database_list",
        "begin immediate",
        "reindex",
        "analyze",
        "select load_extension('x')",
        "select 1; select 2",
        "explain delete from totals",
        "",
        "not sql",
        "select * from nothing",
        "with recursive c(x) as (select 1 union all select x + 1 from c) select count(*) from c",
        "select count(*) from totals a, totals b, totals c, totals d, totals e, totals f, totals g, totals h, totals i,"
        " totals j, totals k, totals l, totals m, totals n, totals o, totals p, totals q, totals r",
        "select hex(zeroblob(100000000))",
        "select ?",
    ],
)
def test_sql_that_writes_attaches_or_never_ends_is_refused(viewed: Served, sql: str) -> None:
    refused = ask(viewed, sql, seconds=0.3)
    assert (refused.status, refused.json["type"]) == (400, "urn:streamkit:invalid-argument"), refused.body
    assert "SQLite refuses the query" in refused.json["detail"]
    assert ask(viewed, "select sum(n) from totals").json["rows"] == [[6]]


@pytest.mark.parametrize("more", [{"limit": 0}, {"limit": 10_001}, {"seconds": 0}, {"seconds": 31}])
def test_limits_of_a_query_are_bounded(viewed: Served, more: dict[str, Any]) -> None:
    assert ask(viewed, "select 1", **more).status == 400


def ended(served: Served, href: str) -> Any:
    pause = threading.Event()
    while (found := served.ask("GET", href).json)["state"] == "running":
        pause.wait(0.02)
    return found


def test_an_operation_is_watched_until_it_has_ended(served: Served) -> None:
    served.store.produce("orders", "a", [Record(b"1")])
    begun = served.ask("POST", "operations", {"kind": "verify"}).json
    events = served.events(begun["href"])
    told = events.until("bye")
    assert {event.name for event in told} <= {"operation", ":", "bye"}
    last = [event.data for event in told if event.name == "operation"][-1]
    assert (last["id"], last["state"], told[-1].data) == (begun["id"], "done", {"reason": "end"})
    assert list(events) == []
    with websockets.sync.client.connect(f"ws://127.0.0.1:{served.port}/v1/ws") as client:
        client.send(json.dumps({"id": 1, "op": "subscribe", "operation": begun["id"]}))
        messages = [json.loads(client.recv(60)) for _ in range(3)]
    assert [message.get("event") for message in messages] == [None, "operation", "bye"]
    other = served.events("operations/7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55")
    assert other.response.status == 404


def test_operations_run_and_any_process_tells_how_far_they_are(served: Served) -> None:
    served.store.produce("orders", "a", [Record(b"1")])
    begun = served.ask("POST", "operations", {"kind": "verify"})
    assert (begun.status, begun.json["state"]) == (202, "running")
    done = ended(served, begun.headers["location"])
    assert (done["state"], done["result"]["findings"], done["result"]["entries"]) == ("done", [], 1)
    assert ended(served, served.ask("POST", "operations", {"kind": "maintain", "space": "orders"}).json["href"])[
        "state"
    ] == ("done")
    other = Served(served.url)
    other.application.service.own_store = served.id
    try:
        assert other.ask("GET", begun.headers["location"]).json == done
    finally:
        other.close()
    assert "operations" not in str(served.ask("GET", "spaces").json)


def test_an_operation_that_cannot_be_done_says_why(served: Served) -> None:
    assert served.ask("POST", "operations", {"kind": "archive"}).status == 400
    assert served.ask("POST", "operations", {"kind": "no"}).status == 400
    assert served.ask("GET", "operations/x").status == 404
    assert served.ask("GET", "operations/7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55").status == 404


def test_an_operation_of_a_process_that_ended_is_lost(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    id = "7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55"
    note = (
        b'{"id":"%b","kind":"verify","space":null,"state":"running","done":0,"of":0,"started":1,"updated":1,"href":""}'
    )
    served.store.produce(streamkit.names.internal_name("operations"), id, [Record(note % id.encode())])
    assert served.ask("GET", f"operations/{id}").json["state"] == "lost"


def test_sequences_are_erased_over_http(served: Served) -> None:
    served.store.produce("orders", "a", [Record(b"%d" % number) for number in range(1, 6)])
    body = {"segment": "a", "sequences": [2, 4]}
    assert served.ask("POST", "spaces/orders/erase", body).json["entries"] == 2
    assert served.ask("POST", "spaces/orders/erase", {**body, "dry_run": False}).json["entries"] == 2
    assert [entry.sequence for entry in served.store.consume_segment("orders", "a")] == [1, 3, 5]
    assert served.ask("POST", "spaces/orders/erase", {"sequences": [1]}).status == 400
