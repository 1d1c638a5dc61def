"""Keys, tokens, tickets: every route by scope and prefix, and the refusal without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import jwt
import pytest
from fix_serve import PATIENCE, Reply, Served

from streamkit import PermanentError, Record
from streamkit.serve import Limits, Tokens
from streamkit.serve.access import SCOPES
from streamkit.serve.keys import KeyFile
from streamkit.serve.server import Options, make_application

SECRET = b"a shared secret of thirty-two bytes or more"


class Guarded:
    """A server with a file of keys."""

    def __init__(self, served: Served, keys: KeyFile) -> None:
        self.served = served
        self.keys = keys

    def ask(self, key: str | None, method: str, path: str, body: Any = None, headers: Any = None) -> Reply:
        headers = dict(headers or {})
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        return self.served.ask(method, path, body, headers)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    keys = KeyFile(path)
    served = Served("memory://keys", keys=path, tokens=Tokens(secret=SECRET))
    yield Guarded(served, keys)
    served.close()


def fresh(guarded: Guarded, *scopes: str, **bounds: Any) -> str:
    key = guarded.keys.create(scopes, **bounds)
    guarded.served.application.service.keys._looked = 0.0  # type: ignore[union-attr]
    return key


ROUTES = [
    ("GET", "/v1/stores", None, "admin"),
    ("GET", "/metrics", None, "admin"),
    ("GET", "/v1/stores/_", None, "read"),
    ("GET", "priorities", None, "admin"),
    ("PUT", "priorities", {}, "admin"),
    ("GET", "spaces", None, "read"),
    ("GET", "spaces/s", None, "read"),
    ("PUT", "spaces/s", {}, "admin"),
    ("PATCH", "spaces/s", {}, "admin"),
    ("DELETE", "spaces/gone", None, "delete"),
    ("GET", "spaces/s/size", None, "read"),
    ("GET", "spaces/s/segments", None, "read"),
    ("GET", "spaces/s/segments/a", None, "read"),
    ("HEAD", "spaces/s/segments/a", None, "read"),
    ("DELETE", "spaces/s/segments/gone", None, "delete"),
    ("GET", "spaces/s/segments/a/entries", None, "read"),
    ("POST", "spaces/s/segments/a/entries", {"text": "x"}, "write"),
    ("GET", "spaces/s/segments/a/entries/1", None, "read"),
    ("GET", "spaces/s/entries", None, "read"),
    ("POST", "spaces/s/entries", b'{"segment":"a","text":"x"}', "write"),
    ("GET", "entries?space=s", None, "read"),
    ("QUERY", "entries", {"spaces": ["s"]}, "read"),
    ("POST", "entries", {"spaces": ["s"]}, "read"),
    ("POST", "spaces/s/transactions", {"parts": [{"segment": "a", "records": [{"text": "x"}]}]}, "write"),
    ("GET", f"spaces/s/transactions/{UUID(int=1)}", None, "read"),
    ("GET", "spaces/s/idempotency/k", None, "read"),
    ("GET", "spaces/s/statuses", None, "read"),
    ("POST", "spaces/s/trim", {"segment": "a", "keep_entries": 1}, "delete"),
    ("POST", "spaces/s/erase", {"segment": "a"}, "delete"),
    ("GET", "spaces/s/groups", None, "read"),
    ("PUT", "spaces/s/groups/g", {}, "write"),
    ("GET", "spaces/s/groups/g", None, "read"),
    ("PATCH", "spaces/s/groups/g", {}, "write"),
    ("DELETE", "spaces/s/groups/gone", None, "delete"),
    ("GET", "spaces/s/groups/g/pending", None, "read"),
    ("GET", "spaces/s/groups/g/dead", None, "read"),
    ("POST", "spaces/s/groups/g/redrive", {}, "write"),
    ("POST", "spaces/s/groups/g/seek", {"to": "end"}, "write"),
    ("POST", "spaces/s/groups/g/receive", {}, "read"),
    ("POST", "spaces/s/groups/g/settle", {"settle": []}, "write"),
    ("GET", "spaces/s/groups/g/deliveries", None, "read"),
    ("GET", "queues", None, "read"),
    ("PUT", "queues/s", {}, "write"),
    ("GET", "queues/s", None, "read"),
    ("PATCH", "queues/s", {}, "write"),
    ("DELETE", "queues/gone", None, "delete"),
    ("POST", "queues/s/jobs", {"text": "x"}, "write"),
    ("GET", "queues/s/pending", None, "read"),
    ("GET", "queues/s/dead", None, "read"),
    ("POST", "queues/s/redrive", {}, "write"),
    ("POST", "queues/s/receive", {}, "read"),
    ("POST", "queues/s/settle", {"settle": []}, "write"),
    ("GET", "queues/s/deliveries", None, "read"),
    ("GET", "members/w", None, "read"),
    ("PUT", "members/w/a", {}, "write"),
    ("DELETE", "members/w/a", None, "write"),
    ("GET", "routes", None, "read"),
    ("GET", "routes/gone", None, "read"),
    ("POST", "routes/gone", {"action": "pause"}, "admin"),
    ("DELETE", "routes/gone", None, "admin"),
    ("GET", "views", None, "read"),
    ("GET", "views/gone", None, "read"),
    ("POST", "views/gone/query", {"sql": "select 1"}, "read"),
    ("GET", "views/gone/get?key=k", None, "read"),
    ("POST", "views/gone/get", {"key": "k"}, "read"),
    ("GET", "views/gone/range", None, "read"),
    ("POST", "views/gone/range", {}, "read"),
    ("GET", "views/gone/search?query=w", None, "read"),
    ("POST", "views/gone/search", {"query": "w"}, "read"),
    ("GET", "views/gone/nearest?vector=1,0", None, "read"),
    ("POST", "views/gone/nearest", {"vector": [1, 0]}, "read"),
    ("GET", "views/gone/links", None, "read"),
    ("POST", "views/gone/links", {}, "read"),
    ("GET", "statistics", None, "read"),
    ("GET", "spaces/s/activity", None, "read"),
    ("GET", "/v1/keys", None, "admin"),
    ("POST", "/v1/keys", {"scopes": ["read"]}, "admin"),
    ("DELETE", "/v1/keys/gone", None, "admin"),
    ("GET", "operations", None, "admin"),
    ("POST", "operations", {"kind": "maintain", "space": "s"}, "admin"),
    ("GET", f"operations/{UUID(int=1)}", None, "admin"),
    ("POST", "leases/l", {}, "write"),
    ("PUT", "leases/l", None, "write"),
    ("DELETE", "leases/l", None, "write"),
    ("POST", "/v1/tickets", {"path": "/v1/x"}, "read"),
    ("GET", "/v1/ws", None, "read"),
]
OTHERS = {("PUT", "leases/l"), ("DELETE", "leases/l"), ("GET", "spaces/s/statuses"), ("GET", "spaces/s/idempotency/k")}
"""Routes that are refused here for another reason than the key."""


OTHERS |= {(method, path) for method, path, *_ in ROUTES if "gone" in path and not path.startswith("spaces/")}
OTHERS |= {("DELETE", "spaces/s/groups/gone"), ("DELETE", "members/w/a"), ("GET", f"operations/{UUID(int=1)}")}
OTHERS |= {("GET", "/v1/ws")}
BOTH = ("/receive", "/deliveries")
"""Routes that need both scopes: a receive reads entries, and changes the state of the group."""


def send(guarded: Guarded, key: str | None, method: str, path: str, body: Any) -> Reply:
    headers = {"Content-Type": "application/x-ndjson"} if isinstance(body, bytes) else {}
    return guarded.ask(key, method, path, body, headers)


@pytest.mark.parametrize(("method", "path", "body", "needed"), ROUTES, ids=[f"{r[0]} {r[1]}" for r in ROUTES])
def test_each_route_needs_its_scope(guarded: Guarded, method: str, path: str, body: Any, needed: str) -> None:
    guarded.served.store.produce("s", "a", [Record(b"1")])
    guarded.served.store.group("s", "g")
    guarded.served.store.queue("s")
    assert send(guarded, None, method, path, body).status == 401
    both = path.endswith(BOTH)
    if both:
        status = send(guarded, fresh(guarded, "read", "write"), method, path, body).status
        assert status == (406 if method == "GET" else 200)
    for scope in SCOPES:
        status = send(guarded, fresh(guarded, scope), method, path, body).status
        if both and scope == "admin" and method == "GET":
            assert status == 406
        elif scope not in (needed, "admin") or (both and scope == needed):
            assert status == 403, scope
        elif (method, path) in OTHERS:
            assert status in (400, 404, 406, 426), scope
        else:
            assert status in (200, 201, 202, 204, 409), scope
    status = send(guarded, fresh(guarded, needed, stores=[uuid4()]), method, path, body).status
    assert status == {"/v1/stores": 200, "/v1/tickets": 201, "/v1/ws": 426}.get(path, 403)


OPEN_ROUTES = [
    ("GET", "/healthz"),
    ("HEAD", "/healthz"),
    ("GET", "/readyz"),
    ("HEAD", "/readyz"),
    ("GET", "/openapi.json"),
    *((method, f"{prefix}/{path}") for prefix in ("/v1/stream", "/v1/stores/_/stream") for method, path in (
        ("OPTIONS", "a"),
        ("POST", "__ds/subscriptions/x/ack"),
        ("POST", "__ds/subscriptions/x/callback"),
        ("POST", "__ds/subscriptions/x/release"),
    )),
]  # fmt: skip
"""Routes that need no key. The last three need the token of a wake."""
CONSOLE_ROUTES = [
    *((method, path) for method in ("GET", "HEAD") for path in ("/console", "/console/", "/console/assets/x/y")),
    *((method, "/console/session") for method in ("GET", "POST", "DELETE")),
]
"""Routes of the console's files and sessions. test_console.py tests their access."""
STREAM_ROUTES = [
    ("GET", "a", None, "read"),
    ("HEAD", "a", None, "read"),
    ("PUT", "a", b"", "write"),
    ("POST", "a", b"x", "write"),
    ("DELETE", "gone", None, "delete"),
    ("GET", "__ds/jwks.json", None, "read"),
    ("HEAD", "__ds/jwks.json", None, "read"),
    ("PUT", "__ds/subscriptions/x", b"{}", "write"),
    ("POST", "__ds/subscriptions/x/claim", b"{}", "write"),
    ("DELETE", "__ds/subscriptions/gone", None, "delete"),
]
PREFIXES = ("/v1/stream", "/v1/stores/_/stream")


def test_every_route_is_in_a_table(guarded: Guarded) -> None:
    router = guarded.served.application.router
    streams = [(method, f"{prefix}/{path}") for prefix in PREFIXES for method, path, *_ in STREAM_ROUTES]
    known = set()
    for method, path in [*OPEN_ROUTES, *CONSOLE_ROUTES, *streams, *((method, path) for method, path, *_ in ROUTES)]:
        full = path if path.startswith("/") else f"/v1/stores/_/{path}"
        known.add((method, router.find(method, full.partition("?")[0].encode())[0].pattern))
    assert {(route.method, route.pattern) for route in router.routes} == known


@pytest.mark.parametrize(("method", "path"), OPEN_ROUTES)
def test_a_route_without_a_scope_gives_nothing_away(guarded: Guarded, method: str, path: str) -> None:
    body = {"wake_id": "w", "generation": 1} if method == "POST" else None
    reply = guarded.ask(None, method, path, body)
    assert reply.status == 401 if method == "POST" else reply.status in (200, 204), reply


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(("method", "path", "body", "needed"), STREAM_ROUTES)
def test_each_route_of_the_protocol_needs_its_scope_and_prefixes(
    guarded: Guarded, prefix: str, method: str, path: str, body: Any, needed: str
) -> None:
    text = {"Content-Type": "text/plain"}
    full = f"{prefix}/{path}"
    guarded.ask(fresh(guarded, "write"), "PUT", f"{prefix}/a", b"", text)

    def status(*scopes: str, **bounds: Any) -> int:
        return guarded.ask(fresh(guarded, *scopes, **bounds), method, full, body, text).status

    assert guarded.ask(None, method, full, body, text).status == 401
    for scope in SCOPES:
        assert (status(scope) == 403) == (scope not in (needed, "admin")), scope
    assert status(needed, stores=[uuid4()]) == 403
    assert status(needed, stores=[guarded.served.id]) != 403
    assert status(needed, spaces=["other"]) == 403
    assert status(needed, spaces=["streams"]) != 403
    assert status(needed, segments=["b"]) == 403
    # The reserved resources concern all streams of a store.
    assert (status(needed, segments=[path]) == 403) == path.startswith("__ds")


def test_a_fork_needs_the_right_to_read_its_source(guarded: Guarded) -> None:
    text = {"Content-Type": "text/plain"}
    guarded.ask(fresh(guarded, "write"), "PUT", "/v1/stream/secret/source", b"x", text)
    fork = {**text, "Stream-Forked-From": "/v1/stream/secret/source"}
    for key in (fresh(guarded, "write"), fresh(guarded, "read", "write", segments=["mine"])):
        assert guarded.ask(key, "PUT", "/v1/stream/mine/fork", b"", fork).status == 403
    key = fresh(guarded, "read", "write", segments=["mine", "secret"])
    assert guarded.ask(key, "PUT", "/v1/stream/mine/fork", b"", fork).status == 201


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "spaces/s", None),
        ("GET", "spaces/s/size", None),
        ("GET", "spaces/s/segments", None),
        ("GET", "spaces/s/segments/a", None),
        ("GET", "spaces/s/segments/a/entries", None),
        ("POST", "spaces/s/segments/a/entries", {"text": "x"}),
        ("GET", "spaces/s/entries", None),
        ("GET", "entries?space=s", None),
        ("POST", "entries", {"spaces": {"s": None}}),
        ("POST", "spaces/s/transactions", {"parts": [{"segment": "a", "records": [{"text": "x"}]}]}),
        ("POST", "spaces/s/entries", b'{"segment":"a","text":"x"}'),
        ("POST", "spaces/s/trim", {"segment": "a", "keep_entries": 1}),
        ("DELETE", "spaces/s", None),
    ],
)
def test_a_key_for_other_spaces_is_refused(guarded: Guarded, method: str, path: str, body: Any) -> None:
    guarded.served.store.produce("s", "a", [Record(b"1")])
    assert send(guarded, fresh(guarded, "admin", spaces=["other"]), method, path, body).status == 403
    if method != "DELETE":
        assert send(guarded, fresh(guarded, "admin", spaces=["s"]), method, path, body).status < 300


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "spaces/s/segments/b", None),
        ("GET", "spaces/s/segments/b/entries", None),
        ("GET", "spaces/s/segments/b/entries/1", None),
        ("POST", "spaces/s/segments/b/entries", {"text": "x"}),
        ("DELETE", "spaces/s/segments/b", None),
        ("POST", "spaces/s/transactions", {"parts": [{"segment": "b", "records": [{"text": "x"}]}]}),
        ("POST", "spaces/s/entries", b'{"segment":"b","text":"x"}'),
        ("POST", "spaces/s/trim", {"segment": "b", "keep_entries": 1}),
        ("POST", "spaces/s/trim", {"keep_entries": 1}),
        ("POST", "spaces/s/erase", {"segment": "b"}),
        ("GET", "spaces/s/entries", None),
        ("GET", "spaces/s/size", None),
        ("GET", "/v1/stores/_", None),
        ("GET", "entries?space=s", None),
        ("DELETE", "spaces/s", None),
        ("PUT", "spaces/s", {}),
        ("GET", "spaces/s/idempotency/of-b", None),
    ],
)
def test_a_key_for_other_segments_is_refused(guarded: Guarded, method: str, path: str, body: Any) -> None:
    guarded.served.store.produce("s", "b", [Record(b"1")], idempotency_key="of-b")
    assert send(guarded, fresh(guarded, "admin", segments=["a"]), method, path, body).status == 403


def test_a_key_with_prefixes_takes_leases_that_are_named_like_what_it_is_for(guarded: Guarded) -> None:
    spaces = fresh(guarded, "write", spaces=["shop-"])
    both = fresh(guarded, "write", spaces=["shop-"], segments=["order-"])
    everything = fresh(guarded, "write")
    for key, name, status in (
        (spaces, "shop-eu", 201),
        (spaces, "shop-us%2Fany", 201),
        (spaces, "other", 403),
        (spaces, "other%2Fshop-", 403),
        (both, "shop-eu%2Forder-1", 201),
        (both, "shop-eu2", 403),
        (both, "shop-eu%2Fstock-1", 403),
        (both, "other%2Forder-1", 403),
        (fresh(guarded, "write", spaces=["a/b"]), "a%2Fb%2Fc", 201),
        (fresh(guarded, "write", spaces=["a/b"], segments=["c"]), "a%2Fb%2Fd%2Fc", 201),
        (fresh(guarded, "write", segments=["c"]), "any%2Fc", 201),
        (fresh(guarded, "write", segments=["c"]), "c", 403),
        (everything, "leader", 201),
    ):
        assert guarded.ask(key, "POST", f"leases/{name}").status == status, name
    taken = guarded.ask(everything, "POST", "leases/mine").json["token"]
    headers = {"Lease-Token": taken}
    for method in ("PUT", "DELETE"):
        assert guarded.ask(spaces, method, "leases/mine", None, headers).status == 403
    # A write with another holder's lease would fence the holder.
    write = "spaces/shop-eu/segments/a/entries"
    assert guarded.ask(spaces, "POST", write, {"text": "x"}, headers).status == 403
    assert guarded.ask(everything, "POST", write, {"text": "x"}, headers).status == 201


def test_lists_hold_only_what_a_key_is_for(guarded: Guarded) -> None:
    store = guarded.served.store
    for space in ("list-a", "list-b"):
        for segment in ("a1", "b1"):
            store.produce(space, segment, [Record(b"1")])
    key = fresh(guarded, "read", spaces=["list-a"], segments=["a"])
    assert [space["name"] for space in guarded.ask(key, "GET", "spaces").json["spaces"]] == ["list-a"]
    found = guarded.ask(key, "GET", "spaces/list-a/segments").json["segments"]
    assert [status["segment"] for status in found] == ["a1"]
    events = guarded.served.events("spaces/list-a/statuses", {"Authorization": f"Bearer {key}"})
    (status,) = events.until("caught-up")[0].data
    assert status["segment"] == "a1"


def test_a_key_ends_when_it_expires_or_is_revoked(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    key = fresh(guarded, "read", ttl=100)
    assert guarded.ask(key, "GET", "spaces").status == 200
    now = time.time()
    monkeypatch.setattr("streamkit.serve.keys.time.time", lambda: now + 101)
    assert guarded.ask(key, "GET", "spaces").status == 401
    monkeypatch.undo()
    guarded.keys.revoke(key.split("_")[1])
    guarded.served.application.service.keys._looked = 0.0  # type: ignore[union-attr]
    assert guarded.ask(key, "GET", "spaces").status == 401
    with pytest.raises(ValueError, match="has no key"):
        guarded.keys.revoke("nothing")


@pytest.mark.parametrize(
    "path",
    ["spaces/s/entries", "spaces/s/segments/a/entries", "entries?space=s", "spaces/s/statuses"],
)
@pytest.mark.parametrize("how", ["revoked", "expired", "a token that expired"])
def test_the_streams_of_a_key_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, how: str) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    key = keys.create(["read"], ttl=100)
    stays = keys.create(["read"])
    limits = Limits(heartbeat_seconds=0.2)
    served = Served("memory://streams-of-keys", keys=keys.path, tokens=Tokens(secret=SECRET), limits=limits)
    try:
        if how == "a token that expired":
            key = token(scope="read streamkit::*")
        ending = served.events(path, {"Authorization": f"Bearer {key}"})
        staying = served.events(path, {"Authorization": f"Bearer {stays}"})
        for events in (ending, staying):
            events.until("caught-up")
        if how == "revoked":
            keys.revoke(key.split("_")[1])
        else:
            now = time.time()
            monkeypatch.setattr("streamkit.serve.keys.time.time", lambda: now + 101)
        assert ending.until("bye")[-1].data == {"reason": "rotate"}
        assert list(ending) == []
        served.store.produce("s", "a", [Record(b"1")])
        assert staying.until("statuses" if "statuses" in path else "entries")
    finally:
        served.close()


def test_a_stream_of_a_revoked_key_ends_although_entries_come_all_the_time(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    key = keys.create(["read"])
    served = Served("memory://busy-streams", keys=keys.path, limits=Limits(heartbeat_seconds=0.2))
    end = threading.Event()

    def write() -> None:
        while not end.is_set():
            served.store.produce("s", "a", [Record(b"1")])

    writing = threading.Thread(target=write)
    try:
        events = served.events("spaces/s/entries", {"Authorization": f"Bearer {key}"})
        events.until("caught-up")
        writing.start()
        events.until("entries")
        keys.revoke(key.split("_")[1])
        assert events.until("bye")[-1].data == {"reason": "rotate"}
    finally:
        end.set()
        writing.join()
        served.close()


def test_the_live_reads_of_the_protocol_end_with_their_key(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    key = keys.create(["read", "write"])
    served = Served("memory://protocol-and-keys", keys=keys.path, limits=Limits(heartbeat_seconds=0.2))
    headers = {"Authorization": f"Bearer {key}"}
    try:
        assert served.ask("PUT", "/v1/stream/a", b"x", {"Content-Type": "text/plain", **headers}).status == 201
        events = served.events("/v1/stream/a?offset=now&live=sse", headers)
        next(events)
        begun = time.monotonic()
        keys.revoke(key.split("_")[1])
        list(events)
        assert time.monotonic() - begun < 30, "it went on until the connection was a minute old"
    finally:
        served.close()


def test_a_file_of_keys_that_is_damaged_later_changes_nothing(guarded: Guarded, caplog: Any) -> None:
    key = fresh(guarded, "read")
    assert guarded.ask(key, "GET", "spaces").status == 200
    good = guarded.keys.path.read_bytes()
    for damaged in (b"", b"{", b'{"version":2,"keys":[]}'):
        guarded.keys.path.write_bytes(damaged)
        guarded.served.application.service.keys._looked = 0.0  # type: ignore[union-attr]
        assert guarded.ask(key, "GET", "spaces").status == 200
        assert guarded.ask("sk_x_y", "GET", "spaces").status == 401
    assert "cannot be read" in caplog.text
    guarded.keys.path.write_bytes(good)


def test_a_wrong_key_is_refused_and_told_nothing(guarded: Guarded) -> None:
    key = fresh(guarded, "read")
    id = key.split("_")[1]
    wrong = [None, "", "x", "sk_", f"sk_{id}", f"sk_{id}_", f"sk_{id}_x", key[:-1], key + "x", key.upper(), "tk_1_2_3"]
    answers = {guarded.ask(one, "GET", "spaces").body for one in wrong}
    assert len(answers) == 1, "wrong keys are told apart"
    assert json.loads(answers.pop())["type"] == "urn:streamkit:unauthenticated"
    for scheme in ("Basic", "bearer", "Bearer  "):
        status = guarded.served.ask("GET", "spaces", headers={"Authorization": f"{scheme} {key}"}).status
        assert status == (401 if scheme == "Basic" else 200)
    assert guarded.served.ask("GET", "/healthz").status == 200


def test_secrets_are_nowhere(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    key = fresh(guarded, "read")
    secret = key.split("_", 2)[2]
    admin = fresh(guarded, "admin")
    guarded.ask(key, "POST", "spaces/s/segments/a/entries", {"text": "x"})
    guarded.ask(key, "GET", "spaces/s/segments/a/entries?after=x")
    told = guarded.ask(admin, "GET", "/metrics").body.decode()
    stored = guarded.keys.path.read_text()
    for text in (told, stored, caplog.text, repr(guarded.keys.read())):
        assert secret not in text
        assert key not in text
    assert 'status="403"' in told
    assert guarded.keys.path.stat().st_mode & 0o077 == 0


def test_a_ticket_opens_one_path_for_a_browser(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded.served.store.produce("s", "tickets", [Record(b"1")])
    path = "/v1/stores/_/spaces/s/segments/tickets/entries"
    made = guarded.ask(fresh(guarded, "read", "write"), "POST", "/v1/tickets", {"path": path})
    assert made.status == 201
    ticket = made.json["ticket"]
    assert guarded.served.events(f"{path}?ticket={ticket}").entries(1)
    assert guarded.served.ask("GET", f"{path}?after=0&ticket={ticket}").status == 200
    assert guarded.served.ask("GET", f"/v1/stores/_/spaces/s/entries?ticket={ticket}").status == 401
    assert guarded.served.ask("POST", f"{path}?ticket={ticket}", {"text": "x"}).status == 403
    assert guarded.served.ask("GET", f"{path}?ticket={ticket[:-1]}x").status == 401
    more = guarded.ask(fresh(guarded, "read"), "POST", "/v1/tickets", {"path": "/v1/tickets"})
    assert (more.status, "no ticket makes other tickets" in more.json["detail"]) == (400, True)
    now = time.time()
    monkeypatch.setattr("streamkit.serve.keys.time.time", lambda: now + 61)
    late = guarded.served.ask("GET", f"{path}?ticket={ticket}")
    assert (late.status, "POST the path to /v1/tickets again" in late.json["detail"]) == (401, True)


def token(secret: bytes = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    return jwt.encode({"exp": time.time() + 60, **claims}, secret, algorithm)


def test_a_token_says_what_its_bearer_may_do(guarded: Guarded) -> None:
    guarded.served.store.produce("s", "a", [Record(b"1")])
    own = guarded.served.id

    def status(method: str, path: str, body: Any = None, **claims: Any) -> int:
        return guarded.ask(token(**claims), method, path, body).status

    entries = "spaces/s/segments/a/entries"
    assert status("GET", entries, scope="read streamkit::*") == 200
    assert status("GET", entries, scope=["read", f"streamkit::{own}"]) == 200
    assert status("GET", entries, scope=f"read streamkit::{uuid4()}") == 403
    assert status("POST", entries, {"text": "x"}, scope="read streamkit::*") == 403
    assert status("POST", entries, {"text": "x"}, scope="write streamkit::*") == 201
    assert status("GET", entries, scope="read streamkit::*", streamkit_spaces=["other"]) == 403
    assert status("GET", entries, scope="read streamkit::*", streamkit_segments=["a"]) == 200
    for claims in ({}, {"scope": "read"}, {"scope": "streamkit::*"}, {"scope": "read streamkit::x"}, {"scope": 7}):
        assert status("GET", entries, **claims) == 401, claims
    assert status("GET", entries, scope="read streamkit::*", streamkit_spaces="s") == 401
    assert status("GET", entries, scope="read streamkit::*", exp=time.time() - 1) == 401
    for wrong in (
        token(b"another secret of thirty-two bytes or more", scope="read streamkit::*"),
        jwt.encode({"scope": "read streamkit::*"}, SECRET, "HS256"),  # never expires
        jwt.encode({"exp": time.time() + 60, "scope": "read streamkit::*"}, "", "none"),
    ):
        assert guarded.ask(wrong, "GET", entries).status == 401


def test_a_secret_that_is_short_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Tokens(secret=b"short")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_without_keys_it_listens_on_this_machine_only(host: str, tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="without keys"):
        make_application(Options(url="memory://x", host=host))
    KeyFile(tmp_path / "keys").create(["read"])
    make_application(Options(url="memory://x", host=host, keys=str(tmp_path / "keys")))
    for own in ("127.0.0.1", "localhost", "::1"):
        make_application(Options(url="memory://x", host=own))


def test_a_name_that_is_not_the_servers_is_refused(serve: Callable[..., Served]) -> None:
    served = serve(hosts=["localhost", "127.0.0.1"])
    assert served.ask("GET", "spaces").status == 200
    assert served.ask("GET", "spaces", headers={"Host": "localhost:4437"}).status == 200
    for host in ("evil.example", "evil.example:80", "", "127.0.0.1.evil.example"):
        refused = served.ask("GET", "spaces", headers={"Host": host})
        assert (refused.status, refused.json["type"]) == (421, "urn:streamkit:misdirected-host")


def test_pages_of_other_sites_need_to_be_allowed(serve: Callable[..., Served]) -> None:
    served = serve(origins=["https://app.example"])
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    allowed = served.ask("OPTIONS", "spaces", headers={"Origin": "https://app.example", **asked})
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    assert "QUERY" in allowed.headers["access-control-allow-methods"]
    other = served.ask("OPTIONS", "spaces", headers={"Origin": "https://evil.example", **asked})
    assert "access-control-allow-origin" not in other.headers
    own = served.ask("GET", "spaces", headers={"Origin": "https://app.example"})
    assert own.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-origin" not in serve().ask("GET", "spaces", headers={"Origin": "https://a.b"}).headers


def test_a_file_of_keys_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=r"does not exist.*keys create"):
        make_application(Options(url="memory://", keys=str(tmp_path / "missing.json")))


def test_a_port_that_is_in_use_is_refused_with_one_line(served: Served) -> None:
    command = [sys.executable, "-m", "streamkit.cli", "serve", "--url", "memory://", "--port", str(served.port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "--port" in ended.stderr


def test_a_url_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "streamkit.cli", "serve", "--url", "gopher://x"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)


def test_a_file_of_keys_that_hangs_holds_up_no_other_request(tmp_path: Path) -> None:
    """The file is a pipe: a reader waits for a writer, as on a network disk that does not answer."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipes in the file system")
    path, pipe, answers = tmp_path / "keys.json", tmp_path / "pipe", list[int]()
    keys = KeyFile(path)
    key = keys.create(["admin"])
    data = path.read_bytes()
    served = Served("memory://piped", keys=path)
    os.mkfifo(pipe)
    path.unlink()
    os.link(pipe, path)
    bearer = {"Authorization": f"Bearer {key}"}
    threads = [
        threading.Thread(target=lambda: answers.append(served.ask("GET", "/v1/keys", headers=bearer).status))
        for _ in range(2)
    ]
    try:
        for thread in threads:
            thread.start()
        for _ in range(3):
            assert served.ask("GET", "/healthz").status == 200
        assert answers == []
    finally:
        (tmp_path / "file").write_bytes(data)
        os.replace(tmp_path / "file", path)
        with open(os.open(pipe, os.O_RDWR), "wb") as written:  # the reader of the pipe goes on
            written.write(data)
        for thread in threads:
            thread.join(PATIENCE)
        served.close()
    assert answers == [200, 200]
