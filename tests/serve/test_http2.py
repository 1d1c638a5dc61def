"""HTTP/2 with prior knowledge on the port of HTTP/1.1, and clients of it that do wrong."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import httpx
import pytest
from fix_serve import Limits, Served
from websockets.sync.client import connect

from streamkit import Record

ENTRIES = "/v1/stores/_/spaces/s/segments/a%2Fb/entries"


@pytest.fixture
def dual(serve: Callable[..., Served]) -> Served:
    return serve(http2=True, hosts=["127.0.0.1"], limits=Limits(write_seconds=5, header_bytes=10_000))


@pytest.fixture
def client(dual: Served) -> Iterator[httpx.Client]:
    with httpx.Client(http1=False, http2=True, base_url=dual.address, timeout=60) as found:
        yield found


class Raw:
    """A connection that does what a test says, and no more."""

    def __init__(self, served: Served) -> None:
        self.socket = socket.create_connection(("127.0.0.1", served.port), timeout=60)
        config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def get(self, path: str, *more: tuple[str, str], host: str = "127.0.0.1") -> int:
        id = self.h2.get_next_available_stream_id()
        pseudo = [(":method", "GET"), (":path", path), (":scheme", "http"), (":authority", host)]
        self.h2.send_headers(id, [*pseudo, *more], end_stream=True)
        self.flush()
        return id

    def events(self) -> Iterator[h2.events.Event]:
        while data := self.socket.recv(65_536):
            yield from self.h2.receive_data(data)
            self.flush()

    def until(self, kind: type[h2.events.Event], stream: int | None = None) -> Any:
        return next(
            event
            for event in self.events()
            if isinstance(event, kind) and stream in (None, event.stream_id)  # type: ignore[attr-defined]
        )


@contextmanager
def raw(served: Served) -> Iterator[Raw]:
    found = Raw(served)
    try:
        yield found
    finally:
        found.socket.close()


def test_requests_share_a_connection_and_http1_goes_on(dual: Served, client: httpx.Client) -> None:
    posted = client.post(ENTRIES, json={"json": {"n": 1}})
    assert (posted.http_version, posted.status_code, posted.headers["etag"]) == ("HTTP/2", 201, '"1"')
    assert posted.json()["segment"] == "a/b"
    large = client.post(ENTRIES, content=b"x" * 3_000_000, headers={"content-type": "application/octet-stream"})
    assert large.json()["last_sequence"] == 2
    page = client.get(ENTRIES, params={"max_bytes": 8 << 20}).json()
    assert len(page["entries"][1]["text"]) == 3_000_000
    assert client.head(ENTRIES.removesuffix("/entries")).headers["etag"] == '"2"'
    assert client.get("/nothing").json()["type"] == "urn:streamkit:not-found"
    assert client.get("/v1/ws").status_code == 426
    with client.stream("GET", ENTRIES, params={"after": 2}, headers={"accept": "text/event-stream"}) as events:
        lines = events.iter_lines()
        assert next(lines) == "event: caught-up"
        dual.store.produce("s", "a/b", [Record(b"3")])
        assert next(line for line in lines if line == "event: entries")
        assert client.get("/healthz").status_code == 200, "the stream keeps nobody from the connection"
    assert dual.ask("GET", ENTRIES).status == 200
    assert dual.events(ENTRIES).until("entries")
    with connect(f"ws://127.0.0.1:{dual.port}/v1/ws") as socket:
        socket.send('{"id":1,"op":"ping"}')
        assert json.loads(socket.recv(60)) == {"id": 1, "status": 200}
    client.close()
    while dual.application.service.gate.streams > 1:
        time.sleep(0.001)


def test_curl_speaks_it(dual: Served) -> None:
    curl = shutil.which("curl")
    if curl is None or b"HTTP2" not in subprocess.run([curl, "-V"], capture_output=True, check=True).stdout:
        pytest.skip("this curl has no HTTP/2")
    told = subprocess.run(
        [curl, "-s", "--http2-prior-knowledge", "-w", "%{http_version}", f"{dual.address}/healthz"],
        capture_output=True,
        check=True,
    )
    assert told.stdout == b'{"status":"ok"}2'


def test_a_drain_ends_streams_and_connections(serve: Callable[..., Served]) -> None:
    served = serve(http2=True)
    with (
        httpx.Client(http1=False, http2=True, base_url=served.address, timeout=60) as client,
        client.stream("GET", ENTRIES, headers={"accept": "text/event-stream"}) as events,
    ):
        lines = events.iter_lines()
        assert next(lines) == "event: caught-up"
        served.server.should_exit = True
        assert "event: bye" in list(lines)


def test_a_client_that_gives_no_credit_holds_one_piece_and_is_given_up(dual: Served) -> None:
    dual.store.produce("s", "a/b", [Record(b"x" * (4 << 20))])
    with raw(dual) as connection:
        for _ in range(3):
            connection.get(f"{ENTRIES}?max_bytes=8388608")
        received = 0
        reset = 0
        for event in connection.events():  # and never says that it has taken what came
            received += len(event.data) if isinstance(event, h2.events.DataReceived) else 0
            reset += isinstance(event, h2.events.StreamReset)
            if reset == 3:
                break
        assert received <= 65_535
        connection.h2.increment_flow_control_window(1 << 20)
        connection.flush()
        assert connection.until(h2.events.ResponseReceived, connection.get("/healthz"))
    while dual.application.service.gate.requests:
        time.sleep(0.001)


def test_headers_that_are_too_large_or_ambiguous_and_other_hosts_are_refused(dual: Served) -> None:
    with raw(dual) as connection:
        for more, host, status in (
            ([("x", "y" * 12_000)], "127.0.0.1", b"431"),
            ([("host", "evil.example")], "127.0.0.1", b"400"),
            ([], "evil.example", b"421"),
            ([], "127.0.0.1", b"200"),
        ):
            try:
                stream = connection.get("/v1/stores/_/spaces", *more, host=host)
                event = connection.until((h2.events.ResponseReceived, h2.events.StreamReset), stream)  # type: ignore[arg-type]
            except StopIteration:
                pytest.fail(f"the connection ended: {host}")
            if isinstance(event, h2.events.ResponseReceived):
                assert dict(event.headers)[b":status"] == status, host
            else:
                assert status == b"400"


@pytest.mark.parametrize(
    "harm",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n" + b"\0" * 100,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0" + b"\0\0\5\1\4\0\0\0\1\xff\xff\xff\xff\xff",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff\xff\xff\0\0\0\0\0\1" + b"x" * 100_000,
        # Headers that never end: CONTINUATION after CONTINUATION.
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + b"\0\0\0\4\0\0\0\0\0"
        + b"\0\0\1\1\0\0\0\0\1\x82"
        + (b"\0\x40\0\x09\0\0\0\0\1" + b"\0\1x\1y" * 3276 + b"\0\1x\0") * 40,
    ],
)
def test_harmful_frames_end_the_connection(dual: Served, harm: bytes) -> None:
    with socket.create_connection(("127.0.0.1", dual.port), timeout=60) as connection:
        try:
            connection.sendall(harm)
            while connection.recv(65_536):
                pass
        except ConnectionError:
            pass
    assert dual.ask("GET", "/healthz").status == 200


def test_a_client_that_resets_streams_all_the_time_is_sent_away(dual: Served) -> None:
    with raw(dual) as connection:
        ended = False
        try:
            for _ in range(2_000):
                connection.h2.reset_stream(connection.get(ENTRIES, ("accept", "text/event-stream")))
                connection.flush()
            ended = any(isinstance(event, h2.events.ConnectionTerminated) for event in connection.events())
        except ConnectionError:
            ended = True
        assert ended
    gate = dual.application.service.gate
    while gate.requests or gate.streams:
        time.sleep(0.001)
    assert dual.ask("GET", "/healthz").status == 200


def test_pings_that_nobody_reads_the_answers_of_end_the_connection(dual: Served) -> None:
    pings = (b"\0\0\x08\6\0\0\0\0\0" + b"x" * 8) * 1_000_000
    with raw(dual) as connection, pytest.raises(ConnectionError):
        connection.socket.sendall(pings)
    assert dual.ask("GET", "/healthz").status == 200
