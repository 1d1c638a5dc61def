"""A small HTTP proxy before a server on this machine: it loses, doubles, delays and cuts messages.

    proxy = make_proxy("127.0.0.1", port)       # fixture; give the client proxy.endpoint instead of the server's
    proxy.plan = [PASS, DROP_ANSWER]            # for the next requests in turn, then PASS
    proxy.plan = lambda request: status(503) if request.method == "PUT" else PASS
    proxy.once(DROP_ANSWER, lambda request: request.method == "PUT")

Plain HTTP only. Every request is in `proxy.seen`, in the order of arrival.
"""

from __future__ import annotations

import http.client
import http.server
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest


class Request(NamedTuple):
    number: int
    """Counted from 0."""
    method: str
    target: str
    """Path and query."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class Fault(NamedTuple):
    kind: str
    code: int = 0
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    applied: bool = False
    """True if the server gets the request, in a case in which it may or may not."""
    seconds: float = 0.0
    gate: threading.Event | None = None
    cut: int = 0
    """Bytes of the answer, head and body, after which the connection is closed; 0: all."""


PASS = Fault("pass")
DROP_REQUEST = Fault("drop")
"""The server never sees it; the connection is closed without an answer."""
DROP_ANSWER = Fault("drop", applied=True)
"""The server answers; the connection is closed instead."""
DUPLICATE = Fault("duplicate")
"""The server gets it twice; the client gets the second answer."""
CUT_BODY = Fault("cut")
"""The head and the first half of the body, then the connection is closed. Without a body: half of the first line."""
LATE = Fault("late")
"""Drop the request as DROP_REQUEST does; `proxy.deliver()` brings it to the server later."""
LATE_CONFLICT = Fault("late", 409)
"""Answer 409, as a service does while another copy of the request is under way; `proxy.deliver()` brings that copy."""
SILENT = Fault("silent")
"""The server never sees it, and nothing happens until the client gives up."""
SILENT_ANSWER = Fault("silent", applied=True)
"""The server answers, but nothing reaches the client until it gives up."""


def status(
    code: int,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    applied: bool = False,
    cut: int = 0,
) -> Fault:
    """Answer with this, instead of the server or (`applied`) over its answer; with `cut`, only its first bytes."""
    return Fault("status", code, body, tuple((headers or {}).items()), applied, cut=cut)


def delay(seconds: float) -> Fault:
    """Pass it on after this time."""
    return Fault("delay", seconds=seconds)


def hold(gate: threading.Event) -> Fault:
    """Pass it on when the event is set."""
    return Fault("delay", gate=gate, seconds=60.0)


def without(*names: str) -> Fault:
    """Pass it on without these headers, to a server that so does not know them."""
    return Fault("pass", headers=tuple((name.lower(), "") for name in names))


def relabel(headers: Mapping[str, str]) -> Fault:
    """Pass it on, and put these headers into the answer."""
    return Fault("relabel", headers=tuple(headers.items()))


Plan = Sequence[Fault] | Callable[[Request], Fault]

_HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}


class Proxy:
    """Safe for any number of connections at once. Close it, or use it as a context."""

    def __init__(self, host: str, port: int) -> None:
        self.seen: list[Request] = []
        self.connections = 0
        """How many clients have connected so far."""
        self.most = 0
        """The most requests that were under way at once."""
        self._upstream = (host, port)
        self._plan: Callable[[Request], Fault] = lambda request: PASS
        self._late: list[Request] = []
        self._lock = threading.Lock()
        self.active = 0
        """The requests that are under way: without an answer so far."""
        self._stopped = threading.Event()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def plan(self) -> Callable[[Request], Fault]:
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        if callable(plan):
            self._plan = plan
        else:
            faults = iter(plan)
            self._plan = lambda request: next(faults, PASS)

    def once(self, fault: Fault, when: Callable[[Request], bool] = lambda request: True) -> None:
        """The first request from now on for which `when` holds gets `fault`; all others pass."""
        self.each([fault], when)

    def each(self, faults: Sequence[Fault], when: Callable[[Request], bool]) -> None:
        """The requests for which `when` holds get the faults in turn; all others pass."""
        left = iter(faults)
        self._plan = lambda request: next(left, PASS) if when(request) else PASS

    def count(self, method: str) -> int:
        return sum(request.method == method for request in self.seen)

    def deliver(self) -> list[int]:
        """Bring what was LATE to the server, in the order of arrival; returns the status of each answer."""
        with self._lock:
            late, self._late = self._late, []
        return [self._forward(request)[0] for request in late]

    def close(self) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _arrived(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[Request, Fault]:
        with self._lock:
            request = Request(len(self.seen), method, target, headers, body)
            self.seen.append(request)
            fault = self._plan(request)
            if fault.kind == "late":
                self._late.append(request)
            self.active += 1
            self.most = max(self.most, self.active)
        return request, fault

    def _done(self) -> None:
        with self._lock:
            self.active -= 1

    def _forward(self, request: Request) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection(*self._upstream, timeout=60)
        try:
            upstream.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name not in _HOP and name not in ("expect", "content-length"):
                    upstream.putheader(name, value)
            if request.body or request.method in ("PUT", "POST", "PATCH", "MERGE"):
                upstream.putheader("content-length", str(len(request.body)))
            upstream.endheaders(request.body or None)
            answer = upstream.getresponse()
            body = answer.read()
            return answer.status, answer.getheaders(), body
        finally:
            upstream.close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a client that went away, which these tests cause."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: Proxy

    def setup(self) -> None:
        super().setup()
        with self.owner._lock:
            self.owner.connections += 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        request, fault = self.owner._arrived(self.command, self.path, headers, self._body(headers))
        try:
            self._answer(request, fault)
        finally:
            self.owner._done()

    def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(headers.get("content-length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def _answer(self, request: Request, fault: Fault) -> None:
        if fault.kind in ("drop", "late", "silent"):
            if fault.applied:
                self.owner._forward(request)
            if fault.code:
                self._send(fault.code, [], b"", cut=0)
                return
            if fault.kind == "silent":
                self._wait_for_client()
            self._hang_up()
            return
        if fault.kind == "status":
            if fault.applied:
                self.owner._forward(request)
            self._send(fault.code, list(fault.headers), fault.body, cut=fault.cut)
            return
        if fault.kind == "delay":
            (fault.gate or self.owner._stopped).wait(fault.seconds)
        if fault.kind == "duplicate":
            self.owner._forward(request)
        if fault.kind == "pass" and fault.headers:
            gone = dict(fault.headers)
            request = request._replace(headers={k: v for k, v in request.headers.items() if k not in gone})
        code, headers, body = self.owner._forward(request)
        if fault.kind == "relabel":
            new = {name.lower() for name, _ in fault.headers}
            headers = [*(pair for pair in headers if pair[0].lower() not in new), *fault.headers]
        headers = [pair for pair in headers if pair[0].lower() != "content-length" or self.command == "HEAD"]
        self._send(code, headers, body, cut=-1 if fault.kind == "cut" else 0)

    def _send(self, code: int, headers: list[tuple[str, str]], body: bytes, *, cut: int) -> None:
        """Send an answer. `cut`: only the first `cut` bytes; -1: until the middle of the body."""
        headers = [pair for pair in headers if pair[0].lower() not in _HOP]
        sized = any(name.lower() == "content-length" for name, _ in headers)
        if not sized and self.command != "HEAD" and code not in (204, 304):
            headers.append(("Content-Length", str(len(body))))
        lines = [f"HTTP/1.1 {code} {http.client.responses.get(code, '')}"]
        lines += [f"{name}: {value}" for name, value in headers]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        if cut < 0:
            cut = len(head) + len(body) // 2 if body else 8
        self.wfile.write((head + body)[: cut or None])
        if cut:
            self._hang_up()

    def _wait_for_client(self) -> None:
        """Wait until the client closes its end, or the proxy is closed."""
        self.connection.settimeout(0.05)
        while not self.owner._stopped.is_set():
            try:
                if not self.connection.recv(1):
                    return
            except TimeoutError:
                continue
            except OSError:
                return

    def _hang_up(self) -> None:
        self.close_connection = True
        try:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


@pytest.fixture
def make_proxy() -> Iterator[Callable[[str, int], Proxy]]:
    """Makes proxies before host and port; they are closed after the test."""
    made: list[Proxy] = []

    def make(host: str, port: int) -> Proxy:
        made.append(Proxy(host, port))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()
