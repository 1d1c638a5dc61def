"""Bad input: each case gets a problem with its code, or a closed connection. Nothing is written, nothing is a 500."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest
from fix_serve import Reply, Served

from streamkit import LeaseGrant, Record
from streamkit.serve import Limits

ENTRIES = "spaces/s/segments/a/entries"
JSON = {"Content-Type": "application/json"}


def check(reply: Reply, status: int, code: str) -> None:
    assert (reply.status, reply.headers.get("content-type")) == (status, "application/problem+json"), reply
    problem = reply.json
    assert problem["type"] == f"urn:streamkit:{code}", problem
    assert problem["status"] == status
    assert problem["detail"]


BODIES = [
    (b"", "application/json", 400, "invalid-body"),
    (b"{", "application/json", 400, "invalid-body"),
    (b'{"json":1', "application/json", 400, "invalid-body"),
    (b"[]x", "application/json", 400, "invalid-body"),
    (b"null", "application/json", 400, "invalid-body"),
    (b"7", "application/json", 400, "invalid-body"),
    (b'"text"', "application/json", 400, "invalid-body"),
    (b'{"json":"\xff"}', "application/json", 400, "invalid-body"),
    (b'{"json":NaN}', "application/json", 400, "invalid-body"),
    (b'{"text":"\\ud800"}', "application/json", 400, "invalid-body"),
    (b'{"json":1,"unknown":2}', "application/json", 400, "invalid-body"),
    (b"{}", "application/json", 400, "invalid-record"),
    (b"[{}]", "application/json", 400, "invalid-record"),
    (b'{"json":1,"text":"x"}', "application/json", 400, "invalid-record"),
    (b'{"records":[{"json":1}],"json":2}', "application/json", 400, "invalid-record"),
    (b'{"records":7}', "application/json", 400, "invalid-body"),
    (b'{"base64":"%%"}', "application/json", 400, "invalid-body"),
    (b'{"text":7}', "application/json", 400, "invalid-body"),
    (b'{"text":"x","sequence":"1"}', "application/json", 400, "invalid-body"),
    (b'{"text":"x","sequence":0}', "application/json", 400, "invalid-record"),
    (b'{"text":"x","sequence":-1}', "application/json", 400, "invalid-record"),
    (b'{"text":"x","sequence":99999999999999999999}', "application/json", 412, "sequence-mismatch"),
    (b'{"text":"x","sequence":7}', "application/json", 412, "sequence-mismatch"),
    (b'{"text":"x","metadata":{"a":1}}', "application/json", 400, "invalid-body"),
    (b'{"text":"x","metadata":[]}', "application/json", 400, "invalid-body"),
    (b'{"json":1}\n{"json":', "application/x-ndjson", 400, "invalid-body"),
    (b'{"json":1}{"json":2}', "application/x-ndjson", 400, "invalid-body"),
    (b"{" * 5000, "application/json", 400, "invalid-body"),
    (b'{"json":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "application/json", 400, "invalid-body"),
    (b"{}", "application/cloudevents+json", 400, "invalid-record"),
    (b"[]", "application/cloudevents+json", 400, "invalid-body"),
    (b'[{"id":"1"}]', "application/cloudevents-batch+json", 400, "invalid-record"),
    (
        b'{"specversion":"1.0","id":"1","source":"s","type":"t","BAD":1}',
        "application/cloudevents+json",
        400,
        "invalid-record",
    ),
    (
        b'{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"%"}',
        "application/cloudevents+json",
        400,
        "invalid-record",
    ),
]


@pytest.fixture(scope="module")
def module_served() -> Iterator[Served]:
    served = Served("memory://bad-input")
    yield served
    served.close()


@pytest.fixture
def empty(module_served: Served) -> Iterator[Served]:
    """A server of which nothing is written."""
    yield module_served
    store = module_served.store
    assert not any(list(store.consume_space(space)) for space in store.get_spaces())


@pytest.mark.parametrize(("body", "content_type", "status", "code"), BODIES)
def test_a_bad_body_is_refused(empty: Served, body: bytes, content_type: str, status: int, code: str) -> None:
    check(empty.ask("POST", ENTRIES, body, {"Content-Type": content_type}), status, code)


HEADERS: list[tuple[dict[str, str], int, str]] = [
    ({"Content-Type": ""}, 415, "unsupported-media-type"),
    ({"If-Match": "7"}, 400, "invalid-request"),
    ({"If-Match": '"x"'}, 400, "invalid-request"),
    ({"If-Match": "*"}, 400, "invalid-request"),
    ({"If-Match": '"99999999999999999999"'}, 400, "invalid-request"),
    ({"If-Match": '"7"'}, 412, "sequence-mismatch"),
    ({"If-None-Match": '"7"'}, 400, "invalid-request"),
    ({"If-Match": '"7"', "If-None-Match": "*"}, 400, "invalid-request"),
    ({"Idempotency-Key": ""}, 400, "invalid-request"),
    ({"Idempotency-Key": "x" * 256}, 400, "invalid-request"),
    ({"Lease-Token": "x"}, 400, "invalid-request"),
    ({"Lease-Token": "\xff"}, 400, "invalid-request"),
    ({"Lease-Token": LeaseGrant("*", 1, 5.0, "x").encode()}, 400, "invalid-request"),
    ({"X-Long": "x" * 40_000}, 431, "headers-too-large"),
]


@pytest.mark.parametrize(("headers", "status", "code"), HEADERS)
def test_a_bad_header_is_refused(empty: Served, headers: dict[str, str], status: int, code: str) -> None:
    check(empty.ask("POST", ENTRIES, b'{"text":"x"}', {**JSON, **headers}), status, code)


@pytest.mark.parametrize("condition", [{"If-Match": '"99"'}, {"If-None-Match": "*"}])
def test_a_condition_that_would_not_be_heeded_is_refused(served: Served, condition: dict[str, str]) -> None:
    served.ask("POST", ENTRIES, {"text": "x"})
    line, parts = b'{"segment": "a", "json": 1}', {"parts": [{"segment": "a", "records": [{"json": 1}]}]}
    ndjson = {"Content-Type": "application/x-ndjson"}
    check(served.ask("POST", "spaces/s/entries", line, {**ndjson, **condition}), 400, "invalid-request")
    check(served.ask("POST", "spaces/s/transactions", parts, condition), 400, "invalid-request")
    check(served.ask("DELETE", "spaces/s/segments/a", headers=condition), 400, "invalid-request")
    check(served.ask("DELETE", "spaces/s", headers=condition), 400, "invalid-request")
    check(served.ask("PUT", "spaces/s", {}, condition), 400, "invalid-request")
    assert served.store.size("s").entries == 1


READS = [
    *((f"{ENTRIES}?{query}", 400, "invalid-argument") for query in (
        "after=-1", "after=x", "after=1.5", "after=", "after=99999999999999999", "limit=0", "limit=10001",
        "limit=%F0%9F%8E%89", "max_bytes=0", "max_bytes=99999999999", "wait=31", "wait=-1", "wait=nan", "wait=x",
        "wait=inf", "reverse=yes", "gaps=no", "from=never", "from=-5", "from=beginning&after=1", "until=x",
        "wait=1&reverse=true", "wait=1&until=5", "wait=1&before=5",
    )),
    *((f"{ENTRIES}?{query}", 400, "invalid-request") for query in (
        "unknown=1", "after=1&after=2", "offset=00", "%ff=1", "after=%ff",
    )),
    *((f"spaces/s/entries?offset={offset}", 400, "invalid-offset") for offset in (
        "", "x", "00", "4f465300", "4f46530002000000", "zz" * 1000,
    )),
    *((f"entries?{query}", 400, code) for query, code in (
        ("", "invalid-argument"), ("space=", "invalid-name"), ("cursor=x", "invalid-offset"),
        ("cursor=e30", "invalid-argument"), ("cursor=%ff", "invalid-request"),
        ("&".join(f"space={n}" for n in range(101)), "invalid-argument"),
        ("space=a&reverse=true", "invalid-argument"),
    )),
    (f"{ENTRIES}/0", 400, "invalid-argument"),
    (f"{ENTRIES}/x", 400, "invalid-argument"),
    ("segments", 404, "not-found"),
    ("spaces/s/segments?limit=x", 400, "invalid-argument"),
    ("spaces/s/segments?after=", 400, "invalid-name"),
    ("spaces/s/transactions/x", 404, "not-found"),
    ("spaces/s/statuses", 406, "not-acceptable"),
    ("/v1/stores/x/spaces", 404, "not-found"),
    ("/", 404, "not-found"),
    ("/v1", 404, "not-found"),
    ("//", 404, "not-found"),
    ("/v1/stores//spaces", 404, "not-found"),
    ("/v1/../etc/passwd", 404, "not-found"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "status", "code"), READS)
def test_a_bad_read_is_refused(empty: Served, path: str, status: int, code: str) -> None:
    check(empty.ask("GET", path), status, code)


@pytest.mark.parametrize("path", [read[0] for read in READS if read[2] == "invalid-offset"])
def test_a_bad_place_of_a_stream_is_refused_before_it_begins(empty: Served, path: str) -> None:
    check(empty.ask("GET", path, headers={"Accept": "text/event-stream"}), 400, "invalid-offset")
    last = {"Accept": "text/event-stream", "Last-Event-ID": "no place"}
    assert empty.ask("GET", "spaces/s/entries", headers=last).status == 400
    assert empty.ask("GET", ENTRIES, headers=last).status == 400


def test_an_offset_of_another_space_is_refused(served: Served) -> None:
    served.store.produce("other", "a", [Record(b"1")])
    offset = served.store.end_offset("other").hex()
    check(served.ask("GET", f"spaces/s/entries?offset={offset}"), 400, "invalid-offset")
    check(served.ask("POST", "entries", {"spaces": {"s": offset}}), 400, "invalid-offset")


ILLEGAL = ["*", "a\0", "\n", "\x7f", "x" * 256, "é" * 128]
LEGAL = ["a/b", "..", ".", "%", "%2F", "a b", "🎉", "é", "x" * 255, "~a", "#?&=", "\\", "'\"", "+"]


@pytest.mark.parametrize("name", ILLEGAL)
def test_a_name_that_is_not_legal_is_refused(empty: Served, name: str) -> None:
    part = quote(name, safe="")
    for method, path, body in (
        ("POST", f"spaces/{part}/segments/a/entries", {"text": "x"}),
        ("POST", f"spaces/s/segments/{part}/entries", {"text": "x"}),
        ("GET", f"spaces/{part}/segments/a/entries", None),
        ("GET", f"spaces/s/segments/{part}", None),
        ("PUT", f"spaces/{part}", {}),
        ("POST", f"leases/{part}", {}),
        ("POST", "spaces/s/transactions", {"parts": [{"segment": name, "records": [{"text": "x"}]}]}),
    ):
        check(empty.ask(method, path, body), 400, "invalid-name")


@pytest.mark.parametrize("part", ["%ff", "~%", "~a", "~w", "%C3"])
def test_a_part_of_the_path_that_is_no_name_is_refused(empty: Served, part: str) -> None:
    check(empty.ask("GET", f"spaces/{part}/entries"), 400, "invalid-name")


def test_every_legal_name_is_its_own(serve: Callable[..., Served]) -> None:
    served = serve()
    for name in LEGAL:
        part = quote(name, safe="").replace("~", "%7E")  # else it begins with the sign of base64url
        posted = served.ask("POST", f"spaces/{part}/segments/{part}/entries", {"text": name})
        assert posted.status == 201, (name, posted)
        assert served.ask("GET", posted.json["href"] + "/entries").json["entries"][0]["text"] == name
    assert list(served.store.get_spaces()) == sorted(LEGAL)


def test_a_wrong_method_is_told_the_right_ones(empty: Served) -> None:
    refused = empty.ask("DELETE", ENTRIES)
    check(refused, 405, "method-not-allowed")
    assert refused.headers["allow"] == "GET, POST, OPTIONS"
    assert empty.ask("OPTIONS", ENTRIES).headers["allow"] == "GET, POST, OPTIONS"
    stream = empty.ask("PATCH", "/v1/stream/s").headers["allow"].split(", ")
    assert sorted(stream) == ["DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "spaces/s", {"partitions": 0}),
        ("PUT", "spaces/s", {"partitions": "x"}),
        ("PUT", "spaces/s", {"unknown": 1}),
        ("PUT", "spaces/s", {"durability": "none"}),
        ("PUT", "spaces/s", {"archive_grace": -1}),
        ("POST", "spaces/s/trim", {}),
        ("POST", "spaces/s/trim", {"keep_entries": 1, "keep_bytes": 1}),
        ("POST", "spaces/s/trim", {"before": 5}),
        ("POST", "spaces/s/trim", {"segment": "a", "before": "x"}),
        ("POST", "spaces/s/trim", {"before": "x"}),
        ("POST", "spaces/s/trim", {"keep_entries": -1, "dry_run": False}),
        ("POST", "spaces/s/trim", {"keep_entries": 1, "dry_run": "no"}),
        ("POST", "spaces/s/erase", {}),
        ("POST", "spaces/s/erase", {"segment": "a", "first": -1}),
        ("POST", "leases/l", {"ttl": 0}),
        ("POST", "leases/l", {"ttl": 1e9}),
        ("POST", "leases/l", []),
        ("PUT", "leases/l", None),
        ("POST", "spaces/s/transactions", {}),
        ("POST", "spaces/s/transactions", {"parts": [{"segment": "a", "records": [], "expected_sequence": -1}]}),
        ("POST", "spaces/s/transactions", {"parts": [{"records": [{"text": "x"}]}]}),
        ("POST", "entries", {"spaces": {}}),
        ("POST", "entries", {"spaces": ["s"], "limit": 0}),
        ("POST", "entries", {"spaces": ["s"], "limit": "x"}),
        ("POST", "entries", {"spaces": ["s"], "from": "never"}),
        ("POST", "entries", {"spaces": {"s": None}, "cursor": "e30"}),
        ("POST", "entries", {"spaces": ["s"], "unknown": 1}),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused(empty: Served, method: str, path: str, body: Any) -> None:
    refused = empty.ask(method, path, body)
    assert refused.status == 400, refused
    assert refused.json["type"].startswith("urn:streamkit:invalid-")


def test_a_body_that_is_too_large_is_refused(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(body_bytes=1000, records=3))
    check(served.ask("POST", ENTRIES, {"text": "x" * 1000}), 413, "body-too-large")
    check(served.ask("POST", ENTRIES, [{"text": "x"}] * 4), 413, "transaction-too-large")
    # In chunks, so that its length is not known before.
    chunks = b"".join(b"258\r\n%b\r\n" % (b"x" * 600) for _ in range(3))
    answer = talk(served, POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert answer.startswith(b"HTTP/1.1 413 "), answer
    assert list(served.store.get_spaces()) == []


def talk(served: Served, data: bytes) -> bytes:
    """Return the answer to these bytes, until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(data)
        found = b""
        while chunk := connection.recv(65536):
            found += chunk
        return found


POST = f"POST /v1/stores/_/{ENTRIES} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()


def test_a_body_that_is_too_slow_is_refused(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(body_seconds=0.1))
    answer = talk(served, POST + b"Content-Length: 100\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408 "), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "urn:streamkit:body-timeout"
    assert list(served.store.get_spaces()) == []


@pytest.mark.parametrize("data", [b"", b"POST /v1", POST, POST + b"Content-Length: 100"])
def test_half_a_request_is_not_waited_for(serve: Callable[..., Served], data: bytes) -> None:
    served = serve(limits=Limits(header_seconds=0.1))
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(data)
        with suppress(ConnectionResetError):
            assert connection.recv(1000) == b""
    assert list(served.store.get_spaces()) == []


def test_half_of_a_later_request_is_not_waited_for(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(header_seconds=0.1))
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"POST /v1")
        with suppress(ConnectionResetError):
            assert connection.recv(1000) == b""


def test_half_a_body_is_not_written(serve: Callable[..., Served]) -> None:
    served = serve()
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(POST + b'Content-Length: 100\r\n\r\n{"text":"x"}')
    assert served.ask("GET", "spaces").json["spaces"] == []


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nxxxxx",
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/stores/_/spaces\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_bytes_that_are_no_http_are_refused(empty: Served, data: bytes) -> None:
    answer = talk(empty, data)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 408 ")), answer


def test_long_headers_end_the_connection(empty: Served) -> None:
    answer = b""
    with (
        socket.create_connection(("127.0.0.1", empty.port), timeout=30) as connection,
        suppress(ConnectionResetError, BrokenPipeError),
    ):
        for number in range(100):
            connection.sendall(b"X-A: " + b"x" * 1000 + b"\r\n" if number else b"GET / HTTP/1.1\r\n")
        while chunk := connection.recv(65536):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 431 ") or not answer


def test_a_payload_that_is_nested_deeply_is_read_as_text(served: Served) -> None:
    served.store.produce("s", "a", [Record(b"[" * 100_000 + b"]" * 100_000)])
    (entry,) = served.ask("GET", ENTRIES).json["entries"]
    assert entry["text"].startswith("[[[")
    assert served.events(ENTRIES).entries(1)[0]["text"] == entry["text"]


def test_the_server_goes_on_after_it_all(empty: Served) -> None:
    deadline = time.monotonic() + 30
    while len(empty.application.service.ticker) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(empty.application.service.ticker) == 0
    assert empty.ask("GET", "spaces").status == 200
