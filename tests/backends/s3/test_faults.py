"""Faults of the network and of S3 at the seam: a proxy between the real client and the moto server."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from uuid import uuid4

import pytest
from fix_proxy import (
    CUT_BODY,
    DROP_ANSWER,
    DROP_REQUEST,
    DUPLICATE,
    LATE,
    PASS,
    SILENT,
    SILENT_ANSWER,
    Fault,
    Proxy,
    hold,
    relabel,
    status,
    without,
)
from fix_proxy import Request as Sent
from fix_s3 import S3Bucket, S3Server

import streamkit_s3
from streamkit.backend import ABSENT, ANY, NEXT, Ambiguous, Backend, Conflict, Expect, Range
from streamkit.errors import (
    AccessDenied,
    CorruptData,
    LeaseLost,
    MissingDependency,
    PermanentError,
    StreamkitError,
    Throttled,
    Unavailable,
    UnsupportedVersion,
)
from streamkit_s3.backend import S3Backend
from streamkit_s3.driver import S3Driver
from streamkit_s3.errors import Request, Target, translate
from streamkit_s3.layout import encode

pytestmark = pytest.mark.s3

PARTITION = b"orders\x00" + bytes(8)
KEY = b"TXN\x00" + bytes(8)
SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY01"


def error(code: int, name: str, message: str = "", headers: dict[str, str] | None = None) -> Fault:
    body = f"<?xml version='1.0'?><Error><Code>{name}</Code><Message>{message}</Message></Error>"
    return status(code, body.encode(), {"Content-Type": "application/xml"} | (headers or {}))


def http_date(moment: float) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(moment))


def fill(store: Backend, rows: Mapping[bytes, bytes]) -> None:
    for key, value in rows.items():
        store.put(PARTITION, key, value)


def is_put(request: Sent) -> bool:
    return request.method == "PUT"


def is_get(request: Sent) -> bool:
    return request.method == "GET"


def is_list(request: Sent) -> bool:
    return "list-type" in request.target


class Setting:
    """A store behind a proxy, and the same store without it. The slow parts are made once for all tests."""

    def __init__(self, bucket: S3Bucket) -> None:
        self.bucket = bucket
        self.proxy = Proxy(bucket.server.host, bucket.server.port)
        self.driver = self._connect(10.0, endpoint_url=self.proxy.endpoint)
        self.past = self._connect(10.0)
        self._fresh: list[S3Driver] = []
        self.reset()

    def reset(self) -> None:
        """A new store that the process knows, so that the next calls take the warm path."""
        self.proxy.plan = []
        for driver in self._fresh:
            driver.close()
        self._fresh.clear()
        self.id = uuid4()
        self.store = self.driver.open(self.id)
        self.direct = self.past.open(self.id)
        for left in reversed(range(5)):
            try:
                self.store.put(PARTITION, b"first", b"row")
                break
            except Unavailable:
                # A fault of the test before has closed a kept connection, which is noticed only now.
                if not left:
                    raise
        self.proxy.seen.clear()
        self.proxy.most = 0

    def fresh(self, timeout: float = 10.0, **options: str) -> S3Backend:
        """Open the store as another process."""
        self._fresh.append(self._connect(timeout, **{"endpoint_url": self.proxy.endpoint, **options}))
        return self._fresh[-1].open(self.id)

    def _connect(self, timeout: float, **options: str) -> S3Driver:
        return streamkit_s3.connect(self.bucket.url("pre/fix", **options), timeout=timeout)

    def value(self, key: bytes = KEY) -> bytes | None:
        found = self.past.open(self.id).get(PARTITION, [key])[0]
        return None if found is None else found.data

    def names(self) -> list[str]:
        """The objects of the present store."""
        return [name for name in self.bucket.names() if str(self.id) in name]

    def close(self) -> None:
        self.reset()
        self.driver.close()
        self.past.close()
        self.proxy.close()


@pytest.fixture(scope="module", params=["lean", "boto3"])
def setting(request: pytest.FixtureRequest, s3_server: S3Server, s3_credentials: None) -> Iterator[Setting]:
    """The two clients: the lean one, and boto3's, which handles all other cases."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        if request.param == "boto3":
            patch.setattr("streamkit_s3.connection.find", lambda target: None)
        made = Setting(s3_server.bucket())
        yield made
        made.close()


@pytest.fixture
def at(setting: Setting) -> Setting:
    setting.reset()
    return setting


WRITES = {
    "next": NEXT,
    "any": ANY,
    "absent": ABSENT,
}


@pytest.mark.parametrize("expect", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize(
    ("fault", "expected", "applied"),
    [
        (DROP_REQUEST, Ambiguous, False),
        (DROP_ANSWER, Ambiguous, True),
        (CUT_BODY, Ambiguous, True),
        (error(500, "InternalError"), Ambiguous, False),
        (status(500), Ambiguous, False),
        (status(500, applied=True), Ambiguous, True),
        (status(502, b"<html>Bad Gateway"), Ambiguous, False),
        (error(503, "ServiceUnavailable"), Ambiguous, False),
        (status(503), Ambiguous, False),
        (status(504, applied=True), Ambiguous, True),
        (status(200, b"<html>hello"), Ambiguous, False),
        (error(503, "SlowDown"), Throttled, False),
        (error(503, "SlowDownWrite"), Throttled, False),
        (status(429), Throttled, False),
        (error(400, "RequestTimeout"), Unavailable, False),
        (error(400, "EntityTooLarge"), PermanentError, False),
        (error(405, "MethodNotAllowed"), PermanentError, False),
        (error(501, "NotImplemented"), PermanentError, False),
    ],
    ids=repr,
)
def test_a_write_that_fails_says_whether_it_may_have_been_applied(
    at: Setting, expect: Expect, fault: Fault, expected: type[StreamkitError], applied: bool
) -> None:
    at.proxy.once(fault, is_put)
    with pytest.raises(StreamkitError) as caught:
        at.store.put(PARTITION, KEY, b"value", expect)
    assert type(caught.value) is expected
    assert len(at.proxy.seen) == 1, "the SDK must not try again by itself"
    assert at.value() == (b"value" if applied else None)
    # And then work goes on.
    assert at.store.get(PARTITION, [b"first"])[0] is not None


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (DROP_REQUEST, Unavailable),
        (DROP_ANSWER, Unavailable),
        (CUT_BODY, Unavailable),
        (error(500, "InternalError"), Unavailable),
        (status(502, b"<html>Bad Gateway"), Unavailable),
        (error(503, "ServiceUnavailable"), Unavailable),
        (error(503, "SlowDown"), Throttled),
        (error(503, "SlowDownRead"), Throttled),
        (status(429), Throttled),
        (status(404), PermanentError),
        (status(404, b"<html>not found"), PermanentError),
        (error(403, "InvalidObjectState"), PermanentError),
    ],
    ids=repr,
)
def test_a_read_that_fails_raises_and_never_looks_shorter_or_empty(
    at: Setting, fault: Fault, expected: type[StreamkitError]
) -> None:
    fill(at.store, {b"%03d" % n: b"x" * 1000 for n in range(5)})
    reads: list[tuple[Callable[[], object], Callable[[Sent], bool]]] = [
        (lambda: at.store.get(PARTITION, [b"001"]), is_get),
        (lambda: at.store.get(PARTITION, [b"001", b"002", b"003"]), is_get),
        (lambda: at.store.read(PARTITION, [Range(b"001", 10, 500)]), is_get),
        (lambda: list(at.store.scan(PARTITION, b"0", b"1")), is_list),
        (lambda: list(at.store.scan(PARTITION, b"0", b"1")), lambda r: is_get(r) and not is_list(r)),
        (lambda: list(at.driver.stores()), is_list),
    ]
    for read, which in reads:
        at.proxy.once(fault, which)
        with pytest.raises(StreamkitError) as caught:
            read()
        assert type(caught.value) is expected
        at.proxy.plan = []
        read()


def test_a_page_that_is_refused_in_the_middle_of_a_scan_raises_there(at: Setting) -> None:
    store = S3Driver(Target(at.bucket.name, "us-east-1", at.proxy.endpoint), "pre/fix", 10.0, page=4).open(at.id)
    fill(store, {b"%03d" % n: b"x" for n in range(10)})
    at.proxy.each([PASS, PASS, CUT_BODY], is_list)
    seen: list[bytes] = []
    rows = store.scan(PARTITION, b"0", b"1")
    with pytest.raises(Unavailable):
        seen.extend(row.key for row in rows)
    assert seen == [b"%03d" % n for n in range(len(seen))]
    assert len(seen) < 10


def test_a_row_that_is_deleted_while_it_is_scanned_does_not_shorten_the_scan(at: Setting) -> None:
    fill(at.store, {b"%d" % n: b"x" for n in range(5)})
    gone = {encode(b"0"), encode(b"2")}
    at.proxy.plan = lambda request: (
        error(404, "NoSuchKey") if request.target.rpartition("/")[2] in gone and not is_list(request) else PASS
    )
    assert [row.key for row in at.store.scan(PARTITION, b"0", b"9", limit=3)] == [b"1", b"3", b"4"]


def test_an_empty_page_is_not_the_end_of_a_scan(at: Setting) -> None:
    empty = (
        b"<?xml version='1.0'?><ListBucketResult><KeyCount>0</KeyCount><IsTruncated>true</IsTruncated>"
        b"<NextContinuationToken>on</NextContinuationToken></ListBucketResult>"
    )
    name = f"pre/fix/{at.id}/p.orders!000000000000000000!/{encode(b'first')}"
    full = (
        f"<?xml version='1.0'?><ListBucketResult><KeyCount>1</KeyCount><IsTruncated>false</IsTruncated><Contents>"
        f"<Key>{name}</Key><Size>3</Size><ETag>x</ETag></Contents></ListBucketResult>"
    ).encode()
    tokens: list[bool] = []

    def plan(request: Sent) -> Fault:
        if not is_list(request):
            return PASS
        tokens.append("continuation-token=on" in request.target)
        return status(200, empty if len(tokens) <= 2 else full, {"Content-Type": "application/xml"})

    at.proxy.plan = plan
    assert [row.data for row in at.store.scan(PARTITION, b"", b"\xff")] == [b"row"]
    assert tokens == [False, True, True]


@pytest.mark.parametrize("order", ["length first", "length last"])
def test_an_answer_that_is_cut_anywhere_is_whole_or_an_error(at: Setting, order: str) -> None:
    body = b"0123456789"
    headers = {"Date": http_date(0), "ETag": '"abc"', "Content-Type": "text/plain"}
    for_get = {"Content-Length": "10"} | headers if order == "length first" else headers
    for_put = {"Content-Length": "0"} | headers if order == "length first" else headers
    outcomes = []
    for size in range(1, 150):
        at.proxy.plan = [status(200, body, for_get, cut=size), status(200, b"", for_put, cut=size)]
        try:
            outcomes.append(at.store.get(PARTITION, [KEY])[0])
        except Unavailable:
            outcomes.append(None)
        try:
            outcomes.append(at.store.put(PARTITION, KEY, b"value"))
        except Ambiguous:
            outcomes.append(None)
    assert set(outcomes) == {None, '"abc"', (body, '"abc"')}


@pytest.mark.parametrize("fault", [SILENT, SILENT_ANSWER], ids=["request", "answer"])
def test_silence_ends_at_half_of_the_timeout(at: Setting, fault: Fault) -> None:
    store = at.fresh(timeout=4)
    store.get(PARTITION, [b"first"])
    started = time.monotonic()
    at.proxy.once(fault, is_put)
    with pytest.raises(Ambiguous):
        store.put(PARTITION, KEY, b"value", NEXT)
    at.proxy.once(fault, is_get)
    with pytest.raises(Unavailable):
        store.get(PARTITION, [KEY])
    assert time.monotonic() - started < 30, "the SDK itself would wait for a minute"
    assert at.value() == (b"value" if fault.applied else None)


def test_a_service_that_is_not_there_is_unavailable_for_reads_and_writes(at: Setting) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
        store = at.fresh(endpoint_url=endpoint)
        for call in (
            lambda: store.get(PARTITION, [KEY]),
            lambda: store.put(PARTITION, KEY, b"value", NEXT),
            lambda: store.acquire("leader", 10.0),
        ):
            with pytest.raises(Unavailable, match="no connection") as caught:
                call()
            assert endpoint in str(caught.value)


def test_a_write_that_is_delivered_twice_meets_its_own_first_try(at: Setting) -> None:
    at.proxy.once(DUPLICATE, is_put)
    with pytest.raises(Conflict) as caught:
        at.store.put(PARTITION, KEY, b"mine", NEXT)
    assert caught.value.key == KEY
    assert at.value() == b"mine"


def test_a_write_that_arrives_late_does_not_replace_what_another_wrote_meanwhile(at: Setting) -> None:
    at.proxy.once(LATE, is_put)
    with pytest.raises(Ambiguous):
        at.store.put(PARTITION, KEY, b"late", NEXT)
    at.direct.put(PARTITION, KEY, b"other", NEXT)
    assert at.proxy.deliver() == [412]
    assert at.value() == b"other"


def test_a_condition_that_does_not_hold_is_a_conflict(at: Setting) -> None:
    etag = at.store.put(PARTITION, b"row", b"1")
    for key, expect in ((KEY, NEXT), (KEY, ABSENT), (b"row", etag)):
        at.proxy.plan = [error(412, "PreconditionFailed")]
        with pytest.raises(Conflict) as caught:
            at.store.put(PARTITION, key, b"x", expect)
        assert caught.value.key == key


def test_a_write_that_meets_another_one_under_way_may_be_that_one(at: Setting) -> None:
    etag = at.store.put(PARTITION, b"row", b"1")
    for key, expect in ((KEY, NEXT), (KEY, ABSENT), (b"row", etag)):
        at.proxy.plan = [error(409, "ConditionalRequestConflict")]
        with pytest.raises(Ambiguous):
            at.store.put(PARTITION, key, b"x", expect)


def test_a_delete_of_many_tells_of_the_one_that_was_refused(at: Setting) -> None:
    fill(at.store, {b"%d" % n: b"x" for n in range(3)})
    body = b"<?xml version='1.0'?><DeleteResult><Error><Key>k</Key><Code>AccessDenied</Code></Error></DeleteResult>"
    at.proxy.once(status(200, body), lambda r: r.method == "POST")
    with pytest.raises(AccessDenied):
        at.store.delete(PARTITION, [b"%d" % n for n in range(3)])
    at.store.delete(PARTITION, [b"%d" % n for n in range(3)])
    assert [row.key for row in at.store.scan(PARTITION, b"", b"\xff")] == [b"first"]


# Errors that an operator must correct


@pytest.mark.parametrize("code", [400, 403])
@pytest.mark.parametrize("name", ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"])
def test_refused_credentials_are_access_denied_on_reads_and_writes(at: Setting, code: int, name: str) -> None:
    at.proxy.plan = [error(code, name)] * 2
    with pytest.raises(AccessDenied, match=name):
        at.store.get(PARTITION, [KEY])
    with pytest.raises(AccessDenied, match="check the AWS credentials"):
        at.store.put(PARTITION, KEY, b"x", NEXT)


def test_work_goes_on_with_renewed_credentials_in_the_same_process(
    at: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    at.proxy.plan = lambda request: (
        PASS if "Credential=renewed/" in request.headers["authorization"] else error(400, "ExpiredToken")
    )
    with pytest.raises(AccessDenied):
        at.store.get(PARTITION, [b"first"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    assert at.store.get(PARTITION, [b"first"])[0] is not None


def test_no_credentials_at_all_says_so_and_recovers(at: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    store = at.fresh()
    with monkeypatch.context() as patch:
        patch.delenv("AWS_ACCESS_KEY_ID")
        patch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(AccessDenied, match="no usable credentials"):
            store.get(PARTITION, [KEY])
    assert store.get(PARTITION, [b"first"])[0] is not None


def test_a_missing_permission_is_named(at: Setting) -> None:
    message = (
        "User: arn:aws:iam::123456789012:user/app is not authorized to perform: s3:PutObject on resource: "
        '"arn:aws:s3:::bucket/key" because no identity-based policy allows the s3:PutObject action'
    )
    at.proxy.plan = [error(403, "AccessDenied", message), error(403, "AccessDenied", "Access Denied")]
    with pytest.raises(AccessDenied, match="need s3:PutObject here"):
        at.store.put(PARTITION, KEY, b"x", NEXT)
    with pytest.raises(AccessDenied, match="s3:ListBucket"):
        at.store.get(PARTITION, [KEY])


def test_a_missing_bucket_is_named(at: Setting) -> None:
    driver = S3Driver(Target("no-such-bucket", "us-east-1", at.proxy.endpoint), "pre/fix", 10.0)
    store = driver.open(at.id)
    for call in (
        lambda: store.get(PARTITION, [KEY]),
        lambda: store.put(PARTITION, KEY, b"x", NEXT),
        lambda: list(store.scan(PARTITION, b"", b"\xff")),
        lambda: list(driver.stores()),
        lambda: driver.delete(at.id),
        lambda: store.acquire("leader", 10.0),
    ):
        with pytest.raises(PermanentError, match="'no-such-bucket' does not exist"):
            call()


@pytest.mark.parametrize(
    "fault",
    [
        error(301, "PermanentRedirect", headers={"x-amz-bucket-region": "eu-central-1"}),
        error(400, "AuthorizationHeaderMalformed", headers={"x-amz-bucket-region": "eu-central-1"}),
    ],
    ids=repr,
)
def test_a_wrong_region_is_named_with_the_right_one(at: Setting, fault: Fault) -> None:
    at.proxy.plan = lambda request: fault
    for call in (lambda: at.store.get(PARTITION, [KEY]), lambda: at.store.put(PARTITION, KEY, b"x", NEXT)):
        with pytest.raises(PermanentError, match="wrong region or endpoint") as caught:
            call()
        assert "region us-east-1" in str(caught.value)
        assert at.proxy.endpoint in str(caught.value)


def test_a_clock_that_is_off_is_blamed(at: Setting) -> None:
    then = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() - 3600))
    at.proxy.plan = [error(403, "RequestTimeTooSkewed", headers={"Date": then})]
    with pytest.raises(PermanentError, match="this machine's clock is about 60 minutes ahead"):
        at.store.get(PARTITION, [KEY])


def test_something_else_at_the_endpoint_is_no_empty_store(at: Setting) -> None:
    at.proxy.plan = lambda request: status(200, b"<html><body>Welcome!</body></html>", {"Content-Type": "text/html"})
    for call in (
        lambda: at.store.get(PARTITION, [KEY]),
        lambda: list(at.store.scan(PARTITION, b"", b"\xff")),
        lambda: list(at.driver.stores()),
    ):
        with pytest.raises((PermanentError, Unavailable)):
            call()


def test_no_error_says_a_secret(at: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "IQoJb3JpZ2luX2VjEXAMPLETOKEN" * 4
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    echo = f"AKIAIOSFODNN7EXAMPLE {SECRET} {token}"
    faults = [
        DROP_REQUEST,
        CUT_BODY,
        *(
            error(code, name, echo, {"x-amz-bucket-region": SECRET})
            for code, name in [
                (301, "PermanentRedirect"),
                (400, "ExpiredToken"),
                (400, SECRET),
                (403, "AccessDenied"),
                (403, "SignatureDoesNotMatch"),
                (404, "NoSuchBucket"),
                (500, "InternalError"),
                (503, "SlowDown"),
            ]
        ),
    ]
    store = at.fresh()
    for fault in faults:
        at.proxy.plan = lambda request, fault=fault: fault
        for call in (
            lambda store=store: store.get(PARTITION, [KEY]),
            lambda store=store: store.put(PARTITION, KEY, b"x", NEXT),
            lambda store=store: store.delete(PARTITION, [b"1", b"2"]),
            lambda store=store: list(store.scan(PARTITION, b"", b"\xff")),
        ):
            with pytest.raises(StreamkitError) as caught:
                call()
            said: BaseException | None = caught.value
            while said is not None:
                for hidden in (SECRET, token, "AKIAIOSFODNN7EXAMPLE", "Signature="):
                    assert hidden not in f"{said} {said!r}"
                assert isinstance(said, StreamkitError), "a foreign exception is in its context"
                said = said.__cause__ or said.__context__
        assert SECRET not in f"{store!r} {at.driver!r}"


@pytest.mark.parametrize("listens", [True, False])
def test_behind_a_proxy_a_lost_answer_is_not_a_connection_that_failed(
    monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    """urllib3 says of both that it could not connect to the proxy."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import ProxyConnectionError

    def hear_and_hang_up() -> None:
        connection = proxy.accept()[0]
        with connection:
            heard.append(connection.recv(1 << 16))

    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        there = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        if listens:
            thread = threading.Thread(target=hear_and_hang_up)
            thread.start()
        else:
            proxy.close()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        config = Config(proxies={"http": there}, retries={"total_max_attempts": 1}, read_timeout=10)
        s3 = boto3.client("s3", region_name="us-east-1", endpoint_url="http://nowhere.invalid", config=config)
        with pytest.raises(ProxyConnectionError) as raised:
            s3.delete_object(Bucket="bucket", Key="name")
        if listens:
            thread.join()
        s3.close()
    assert (heard and heard[0][:6]) == (b"DELETE" if listens else [])
    target = Target("bucket", None, None)
    on_write = translate(raised.value, Request("DELETE", "name", write=True), target)
    assert type(on_write) is (Ambiguous if listens else Unavailable)
    assert type(translate(raised.value, Request("GET", "name"), target)) is Unavailable


def test_no_exception_of_the_sdk_gets_out() -> None:
    import botocore.exceptions
    import urllib3.exceptions

    target = Target("bucket", None, None)
    for module in (botocore.exceptions, urllib3.exceptions):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, Warning):
                foreign = kind.__new__(kind)
                foreign.response = {}
                for write in (False, True):
                    failure = translate(foreign, Request("PUT" if write else "GET", "name", write), target)
                    assert isinstance(failure, StreamkitError), kind


@pytest.mark.parametrize(
    ("name", "on_write"),
    [
        ("EndpointConnectionError", Unavailable),
        ("ConnectTimeoutError", Unavailable),
        ("ProxyConnectionError", Ambiguous),  # it may be one that was there
        ("ReadTimeoutError", Ambiguous),
        ("ConnectionClosedError", Ambiguous),
        ("ConnectionError", Ambiguous),
        ("HTTPClientError", Ambiguous),
        ("SSLError", Ambiguous),
        ("ResponseStreamingError", Ambiguous),
        ("NoCredentialsError", AccessDenied),
        ("CredentialRetrievalError", AccessDenied),
        ("UnauthorizedSSOTokenError", AccessDenied),
        ("ProfileNotFound", PermanentError),
        ("InvalidEndpointDiscoveryConfigurationError", PermanentError),
    ],
)
def test_what_the_sdk_cannot_send_is_told_from_what_it_cannot_hear(name: str, on_write: type[StreamkitError]) -> None:
    import botocore.exceptions

    kind = getattr(botocore.exceptions, name)
    foreign = kind.__new__(kind)
    failure = translate(foreign, Request("PUT", "name", write=True), Target("bucket", None, None))
    assert type(failure) is on_write


def test_a_certificate_that_is_not_trusted_is_final() -> None:
    import botocore.exceptions

    foreign = botocore.exceptions.SSLError(endpoint_url="https://x", error="[SSL: CERTIFICATE_VERIFY_FAILED] bad")
    for write in (False, True):
        failure = translate(foreign, Request("PUT", "name", write), Target("bucket", None, "https://x"))
        assert type(failure) is PermanentError
        assert "AWS_CA_BUNDLE" in str(failure)


def test_an_sdk_that_went_missing_is_named_at_the_first_request(at: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    store = at.fresh()
    with monkeypatch.context() as patch:
        patch.setattr("streamkit_s3.connection.find", lambda target: None)
        patch.setitem(sys.modules, "boto3.session", None)
        with pytest.raises(MissingDependency, match="pip install"):
            store.get(PARTITION, [KEY])
    assert store.get(PARTITION, [b"first"])[0] is not None


# The marker, and the abilities of the service


def conditions_ignored(request: Sent) -> Fault:
    return without("if-none-match", "if-match")


def conditions_unknown(request: Sent) -> Fault:
    known = not {"if-none-match", "if-match"} & set(request.headers)
    return PASS if known else error(501, "NotImplemented")


@pytest.mark.parametrize(
    ("plan", "header"),
    [
        (conditions_ignored, "If-None-Match"),
        (conditions_unknown, "If-None-Match"),
        (lambda request: without("if-match"), "If-Match"),
    ],
)
def test_a_service_that_ignores_conditions_is_refused_before_anything_is_written(
    at: Setting, plan: Callable[[Sent], Fault], header: str
) -> None:
    at.proxy.plan = plan
    at.id = uuid4()
    store = at.fresh()
    assert store.get(PARTITION, [KEY]) == [None]
    for call in (
        lambda: store.put(PARTITION, KEY, b"x", NEXT),
        lambda: store.put(PARTITION, KEY, b"x"),
        lambda: store.acquire("leader", 10.0),
    ):
        with pytest.raises(PermanentError, match=f"does not honour {header} on PUT"):
            call()
    assert at.names() == []
    assert at.id not in set(at.past.stores())
    # Another service, or a newer version of it: the same process goes on.
    at.proxy.plan = []
    store.put(PARTITION, KEY, b"x", NEXT)


def test_the_first_read_of_a_process_looks_at_the_marker_beside_it_and_the_first_write_needs_no_more(
    at: Setting,
) -> None:
    at.store.put(PARTITION, KEY, b"1", NEXT)
    at.proxy.seen.clear()
    store = at.fresh()
    both = threading.Event()

    def hold_for_both(request: Sent) -> Fault:
        if request.number == 1:
            both.set()
        return hold(both)

    at.proxy.plan = hold_for_both
    assert store.get(PARTITION, [KEY])[0] is not None
    store.put(PARTITION, KEY + b"2", b"2", NEXT)
    store.get(PARTITION, [KEY])
    store.put(PARTITION, KEY + b"3", b"3", NEXT)
    assert [request.method for request in at.proxy.seen] == ["GET", "GET", "PUT", "GET", "PUT"]
    assert sum(request.target.endswith("FORMAT") for request in at.proxy.seen) == 1
    assert dict(store.requests).items() >= {"GET": 3, "PUT": 2}.items()


def test_a_store_that_is_not_there_yet_is_looked_for_once(at: Setting) -> None:
    at.id = uuid4()
    store = at.driver.open(at.id)
    for _ in range(3):
        assert store.get(PARTITION, [KEY]) == [None]
        assert list(store.scan(PARTITION, b"", b"\xff")) == []
    store.put(PARTITION, KEY, b"x", NEXT)
    asked = [request.method for request in at.proxy.seen if request.target.endswith("FORMAT")]
    assert asked == ["GET", "PUT"]
    assert len(at.proxy.seen) == 1 + 6 + 1 + 1


@pytest.mark.parametrize("fault", [DROP_REQUEST, DROP_ANSWER, error(503, "SlowDown")], ids=repr)
def test_a_lost_answer_while_the_store_is_made_leaves_it_to_the_next_try(at: Setting, fault: Fault) -> None:
    store, known = at.fresh(), at.store
    for nth in range(5):
        at.id = uuid4()
        # As in a process that has not tried what the service can do.
        store._connection.process.probed = False
        store = at._fresh[-1].open(at.id)
        assert store.get(PARTITION, [KEY]) == [None]
        at.proxy.each([PASS] * nth + [fault], is_put)
        try:
            store.put(PARTITION, KEY, b"x", NEXT)
        except (Unavailable, Throttled):
            assert at.value() is None, "the error says that nothing was written"
            store.put(PARTITION, KEY, b"x", NEXT)
        except Ambiguous:
            assert nth == 4, "only the write itself may be lost"
        assert at.value() == (b"x" if nth < 4 or fault != DROP_REQUEST else None)
        assert any(name.endswith("/FORMAT") for name in at.names())
        assert not any("/probe/" in name for name in at.names())
    assert known.get(PARTITION, [b"first"])[0] is not None


@pytest.mark.parametrize("marker", [b'{"streamkit": 4, "more": []}', b'{"streamkit":2,"conditional_deletes":true}'])
def test_a_store_of_another_format_is_neither_read_nor_written(at: Setting, marker: bytes) -> None:
    at.bucket.server.client().put_object(Bucket=at.bucket.name, Key=f"pre/fix/{at.id}/FORMAT", Body=marker)
    store = at.fresh()
    for call in (
        lambda: store.get(PARTITION, [KEY]),
        lambda: list(store.scan(PARTITION, b"", b"\xff")),
        lambda: store.read(PARTITION, [Range(KEY, 0, 1)]),
        lambda: store.put(PARTITION, KEY, b"x", NEXT),
        lambda: store.delete(PARTITION, [b"first"]),
        lambda: store.acquire("leader", 10.0),
    ):
        with pytest.raises(UnsupportedVersion, match=r"format [24],"):
            call()
    assert len(at.names()) == 2


@pytest.mark.parametrize("content", [b"", b"hello", b"[]", b'{"streamkit": "one"}', b"\xff\xfe", b'{"format": 1}'])
def test_a_marker_of_someone_else_is_refused(at: Setting, content: bytes) -> None:
    marker = f"pre/fix/{at.id}/FORMAT"
    at.bucket.server.client().put_object(Bucket=at.bucket.name, Key=marker, Body=content)
    store = at.fresh()
    with pytest.raises(CorruptData, match="no marker of a streamkit store"):
        store.get(PARTITION, [b"first"])
    with pytest.raises(CorruptData, match="choose another"):
        store.put(PARTITION, KEY, b"x", NEXT)


# Leases

LEASE = "/leases/"


def is_lease_put(request: Sent) -> bool:
    return request.method == "PUT" and LEASE in request.target


@pytest.mark.parametrize(("seconds", "free"), [(-3600.0, False), (0.0, False), (10.0, False), (11.0, True)])
def test_a_lease_is_judged_by_the_clock_of_the_service_and_never_shorter_than_its_ttl(
    at: Setting, monkeypatch: pytest.MonkeyPatch, seconds: float, free: bool
) -> None:
    assert at.store.acquire("leader", 10.0) is not None
    written = 1_700_000_000.0
    at.proxy.plan = lambda request: (
        relabel({"Last-Modified": http_date(written), "Date": http_date(written + seconds)})
        if is_get(request)
        else PASS
    )
    assert (at.store.acquire("leader", 10.0) is not None) == free


@pytest.mark.parametrize("fault", [DROP_REQUEST, DROP_ANSWER, DUPLICATE, status(500, applied=True), status(502)])
def test_lost_answers_about_a_lease_are_settled(at: Setting, fault: Fault) -> None:
    at.proxy.once(fault, is_lease_put)
    grant = at.store.acquire("leader", 30.0)
    assert grant is not None
    assert at.direct.acquire("leader", 30.0) is None
    at.proxy.once(fault, is_lease_put)
    renewed = at.store.renew(grant)
    assert renewed.token == grant.token
    at.proxy.once(fault, is_lease_put)
    at.store.release(renewed)
    successor = at.direct.acquire("leader", 30.0)
    assert successor is not None
    assert successor.token == grant.token + 1
    with pytest.raises(LeaseLost):
        at.store.renew(renewed)
    at.store.release(renewed)
    assert at.direct.renew(successor).token == successor.token


def test_a_renewal_that_was_told_to_have_failed_does_not_lose_the_lease(at: Setting) -> None:
    grant = at.store.acquire("leader", 30.0)
    assert grant is not None
    # The renewal is applied, its answer is lost, and so are those of the reads that would settle it.
    at.proxy.plan = [DROP_ANSWER, DROP_ANSWER]
    with pytest.raises(Unavailable):
        at.store.renew(grant)
    assert at.store.renew(grant).token == grant.token


def test_tokens_grow_also_after_somebody_deleted_the_lease(at: Setting) -> None:
    last = 0
    for turn in range(3):
        at.proxy.plan = lambda request, turn=turn: relabel({"Date": http_date(time.time() + turn)})
        for _ in range(3):
            grant = at.store.acquire("leader", 30.0)
            assert grant is not None
            assert grant.token > last
            last = grant.token
            at.store.release(grant)
        (lease,) = (name for name in at.names() if LEASE in name)
        at.bucket.server.client().delete_object(Bucket=at.bucket.name, Key=lease)


def test_a_late_renewal_of_a_lost_lease_does_nothing(at: Setting) -> None:
    grant = at.store.acquire("leader", 30.0)
    assert grant is not None
    at.proxy.plan = [LATE, DROP_REQUEST]
    with pytest.raises(Unavailable):
        at.store.renew(grant)
    at.proxy.plan = []
    at.store.release(grant)
    successor = at.direct.acquire("leader", 30.0)
    assert successor is not None
    assert at.proxy.deliver() == [412]
    assert at.direct.renew(successor).token == successor.token


# The wire


def test_requests_are_lean(at: Setting) -> None:
    at.store.put(PARTITION, KEY, b"v" * 100_000, NEXT)
    at.store.get(PARTITION, [KEY])
    put, get = at.proxy.seen
    assert "expect" not in put.headers
    assert not [name for name in put.headers if "checksum" in name or "trailer" in name]
    assert put.headers["if-none-match"] == "*"
    assert len(put.body) == 100_000
    assert get.body == b""


def test_requests_and_bytes_are_counted_on_the_wire(at: Setting) -> None:
    before = at.store.requests
    fill(at.store, {b"%d" % n: b"x" * 1000 for n in range(3)})
    at.store.get(PARTITION, [b"0", b"1"])
    list(at.store.scan(PARTITION, b"0", b"9"))
    at.store.delete(PARTITION, [b"0", b"1"])
    spent = {name: count - before.get(name, 0) for name, count in at.store.requests.items()}
    assert {name: spent[name] for name in ("PUT", "GET", "LIST", "DELETE")} == {
        "PUT": 3,
        "GET": 5,
        "LIST": 1,
        "DELETE": 1,
    }
    sent = sum(len(request.body) for request in at.proxy.seen)
    assert spent["bytes_written"] == sent
    assert 5000 < spent["bytes_read"] < 10_000
    assert dict(at.direct.requests) == {}


def test_connections_are_used_again(at: Setting) -> None:
    before = at.proxy.connections
    for _ in range(20):
        at.store.get(PARTITION, [b"first"])
        at.store.put(PARTITION, b"row", b"x")
    assert at.proxy.connections - before <= 1


def test_after_a_freeze_no_request_is_risked_on_an_old_connection(at: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    at.store.get(PARTITION, [b"first"])
    before = at.proxy.connections
    now = time.time()
    monkeypatch.setattr("streamkit_s3.connection.time.time", lambda: now + 600)
    at.store.put(PARTITION, KEY, b"x", NEXT)
    assert at.proxy.connections == before + 1


def test_a_client_is_made_once_however_many_threads_begin(at: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from streamkit_s3 import connection

    made = []
    real = connection._client
    monkeypatch.setattr(connection, "_client", lambda *args: made.append(1) or real(*args))
    store = at.fresh()
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda _: store.get(PARTITION, [b"first"]), range(16)))
    assert len(made) == 1
    assert all(values[0] is not None and values[0].data == b"row" for values in found)
    assert sum(request.target.endswith("FORMAT") for request in at.proxy.seen) == 1


def test_a_forked_child_works_and_leaves_the_parents_connections_alone(at: Setting) -> None:
    fill(at.store, {b"%03d" % n: b"%d" % n for n in range(40)})
    gate = threading.Event()
    held = {encode(b"%03d" % n) for n in range(1, 20)}
    at.proxy.plan = lambda request: hold(gate) if request.target.rpartition("/")[2] in held else PASS
    rows = at.store.scan(PARTITION, b"", b"f")
    assert next(rows).data == b"0"
    # Now nineteen values are being fetched by threads that the child will not have.
    child = os.fork()
    if child == 0:
        outcome = 1
        try:
            signal.alarm(60)
            assert [row.data for row in rows] == [b"%d" % n for n in range(1, 40)]
            assert at.store.get(PARTITION, [b"first", b"none"])[1] is None
            at.store.put(PARTITION, KEY, b"child", NEXT)
            outcome = 0
        finally:
            os._exit(outcome)
    gate.set()
    assert [row.data for row in rows] == [b"%d" % n for n in range(1, 40)]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert at.value() == b"child"


def test_an_error_names_the_variable_that_gives_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("bucket", None, None)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert str(target) == "endpoint by default, region by default"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:secret@localhost:9000")
    assert str(target) == "endpoint of AWS_ENDPOINT_URL, region by default"
