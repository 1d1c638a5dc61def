"""S3 for tests: one moto server a session, as a process of its own on a free loopback port; a bucket a test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote
from urllib.request import urlopen
from uuid import uuid4

import pytest

# Ends with its standard input, so it never outlives the tests, however they end. moto checks a condition and then acts
# on it without a lock; one request at a time, once it has arrived whole, makes the two one step, as they are on S3.
_SERVER = """
import gc, io, json, logging, os, sys, threading
from werkzeug.serving import WSGIRequestHandler, make_server
import moto.core.errors
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

# What moto would look for at every request: the service that is meant, and each error in a new table of all errors.
app = create_backend_app("s3")
app.debug = False
others = DomainDispatcherApplication(create_backend_app)
errors = moto.core.errors.ErrorLookupFactory()
moto.core.errors.ErrorLookupFactory = lambda: errors
lock = threading.Lock()
seen = []

def serve(environ, start_response):
    target = environ["PATH_INFO"] + "?" + environ.get("QUERY_STRING", "")
    if environ["PATH_INFO"] == "/requests-seen":
        answer = json.dumps([one for one in seen if one[1].startswith(environ["QUERY_STRING"])]).encode()
        start_response("200 OK", [("Content-Length", str(len(answer)))])
        return [answer]
    seen.append([environ["REQUEST_METHOD"], target])
    environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
    with lock:
        meant = app if "/s3/" in environ.get("HTTP_AUTHORIZATION", "/s3/") else others
        return list(meant(environ, start_response))

class Handler(WSGIRequestHandler):
    # Keeps connections open, as S3 does and werkzeug does not: `serve` has read the whole body.
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def run_wsgi(self):
        told = []
        body = b"".join(serve(self.make_environ(), lambda status, headers, error=None: told.append((status, headers))))
        status, headers = told[-1]
        code, _, reason = status.partition(" ")
        self.send_response(int(code), reason)
        for name, value in headers:
            self.send_header(name, value)
        if code != "204" and not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

logging.getLogger("werkzeug").setLevel(logging.ERROR)
gc.freeze()
gc.set_threshold(10_000)  # stored entries are no garbage
server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=Handler)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print(server.port, flush=True)
server.serve_forever()
"""


@cache
def _client(endpoint: str) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )


class S3Server(NamedTuple):
    host: str
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def client(self) -> Any:
        """A plain boto3 client, to look behind the backend's back: one for all tests."""
        return _client(self.endpoint)

    def requests(self, path: str) -> list[tuple[str, str]]:
        """Return (method, path and query) of those that begin so; while delta-rs sends one, no proxy of this process
        runs."""
        with urlopen(f"{self.endpoint}/requests-seen?{path}") as answer:
            return [(method, target) for method, target in json.load(answer)]

    def bucket(self) -> S3Bucket:
        """A new, empty one."""
        bucket = S3Bucket(self, f"test-{uuid4().hex}")
        self.client().create_bucket(Bucket=bucket.name)
        return bucket


class S3Bucket(NamedTuple):
    server: S3Server
    name: str

    def url(self, prefix: str = "", **options: str) -> str:
        """The store URL; `options` go before those of the server."""
        options = {"endpoint_url": self.server.endpoint, "region": "us-east-1"} | options
        query = "&".join(f"{name}={quote(value, safe=':/')}" for name, value in options.items())
        return f"s3://{self.name}{'/' if prefix else ''}{prefix}?{query}"

    def requests(self) -> list[tuple[str, str]]:
        """Return (method, path and query) of every request to it so far."""
        return self.server.requests(f"/{self.name}")

    def names(self) -> list[str]:
        """All that is in it."""
        pages = self.server.client().get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [item["Key"] for page in pages for item in page.get("Contents", ())]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A moto server. It honours If-None-Match and If-Match, races included; it never answers 409 or 503."""
    pytest.importorskip("moto.server", reason="needs moto: pip install 'streamkit-store[dev]'")
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline()
        assert port, "the moto server did not start"
        yield S3Server("127.0.0.1", int(port))
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def s3_credentials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Made-up credentials in the environment, and no other configuration of this machine in reach."""
    nowhere = str(tmp_path_factory.getbasetemp() / "no-aws-configuration")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_REGION"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_CONFIG_FILE", nowhere)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        yield


@pytest.fixture
def s3_bucket(s3_server: S3Server, s3_credentials: None) -> S3Bucket:
    """An empty bucket of the test's own."""
    return s3_server.bucket()
