"""Attacks by a caller who knows the code: smuggled headers, floods, detours, clients that do not read."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from fix_serve import Served

from streamkit import Record, Retention
from streamkit.serve import Limits
from streamkit.serve.durable.state import Refused
from streamkit.serve.durable.webhooks import Target, check_url, is_public, send
from streamkit.serve.keys import KeyFile
from streamkit.serve.names import _name_of

ENTRIES = "spaces/s/segments/a/entries"
POST = f"POST /v1/stores/_/{ENTRIES} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n".encode()


def talk(served: Served, *pieces: bytes) -> bytes:
    """Return the answer to these bytes, until the server closes the connection or is silent for a second."""
    found = b""
    with socket.create_connection(("127.0.0.1", served.port), timeout=1) as connection:
        with suppress(OSError):
            for piece in pieces:
                connection.sendall(piece)
        with suppress(OSError):
            while chunk := connection.recv(65536):
                found += chunk
    return found


# -- messages that two programs may understand in two ways -----------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Host: other\r\nTransfer-Encoding: chunked\r\n",
        b"X-A: b\r\n c\r\nTransfer-Encoding: chunked\r\n",
        b"X-A: b\rc\r\nTransfer-Encoding: chunked\r\n",
        b"X-A: b\0c\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: +1\r\n",
        b"Content-Length: 1, 1\r\n",
        b"Content-Length: 0x1\r\n",
        b"Content-Length: 1\r\nContent-Length: 1\r\n",
    ],
)
def test_an_ambiguous_message_is_refused(served: Served, headers: bytes) -> None:
    answer = talk(served, POST + headers + b"\r\n1\r\nx\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert answer.count(b"content-length: ") == 1, "what follows was taken for another request"
    assert list(served.store.get_spaces()) == []


def test_a_request_without_a_host_is_refused(served: Served) -> None:
    assert talk(served, b"GET /healthz HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert talk(served, b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_a_trailer_becomes_no_header(served: Served) -> None:
    trailers = b'Metadata-evil: 1\r\nIdempotency-Key: k\r\nIf-Match: "7"\r\n'
    answer = talk(served, POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + trailers + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 201 "), answer
    assert [dict(entry.metadata) for entry in served.store.consume_space("s")] == [{}]


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"1\r\nx\r\n0\r\n", b"X-Trailer: " + b"x" * 1_000 + b"\r\n"),
        (b"1\r\nx\r\n0\r\nX-Trailer: ", b"x" * 1_000),
        (b"1;extension=", b"x" * 1_000),
        (b"", b"1;" + b"x" * 1_000 + b"\r\nx\r\n"),
    ],
)
def test_a_flood_beside_a_body_ends_the_connection(served: Served, start: bytes, piece: bytes) -> None:
    with (
        socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection,
        suppress(ConnectionResetError, BrokenPipeError),
    ):
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + start)
        for _ in range(100_000):
            connection.sendall(piece)
        raise AssertionError("100 MB were taken")
    assert list(served.store.get_spaces()) == []


def test_a_body_of_small_chunks_is_fine(served: Served) -> None:
    chunks = b"1\r\nx\r\n" * 50_000
    assert talk(served, POST + b"Transfer-Encoding: chunked\r\n\r\n", chunks, b"0\r\n\r\n").startswith(b"HTTP/1.1 201 ")
    assert served.store.peek("s", "a").payload == b"x" * 50_000


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "zstd", "gzip, identity", "x"])
@pytest.mark.parametrize("path", [f"/v1/stores/_/{ENTRIES}", "/v1/stream/a"])
def test_a_compressed_body_is_refused(served: Served, coding: str, path: str) -> None:
    served.ask("PUT", "/v1/stream/a", b"", {"Content-Type": "text/plain"})
    headers = {"Content-Type": "text/plain", "Content-Encoding": coding}
    refused = served.ask("POST", path, gzip.compress(b"x"), headers)
    assert (refused.status, refused.headers["accept-encoding"]) == (415, "identity")
    headers["Content-Encoding"] = "identity"
    assert served.ask("POST", path, b"x", headers).status in (201, 204)


@pytest.mark.parametrize("headers", [b"gzip\r\nContent-Encoding: identity", b"identity\r\nContent-Encoding: gzip"])
def test_a_body_with_two_codings_in_two_headers_is_refused(served: Served, headers: bytes) -> None:
    answer = talk(served, POST + b"Content-Encoding: " + headers + b"\r\nContent-Length: 1\r\n\r\nx")
    assert answer.startswith(b"HTTP/1.1 415 "), answer
    assert list(served.store.get_spaces()) == []


@pytest.mark.parametrize("space", [b" ", b"\t", b" \t "])
def test_white_space_around_the_value_of_a_header_is_no_part_of_it(served: Served, space: bytes) -> None:
    for end in (b"", space):
        headers = b"Idempotency-Key:%bk%b\r\nMetadata-a: 1%b\r\n" % (space, end, end)
        answer = talk(served, POST + headers + b"Content-Length: 1\r\n\r\nx")
        assert answer.startswith(b"HTTP/1.1 201 "), answer
    assert b"idempotent-replayed: true" in answer
    assert [dict(entry.metadata) for entry in served.store.consume_space("s")] == [{"a": "1"}]
    condition = b'If-Match: "1"%b\r\nContent-Length: 1%b\r\n\r\ny' % (space, space)
    assert talk(served, POST + condition).startswith(b"HTTP/1.1 201 ")


def test_white_space_after_the_last_transfer_coding_changes_nothing(served: Served) -> None:
    answer = talk(served, POST + b"Transfer-Encoding: chunked \r\n\r\n1\r\nx\r\n0\r\n\r\n")
    assert (answer[:13], answer.count(b"content-length: ")) == (b"HTTP/1.1 201 ", 1)
    assert [entry.payload for entry in served.store.consume_space("s")] == [b"x"]


BOUNDED = ["/console/session", "/v1/stores/_/spaces/s/trim", "/v1/stores/_/leases/s"]


@pytest.mark.parametrize("path", BOUNDED)
def test_a_body_that_holds_no_records_is_refused_before_it_is_read(served: Served, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n".encode()
    head += b"Content-Type: application/json\r\n"
    answer = talk(served, head + b"Expect: 100-continue\r\nContent-Length: 2000000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 "), answer
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    assert b"HTTP/1.1 413 " in talk(served, head + b"Transfer-Encoding: chunked\r\n\r\n", chunk, chunk)


def test_the_body_of_a_caller_without_a_token_is_not_read(served: Served) -> None:
    head = b"POST /v1/stream/__ds/subscriptions/x/ack HTTP/1.1\r\nHost: localhost\r\n"
    answer = talk(served, head + b"Expect: 100-continue\r\nContent-Length: 2000000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 401 "), answer


# -- clients that do not read ----------------------------------------------------------------------------------------


def test_a_client_that_does_not_read_its_page_is_cut(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(write_seconds=0.2))
    for _ in range(8):
        served.store.produce("s", "a", [Record(b"x" * (1 << 20))])
    request = f"GET /v1/stores/_/{ENTRIES}?max_bytes=8388608 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", served.port))
        connection.sendall(request)
        connections = served.server.server_state.connections
        _until(lambda: len(connections) == 1)
        _until(lambda: not connections)


def test_a_client_that_reads_slowly_gets_its_page(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(write_seconds=1.5))
    for _ in range(8):
        served.store.produce("s", "a", [Record(b"x" * (1 << 20))])
    request = f"GET /v1/stores/_/{ENTRIES}?max_bytes=8388608 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    found = 0
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(request.encode())
        begun = time.monotonic()
        while chunk := connection.recv(1 << 18):
            found += len(chunk)
            time.sleep(0.06)
        assert time.monotonic() - begun > 1.5
    assert found > 8 << 20


def _until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# -- numbers and names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["max_entries", "max_bytes"])
def test_a_number_that_no_format_holds_is_refused(served: Served, field: str) -> None:
    served.ask("PUT", "spaces/s")
    for method, path, body in (
        ("PATCH", "spaces/s", {field: 1 << 63}),
        ("PUT", "spaces/new", {"retention": {field: 1 << 64}}),
    ):
        refused = served.ask(method, path, body)
        assert (refused.status, refused.json["type"]) == (400, "urn:streamkit:invalid-argument"), refused
    with pytest.raises(ValueError, match="from 1 to"):
        served.store.set_retention("s", Retention(**{field: 1 << 63}))
    assert served.ask("GET", "spaces").json["spaces"] == [{"name": "s", "href": f"/v1/stores/{served.id}/spaces/s"}]


def test_long_parts_of_paths_are_not_remembered(served: Served) -> None:
    before = _name_of.cache_info().currsize
    for number in range(20):
        assert served.ask("GET", f"spaces/{number}{'x' * 20_000}").status == 400
    assert _name_of.cache_info().currsize == before


def test_a_body_of_many_lines_is_refused_soon(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(records=3))
    lines = {"Content-Type": "application/x-ndjson"}
    for path in (ENTRIES, "spaces/s/entries"):
        refused = served.ask(
            "POST",
            path,
            b'{"segment":"a","text":"x"}\n' * 4 if "segments" not in path else b'{"text":"x"}\n' * 4,
            lines,
        )
        assert (refused.status, refused.json["type"]) == (413, "urn:streamkit:transaction-too-large"), refused
        begun = time.monotonic()
        served.ask("POST", path, b" \n" * (8 << 20), lines)
        assert time.monotonic() - begun < 20
    told = served.ask("POST", ENTRIES, b'\r\n \n{"text":"x"}\n\n{"text":', lines).json["detail"]
    assert told.startswith("line 5 of the body")
    assert served.ask("POST", ENTRIES, b'\r\n \t\r\n {"text":"x"} \r\n\n', lines).status == 201


def test_a_request_of_the_protocol_has_as_many_messages_as_one_of_the_native_interface(
    serve: Callable[..., Served],
) -> None:
    served = serve(limits=Limits(records=3))
    headers = {"Content-Type": "application/json"}
    assert served.ask("PUT", "/v1/stream/b", b"[1,2,3,4]", headers).status == 413
    assert served.ask("PUT", "/v1/stream/a", b"[1,2,3]", headers).status == 201
    assert served.ask("POST", "/v1/stream/a", b"[1,2,3,4]", headers).status == 413
    assert served.ask("POST", "/v1/stream/a", b"[4]", headers).status == 204
    assert served.ask("GET", "/v1/stream/a").json == [1, 2, 3, 4]


def test_a_cursor_of_very_many_spaces_is_refused(served: Served) -> None:
    import base64
    import json

    cursor = base64.urlsafe_b64encode(json.dumps({"*": None, **{str(n): None for n in range(200)}}).encode()).decode()
    refused = served.ask("POST", "entries", {"cursor": cursor.rstrip("=")})
    assert (refused.status, refused.json["type"]) == (400, "urn:streamkit:invalid-argument"), refused


# -- browsers --------------------------------------------------------------------------------------------------------


def test_a_page_of_an_allowed_site_may_read_streams(serve: Callable[..., Served]) -> None:
    served = serve(origins=["https://app.example"])
    served.ask("PUT", "/v1/stream/a", b"x", {"Content-Type": "text/plain"})
    for path in ("spaces/s/entries", "spaces/s/statuses", "/v1/stream/a?offset=-1&live=sse"):
        allowed = served.events(path, {"Origin": "https://app.example"}).response
        assert allowed.getheader("Access-Control-Allow-Origin") == "https://app.example", path
        other = served.events(path, {"Origin": "https://evil.example"}).response
        assert other.getheader("Access-Control-Allow-Origin") is None


def test_an_origin_that_is_given_twice_is_not_allowed(serve: Callable[..., Served]) -> None:
    served = serve(origins=["https://app.example"])
    request = b"GET /v1/stores/_/spaces HTTP/1.1\r\nHost: localhost\r\n" + b"Origin: https://app.example\r\n" * 2
    answer = talk(served, request + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"access-control-allow-origin" not in answer.lower()


def test_a_ticket_opens_a_stream_of_several_spaces(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    key = keys.create(["read"])
    served = Served("memory://tickets-of-several", keys=keys.path)
    try:
        for space in ("a", "b"):
            served.store.produce(space, "x", [Record(b"1")])
        path = "/v1/stores/_/entries"
        made = served.ask("POST", "/v1/tickets", {"path": path}, {"Authorization": f"Bearer {key}"}).json["ticket"]
        events = served.events(f"{path}?space=a&space=b&ticket={made}")
        assert {entry["space"] for entry in events.entries(2)} == {"a", "b"}
        assert served.ask("GET", f"{path}?space=a&ticket={made}&ticket={made}").status == 400
    finally:
        served.close()


# -- webhooks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "192.0.2.1", "224.0.0.1", "240.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "ff0e::1", "::ffff:127.0.0.1",
        "::ffff:8.8.8.8", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:a9fe:a9fe::1",
    ],
)  # fmt: skip
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_public(ip_address(address))
    with pytest.raises(Refused):
        check_url(f"https://[{address}]/" if ":" in address else f"https://{address}/", loopback=False)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111"])
def test_a_public_address_is_allowed(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("host", ["x" * 64 + ".example", "a..example", ".example.org", "x." * 200 + "example"])
def test_a_host_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(Refused):
        check_url(f"https://{host}/", loopback=False)


def test_a_webhook_that_answers_byte_by_byte_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkit.serve.durable.webhooks._SECONDS", 0.5)
    end = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while not end.wait(0.1):
                    connection.sendall(b"X: y\r\n")

        dripping = threading.Thread(target=drip, daemon=True)
        dripping.start()
        begun = time.monotonic()
        with pytest.raises(OSError):
            send(Target("http", "127.0.0.1", listening.getsockname()[1], "/"), b"{}", "signature")
        assert time.monotonic() - begun < 5
        end.set()
        dripping.join()


def test_a_redirect_of_a_webhook_is_not_followed() -> None:
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def redirect() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    asked.append(connection.recv(1000).split(b"\r\n")[0])
                    answer = f"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:{port}/b\r\nContent-Length: 0\r\n\r\n"
                    connection.sendall(answer.encode())

        threading.Thread(target=redirect, daemon=True).start()
        with pytest.raises(OSError, match="307"):
            send(Target("http", "127.0.0.1", port, "/a"), b"{}", "signature")
    assert asked == [b"POST /a HTTP/1.1"]
