"""The WebSocket `/v1/ws`: many subscriptions, writes, deliveries and leases over one connection."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_serve import Limits, Served
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from streamkit import Record
from streamkit.serve.keys import KeyFile

PATIENCE = 60.0


class Client:
    """A client of a WebSocket. It keeps the messages that it was not asked for yet."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.kept: list[dict[str, Any]] = []
        self._id = 0

    def send(self, op: str, **fields: Any) -> int:
        self._id += 1
        if "from_" in fields:
            fields["from"] = fields.pop("from_")
        self.connection.send(json.dumps({"id": self._id, "op": op, **fields}))
        return self._id

    def next(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first message that `wanted` accepts."""
        for at, message in enumerate(self.kept):
            if wanted(message):
                return self.kept.pop(at)
        while True:
            message = json.loads(self.connection.recv(PATIENCE))
            if wanted(message):
                return message
            self.kept.append(message)

    def answer(self, id: Any) -> dict[str, Any]:
        return self.next(lambda message: message.get("id") == id and "status" in message)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return self.answer(self.send(op, **fields))

    def event(self, id: int, name: str) -> dict[str, Any]:
        return self.next(lambda message: message.get("id") == id and message.get("event") == name)

    def entries(self, id: int, count: int) -> list[dict[str, Any]]:
        """The next `count` entries of a subscription, however they are cut."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            found += self.event(id, "entries")["data"]
        return found

    def end(self) -> int:
        """Read until the end; the code of it."""
        with suppress(ConnectionClosed):
            for text in self.connection:
                self.kept.append(json.loads(text))
        assert self.connection.close_code is not None
        return self.connection.close_code


@contextmanager
def opened(served: Served, path: str = "/v1/ws", host: str = "127.0.0.1", **options: Any) -> Iterator[Client]:
    with connect(f"ws://{host}:{served.port}{path}", max_size=None, compression=None, **options) as connection:
        yield Client(connection)


def problem(answer: dict[str, Any]) -> tuple[int, str]:
    return answer["status"], answer["body"]["type"].removeprefix("urn:streamkit:")


def drain(served: Served) -> None:
    loop = served.application.service._loop
    assert loop is not None
    loop.call_soon_threadsafe(served.application.service.drain)


@pytest.fixture
def two(make_url: Callable[[str], str]) -> Iterator[tuple[Served, Served]]:
    """Two servers of the same store, as two processes would be."""
    one, other = Served(make_url("local")), Served(make_url("local"))
    other.application.service.own_store = one.id
    yield one, other
    one.close()
    other.close()


def test_one_connection_follows_many_places_and_writes(two: tuple[Served, Served]) -> None:
    here, there = two
    here.store.produce("s", "a", [Record(b'{"n":1}'), Record(b"x")])
    here.store.produce("t", "b", [Record(b"\xff")])
    with opened(there) as client:
        segment = client.send("subscribe", space="s", segment="a", after=1)
        space = client.send("subscribe", space="s")
        several = client.send("subscribe", spaces=["s", "t"])
        end = client.send("subscribe", space="s", from_="end")
        statuses = client.send("subscribe", space="s", statuses=True)
        for id in (segment, space, several, end, statuses):
            assert client.answer(id)["status"] == 200
            client.event(id, "caught-up")
        assert [entry["text"] for entry in client.entries(segment, 1)] == ["x"]
        assert [entry["sequence"] for entry in client.entries(space, 2)] == [1, 2]
        assert sorted(entry["space"] for entry in client.entries(several, 3)) == ["s", "s", "t"]
        written = client.ask("produce", space="s", segment="a", records=[{"json": {"n": 3}}])
        assert (written["status"], written["body"]["last_sequence"], written["headers"]["etag"]) == (201, 3, '"3"')
        for id in (segment, space, several, end):
            assert [entry["json"] for entry in client.entries(id, 1)] == [{"n": 3}]
        client.send("unsubscribe", subscription=space)
        assert client.event(space, "bye")["data"] == {"reason": "unsubscribed"}
        here.store.produce("s", "a", [Record(b"4")])
        assert client.entries(end, 1)[0]["sequence"] == 4
        assert not [one for one in client.kept if one.get("id") == space and one.get("event") == "entries"]


def test_a_subscription_goes_on_after_the_place_of_its_last_event_at_another_process(
    two: tuple[Served, Served],
) -> None:
    here, there = two
    here.store.produce("s", "a", [Record(b"%d" % number) for number in range(5)])
    with opened(here) as client:
        places = {
            "after": client.event(client.send("subscribe", space="s", segment="a"), "caught-up")["next"],
            "offset": client.event(client.send("subscribe", space="s"), "caught-up")["next"],
            "cursor": client.event(client.send("subscribe", spaces=["s"]), "caught-up")["next"],
        }
    here.store.produce("s", "a", [Record(b"more")])
    with opened(there) as client:
        for where in (
            {"space": "s", "segment": "a", "after": int(places["after"])},
            {"space": "s", "offset": places["offset"]},
            {"cursor": places["cursor"]},
            {"spaces": {"s": places["offset"]}},
        ):
            assert [entry["text"] for entry in client.entries(client.send("subscribe", **where), 1)] == ["more"]


def test_writes_have_conditions_keys_and_parts_and_answer_with_the_problems_of_http(served: Served) -> None:
    with opened(served) as client:
        record = {"text": "x"}
        first = {"space": "s", "segment": "a", "records": [record]}
        assert client.ask("produce", **first, expected_sequence=0)["status"] == 201
        lost = client.ask("produce", **first, expected_sequence=0)
        assert (problem(lost), lost["body"]["actual"]) == ((412, "sequence-mismatch"), 1)
        once = client.ask("produce", **first, idempotency_key="k")
        again = client.ask("produce", **first, idempotency_key="k")
        assert (once["body"], again["headers"]["idempotent-replayed"]) == (again["body"], "true")
        other = client.ask("produce", space="s", segment="a", records=[{"text": "y"}], idempotency_key="k")
        assert problem(other) == (422, "idempotency-key-reused")
        parts = [{"segment": name, "records": [record], "expected_sequence": at} for name, at in (("a", 2), ("b", 0))]
        assert client.ask("produce", space="s", parts=parts)["status"] == 201
        assert problem(client.ask("produce", space="s", parts=parts))[0] == 412
        exact = '[{"json": {"b": 1.50,  "a": "\\u00e9"}}]'
        client.connection.send('{"id":"w","op":"produce","space":"s","segment":"raw","records":' + exact + "}")
        assert client.answer("w")["status"] == 201
    assert served.store.peek("s", "raw").payload == b'{"b": 1.50,  "a": "\\u00e9"}'
    assert served.store.segment_status("s", "b").last_sequence == 1


def test_writes_to_a_segment_are_committed_in_the_order_in_which_they_were_sent(served: Served) -> None:
    large = [{"text": "x" * 500} for _ in range(300)]
    with opened(served) as client:
        ids = []
        for number in range(60):
            records = large if number % 20 == 0 else [{"text": f"{number}"}]
            ids.append(client.send("produce", space="s", segment=f"a{number % 2}", records=records))
        assert {client.answer(id)["status"] for id in ids} == {201}
    for segment in (0, 1):
        small = [entry.payload for entry in served.store.consume_segment("s", f"a{segment}") if len(entry.payload) < 9]
        assert small == [b"%d" % number for number in range(60) if number % 20 and number % 2 == segment]


def test_deliveries_that_are_not_settled_go_back_when_the_connection_ends(two: tuple[Served, Served]) -> None:
    here, there = two
    here.store.produce("orders", "a", [Record(b"%d" % number) for number in range(6)])
    here.ask("PUT", "spaces/orders/groups/billing", {"lanes": 1, "ack_timeout": 3600})
    group = {"space": "orders", "group": "billing"}
    with opened(here) as client:
        pushed = client.send("subscribe", **group, limit=2)
        first = client.event(pushed, "deliveries")["data"]
        assert [each["entry"]["sequence"] for each in first] == [1, 2]
        settled = client.ask("settle", **group, settle=[{"receipt": first[0]["receipt"]}])
        assert settled["body"]["settled"][0]["lost"] is False
        assert [each["entry"]["sequence"] for each in client.event(pushed, "deliveries")["data"]] == [3]
        got = client.ask("receive", **group, limit=3)["body"]["deliveries"]
        assert [each["entry"]["sequence"] for each in got] == [4, 5, 6]
        receipt = {"receipt": got[0]["receipt"]}
        assert client.ask("receive", **group, settle=[receipt])["body"]["settled"][0]["lost"] is False
    left: list[int] = []
    while len(left) < 4:
        answer = there.ask("POST", "spaces/orders/groups/billing/receive", {"wait": 30}).json
        left += [each["entry"]["sequence"] for each in answer["deliveries"]]
        assert {each["attempt"] for each in answer["deliveries"]} <= {1}, "what was handed back does not count"
    assert sorted(left) == [2, 3, 5, 6]


def test_a_queue_takes_and_gives_jobs(served: Served) -> None:
    served.ask("PUT", "queues/mails", {})
    with opened(served) as client:
        waiting = client.send("receive", queue="mails", wait=30)
        assert client.ask("jobs", queue="mails", jobs=[{"text": "x"}], priority=5)["body"]["count"] == 1
        (job,) = client.answer(waiting)["body"]["deliveries"]
        assert job["entry"]["text"] == "x"
        assert client.ask("settle", queue="mails", settle=[{"receipt": job["receipt"]}])["status"] == 200
    assert served.ask("GET", "queues/mails").json["lag"] == 0


def test_a_lease_is_acquired_renewed_released_and_fences_writes(served: Served) -> None:
    with opened(served) as client:
        taken = client.ask("acquire", lease="leader", ttl=30)
        token = taken["body"]["token"]
        assert problem(client.ask("acquire", lease="leader")) == (409, "lease-held")
        write = {"space": "s", "segment": "a", "records": [{"text": "x"}]}
        assert client.ask("produce", **write, lease_token=token)["status"] == 201
        assert client.ask("renew", lease="leader", token=token)["body"]["fence"] == taken["body"]["fence"]
        assert client.ask("release", lease="leader", token=token)["status"] == 204
        newer = client.ask("acquire", lease="leader")["body"]["token"]
        assert client.ask("produce", **write, lease_token=newer)["status"] == 201
        assert problem(client.ask("produce", **write, lease_token=token)) == (409, "fenced")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "invalid-body"),
        ("[]", "invalid-body"),
        ('{"op":"ping"}', "invalid-body"),
        ('{"id":true,"op":"ping"}', "invalid-body"),
        ('{"id":"' + "x" * 101 + '","op":"ping"}', "invalid-argument"),
        ('{"id":1,"op":"nothing"}', "invalid-argument"),
        ('{"id":1,"op":"subscribe"}', "invalid-argument"),
        ('{"id":1,"op":"subscribe","space":"s","segment":"a","offset":"00"}', "invalid-argument"),
        ('{"id":1,"op":"subscribe","space":"s","gaps":"all"}', "invalid-argument"),
        ('{"id":1,"op":"subscribe","space":"s","after":-1,"segment":"a"}', "invalid-argument"),
        ('{"id":1,"op":"subscribe","space":"s","offset":"zz"}', "invalid-offset"),
        ('{"id":1,"op":"subscribe","space":"s","queue":"q"}', "invalid-argument"),
        ('{"id":1,"op":"subscribe","space":"","segment":"a"}', "not-found"),
        ('{"id":1,"op":"subscribe","space":"s","group":"none"}', "not-found"),
        ('{"id":1,"op":"subscribe","spaces":["s"],"what":1}', "invalid-body"),
        ('{"id":1,"op":"unsubscribe","subscription":7}', "not-found"),
        ('{"id":1,"op":"produce","space":"s","segment":"a","records":{}}', "invalid-argument"),
        ('{"id":1,"op":"produce","space":"s","segment":"a","records":[{}]}', "invalid-record"),
        ('{"id":1,"op":"produce","space":"s","segment":"a"}', "invalid-argument"),
        ('{"id":1,"op":"produce","space":"s","segment":"a","records":[],"parts":[]}', "invalid-argument"),
        ('{"id":1,"op":"produce","space":"s","parts":[{"segment":1}]}', "invalid-body"),
        ('{"id":1,"op":"produce","space":"s","segment":"a","records":[],"lease_token":"a\\r\\nX"}', "invalid-argument"),
        ('{"id":1,"op":"receive","queue":"none"}', "not-found"),
        ('{"id":1,"op":"receive","queue":"q","wait":31}', "invalid-argument"),
        ('{"id":1,"op":"settle","queue":"q"}', "invalid-body"),
        ('{"id":1,"op":"renew","lease":"l","token":"forged"}', "invalid-request"),
        ('{"id":1,"op":"ping","store":' + "[" * 5000 + "]" * 5000 + "}", "invalid-body"),
        ('{"id":1,"op":"produce","store":"nothing","space":"s","segment":"a","records":[{"text":"x"}]}', "not-found"),
    ],
)  # fmt: skip
def test_a_message_that_is_not_valid_is_answered_and_the_connection_goes_on(
    shared: Served, message: str, code: str
) -> None:
    with opened(shared) as client:
        client.connection.send(message)
        answer = client.next(lambda message: "status" in message)
        assert answer["body"]["type"] == f"urn:streamkit:{code}", answer
        assert client.ask("ping") == {"id": 1, "status": 200}
    assert shared.store.segment_status("s", "a").last_sequence == 0


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    found = Served("memory://bad-messages")
    yield found
    found.close()


def test_an_id_names_one_subscription(served: Served) -> None:
    with opened(served) as client:
        message = json.dumps({"id": "x", "op": "subscribe", "space": "s"})
        client.connection.send(message)
        client.next(lambda message: message.get("event") == "caught-up")
        client.connection.send(message)
        assert problem(client.next(lambda message: message.get("status", 200) != 200)) == (409, "conflict")


def test_a_drain_says_bye_and_closes_with_1012_and_gives_deliveries_back(two: tuple[Served, Served]) -> None:
    here, there = two
    here.store.produce("orders", "a", [Record(b"1"), Record(b"2")])
    here.ask("PUT", "spaces/orders/groups/billing", {"ack_timeout": 3600})
    with opened(here) as client:
        followed = client.send("subscribe", space="orders")
        client.event(client.send("subscribe", space="orders", group="billing", limit=1), "deliveries")
        assert client.ask("receive", space="orders", group="billing")["body"]["deliveries"]
        client.event(followed, "caught-up")
        drain(here)
        assert client.end() == 1012
        assert client.next(lambda message: "id" not in message)["data"]["reason"] == "drain"
        assert client.event(followed, "bye")["data"] == {"reason": "drain"}
    with pytest.raises(InvalidStatus) as refused, opened(here):
        pass
    assert refused.value.response.status_code == 503
    left: list[int] = []
    while len(left) < 2:
        answer = there.ask("POST", "spaces/orders/groups/billing/receive", {"wait": 30}).json
        left += [each["entry"]["sequence"] for each in answer["deliveries"]]


def test_the_process_ends_while_connections_are_open(make_url: Callable[[str], str]) -> None:
    served = Served(make_url("memory"))
    with opened(served) as client:
        client.event(client.send("subscribe", space="s"), "caught-up")
        closing = threading.Thread(target=served.close)
        closing.start()
        assert client.end() == 1012
        assert client.next(lambda message: "id" not in message)["event"] == "bye"
        closing.join(PATIENCE)
        assert not closing.is_alive()


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"POST /v1/ws", b""),
        (b"POST /v1/stores/_/spaces/a/entries", b"Content-Length: 2\r\n\r\n{}"),
        (b"GET /v1/ws", b"Content-Length: 2\r\n\r\n{}"),
        (b"GET /v1/ws", b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (b"GET /v1/ws", b"Authorization: Bearer " + b"x" * 9_000 + b"\r\n"),
        (b"GET /v1/ws?ticket=" + b"x" * 9_000, b""),
        (b"GET /v1/ws", b"".join(b"X-%d: 1\r\n" % number for number in range(200))),
    ],
    ids=["a post", "a post with a body", "a body", "chunks", "a long header", "a long path", "many headers"],
)
def test_an_upgrade_that_is_no_handshake_is_refused(served: Served, start: bytes, more: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.port), PATIENCE) as sock:
        upgrade = b"Host: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        sock.sendall(start + b" HTTP/1.1\r\n" + upgrade + more + b"\r\n")
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["type"] == "urn:streamkit:invalid-request"
    assert served.ask("GET", "/healthz").status == 200


def test_limits_hold_for_connections_subscriptions_and_messages(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(streams=3, subscriptions=2, message_bytes=2_000))
    gate = served.application.service.gate
    with opened(served) as client:
        for _ in range(2):
            client.event(client.send("subscribe", space="s"), "caught-up")
        assert problem(client.ask("subscribe", space="s")) == (429, "too-many-requests")
        with pytest.raises(InvalidStatus) as refused, opened(served):
            pass
        assert refused.value.response.status_code == 429
        assert refused.value.response.headers["retry-after"]
        assert client.ask("produce", space="s", segment="a", records=[{"text": "x" * 1_000}])["status"] == 201
        client.send("produce", space="s", segment="a", records=[{"text": "x" * 2_000}])
        assert client.end() == 1009
    while gate.streams or gate.requests or gate.body_bytes:
        time.sleep(0.001)
    with opened(served) as client:
        client.connection.send(b"bytes")
        assert client.end() == 1003


def test_a_client_that_does_not_read_costs_the_others_nothing_and_is_cut(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(write_seconds=5, ring_bytes=1 << 20))
    with opened(served, close_timeout=0.1) as stalled, opened(served) as reading:
        for client in (stalled, reading):
            client.event(client.send("subscribe", space="s"), "caught-up")
        # More than the ring and the buffers of a connection hold.
        for _ in range(40):
            served.store.produce("s", "a", [Record(b"x" * (1 << 20))])
            assert len(reading.entries(1, 1)) == 1
        while served.application.service.gate.streams > 2:
            time.sleep(0.01)
        assert reading.ask("ping")["status"] == 200


def test_a_connection_that_falls_behind_the_ring_reads_pages_again(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(ring_bytes=1))
    with opened(served) as client:
        id = client.send("subscribe", space="s")
        client.event(id, "caught-up")
        for number in range(200):
            served.store.produce("s", "a", [Record(b"%d" % number)])
        assert [entry["json"] for entry in client.entries(id, 200)] == list(range(200))


# -- who may open it ------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Served, KeyFile]]:
    keys = KeyFile(tmp_path / "keys.json")
    keys.create(["read"])
    served = Served(
        f"memory://sockets-{uuid4()}",
        keys=keys.path,
        origins=["https://shop.example"],
        limits=Limits(heartbeat_seconds=0.2),
    )
    yield served, keys
    served.close()


def fresh(guarded: tuple[Served, KeyFile], *scopes: str, **bounds: Any) -> str:
    served, keys = guarded
    key = keys.create(scopes, **bounds)
    served.application.service.keys._looked = 0.0  # type: ignore[union-attr]
    return key


def bearer(key: str) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": f"Bearer {key}"}}


def status_of(served: Served, path: str = "/v1/ws", **options: Any) -> int:
    try:
        with opened(served, path, **options) as client:
            assert client.ask("ping")["status"] == 200
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


def test_a_key_comes_as_a_header_a_subprotocol_or_a_ticket(guarded: tuple[Served, KeyFile]) -> None:
    served, _ = guarded
    key = fresh(guarded, "read", "write")
    assert status_of(served) == 401
    assert status_of(served, **bearer(key)) == 101
    assert status_of(served, **bearer(key + "x")) == 401
    protocols: Any = ["streamkit", f"streamkit.bearer.{key}"]
    with opened(served, subprotocols=protocols) as client:
        assert client.connection.subprotocol == "streamkit", "the key is not sent back"
        assert client.ask("produce", space="s", segment="a", records=[{"text": "x"}])["status"] == 201
    assert status_of(served, subprotocols=["streamkit", "streamkit.bearer.sk_x_y"]) == 401
    made = served.ask("POST", "/v1/tickets", {"path": "/v1/ws"}, {"Authorization": f"Bearer {key}"}).json["ticket"]
    with opened(served, f"/v1/ws?ticket={made}") as client:
        assert client.entries(client.send("subscribe", space="s"), 1)
        refused = client.ask("produce", space="s", segment="a", records=[{"text": "x"}])
        assert problem(refused) == (403, "forbidden")
    assert status_of(served, f"/v1/ws?ticket={made}x") == 401
    assert status_of(served, "/v1/nothing", **bearer(key)) == 404


def test_each_message_needs_the_scopes_and_prefixes_of_its_request(guarded: tuple[Served, KeyFile]) -> None:
    served, _ = guarded
    served.store.produce("shop-eu", "order-1", [Record(b"1")])
    served.store.group("shop-eu", "g")
    write = {"op": "produce", "space": "shop-eu", "segment": "order-1", "records": [{"text": "x"}]}
    read = {"op": "subscribe", "space": "shop-eu", "segment": "order-1"}
    for bounds, message, wanted in (
        ({"scopes": ["read"]}, write, 403),
        ({"scopes": ["write"]}, write, 201),
        ({"scopes": ["write"]}, read, 403),
        ({"scopes": ["read"]}, read, 200),
        ({"scopes": ["read", "write"], "spaces": ["other"]}, read, 403),
        ({"scopes": ["read", "write"], "spaces": ["other"]}, write, 403),
        ({"scopes": ["read", "write"], "segments": ["stock-"]}, read, 403),
        ({"scopes": ["read", "write"], "segments": ["stock-"]}, write, 403),
        ({"scopes": ["read"], "stores": [uuid4()]}, read, 403),
        ({"scopes": ["read"], "segments": ["order-"]}, {"op": "subscribe", "space": "shop-eu"}, 403),
        ({"scopes": ["read"], "spaces": ["shop"]}, {"op": "subscribe", "spaces": ["shop-eu", "other"]}, 403),
        ({"scopes": ["read"]}, {"op": "subscribe", "space": "shop-eu", "group": "g"}, 403),
        ({"scopes": ["read"]}, {"op": "receive", "space": "shop-eu", "group": "g"}, 403),
        ({"scopes": ["read"]}, {"op": "settle", "space": "shop-eu", "group": "g", "settle": []}, 403),
        ({"scopes": ["read"]}, {"op": "acquire", "lease": "l"}, 403),
        ({"scopes": ["write"], "spaces": ["shop"]}, {"op": "acquire", "lease": "l"}, 403),
    ):
        with opened(served, **bearer(fresh(guarded, *bounds.pop("scopes"), **bounds))) as client:  # type: ignore[misc]
            assert client.ask(message["op"], **{k: v for k, v in message.items() if k != "op"})["status"] == wanted, (
                bounds,
                message,
            )


def test_a_page_of_another_site_is_refused(guarded: tuple[Served, KeyFile], serve: Callable[..., Served]) -> None:
    served, _ = guarded
    key = fresh(guarded, "read")
    for origin, wanted in (
        ("https://evil.example", 403),
        ("null", 403),
        ("https://shop.example", 101),
        (f"http://127.0.0.1:{served.port}", 101),
        (f"http://127.0.0.1:{served.port + 1}", 403),
    ):
        assert status_of(served, origin=origin, **bearer(key)) == wanted, origin  # type: ignore[arg-type]
    local = serve(hosts=["127.0.0.1", "localhost"])
    assert status_of(local, origin="https://evil.example") == 403  # type: ignore[arg-type]
    with socket.create_connection(("127.0.0.1", local.port)) as rebound:
        assert status_of(local, sock=rebound, host="evil.example") == 421
    assert status_of(local) == 101
    assert local.ask("GET", "/v1/ws").status == 426


def test_a_connection_ends_with_its_key(guarded: tuple[Served, KeyFile]) -> None:
    served, keys = guarded
    key = fresh(guarded, "read", "write")
    with opened(served, **bearer(key)) as client:
        followed = client.send("subscribe", space="s")
        client.event(followed, "caught-up")
        keys.revoke(key.split("_")[1])
        assert client.end() == 1008
        assert client.next(lambda message: "id" not in message)["data"]["reason"] == "rotate"
        assert client.event(followed, "bye")["data"] == {"reason": "rotate"}


# -- topics ---------------------------------------------------------------------------------------------------------


def test_the_interface_of_topics_has_a_socket_with_the_bodies_of_its_routes(make_url: Callable[[str], str]) -> None:
    served = Served(make_url("local"), topics=True)
    try:
        served.ask("PUT", "/v0/topics/jobs", {"type": "queue"})
        with opened(served, "/v0/ws") as client:
            added = client.ask("append", topic="log", records=[{"data": {"n": 1}, "tag": "t"}])
            assert (added["status"], added["body"]["seqs"]) == (201, [1])
            watch = client.send("watch", topics={"log": {}})
            assert client.event(watch, "record")["data"]["records"][0]["data"] == {"n": 1}
            client.ask("append", topic="log", records=[{"data": 2}])
            assert client.event(watch, "record")["data"]["to_seq"] == 2
            waiting = client.send("diff", topic="log", from_seq=2, wait_ms=30_000)
            client.ask("append", topic="log", records=[{"data": 3}])
            assert [record["data"] for record in client.answer(waiting)["body"]["records"]] == [3]
            client.ask("append", topic="jobs", records=[{"data": "job"}])
            job = client.event(client.send("work", topic="jobs", node="w"), "job")["data"]
            assert client.ask("ack", topic="jobs", node="w", seqs=[job["$seq"]])["body"]["acked"] == 1
            missing = client.ask("diff", topic="nothing")
            assert (missing["status"], missing["body"]["error"]["code"]) == (404, "topic_not_found")
            assert client.ask("nothing")["body"]["error"]["code"] == "invalid_request"
            client.connection.send("{")
            assert client.answer(None)["body"]["error"]["code"] == "invalid_request"
    finally:
        served.close()
