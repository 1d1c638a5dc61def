"""Refusals of an object store become one plain line each: no error of delta-rs or pyarrow leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record
from streamkit.archive.location import ArchiveLocation
from streamkit.archive.table import Table
from streamkit.errors import AccessDenied, PermanentError, StreamkitError, Throttled

pytest.importorskip("deltalake")

SECRET = "dG9wLXNlY3JldA=="

# In a process of its own: pyarrow's file systems hold the lock of the interpreter while they ask.
_SERVER = """
import http.server, pathlib, sys
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        status, code = pathlib.Path(sys.argv[1]).read_text().split()
        body = f"<Error><Code>{code}</Code><Message>\\x1b[31mNo, %s\\n\\x9b2J</Message></Error>" % sys.argv[2]
        data = b"" if self.command == "HEAD" else body.replace("{code}", code).encode()
        self.send_response(int(status))
        self.send_header("x-ms-error-code", code)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
print(server.server_port, flush=True)
server.serve_forever()
"""


class Service:
    """A storage service that gives one answer to everything."""

    def __init__(self, said: Path) -> None:
        self._said = said
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(said), SECRET], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{self._process.stdout.readline().strip()}"

    def says(self, status: int, code: str) -> None:
        self._said.write_text(f"{status} {code}")

    def place(self, kind: str) -> ArchiveLocation:
        if kind == "s3":
            keys = {"AWS_ACCESS_KEY_ID": "AKIAX", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-west-1"}
            return ArchiveLocation(
                "s3://bucket/archive", {**keys, "AWS_ENDPOINT_URL": self.url, "AWS_ALLOW_HTTP": "true"}
            )
        account = {"azure_storage_account_name": "account", "azure_storage_endpoint": f"{self.url}/account"}
        secret = {"azure_storage_account_key": SECRET}
        if kind == "azure token":
            secret = {"azure_storage_sas_token": f"sv=1&sig={SECRET}"}
        return ArchiveLocation("az://container/archive", {**account, **secret, "allow_http": "true"})

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service") / "said")
    yield service
    service.close()


def calls(table: Table) -> dict[str, Callable[[], Any]]:
    return {
        "load": table.load,
        "create": lambda: table.create(1),
        "write": lambda: table.filesystem.open_output_stream("x.parquet").close(),
        "list": lambda: table.filesystem.get_file_info("x.parquet"),
    }


def plain(error: StreamkitError) -> bool:
    text = str(error)
    return text.isprintable() and SECRET not in text and len(text) < 600


@pytest.mark.parametrize("kind", ["s3", "azure key", "azure token"])
@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "AccessDenied", AccessDenied),
        (403, "AuthorizationPermissionMismatch", AccessDenied),
        (403, "SignatureDoesNotMatch", AccessDenied),
        (401, "InvalidAuthenticationInfo", AccessDenied),
        (400, "ExpiredToken", AccessDenied),
        (400, "InvalidBucketName", PermanentError),
        (404, "NoSuchBucket", PermanentError),
        (404, "ContainerNotFound", PermanentError),
    ],
)
def test_a_refusal_is_final_and_said_in_one_plain_line(
    service: Service, kind: str, status: int, code: str, expected: type[StreamkitError]
) -> None:
    service.says(status, code)
    table = Table(service.place(kind), uuid4(), "space")
    for name, call in calls(table).items():
        if name == "list" and status in (400, 404):
            continue  # one file that is not there; the answer has no text
        with pytest.raises(expected) as caught, table.mapped():
            call()
        assert not caught.value.retryable
        assert plain(caught.value), repr(str(caught.value))
        assert table.url in str(caught.value)
        if status == 404:
            assert "does not exist" in str(caught.value)


def test_a_service_that_asks_to_slow_down_is_throttled(service: Service) -> None:
    service.says(503, "SlowDown")
    with pytest.raises(Throttled) as caught:
        Table(service.place("s3"), uuid4(), "space").load()
    assert plain(caught.value)


def test_a_denied_archive_is_access_denied(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.says(403, "AccessDenied")
    for name, value in service.place("s3").options.items():
        monkeypatch.setenv(name, value)
    with streamkit.connect(f"memory://{uuid4().hex}", archive="s3://bucket/archive") as client:
        store = client.store(uuid4())
        store.produce("space", "segment", [Record(b"x")])
        with pytest.raises(AccessDenied, match="403 Forbidden AccessDenied") as caught:
            store.archive("space")
        assert not caught.value.retryable
        assert str(caught.value).isprintable()
        with pytest.raises(AccessDenied) as caught:
            client.delete_store(store.id)
        assert str(caught.value).isprintable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_is_told_to_be_spawned(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKED, tmp_path.as_uri()], stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    assert "PermanentError" in done.stdout
    assert "spawn" in done.stdout


_FORKED = """
import os, sys, uuid, streamkit

client = streamkit.connect(sys.argv[1] + "/store", archive=sys.argv[1] + "/archive")
store = client.store(uuid.uuid4())
store.produce("space", "s", [streamkit.Record(b"1")])
store.archive("space")
store.produce("space", "s", [streamkit.Record(b"2")])
child = os.fork()
if child == 0:
    try:
        store.archive("space")
    except streamkit.StreamkitError as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
