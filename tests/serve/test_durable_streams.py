"""The Durable Streams interface where the protocol's own suite does not look: other processes, time, and attacks."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen
from uuid import uuid4

import fix_serve
import pytest
from fix_serve import Reply, Served

import streamkit
from harness.balanced import Balanced
from streamkit import Record
from streamkit.names import internal_name
from streamkit.serve import Limits
from streamkit.serve.durable.registry import LIST, Registry, segment_of
from streamkit.serve.durable.state import Refused
from streamkit.serve.durable.subscriptions import is_match
from streamkit.serve.durable.webhooks import check_url
from streamkit.serve.keys import KeyFile
from streamkit.testing import ManualClock

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}


def stream(served: Served, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return served.ask(method, f"/v1/stream/{path}", body, {**TEXT, **named})


def producer(id: str, epoch: int, seq: int) -> dict[str, str]:
    return {"Producer_Id": id, "Producer_Epoch": str(epoch), "Producer_Seq": str(seq)}


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


# -- positions ---------------------------------------------------------------------------------------------------


def test_an_offset_of_a_stream_that_was_deleted_is_gone(served: Served) -> None:
    stream(served, "PUT", "a", b"old")
    offset = stream(served, "POST", "a", b"older").headers["stream-next-offset"]
    assert stream(served, "DELETE", "a").status == 204
    assert stream(served, "PUT", "a", b"new").status == 201
    assert stream(served, "GET", f"a?offset={offset}").status == 410
    assert stream(served, "GET", "a").body == b"new"


def test_an_offset_beyond_the_end_is_refused(served: Served) -> None:
    stream(served, "PUT", "a", b"text")
    assert stream(served, "GET", f"a?offset={99:016d}").status == 400


def test_a_deleted_stream_leaves_no_payload_in_its_segment(served: Served) -> None:
    stream(served, "PUT", "a", b"secret")
    stream(served, "DELETE", "a")
    assert [entry.payload for entry in served.store.consume_segment("streams", "a", gaps="skip")] == [b""]


def test_a_segment_that_something_else_wrote_is_left_alone(served: Served) -> None:
    served.store.produce("streams", "a", [Record(b"native")])
    assert {stream(served, method, "a", b"x").status for method in ("PUT", "POST")} == {409}
    assert served.store.peek("streams", "a").payload == b"native"
    assert stream(served, "DELETE", "a").status == 204
    assert stream(served, "PUT", "a", b"mine").status == 201
    assert stream(served, "GET", "a").body == b"mine"


def test_a_stream_whose_segment_was_deleted_by_other_means_can_be_created_again(served: Served) -> None:
    stream(served, "PUT", "a", b"old")
    served.store.delete_segment("streams", "a")
    assert stream(served, "GET", "a").status == 404
    assert stream(served, "PUT", "a", b"new").status == 201
    assert stream(served, "GET", "a").body == b"new"


def test_a_stream_goes_on_after_its_last_message_was_erased(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a server that does not know its state, too."""
    stream(served, "PUT", "a")
    for body in (b"one ", b"two "):
        stream(served, "POST", "a", body)
    end = served.store.segment_status("streams", "a").last_sequence
    served.store.erase("streams", "a", first=end, last=end)
    monkeypatch.setattr(fix_serve, "uuid4", lambda: served.id)
    other = Served(served.url)
    try:
        assert stream(other, "POST", "a", b"three ").status == 204
        assert stream(served, "POST", "a", b"four").status == 204
        for server in (served, other):
            assert stream(server, "GET", "a").body == b"one three four"
        served.store.erase("streams", "a", first=end + 2, last=end + 2)
        assert stream(other, "DELETE", "a").status == 204
        assert stream(served, "PUT", "a", b"new").status == 201
    finally:
        other.close()


def test_a_reader_gets_past_erased_messages_at_the_end(served: Served) -> None:
    """The entry that closes the stream, or forks it, knows the end. It is still there."""
    stream(served, "PUT", "a", b"one ")
    end = stream(served, "POST", "a", b"two").headers["stream-next-offset"]
    assert stream(served, "PUT", "b", Stream_Forked_From="/v1/stream/a").status == 201
    stream(served, "POST", "a", Stream_Closed="true")
    served.store.erase("streams", "a", first=int(end), last=int(end))
    for path in ("a", "b"):
        page = stream(served, "GET", f"{path}?offset=-1")
        assert (page.body, page.headers["stream-next-offset"], page.headers["stream-up-to-date"]) == (
            b"one ",
            end,
            "true",
        )
    assert "stream-closed" in stream(served, "GET", "a?offset=-1&live=long-poll").headers
    with served.events("/v1/stream/a?offset=-1&live=sse") as events:
        assert events.response.read().count(b"event: control") == 1


@pytest.mark.parametrize("path", ["a%2Fb", "a/b//c", "%E2%82%AC", "..", "a%20b", "~YQ", "x" * 255])
def test_paths_name_streams_exactly(served: Served, path: str) -> None:
    assert stream(served, "PUT", path, path.encode()).status == 201
    assert stream(served, "GET", path).body == path.encode()


@pytest.mark.parametrize("path", ["x" * 256, "%00", "%0a", "%ff", "*"])
def test_paths_that_are_no_names_are_refused(served: Served, path: str) -> None:
    assert stream(served, "PUT", path, b"x").status == 400
    assert list(served.store.get_segments("streams")) == []


def test_a_line_that_begins_with_a_space_keeps_it_in_events(served: Served) -> None:
    stream(served, "PUT", "a", b" one\n  two")
    with served.events("/v1/stream/a?offset=-1&live=sse") as events:
        assert events.response.readline() == b"event: data\n"
        assert events.response.readline() == b"data:  one\n"
        assert events.response.readline() == b"data:   two\n"


# -- producers ---------------------------------------------------------------------------------------------------


def test_a_producer_that_has_not_written_for_long_is_still_recognized(served: Served) -> None:
    stream(served, "PUT", "a")
    for number in range(150):
        assert stream(served, "POST", "a", b"%d." % number, **producer(f"p{number}", 3, 0)).status == 200
    for number in (0, 70, 149):
        again = stream(served, "POST", "a", b"again", **producer(f"p{number}", 3, 0))
        assert (again.status, again.headers["producer-seq"]) == (204, "0")
        assert stream(served, "POST", "a", b"old", **producer(f"p{number}", 2, 9)).status == 403
    assert stream(served, "GET", "a").body == b"".join(b"%d." % number for number in range(150))


def _ask(address: str, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
    request = Request(f"{address}/v1/stream/{path}", body or None, {**TEXT, **headers}, method=method)
    try:
        with urlopen(request, timeout=60) as answer:
            answer.read()
            return int(answer.status)
    except Exception as error:
        return int(getattr(error, "code", 0))


def test_two_processes_accept_each_batch_of_a_producer_once(tmp_path: Path) -> None:
    url, store = f"file://{tmp_path}/root", uuid4()
    with Balanced(url, store) as balanced:
        assert _ask(balanced.address, "PUT", "a", b"", {}) == 201
        for seq in range(10):
            headers = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(seq)}
            with ThreadPoolExecutor(8) as pool:
                asked = [pool.submit(_ask, balanced.address, "POST", "a", b"%d." % seq, headers) for _ in range(8)]
            assert sorted(answer.result() for answer in asked) == [200] + [204] * 7
        with urlopen(f"{balanced.address}/v1/stream/a") as answer:
            assert answer.read() == b"".join(b"%d." % seq for seq in range(10))


def test_a_stream_closes_once_though_two_processes_append(tmp_path: Path) -> None:
    url, store = f"file://{tmp_path}/root", uuid4()
    with Balanced(url, store) as balanced:
        assert _ask(balanced.address, "PUT", "a", b"", {}) == 201
        with ThreadPoolExecutor(8) as pool:
            asked = [
                pool.submit(
                    _ask, balanced.address, "POST", "a", b"%02d" % n, {"Stream-Closed": "true"} if n % 5 == 4 else {}
                )
                for n in range(40)
            ]
        accepted = [b"%02d" % n for n, answer in enumerate(asked) if answer.result() == 204]
        with urlopen(f"{balanced.address}/v1/stream/a") as answer:
            assert answer.headers["Stream-Closed"] == "true"
            body = answer.read()
        found = [body[at : at + 2] for at in range(0, len(body), 2)]
    assert sorted(found) == sorted(accepted)
    assert sum(int(part) % 5 == 4 for part in found) == 1
    assert int(found[-1]) % 5 == 4


# -- time --------------------------------------------------------------------------------------------------------


def test_a_use_extends_the_time_to_live(serve: Callable[..., Served]) -> None:
    clock = ManualClock()
    served = serve(clock=clock)
    stream(served, "PUT", "a", b"x", Stream_TTL="100")
    for _ in range(3):
        clock.sleep(90)
        assert stream(served, "GET", "a").status == 200
    clock.sleep(90)
    assert stream(served, "HEAD", "a").status == 200
    clock.sleep(11)
    assert stream(served, "GET", "a").status == 404


def test_expired_streams_are_removed_from_the_storage(serve: Callable[..., Served]) -> None:
    clock = ManualClock()
    served = serve(clock=clock, limits=Limits(upkeep_seconds=0.02))
    stream(served, "PUT", "gone", b"secret", Stream_TTL="100")
    stream(served, "PUT", "used", b"kept", Stream_TTL="100")
    stream(served, "PUT", "late", b"kept", Stream_Expires_At="2999-01-01T00:00:00Z")
    clock.sleep(99)
    stream(served, "POST", "used", b"more")
    clock.sleep(2)

    def payloads(path: str) -> list[bytes]:
        return [entry.payload for entry in served.store.consume_segment("streams", path, gaps="skip") if entry.payload]

    until(lambda: payloads("gone") == [])
    assert payloads("used") == [b"kept", b"more"]
    assert stream(served, "GET", "used").body == b"keptmore"
    assert stream(served, "GET", "late").body == b"kept"
    assert stream(served, "GET", "gone").status == 404
    # The list of expiring streams does not grow with each look.
    until(lambda: len(list(served.store.consume_segment("streams", "__ds/expiry", gaps="skip"))) == 2)


def test_an_expired_fork_frees_its_source(serve: Callable[..., Served]) -> None:
    clock = ManualClock()
    served = serve(clock=clock, limits=Limits(upkeep_seconds=0.02))
    stream(served, "PUT", "source", b"data")
    stream(served, "PUT", "fork", Stream_Forked_From="/v1/stream/source", Stream_TTL="10")
    stream(served, "DELETE", "source")
    assert stream(served, "GET", "source").status == 410
    clock.sleep(11)
    until(lambda: stream(served, "GET", "source").status == 404)


# -- subscriptions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("events/*", "events/a", True),
        ("events/*", "events/a/b", False),
        ("events/*", "events", False),
        ("**", "a/b/c", True),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/**", "b/a", False),
        ("**/z", "z", True),
        ("a/*/c/**", "a/b/c", True),
    ],
)
def test_a_pattern_matches_parts_of_paths(pattern: str, path: str, expected: bool) -> None:
    assert is_match(pattern, path) is expected


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/hook",
        "https://10.0.0.1/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://169.254.169.254/latest/meta-data",
        "https://localhost/",
        "https://metadata.google.internal/",
        "https://user:secret@example.com/",
        "https://example.com/#part",
        "ftp://example.com/",
        "https://192.168.1.1:99999/",
        "http://127.1.2.3/",
        "https:///hook",
        "https://0x7f000001/",
        "https://[::ffff:10.0.0.1]/",
    ],
)
def test_a_webhook_never_goes_into_a_private_network(url: str) -> None:
    with pytest.raises(Refused) as refused:
        check_url(url, loopback=True)
    assert refused.value.code == "WEBHOOK_URL_REJECTED"
    assert "secret" not in refused.value.reason


def test_a_webhook_to_this_machine_needs_leave() -> None:
    assert check_url("http://localhost:8080/hook", loopback=True).port == 8080
    with pytest.raises(Refused):
        check_url("http://localhost:8080/hook", loopback=False)


class Hook:
    """Receives webhooks. `answers`: the statuses to answer with, the last one for ever."""

    def __init__(self, *answers: int) -> None:
        hook = self
        self.received: list[Any] = []
        self._answers = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.received.append(json.loads(body))
                status = hook._answers.pop(0) if len(hook._answers) > 1 else hook._answers[0]
                self.send_response(status)
                self.end_headers()
                self.wfile.write(b'{"done": true}')

            def log_message(self, *_: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook(200)
    yield found
    found.close()


def subscribe(served: Served, id: str, **config: Any) -> Reply:
    return served.ask("PUT", f"/v1/stream/__ds/subscriptions/{id}", json.dumps(config).encode(), JSON)


def acked(served: Served, id: str) -> dict[str, str]:
    reply = served.ask("GET", f"/v1/stream/__ds/subscriptions/{id}")
    return {link["path"]: link["acked_offset"] for link in reply.json["streams"]}


def test_a_webhook_that_failed_is_tried_again(served: Served) -> None:
    hook = Hook(500, 200)
    try:
        subscribe(served, "s", type="webhook", pattern="events/*", webhook={"url": hook.url})
        tail = stream(served, "PUT", "events/a", b"x").headers["stream-next-offset"]
        until(lambda: acked(served, "s").get("events/a") == tail)
        assert [wake["generation"] for wake in hook.received] == [1, 2]
    finally:
        hook.close()


def test_a_pattern_drops_the_streams_that_are_deleted_and_finds_them_when_they_come_again(
    served: Served, hook: Hook
) -> None:
    subscribe(served, "s", type="webhook", pattern="events/*", streams=["events/named"], webhook={"url": hook.url})
    for name in ("events/a", "events/b", "events/named"):
        stream(served, "PUT", name, b"x")
    until(lambda: len([at for at in acked(served, "s").values() if int(at)]) == 3)
    for name in ("events/a", "events/named"):
        assert stream(served, "DELETE", name).status == 204
    until(lambda: acked(served, "s").keys() == {"events/b", "events/named"})
    tail = stream(served, "PUT", "events/a", b"again").headers["stream-next-offset"]
    until(lambda: acked(served, "s").get("events/a") == tail)


def test_messages_that_came_while_no_process_ran_wake_after_the_start(tmp_path: Path, hook: Hook) -> None:
    url = f"file://{tmp_path}/root"
    served = Served(url)
    try:
        subscribe(served, "s", type="webhook", pattern="events/*", webhook={"url": hook.url})
    finally:
        served.close()
    with streamkit.connect(url) as client:
        other = Served(url)
        other.close()
        state = client.store(served.id).peek("streams", "__ds/subscriptions").payload
    assert json.loads(state) == ["s"]
    with Balanced(url, served.id, 1) as balanced:
        assert _ask(balanced.address, "PUT", "events/a", b"x", {}) == 201
        until(lambda: hook.received)


def test_a_worker_of_an_earlier_wake_is_fenced(served: Served) -> None:
    stream(served, "PUT", "wake", Content_Type="application/json")
    stream(served, "PUT", "a", b"")
    subscribe(served, "s", type="pull-wake", streams=["a"], wake_stream="wake", lease_ttl_ms=1000)
    tail = stream(served, "POST", "a", b"x").headers["stream-next-offset"]

    def post(what: str, token: str, **body: Any) -> Reply:
        path = f"/v1/stream/__ds/subscriptions/s/{what}"
        return served.ask("POST", path, json.dumps(body).encode(), {**JSON, "Authorization": f"Bearer {token}"})

    first = until(lambda: (reply := post("claim", "", worker="one")).status == 200 and reply.json)
    second = until(lambda: (reply := post("claim", "", worker="two")).status == 200 and reply.json)
    assert second["generation"] > first["generation"]
    done = {"acks": [{"stream": "a", "offset": tail}], "done": True}
    late = post("ack", first["token"], wake_id=first["wake_id"], generation=first["generation"], **done)
    assert (late.status, late.json["error"]["code"]) == (409, "FENCED")
    forged = post("ack", first["token"], wake_id=second["wake_id"], generation=second["generation"], **done)
    assert forged.status == 409
    assert post("ack", "no.token", wake_id="w", generation=1).status == 401
    good = post("ack", second["token"], wake_id=second["wake_id"], generation=second["generation"], **done)
    assert good.json == {"ok": True, "next_wake": False}
    assert post("claim", "", worker="three").json["error"]["code"] == "NO_PENDING_WORK"


def test_the_signing_key_never_leaves_the_server(served: Served) -> None:
    keys = served.ask("GET", "/v1/stream/__ds/jwks.json")
    assert [sorted(key) for key in keys.json["keys"]] == [["alg", "crv", "kid", "kty", "use", "x"]]
    spaces = [space["name"] for space in served.ask("GET", "spaces").json["spaces"]]
    assert spaces in ([], ["streams"])
    assert served.ask("GET", f"spaces/{quote(internal_name('streams'))}/segments/signing-key/entries").status == 400


def test_half_a_request_writes_nothing(served: Served) -> None:
    stream(served, "PUT", "a", b"")
    with socket.create_connection(("127.0.0.1", served.port)) as half:
        half.sendall(
            b"POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 9\r\n\r\nhalf"
        )
    assert stream(served, "GET", "a").body == b""


# -- keys --------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Served, Callable[..., dict[str, str]]]]:
    """A server that needs keys, and a function that makes one: `key("read", segments=["a"])`."""
    file = KeyFile(tmp_path / "keys.json")
    served = Served(f"file://{tmp_path}/root", keys=tmp_path / "keys.json")

    def key(*scopes: str, **limits: Any) -> dict[str, str]:
        made = file.create(scopes, **limits)
        served.application.service.keys._looked = 0.0  # type: ignore[union-attr]
        return {"Authorization": f"Bearer {made}"}

    yield served, key
    served.close()


def test_a_fork_needs_the_right_to_read_its_source(guarded: tuple[Served, Callable[..., dict[str, str]]]) -> None:
    served, key = guarded
    assert served.ask("PUT", "/v1/stream/theirs/a", b"secret", {**TEXT, **key("admin")}).status == 201
    fork = {"Stream-Forked-From": "/v1/stream/theirs/a"}
    for headers in (key("read", "write", segments=["mine/"]), key("write")):
        assert served.ask("PUT", "/v1/stream/mine/a", b"", {**TEXT, **fork, **headers}).status == 403
    assert served.ask("PUT", "/v1/stream/mine/a", b"", {**TEXT, **fork, **key("read", "write")}).status == 201


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("PUT", "a", "write"),
        ("POST", "a", "write"),
        ("GET", "a", "read"),
        ("HEAD", "a", "read"),
        ("DELETE", "a", "delete"),
        ("GET", "__ds/jwks.json", "read"),
        ("GET", "__ds/subscriptions/s", "read"),
        ("PUT", "__ds/subscriptions/s", "write"),
        ("POST", "__ds/subscriptions/s/claim", "write"),
        ("POST", "__ds/subscriptions/s/streams", "write"),
        ("DELETE", "__ds/subscriptions/s", "delete"),
    ],
)
def test_each_route_needs_its_scope(
    guarded: tuple[Served, Callable[..., dict[str, str]]], method: str, path: str, scope: str
) -> None:
    served, key = guarded
    url = f"/v1/stream/{path}"
    assert served.ask(method, url, None, TEXT).status == 401
    for other in {"read", "write", "delete"} - {scope}:
        assert served.ask(method, url, None, {**TEXT, **key(other)}).status == 403
    assert served.ask(method, url, None, {**TEXT, **key(scope)}).status not in (401, 403)
    limited = served.ask(method, url, None, {**TEXT, **key("admin", segments=["other"])})
    assert limited.status == 403
    assert served.ask(method, url, None, {**TEXT, **key("admin", stores=[uuid4()])}).status == 403


def test_a_worker_acknowledges_with_the_token_of_its_wake(
    guarded: tuple[Served, Callable[..., dict[str, str]]],
) -> None:
    served, key = guarded
    admin = {**JSON, **key("admin")}
    for path in ("wake", "a"):
        served.ask("PUT", f"/v1/stream/{path}", b"", admin)
    config = {"type": "pull-wake", "streams": ["a"], "wake_stream": "wake"}
    subscription = "/v1/stream/__ds/subscriptions/s"
    assert served.ask("PUT", subscription, json.dumps(config).encode(), admin).status == 201
    served.ask("POST", "/v1/stream/a", b"1", admin)
    claim = served.ask("POST", f"{subscription}/claim", b'{"worker": "w"}', admin).json
    report = {"wake_id": claim["wake_id"], "generation": claim["generation"], "done": True}
    body = json.dumps(report).encode()
    assert served.ask("POST", f"{subscription}/ack", body, JSON).status == 401
    assert served.ask("POST", f"{subscription}/ack", body, admin).status == 401
    mine = {**JSON, "Authorization": f"Bearer {claim['token']}"}
    assert served.ask("POST", f"{subscription}/ack", body, mine).status == 200


@pytest.mark.parametrize("authorization", [None, "Bearer no.token", "Basic x"])
def test_a_caller_without_a_token_does_not_learn_which_subscriptions_there_are(
    guarded: tuple[Served, Callable[..., dict[str, str]]], authorization: str | None
) -> None:
    served, key = guarded
    config = json.dumps({"type": "pull-wake", "streams": ["a"], "wake_stream": "wake"}).encode()
    served.ask("PUT", "/v1/stream/__ds/subscriptions/known", config, {**JSON, **key("admin")})
    headers = JSON if authorization is None else {**JSON, "Authorization": authorization}
    body = b'{"wake_id": "w", "generation": 1}'
    for what in ("ack", "callback", "release"):
        known, other = [
            served.ask("POST", f"/v1/stream/__ds/subscriptions/{id}/{what}", body, headers) for id in ("known", "other")
        ]
        assert (known.status, known.body) == (other.status, other.body) == (401, other.body)


def test_a_server_with_keys_sends_no_webhook_to_its_own_machine(
    guarded: tuple[Served, Callable[..., dict[str, str]]], hook: Hook
) -> None:
    served, key = guarded
    config = {"type": "webhook", "pattern": "**", "webhook": {"url": hook.url}}
    url, body = "/v1/stream/__ds/subscriptions/s", json.dumps(config).encode()
    reply = served.ask("PUT", url, body, {**JSON, **key("admin")})
    assert (reply.status, reply.json["error"]["code"]) == (400, "WEBHOOK_URL_REJECTED")


def test_subscriptions_go_on_after_the_last_entries_of_their_segments_were_erased(served: Served) -> None:
    stream(served, "PUT", "wakes", None, Content_Type="application/json")
    config = {"type": "pull-wake", "streams": ["a"], "wake_stream": "wakes"}
    for id in ("s", "t"):
        assert subscribe(served, id, **config).status == 201
    path = "/v1/stream/__ds/subscriptions/s"
    assert served.ask("POST", f"{path}/streams", {"streams": ["b"]}).status == 204
    for segment in (LIST, segment_of("s")):
        end = served.store.segment_status("streams", segment).last_sequence
        served.store.erase("streams", segment, first=end, last=end)
    assert set(acked(served, "s")) == {"a"}
    assert served.ask("POST", f"{path}/streams", {"streams": ["c"]}).status == 204
    assert set(acked(served, "s")) == {"a", "c"}
    assert subscribe(served, "u", **config).status == 201
    assert served.ask("DELETE", path).status == 204
    assert served.ask("GET", path).status == 404


def test_an_erased_message_does_not_wake_a_subscription_again(served: Served) -> None:
    stream(served, "PUT", "wakes", None, Content_Type="application/json")
    for path in ("a", "b"):
        stream(served, "PUT", path)
    assert subscribe(served, "s", type="pull-wake", streams=["a", "b"], wake_stream="wakes").status == 201

    def woken() -> list[str]:
        return [event["stream"] for event in stream(served, "GET", "wakes?offset=-1").json]

    tail = stream(served, "POST", "a", b"one").headers["stream-next-offset"]
    until(lambda: woken() == ["a"])
    end = int(stream(served, "POST", "a", b"two").headers["stream-next-offset"])
    claim = served.ask("POST", "/v1/stream/__ds/subscriptions/s/claim", {"worker": "w"}).json
    assert claim["streams"][0]["tail_offset"] == f"{end:016d}"
    served.store.erase("streams", "a", first=end, last=end)
    body = {
        "wake_id": claim["wake_id"],
        "generation": claim["generation"],
        "acks": [{"stream": "a", "offset": tail}],
        "done": True,
    }
    right = {"Authorization": f"Bearer {claim['token']}"}
    assert served.ask("POST", "/v1/stream/__ds/subscriptions/s/ack", body, right).status == 200
    stream(served, "POST", "b", b"three")
    assert until(lambda: found if len(found := woken()) > 1 else None) == ["a", "b"]


def test_subscriptions_are_loaded_side_by_side_at_the_start(
    serve: Callable[..., Served], make_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    stream(served, "PUT", "wakes", None, Content_Type="application/json")
    for number in range(20):
        config = {"type": "pull-wake", "streams": [f"s{number}"], "wake_stream": "wakes"}
        assert served.ask("PUT", f"/v1/stream/__ds/subscriptions/{number}", config).status == 201
    load, inside, most = Registry.load, [0], [0]

    async def counted(self: Registry, id: str) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        try:
            return await load(self, id)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(Registry, "load", counted)
    again = Served(served.url)
    try:
        again.ask("PUT", f"/v1/stores/{served.id}/stream/x", b"x", TEXT)
        until(lambda: most[0] > 1)
    finally:
        again.close()
