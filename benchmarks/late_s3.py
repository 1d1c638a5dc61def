"""A small server of S3 that answers late and takes little processor time, so that it is the client that is measured.

It knows the requests of a store, keeps objects in memory and connections open, and checks no signature. 21 requests at
once are answered at once, which moto does not do. With TLS it stands for `bucket.s3.amazonaws.com`, with a chain of
certificates as long as that of S3.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from .published_views import Request

__all__ = ["LateServer", "divert", "serving_late"]

_HOST = "bucket.s3.amazonaws.com"
_ROOT = "# Subject: CN=Amazon Root CA 1 O=Amazon\n"
_STATUS = {200: "OK", 204: "No Content", 206: "Partial Content", 404: "Not Found", 412: "Precondition Failed"}
_STATUS |= {416: "Range Not Satisfiable"}


class _Objects:
    def __init__(self) -> None:
        self.late = 0.0
        self.seen: list[tuple[str, str, float, float, int]] = []
        self._objects: dict[str, tuple[bytes, str]] = {}

    def answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        name = unquote(parts.path)[1:]
        if headers.get("host") != _HOST:
            name = name.partition("/")[2]  # the bucket comes first
        if parts.path == "/seen":
            self.late = float(parts.query)
            seen, self.seen = self.seen, []
            return 200, {}, json.dumps(seen).encode()
        if "list-type" in query:
            return 200, {}, self._list(query)
        if "delete" in query:
            for part in body.decode().split("<Key>")[1:]:
                self._objects.pop(unescape(part.partition("</Key>")[0]), None)
            return 200, {}, b"<DeleteResult/>"
        return self._object(method, name, headers, body)

    def _object(
        self, method: str, name: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        found = self._objects.get(name)
        wanted = headers.get("if-match", found and found[1])
        if (headers.get("if-none-match") == "*" and found) or (wanted != (found and found[1])):
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        if method == "PUT":
            etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
            self._objects[name] = body, etag
            return 200, {"ETag": etag}, b""
        if method == "DELETE":
            self._objects.pop(name, None)
            return 204, {}, b""
        if found is None:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        data, etag = found
        if "range" not in headers:
            return 200, {"ETag": etag}, data
        start, _, end = headers["range"].removeprefix("bytes=").partition("-")
        if int(start) >= len(data):
            return 416, {}, b"<Error><Code>InvalidRange</Code></Error>"
        part = data[int(start) : int(end) + 1]
        shown = f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}"
        return 206, {"ETag": etag, "Content-Range": shown}, part

    def _list(self, query: dict[str, str]) -> bytes:
        prefix, most = query.get("prefix", ""), int(query["max-keys"])
        names = sorted(name for name in self._objects if name.startswith(prefix))
        names = names[bisect_right(names, query.get("continuation-token") or query.get("start-after", "")) :]
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2026-11-26T00:00:00.000Z</LastModified><ETag>"
            f"{escape(self._objects[name][1])}</ETag><Size>{len(self._objects[name][0])}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for name in names[:most]
        )
        more = len(names) > most
        token = f"<NextContinuationToken>{escape(names[most - 1])}</NextContinuationToken>" if more else ""
        return (
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>".encode()
        )


async def _serve(objects: _Objects, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            begun = time.monotonic()
            method, target, _ = head[0].split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
            if "expect" in headers:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            late = 0.0 if target.startswith("/seen") else objects.late
            status, told, data = objects.answer(method, target, headers, body)
            await asyncio.sleep(late)
            if not target.startswith("/seen"):
                objects.seen.append((method, target, begun, time.monotonic(), len(data)))
            told |= {"Date": formatdate(usegmt=True), "Content-Length": str(len(data))}
            lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
            writer.write(f"HTTP/1.1 {status} {_STATUS[status]}\r\n{lines}\r\n".encode("latin-1") + data)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _main(certificate: list[str]) -> None:
    context: Any = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    objects, ended, loop = _Objects(), asyncio.Event(), asyncio.get_running_loop()
    server = await asyncio.start_server(lambda *line: _serve(objects, *line), "127.0.0.1", 0, ssl=context, backlog=128)

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, daemon=True).start()
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()


class LateServer:
    def __init__(self, port: int, tls: bool) -> None:
        self._port = port
        self._tls = tls
        self.endpoint = f"http://127.0.0.1:{port}"
        """For SDKs; without TLS."""
        self.url = "s3://bucket/root?region=us-east-1" + ("" if tls else f"&endpoint_url={self.endpoint}")

    def seen(self, late: float) -> list[Request]:
        """The requests since the last call; from now on it answers so many seconds late."""
        asked = (
            HTTPSConnection("127.0.0.1", self._port, context=ssl._create_unverified_context())
            if self._tls
            else HTTPConnection("127.0.0.1", self._port)
        )
        asked.request("GET", f"/seen?{late}")
        found = [Request(*one) for one in json.loads(asked.getresponse().read())]
        asked.close()
        return found


@contextmanager
def serving_late(*, tls: bool = False) -> Iterator[LateServer]:
    """Run the server in a process of its own. With TLS, a client must `divert` its connections to it."""
    os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing", AWS_EC2_METADATA_DISABLED="true")
    with tempfile.TemporaryDirectory() as folder:
        served = Path(folder, "served.pem")
        if tls:
            os.environ["AWS_CA_BUNDLE"] = str(_make_certificates(Path(folder), served))
        command = [sys.executable, "-m", "benchmarks.late_s3", *([str(served)] if tls else [])]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            os.environ["LATE_S3"] = str(port)
            yield LateServer(port, tls)
        finally:
            process.kill()
            process.communicate()


def divert() -> None:
    """Let this process reach the server under the name of S3's."""
    dial, port = socket.create_connection, int(os.environ["LATE_S3"])
    name = _HOST.encode()
    socket.create_connection = lambda to, *rest: dial(("127.0.0.1", port) if to[0] == name else to, *rest)  # type: ignore[assignment]


def _make_certificates(folder: Path, served: Path) -> Path:
    """Make a file of the server's certificates and its key. Returns another of the roots: Mozilla's, and its own."""
    import certifi
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    pem, now = serialization.Encoding.PEM, datetime.now(UTC)
    chain: list[bytes] = []
    issuer, signer = "root", None
    for name in ("root", "intermediate", _HOST):
        key = rsa.generate_private_key(65537, 2048)
        made = (
            x509.CertificateBuilder(named(issuer), named(name), key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(name != _HOST, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(_HOST)]), critical=False)
            .sign(signer or key, hashes.SHA256())
        )
        chain.append(made.public_bytes(pem))
        issuer, signer = name, key
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    served.write_bytes(chain[2] + chain[1] + secret)
    roots = folder / "roots.pem"
    theirs = Path(certifi.where()).read_text("utf-8").replace(_ROOT, "# Subject: CN=a root in its place\n")
    roots.write_text(f"{theirs}\n{_ROOT}{chain[0].decode()}", "utf-8")
    return roots


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
