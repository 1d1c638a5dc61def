"""The lean client beside boto3: the same requests, and the same choice of server."""

from __future__ import annotations

import logging
import socket
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

import pytest
from fix_proxy import PASS, Proxy, status
from fix_s3 import S3Bucket

from harness.certificates import sign_itself
from streamkit.errors import AccessDenied, PermanentError
from streamkit_s3.answer_xml import parse
from streamkit_s3.counting import Counts
from streamkit_s3.driver import S3Driver
from streamkit_s3.errors import Cut, Target, Unreached, Untrusted
from streamkit_s3.lean import Lean
from streamkit_s3.sdk import client_of_sdk
from streamkit_s3.service import find
from streamkit_s3.wire import Answer, Wire

pytestmark = pytest.mark.s3

STORE = UUID("7d9f2c1e-0000-4000-8000-000000000001")
AMAZON = "bucket.s3.amazonaws.com"
PARTITION = b"orders\x00" + bytes(8)
SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY01"
ALIAS = "my-access-poin-hrzrlukc5m36ft7okagglf3gmwluquse1b-s3alias"

OPERATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "get": ("get_object", {"Key": "a/b c/é!~*'(#?"}),
    "range": ("get_object", {"Key": "k", "Range": "bytes=5-9", "IfMatch": '"etag"'}),
    "create": (
        "put_object",
        {"Key": "k", "Body": b"body", "ContentType": "application/octet-stream", "IfNoneMatch": "*"},
    ),
    "replace": ("put_object", {"Key": "k", "Body": b"", "ContentType": "text/plain", "IfMatch": '"etag"'}),
    "delete": ("delete_object", {"Key": "k"}),
    "delete many": ("delete_objects", {"Delete": {"Objects": [{"Key": "a<&>b'\""}, {"Key": "é"}], "Quiet": True}}),
    "versioning": ("get_bucket_versioning", {}),
    "list": ("list_objects_v2", {"Prefix": "a b/é+&", "MaxKeys": 7, "StartAfter": "x~y="}),
    "list on": ("list_objects_v2", {"Prefix": "", "MaxKeys": 1000, "Delimiter": "/", "ContinuationToken": "1+/="}),
}

MINIO = "https://minio.example:9000"
KNOWN: dict[str, tuple[Target, str]] = {
    "a region": (Target("bucket", "eu-central-1", None), ""),
    "the oldest region": (Target("bucket", "us-east-1", None), ""),
    "the oldest region alone": (
        Target("bucket", "us-east-1", None),
        "s3 =\n  us_east_1_regional_endpoint = regional\n",
    ),
    "the region of the profile": (Target("bucket", None, None), "region = ap-southeast-2\n"),
    "a bucket with dots": (Target("bu.cket", "eu-central-1", None), ""),
    "an access point": (Target(ALIAS, "eu-central-1", None), ""),
    "path style": (Target("bucket", "eu-central-1", None), "s3 =\n  addressing_style = path\n"),
    "virtual style": (Target("bucket", "eu-central-1", None), "s3 =\n  addressing_style = virtual\n"),
    "an endpoint": (Target("bucket", "eu-central-1", MINIO), ""),
    "an endpoint without a region": (Target("bucket", None, MINIO), ""),
    "an endpoint on its default port": (Target("bucket", "eu-central-1", "https://minio.example:443"), ""),
    "an endpoint with a path": (Target("bucket", "eu-central-1", f"{MINIO}/base/"), ""),
    "an endpoint of IPv6": (Target("bucket", "eu-central-1", "http://[::1]:9000"), ""),
    "an endpoint with virtual style": (Target("bucket", "x", MINIO), "s3 =\n  addressing_style = virtual\n"),
    "an address with virtual style": (
        Target("bucket", "x", "http://127.0.0.1:9000"),
        "s3 =\n  addressing_style = virtual\n",
    ),
    "a bucket of another server": (Target("Bucket_X", "eu-central-1", MINIO), ""),
    "the endpoint of the profile": (Target("bucket", "eu-central-1", None), f"endpoint_url = {MINIO}\n"),
    "an endpoint for S3 alone": (
        Target("bucket", "eu-central-1", None),
        f"services = own\n[services own]\ns3 =\n  endpoint_url = {MINIO}\n",
    ),
    "an endpoint that is ignored": (
        Target("bucket", "eu-central-1", None),
        f"endpoint_url = {MINIO}\nignore_configured_endpoint_urls = true\n",
    ),
    "settings of transfers": (Target("bucket", "eu-central-1", None), "s3 =\n  max_concurrent_requests = 20\n"),
}

UNKNOWN: dict[str, tuple[Target, str, dict[str, str]]] = {
    "no region": (Target("bucket", None, None), "", {}),
    "another partition": (Target("bucket", "cn-north-1", None), "", {}),
    "a government": (Target("bucket", "us-gov-west-1", None), "", {}),
    "another kind of bucket": (Target("bucket--x", "eu-central-1", None), "", {}),
    "an endpoint of AWS": (Target("bucket", "us-east-1", "https://s3-accelerate.amazonaws.com"), "", {}),
    "FIPS": (Target("bucket", "us-east-1", None), "use_fips_endpoint = true\n", {}),
    "FIPS in the environment": (Target("bucket", "us-east-1", None), "", {"AWS_USE_FIPS_ENDPOINT": "true"}),
    "dual stack": (Target("bucket", "us-east-1", None), "s3 =\n  use_dualstack_endpoint = true\n", {}),
    "acceleration": (Target("bucket", "us-east-1", None), "s3 =\n  use_accelerate_endpoint = true\n", {}),
    "an old signature": (Target("bucket", "us-east-1", None), "s3 =\n  signature_version = s3\n", {}),
    "a setting of a later botocore": (Target("bucket", "us-east-1", None), "s3 =\n  brand_new = true\n", {}),
    "other defaults": (Target("bucket", "us-east-1", None), "defaults_mode = standard\n", {}),
    "a proxy": (Target("bucket", "us-east-1", None), "", {"HTTPS_PROXY": "http://proxy.example:3128"}),
}


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, s3_credentials: None) -> Callable[[str], None]:
    """Gives this process an AWS configuration file with such a default profile; "" for no file."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    def configure(profile: str) -> None:
        if profile:
            (tmp_path / "config").write_text(f"[default]\n{profile}")
            monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    return configure


class Sent(Exception):
    pass


def request_of_sdk(target: Target, operation: str, parameters: dict[str, Any]) -> tuple[str, str, dict[str, str]]:
    """The method, the URL and the headers that boto3 would send."""
    sent: list[Any] = []

    def stop(request: Any, **_: Any) -> None:
        sent.append(request)
        raise Sent

    client = client_of_sdk(target, 10.0, Counts())
    client.meta.events.register_first("before-send.s3", stop)
    with pytest.raises(Sent):
        getattr(client, operation)(Bucket=target.bucket, **parameters)
    client.close()
    headers = {
        name.lower(): value.decode() if isinstance(value, bytes) else value for name, value in sent[0].headers.items()
    }
    return sent[0].method, sent[0].url, headers


def request_of_lean(
    target: Target, operation: str, parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch, moment: str
) -> tuple[str, str, dict[str, str]]:
    """The same of the lean client, at `moment`."""
    sent: list[tuple[bytes, bytes]] = []

    def stop(wire: Wire, head: bytes, body: bytes) -> None:
        sent.append((head, body))
        raise Sent

    service = find(target)
    assert service is not None
    counts = Counts()
    counts.thread.meter = {"GET": 0, "PUT": 0, "DELETE": 0, "LIST": 0, "bytes_written": 0}
    with monkeypatch.context() as patch:
        patch.setattr(Wire, "exchange", stop)
        patch.setattr("streamkit_s3.signature.time.strftime", lambda *_: moment)
        lean = Lean(service, counts, connect=1.0, read=1.0)
        with pytest.raises(Sent):
            getattr(lean, operation)(Bucket=target.bucket, **parameters)
    first, *lines = sent[0][0].decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = dict(line.split(": ", 1) for line in lines if line)
    return method, f"{'https' if service.tls else 'http'}://{headers['host']}{path}", headers


def assert_same_request(
    target: Target, operation: str, parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    method, url, headers = request_of_sdk(target, operation, parameters)
    lean = request_of_lean(target, operation, parameters, monkeypatch, headers["x-amz-date"])
    assert lean[0] == method
    # Of a query, the order is the sender's; the signature is over the sorted one.
    path, _, query = url.partition("?")
    lean_path, _, lean_query = lean[1].partition("?")
    assert lean_path.lower() == path.lower().replace(":443/", "/")
    assert sorted(parse_qsl(lean_query, True)) == sorted(parse_qsl(query, True))
    only = {"user-agent", "amz-sdk-invocation-id", "amz-sdk-request"}
    assert {name: value for name, value in lean[2].items() if name not in {*only, "host"}} == {
        name: value for name, value in headers.items() if name not in only
    }, "the signature is over the method, the path, the query, the host and the body too"


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("token", ["", "IQoJb3JpZ2luX2VjEXAMPLETOKEN"], ids=["lasting", "session"])
def test_each_request_is_that_of_boto3_to_the_signature(
    operation: tuple[str, dict[str, Any]],
    token: str,
    configured: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    for target in (Target("bucket", "eu-central-1", None), Target("bucket", "us-east-1", "http://127.0.0.1:9000")):
        assert_same_request(target, *operation, monkeypatch)


@pytest.mark.parametrize(("target", "profile"), KNOWN.values(), ids=KNOWN)
def test_the_server_is_the_one_that_boto3_finds(
    target: Target, profile: str, configured: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(profile)
    for name in ("create", "list"):
        assert_same_request(target, *OPERATIONS[name], monkeypatch)
    if not profile:
        # The same where botocore is asked: another source of credentials, and nothing else.
        configured("output = json\n")
        assert_same_request(target, *OPERATIONS["create"], monkeypatch)


@pytest.mark.parametrize(("target", "profile", "environment"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_the_lean_client_does_not_know_is_left_to_boto3(
    target: Target,
    profile: str,
    environment: dict[str, str],
    configured: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configured(profile)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find(target) is None


def test_credentials_of_a_profile_are_found_and_asked_for_again_at_each_request(
    configured: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    renewed = tmp_path / "renewed"
    script = tmp_path / "credentials.py"
    script.write_text(
        "import json, pathlib, datetime\n"
        f"told = pathlib.Path({str(renewed)!r})\n"
        "told.write_text(str(int(told.read_text() if told.exists() else 0) + 1))\n"
        "end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5)\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': f'KEY{told.read_text()}', 'SecretAccessKey': 'secret',\n"
        "                  'SessionToken': 'token', 'Expiration': end.isoformat()}))\n"
    )
    configured(f"region = eu-central-1\ncredential_process = {sys.executable} {script}\n")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    service = find(Target("bucket", None, None))
    assert service is not None
    first, second = (service.credentials().access_key for _ in range(2))
    assert first.startswith("KEY")
    assert second != first, "they expire within minutes, so each request asks for new ones"


def driver_for(endpoint: str, bucket: str, region: str = "us-east-1") -> S3Driver:
    return S3Driver(Target(bucket, region, endpoint), "", 10.0)


@pytest.fixture(params=["lean", "boto3"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The two clients, for the tests below."""
    if request.param == "boto3":
        monkeypatch.setattr("streamkit_s3.connection.find", lambda target: None)
    return str(request.param)


def test_a_store_is_the_same_through_both_clients(
    client: str, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_for(s3_bucket.server.endpoint, s3_bucket.name)
    store = driver.open(STORE)
    rows = {b"%03d<&> \xff" % n: b"%d" % n * n for n in range(12)}
    for key, value in rows.items():
        store.put(PARTITION, key, value)
    monkeypatch.undo()
    other = driver_for(s3_bucket.server.endpoint, s3_bucket.name)
    again = other.open(STORE)
    assert [(row.key, row.data) for row in again.scan(PARTITION, b"", b"\xff")] == [*rows.items()]
    again.delete(PARTITION, [*rows][:6])
    assert [row.key for row in store.scan(PARTITION, b"", b"\xff", values=False)] == [*rows][6:]
    driver.close()
    other.close()


def test_a_proxy_of_the_environment_is_used(
    client: str, s3_credentials: None, make_proxy: Callable[[str, int], Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = make_proxy("127.0.0.1", 9)
    proxy.plan = lambda request: status(200, headers={"ETag": '"e"'})
    monkeypatch.setenv("HTTP_PROXY", proxy.endpoint)
    driver = driver_for("http://s3.invalid", "bucket")
    driver.put_archived("name", b"data")
    assert [(request.target, request.body) for request in proxy.seen] == [
        ("http://s3.invalid/bucket/archive/name", b"data")
    ]
    driver.close()


def test_a_host_that_the_environment_excepts_from_its_proxy_is_asked_by_the_lean_client(
    s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    target = Target(s3_bucket.name, "us-east-1", s3_bucket.server.endpoint)
    assert find(target) is not None
    driver = driver_for(s3_bucket.server.endpoint, s3_bucket.name)
    driver.open(STORE).put(PARTITION, b"key", b"value")
    driver.close()


def test_a_request_to_the_wrong_region_is_sent_again_by_boto3(
    s3_bucket: S3Bucket, make_proxy: Callable[[str, int], Proxy]
) -> None:
    proxy = make_proxy(s3_bucket.server.host, s3_bucket.server.port)
    driver = driver_for(proxy.endpoint, s3_bucket.name)
    store = driver.open(STORE)
    store.put(PARTITION, b"first", b"row")
    body = b"<Error><Code>PermanentRedirect</Code></Error>"
    proxy.once(status(301, body, {"x-amz-bucket-region": "us-east-1"}), lambda request: request.method == "PUT")
    proxy.seen.clear()
    etag = store.put(PARTITION, b"key", b"value")
    assert store.get(PARTITION, [b"key"]) == [(b"value", etag)]
    agents = [request.headers["user-agent"] for request in proxy.seen]
    assert agents[0] == "streamkit"
    assert all(agent.startswith("Boto3") for agent in agents[1:]), "the process has learned where the bucket is not"
    driver.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The certificate of a server on 127.0.0.1, which signs itself, and its key."""
    return sign_itself(tmp_path_factory.mktemp("certificate"), AMAZON)


class Server:
    """Answers each request with the next of the given answers, byte by byte as they are; b"" hangs up."""

    def __init__(self, *answers: bytes, context: ssl.SSLContext | None = None, ends: bool = False) -> None:
        self._answers = iter(answers)
        self.context = context
        self._ends = ends
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.resumed: list[bool] = []
        """For each connection with TLS: if it went on with the session of an earlier one."""
        self._connection: socket.socket | None = None
        self.hung_up = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            with connection:
                self.connections += 1
                self._connection = connection
                with suppress(OSError):
                    if self.context is not None:
                        self._connection = made = self.context.wrap_socket(connection, True)
                        self.resumed.append(bool(made.session_reused))
                    self._talk(self._connection)
            self.hung_up.release()

    def _talk(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while lines.readline():
                while lines.readline() not in (b"\r\n", b""):
                    pass
                answer = next(self._answers, b"")
                connection.sendall(answer)
                if self._ends or not answer:
                    return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


EMPTY = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n'
OK = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nDate: Wed, 12 Oct 2022 17:50:00 GMT\r\nContent-Length: 5\r\n\r\nhello'


def test_a_certificate_of_ones_own_is_trusted_if_it_is_named(
    client: str, certificate: tuple[Path, Path], s3_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(variable, raising=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with Server(*[EMPTY] * 9, context=context) as server:
        endpoint = f"https://127.0.0.1:{server.port}"
        driver = driver_for(endpoint, "bucket")
        with pytest.raises(PermanentError, match="AWS_CA_BUNDLE"):
            driver.put_archived("name", b"data")
        driver.close()
        for variable in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
            with monkeypatch.context() as patch:
                patch.setenv(variable, str(certificate[0]))
                driver = driver_for(endpoint, "bucket")
                driver.put_archived("name", b"")
                driver.close()


def test_certificates_that_are_not_there_are_named(s3_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/no/such/file")
    driver = driver_for("https://127.0.0.1:9", "bucket")
    with pytest.raises(PermanentError, match="AWS_CA_BUNDLE"):
        driver.put_archived("name", b"")
    driver.close()


def _asked(server: Server, ca: Path, times: int, host: str = "127.0.0.1") -> list[bytes]:
    """The answers on `times` connections, one after the other."""
    wire = Wire(host, server.port, str(ca), connect=5.0, read=5.0)
    found = []
    for _ in range(times):
        found.append(wire.exchange(b"GET / HTTP/1.1\r\n\r\n", b"").body)
        wire.close()
    return found


@pytest.mark.parametrize(
    ("version", "tickets", "resumed"),
    [
        (ssl.TLSVersion.TLSv1_3, True, [False, True, True, True]),
        (ssl.TLSVersion.TLSv1_2, True, [False, True, True, True]),
        (ssl.TLSVersion.TLSv1_3, False, [False] * 4),
        (ssl.TLSVersion.TLSv1_2, False, [False] * 4),
    ],
)
def test_a_connection_goes_on_with_the_session_of_an_earlier_one(
    certificate: tuple[Path, Path], version: ssl.TLSVersion, tickets: bool, resumed: list[bool]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.maximum_version = version
    if not tickets:
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    with Server(*[OK] * 4, context=context) as server:
        assert _asked(server, certificate[0], 4) == [b"hello"] * 4
    assert server.resumed == resumed


def test_a_session_that_the_server_has_forgotten_is_replaced(certificate: tuple[Path, Path]) -> None:
    contexts = [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in range(2)]
    for context in contexts:
        context.load_cert_chain(*certificate)
    with Server(*[OK] * 5, context=contexts[0]) as server:
        wire = Wire("127.0.0.1", server.port, str(certificate[0]), connect=5.0, read=5.0)
        for number in range(5):
            server.context = contexts[number > 1]  # it restarts, and has another key for its tickets
            assert wire.exchange(b"GET / HTTP/1.1\r\n\r\n", b"").body == b"hello"
            wire.close()
    assert server.resumed == [False, True, False, True, True]


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[Path, Path], str, str]:
    """A server's certificate and key; it as a root, and another root, as text."""
    server = sign_itself(tmp_path_factory.mktemp("server"), AMAZON)
    other = sign_itself(tmp_path_factory.mktemp("other"), AMAZON)
    return server, server[0].read_text(), other[0].read_text()


ROOT = "\n# Issuer: {0}\n# Subject: {0}\n# Label: {0}\n# Serial: 1\n"
AMAZONS = ROOT.format("CN=Amazon Root CA 1 O=Amazon")
OTHERS = ROOT.format("CN=Another Root O=Another Company")


@pytest.mark.parametrize(
    ("first", "second", "connections"),
    [
        # The first connection fails if the root is not known to be Amazon's. Then all roots are trusted.
        (AMAZONS + "{server}", OTHERS + "{other}", 2),
        (OTHERS + "{server}", AMAZONS + "{other}", 3),
        (OTHERS + "{server}", OTHERS + "{other}", 2),
        ("{server}", "{other}", 2),
        (AMAZONS + "{other}", OTHERS + "{other}", None),
        (OTHERS + "{other}", OTHERS + "{other}", None),
    ],
)
def test_amazons_servers_are_trusted_by_amazons_roots_first_and_then_by_all(
    roots: tuple[tuple[Path, Path], str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    second: str,
    connections: int | None,
) -> None:
    pair, mine, other = roots
    (bundle := tmp_path / "roots.pem").write_text((first + second).format(server=mine, other=other))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    with Server(*[OK] * 2, context=context) as server:
        dial = socket.create_connection
        monkeypatch.setattr(socket, "create_connection", lambda to, *rest: dial(("127.0.0.1", to[1]), *rest))
        if connections is None:
            with pytest.raises(Untrusted):
                _asked(server, bundle, 2, AMAZON)
        else:
            assert _asked(server, bundle, 2, AMAZON) == [b"hello"] * 2
            assert server.connections == connections


def test_many_threads_that_meet_another_root_at_once_all_come_through(
    roots: tuple[tuple[Path, Path], str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, mine, other = roots
    (bundle := tmp_path / "roots.pem").write_text(AMAZONS + other + OTHERS + mine)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    dialled, dial = threading.Barrier(2), socket.create_connection
    dials = count()

    def create_connection(to: tuple[str, int], *rest: Any) -> socket.socket:
        made = dial(("127.0.0.1", to[1]), *rest)
        if next(dials) < 2:
            dialled.wait(60)
        return made

    monkeypatch.setattr(socket, "create_connection", create_connection)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(6) as threads:

        def answer(connection: socket.socket) -> None:
            with connection, suppress(OSError), context.wrap_socket(connection, True) as made:
                made.recv(100)
                made.sendall(OK)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    threads.submit(answer, listener.accept()[0])

        threads.submit(serve)
        wire = Wire(AMAZON, listener.getsockname()[1], str(bundle), connect=60.0, read=60.0)
        asked = [threads.submit(wire.exchange, b"GET / HTTP/1.1\r\n\r\n", b"") for _ in range(2)]
        try:
            assert [one.result().body for one in asked] == [b"hello"] * 2
        finally:
            wire.close()
            listener.shutdown(socket.SHUT_RDWR)


# The wire


@pytest.fixture
def exchange() -> Callable[..., Any]:
    """Send requests to a server with the given answers, on one connection. Returns the results."""

    def ask(*answers: bytes, times: int = 1, ends: bool = False) -> tuple[list[Any], int]:
        found: list[Any] = []
        with Server(*answers, ends=ends) as server:
            wire = Wire("127.0.0.1", server.port, None, connect=5.0, read=5.0)
            for _ in range(times):
                try:
                    found.append(wire.exchange(b"GET / HTTP/1.1\r\n\r\n", b"").body)
                except Cut as error:
                    found.append(error)
                if ends:
                    assert server.hung_up.acquire(timeout=60)
            wire.close()
        return found, server.connections

    return ask


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize(
    "answer", [OK, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + OK, OK.replace(b"ETag", b"CONNECTION:keep\r\nETag")]
)
def test_an_answer_that_tells_its_end_leaves_the_connection_to_the_next(
    exchange: Callable[..., Any], answer: bytes
) -> None:
    assert exchange(answer, answer, times=2) == ([b"hello", b"hello"], 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        OK.replace(b"ETag", b"Connection: close\r\nETag"),
        OK.replace(b"ETag", b"Connection: x-hop, Close\r\nETag"),
    ],
)
def test_an_answer_that_ends_with_its_connection_is_read_whole(exchange: Callable[..., Any], answer: bytes) -> None:
    assert exchange(answer, answer, times=2, ends=True) == ([b"hello", b"hello"], 2)


def test_bytes_behind_an_answer_are_not_the_next_answer(exchange: Callable[..., Any]) -> None:
    assert exchange(OK + OK.replace(b"hello", b"other"), OK, times=2) == ([b"hello", b"hello"], 2)


def test_an_answer_without_a_body_is_not_waited_for(exchange: Callable[..., Any]) -> None:
    assert exchange(b"HTTP/1.1 204 No Content\r\n\r\n", OK, times=2) == ([b"", b"hello"], 1)


@pytest.mark.parametrize("whole", [OK, CHUNKED])
def test_an_answer_that_is_cut_anywhere_is_none(exchange: Callable[..., Any], whole: bytes) -> None:
    cuts = [whole[:size] for size in range(1, len(whole), 3)]
    found, connections = exchange(*cuts, times=len(cuts), ends=True)
    assert [type(one) for one in found] == [Cut] * len(cuts)
    assert connections == len(cuts), "no connection is used again after such an answer"


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfive\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_answer_of_http_is_none(exchange: Callable[..., Any], answer: bytes) -> None:
    found, _ = exchange(answer, ends=True)
    assert isinstance(found[0], Cut)


def test_a_connection_that_the_server_has_closed_is_not_used_again(exchange: Callable[..., Any]) -> None:
    assert exchange(OK, OK, times=2, ends=True) == ([b"hello", b"hello"], 2)


def test_no_connection_is_told_from_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unreached):
        Wire("127.0.0.1", port, None, connect=5.0, read=5.0).exchange(b"GET / HTTP/1.1\r\n\r\n", b"")


@pytest.mark.parametrize(("encoding", "key"), [("<EncodingType>url</EncodingType>", "a b"), ("", "a+b")])
def test_names_of_a_list_are_decoded_if_the_service_says_that_it_has_encoded_them(
    monkeypatch: pytest.MonkeyPatch, s3_credentials: None, encoding: str, key: str
) -> None:
    item = "<Contents><Key>a+b</Key><Size>1</Size><ETag>x</ETag></Contents>"
    prefix = "<CommonPrefixes><Prefix>a+b</Prefix></CommonPrefixes>"
    body = f"<ListBucketResult>{encoding}<IsTruncated>false</IsTruncated>{item}{prefix}</ListBucketResult>".encode()
    monkeypatch.setattr(Wire, "exchange", lambda *_: Answer(200, {}, body))
    service = find(Target("bucket", "us-east-1", "http://127.0.0.1:9"))
    assert service is not None
    counts = Counts()
    counts.thread.meter = Counter()
    found = Lean(service, counts, connect=1.0, read=1.0).list_objects_v2(Bucket="bucket")
    assert [one["Key"] for one in found["Contents"]] == [key]
    assert [one["Prefix"] for one in found["CommonPrefixes"]] == [key]


LISTED = (
    b"<?xml version='1.0' encoding='UTF-8'?><ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><Prefix/>"
    b"<IsTruncated>true</IsTruncated><Contents><Key>a&amp;&#xe9;</Key><Size>1</Size><Owner><ID>7</ID></Owner></Contents>"
    b"<Contents><Key> b</Key></Contents><CommonPrefixes><Prefix>c</Prefix></CommonPrefixes></ListBucketResult>"
)


def test_the_xml_of_an_answer_is_read_whole_or_not_at_all() -> None:
    found = parse(LISTED)
    assert (found.tag, found.texts) == ("ListBucketResult", {"Prefix": "", "IsTruncated": "true"})
    assert [(tag, fields.get("Key"), fields.get("Prefix")) for tag, fields in found.items] == [
        ("Contents", "a&é", None),
        ("Contents", " b", None),
        ("CommonPrefixes", None, "c"),
    ]
    for size in range(len(LISTED)):
        with pytest.raises(Cut):
            parse(LISTED[:size])


# Secrets, and what is loaded


def test_no_log_and_no_repr_holds_a_secret(
    client: str,
    s3_bucket: S3Bucket,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    configured: Callable[[str], None],
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "IQoJb3JpZ2luX2VjEXAMPLETOKEN")
    if client == "boto3":
        pytest.skip("what botocore writes into its own debug log is its own affair")
    caplog.set_level(logging.DEBUG)
    driver = driver_for(s3_bucket.server.endpoint, s3_bucket.name)
    store = driver.open(STORE)
    store.put(PARTITION, b"key", b"value")
    process = driver._connection.process
    service = process.client._service
    shown = repr([process, process.client, service, service.credentials(), process.client._signer, store, driver])
    for secret in (SECRET, "IQoJb3JpZ2luX2VjEXAMPLETOKEN"):
        assert secret not in caplog.text
        assert secret not in shown
    driver.close()


def test_a_process_whose_environment_says_it_all_loads_no_sdk_and_no_parser(s3_bucket: S3Bucket) -> None:
    program = (
        "import sys, streamkit\n"
        "from streamkit import Record\n"
        f"with streamkit.connect({s3_bucket.url()!r}) as client:\n"
        f"    store = client.store({str(STORE)!r})\n"
        "    store.produce('orders', 'order-1', [Record(b'x')])\n"
        "    assert store.peek('orders', 'order-1').payload == b'x'\n"
        "    assert list(store.get_spaces()) == ['orders']\n"
        "print(*sys.modules)\n"
    )
    sdk = {"boto3", "botocore", "urllib3", "requests", "http.client", "ssl"}
    for heavy in (sdk, sdk | {"xml.etree.ElementTree", "encodings.idna"}):  # the first process makes the store
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert not heavy & {*ended.stdout.split()}


def test_credentials_that_were_refused_are_looked_for_again(
    s3_bucket: S3Bucket, make_proxy: Callable[[str, int], Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = make_proxy(s3_bucket.server.host, s3_bucket.server.port)
    driver = driver_for(proxy.endpoint, s3_bucket.name)
    store = driver.open(STORE)
    body = b"<Error><Code>ExpiredToken</Code></Error>"
    proxy.plan = lambda request: PASS if "=renewed/" in request.headers["authorization"] else status(400, body)
    with pytest.raises(AccessDenied):
        store.put(PARTITION, b"key", b"value")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    store.put(PARTITION, b"key", b"value")
    driver.close()


def test_the_key_of_the_day_is_made_anew_when_the_day_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    from streamkit_s3.signature import Signer

    signer = Signer("eu-central-1")
    for day, secret in (("20261124", "one"), ("20261125", "one"), ("20261125", "two")):
        moment = f"{day}T000000Z"
        with monkeypatch.context() as patch:
            patch.setattr("streamkit_s3.signature.time.strftime", lambda *_, moment=moment: moment)
            keys = Credentials("key", secret)
            signed = signer.sign(keys, "GET", "/x", "", {"host": "h.example"}, b"")
        request = AWSRequest("GET", "https://h.example/x")
        request.context["timestamp"] = moment
        request.headers["X-Amz-Date"] = moment
        request.headers["X-Amz-Content-SHA256"] = signed["x-amz-content-sha256"]
        reference = S3SigV4Auth(keys, "s3", "eu-central-1")
        canonical = reference.canonical_request(request)
        assert reference.signature(reference.string_to_sign(request, canonical), request) in signed["authorization"]
