"""HTTP/1.1 to one server, over connections that are kept open. It knows as much of HTTP as the answers of S3 need."""

from __future__ import annotations

import re
import select
import socket
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from .errors import Cut, Unreached, Untrusted

if TYPE_CHECKING:
    from .tls import Tls

__all__ = ["Answer", "Wire"]

_STATUS = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: |\r?\n)")
_LINE = 1 << 16
_LINES = 200
_KEPT = 160
_SLICE = 1 << 20


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class Wire:
    """Safe to share between threads. `close` ends the idle connections; the next request makes a new one."""

    def __init__(self, host: str, port: int, ca: str | None, *, connect: float, read: float) -> None:
        """`ca`: the file or folder of certificates to trust, or None for a connection without TLS. Seconds."""
        self._host = host.encode("ascii" if host.isascii() else "idna")
        """Bytes, because for text Python would first load the tables of international names."""
        self._port = port
        self._tls = None if ca is None else _tls(ca, self._host)
        self._connect, self._read = connect, read
        self._idle: deque[_Line] = deque(maxlen=_KEPT)

    def exchange(self, head: bytes, body: bytes) -> Answer:
        """Send one request, and read the whole answer.

        Unreached and Untrusted: nothing was sent. Cut: there is no whole answer.
        """
        line = self._line()
        try:
            try:
                line.send(head, body)
                answer, reusable = line.receive()
                if self._tls is not None:
                    line.note_session(self._tls)
            except (OSError, ValueError) as error:
                raise Cut(type(error).__name__) from None
        except BaseException:
            line.close()
            raise
        if reusable and len(self._idle) < _KEPT:
            self._idle.append(line)
        else:
            line.close()
        return answer

    def close(self) -> None:
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def _line(self) -> _Line:
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return self._dial()
            if line.is_quiet():
                return line
            line.close()

    def _dial(self) -> _Line:
        try:
            plain = socket.create_connection((self._host, self._port), self._connect)  # type: ignore[arg-type]
        except OSError as error:
            raise Unreached(type(error).__name__) from None
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            made = plain if self._tls is None else self._tls.wrap(plain)
        except OSError as error:
            plain.close()
            text = str(error)
            if "CERTIFICATE_VERIFY_FAILED" in text or "WRONG_VERSION" in text:
                raise Untrusted(type(error).__name__) from None
            raise Unreached(type(error).__name__) from None
        except BaseException:
            plain.close()
            raise
        if made is None:
            plain.close()
            return self._dial()
        made.settimeout(self._read)
        return _Line(made)


class _Line:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = b""
        """Bytes of the connection that were received; those before `_at` are parsed."""
        self._at = 0
        self._noted = False

    def note_session(self, tls: Tls) -> None:
        """Keep the session for further connections. The server's tickets come with its first answer."""
        if not self._noted:
            self._noted = True
            tls.keep(self._socket)

    def is_quiet(self) -> bool:
        """True unless the server has closed the connection, or sent bytes that belong to no answer."""
        if not hasattr(select, "poll"):
            return not select.select([self._socket], [], [], 0)[0]
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def send(self, head: bytes, body: bytes) -> None:
        # A server that refuses a request may close its end before it has all of the body: the answer says why.
        with suppress(BrokenPipeError):
            if len(body) <= _LINE:
                self._socket.sendall(head + body)
                return
            self._socket.sendall(head)
            view = memoryview(body)
            for at in range(0, len(body), _SLICE):
                self._socket.sendall(view[at : at + _SLICE])

    def receive(self) -> tuple[Answer, bool]:
        """The answer, and True if another request may follow on this connection."""
        status, version = 100, b""
        headers: dict[str, str] = {}
        while 100 <= status < 200:
            first = self._readline()
            found = _STATUS.match(first)
            if found is None:
                raise Cut("no answer of HTTP" if first else "closed")
            version, status = found[1], int(found[2])
            headers = self._headers()
        body, ends = self._body(status, headers)
        closes = "close" in (word.strip() for word in headers.get("connection", "").lower().split(","))
        # Bytes behind an answer must never become the answer to the next request.
        keeps = version == b"1" and not closes and self._at == len(self._received)
        return Answer(status, headers, body), keeps and ends

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        for _ in range(_LINES):
            line = self._readline()
            if not line.endswith(b"\n"):
                break
            if line in (b"\r\n", b"\n"):
                return headers
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        raise Cut("cut in the headers")

    def _body(self, status: int, headers: Mapping[str, str]) -> tuple[bytes, bool]:
        """The body, and True if its end was known by other means than the end of the connection."""
        if status in (204, 304):
            return b"", True
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._chunks(), True
        if "content-length" in headers:
            return self._whole(_size(headers["content-length"], 10)), True
        while self._more():
            pass
        return self._received[self._at :], False

    def _chunks(self) -> bytes:
        parts = []
        while size := _size(self._readline().decode("latin-1").partition(";")[0], 16):
            parts.append(self._whole(size))
            self._readline()
        self._headers()
        return b"".join(parts)

    def _whole(self, size: int) -> bytes:
        parts = [self._received[self._at : self._at + size]]
        missing = size - len(parts[0])
        self._at += len(parts[0])
        while missing:
            part = self._socket.recv(min(missing, _SLICE))
            if not part:
                raise Cut("cut in the body")
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _readline(self) -> bytes:
        """A line with its end. Without one if it is longer than 64 KiB, or cut."""
        while not (end := self._received.find(b"\n", self._at) + 1):
            if len(self._received) - self._at >= _LINE or not self._more():
                return self._received[self._at :]
        line = self._received[self._at : end]
        self._at = end
        return line[:_LINE]

    def _more(self) -> bool:
        """Receive the bytes that have arrived. False at the end of the connection."""
        part = self._socket.recv(_LINE)
        self._received = self._received[self._at :] + part
        self._at = 0
        return bool(part)


def _size(text: str, base: int) -> int:
    size = int(text, base)
    if size < 0:
        raise Cut("a negative length")
    return size


def _tls(ca: str, host: bytes) -> Tls:
    from .tls import Tls

    return Tls(ca, host)
