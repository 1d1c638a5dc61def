"""Bad days at the store: a clear typed error, nothing lost, no secret said, and work goes on when the cause is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from uuid import UUID, uuid4

import pytest
from fix_azurite import Azurite
from fix_proxy import PASS, Fault, Proxy, Request, status, without
from fix_s3 import S3Bucket

import streamkit
from streamkit import AccessDenied, Client, CorruptData, PermanentError, Record, Store, Throttled, Unavailable
from streamkit.errors import StreamkitError
from streamkit.testing import ManualClock

S3_SECRET = "wJalrXUtnFEMIsecretEXAMPLEKEY"
AZURE_SECRET = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq"


class Day:
    """A store in a cloud behind proxies, opened as one process opens it, and past them to see what is there."""

    def __init__(self, cloud: str, url: str, direct: str, proxies: list[Proxy], clock: ManualClock) -> None:
        self.cloud = cloud
        self.url = url
        self.proxies = proxies
        self.clock = clock
        self.id: UUID = uuid4()
        self.client: Client = streamkit.connect(url, clock=clock)
        self.past: Client = streamkit.connect(direct)
        self.store: Store = self.client.store(self.id)

    def answer(self, fault: Fault, when: Callable[[Request], bool] = lambda request: True) -> None:
        for proxy in self.proxies:
            proxy.plan = lambda request: fault if when(request) else PASS

    def good(self) -> None:
        self.answer(PASS)

    def append(self, payload: bytes) -> int:
        return self.store.produce("orders", "a", [Record(payload)]).last_sequence

    def read(self) -> list[bytes]:
        return [entry.payload for entry in self.store.consume_segment("orders", "a")]

    def there(self) -> list[bytes]:
        """Read as others do, past the proxies."""
        self.past.store(self.id).close()
        return [entry.payload for entry in self.past.store(self.id).consume_segment("orders", "a")]

    def refused(self, error: type[StreamkitError], match: str, call: Callable[[], object]) -> None:
        """`call` raises this; the message, with all that it was caused by, tells no secret."""
        with pytest.raises(error, match=match) as caught:
            call()
        found: BaseException | None = caught.value
        while found is not None:
            said = repr(found) + str(found)
            assert not any(secret in said for secret in (S3_SECRET, AZURE_SECRET, "Signature=", "AWS4-HMAC"))
            found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)

    def goes_on(self, *before: bytes) -> None:
        """Nothing was lost or added, and the same store works."""
        assert self.there() == list(before)
        assert self.append(b"next") == len(before) + 1
        assert self.read() == self.there() == [*before, b"next"]

    def close(self) -> None:
        self.client.close()
        self.past.close()


@pytest.fixture(params=["s3", "azure"])
def day(
    request: pytest.FixtureRequest, make_proxy: Callable[[str, int], Proxy], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Day]:
    clock = ManualClock(time.time())
    if request.param == "s3":
        bucket: S3Bucket = request.getfixturevalue("s3_bucket")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3_SECRET)
        proxy = make_proxy(bucket.server.host, bucket.server.port)
        found = Day("s3", bucket.url("x", endpoint_url=proxy.endpoint), bucket.url("x"), [proxy], clock)
    else:
        azurite: Azurite = request.getfixturevalue("azurite")
        blobs, tables = make_proxy("127.0.0.1", azurite.blob_port), make_proxy("127.0.0.1", azurite.table_port)
        prefix = "day" + uuid4().hex[:10]
        through = Azurite(blobs.port, tables.port).url(prefix)
        found = Day("azure", through, azurite.url(prefix), [blobs, tables], clock)
    yield found
    found.close()


def is_write(request: Request) -> bool:
    return request.method in ("PUT", "POST", "MERGE", "DELETE")


def is_read(request: Request) -> bool:
    return request.method in ("GET", "HEAD")


def refusal(cloud: str, code: int, s3: str, azure: str, headers: dict[str, str] | None = None) -> Fault:
    """An answer that is an error, as the cloud words it."""
    if cloud == "s3":
        body = f"<Error><Code>{s3}</Code><Message>{S3_SECRET} was the key</Message></Error>"
        return status(code, body.encode(), {"Content-Type": "application/xml", **(headers or {})})
    text = f'{{"odata.error":{{"code":"{azure}","message":{{"lang":"en-US","value":"{AZURE_SECRET} Signature=x"}}}}}}'
    kind = "application/json;odata=minimalmetadata"
    return status(code, text.encode(), {"Content-Type": kind, "x-ms-error-code": azure, **(headers or {})})


# -- permissions and credentials ------------------------------------------------------------------------------------


def test_no_permission_to_write(day: Day) -> None:
    day.append(b"1")
    day.answer(refusal(day.cloud, 403, "AccessDenied", "AuthorizationPermissionMismatch"), is_write)
    for _ in range(2):
        day.refused(AccessDenied, "403 (AccessDenied|AuthorizationPermissionMismatch)", lambda: day.append(b"2"))
    assert day.read() == [b"1"], "reading is allowed"
    day.good()
    day.goes_on(b"1")


def test_no_permission_to_read(day: Day) -> None:
    day.append(b"1")
    day.answer(refusal(day.cloud, 403, "AccessDenied", "AuthorizationPermissionMismatch"), is_read)
    day.refused(AccessDenied, "403", day.read)
    day.good()
    day.goes_on(b"1")


def test_no_permission_from_the_beginning(day: Day) -> None:
    day.answer(refusal(day.cloud, 403, "AccessDenied", "AuthorizationPermissionMismatch"))
    for call in (lambda: day.append(b"1"), day.read, lambda: list(day.store.get_spaces())):
        day.refused(AccessDenied, "403", call)
    day.good()
    day.goes_on()


def test_credentials_that_expire_in_mid_run(day: Day) -> None:
    day.append(b"1")
    day.answer(refusal(day.cloud, 403, "ExpiredToken", "AuthenticationFailed"))
    day.refused(AccessDenied, "credentials are refused|has expired", lambda: day.append(b"2"))
    day.refused(AccessDenied, "credentials are refused|has expired", day.read)
    day.good()
    day.goes_on(b"1")


# -- places ---------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_a_bucket_that_is_missing_and_then_made(s3_bucket: S3Bucket) -> None:
    missing = s3_bucket._replace(name=f"missing-{uuid4().hex}")
    with streamkit.connect(missing.url()) as client:
        store = client.store(uuid4())
        for call in (lambda: store.produce("orders", "a", [Record(b"1")]), lambda: store.peek("orders", "a")):
            with pytest.raises(PermanentError, match=f"the bucket '{missing.name}' does not exist .*create it"):
                call()
        missing.server.client().create_bucket(Bucket=missing.name)
        assert store.produce("orders", "a", [Record(b"1")]).last_sequence == 1
        assert store.peek("orders", "a").payload == b"1"


@pytest.mark.azure
def test_a_table_and_a_container_that_are_missing_are_empty_and_made_by_the_first_write(azurite: Azurite) -> None:
    from azure.data.tables import TableClient

    prefix, store_id = "gone" + uuid4().hex[:10], uuid4()
    key = AZURE_SECRET + "/K1SZFPTOtr/KBHBeksoGMGw=="
    with streamkit.connect(azurite.url(prefix)) as client:
        store = client.store(store_id)
        assert store.peek("orders", "a").sequence == 0
        assert store.produce("orders", "a", [Record(b"1")]).last_sequence == 1
        assert store.produce("orders", "large", [Record(bytes(4 << 20))]).last_sequence == 1
        with store.lease("leader"):
            pass
        # Someone deletes the table while the store is open: a commit asks for nothing but its own row, and the index
        # finds that the head is gone.
        endpoint = f"http://127.0.0.1:{azurite.table_port}/devstoreaccount1"
        connection = f"AccountName=devstoreaccount1;AccountKey={key};TableEndpoint={endpoint}"
        TableClient.from_connection_string(connection, prefix + store_id.hex).delete_table()
        with pytest.raises(CorruptData, match="its head is gone"):
            store.maintain("orders")
    with streamkit.connect(azurite.url(prefix)) as client:
        assert client.store(store_id).produce("orders", "a", [Record(b"1")], expected_sequence=0).last_sequence == 1


@pytest.mark.s3
def test_a_wrong_region(day_s3: Day) -> None:
    day = day_s3
    day.append(b"1")
    elsewhere = refusal("s3", 301, "PermanentRedirect", "", {"x-amz-bucket-region": "eu-central-1"})
    day.answer(elsewhere)
    for call in (lambda: day.append(b"2"), day.read):
        day.refused(PermanentError, "wrong region or endpoint.*it is in region eu-central-1", call)
    day.good()
    day.goes_on(b"1")


def test_an_endpoint_where_nobody_listens(day: Day) -> None:
    """The service is asked again until the deadline, which the injected clock reaches at once."""
    began = day.clock.monotonic()
    url = day.url
    for proxy in day.proxies:
        url = url.replace(str(proxy.port), "1")
    with streamkit.connect(url, timeout=20, clock=day.clock) as client:
        store = client.store(day.id)
        day.refused(Unavailable, "no connection", lambda: store.produce("orders", "a", [Record(b"1")]))
        assert 20 <= day.clock.monotonic() - began <= 61
        assert store.statistics().retries > 3
    day.goes_on()


def test_an_endpoint_that_is_something_else(day: Day) -> None:
    day.answer(status(404, b"<html>not here</html>", {"Content-Type": "text/html"}))
    day.refused(PermanentError, "does not look like S3|is no Azure Storage", lambda: day.append(b"1"))
    day.good()
    day.goes_on()


@pytest.fixture
def day_s3(
    s3_bucket: S3Bucket, make_proxy: Callable[[str, int], Proxy], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Day]:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3_SECRET)
    proxy = make_proxy(s3_bucket.server.host, s3_bucket.server.port)
    url = s3_bucket.url("x", endpoint_url=proxy.endpoint)
    day = Day("s3", url, s3_bucket.url("x"), [proxy], ManualClock(time.time()))
    yield day
    day.close()


@pytest.mark.s3
@pytest.mark.parametrize("header", ["if-none-match", "if-match"])
def test_a_bucket_without_conditional_writes_is_refused_before_anything_is_written(day_s3: Day, header: str) -> None:
    day = day_s3
    day.answer(without(header))
    for _ in range(2):
        day.refused(PermanentError, "does not honour If-(None-)?Match on PUT", lambda: day.append(b"1"))
    assert day.there() == []
    assert list(day.past.stores()) == []
    day.good()
    day.goes_on()


@pytest.mark.s3
def test_foreign_objects_under_the_prefix_are_left_alone(day_s3: Day, s3_bucket: S3Bucket) -> None:
    day = day_s3
    s3 = s3_bucket.server.client()
    foreign = [f"x/{day.id}/readme.txt", f"x/{uuid4()}/data.csv", "x/notes.txt", f"x/{day.id}x/p.a/b", "other"]
    for name in foreign:
        s3.put_object(Bucket=s3_bucket.name, Key=name, Body=b"not ours")
    day.append(b"1")
    day.store.maintain()
    assert day.read() == [b"1"]
    assert list(day.store.get_spaces()) == ["orders"]
    assert list(day.client.stores()) == [day.id]
    assert day.store.verify().ok
    day.client.delete_store(day.id)
    left = set(s3_bucket.names())
    assert left >= set(foreign)
    # The end of the log stays for processes that have the store open, and an empty transaction replaces the last one.
    ends = left - set(foreign)
    assert len(ends) == 2
    for end in ends:
        assert end.startswith(f"x/{day.id}/p.orders")
        assert len(s3.get_object(Bucket=s3_bucket.name, Key=end)["Body"].read()) < 200


# -- clocks and throttling ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_off_by_an_hour_does_not_disturb_what_is_written(day: Day, hours: int) -> None:
    """Nothing is ordered by a clock: timestamps never go back, and offsets lose nothing."""
    day.append(b"1")
    off = ManualClock(time.time() + hours * 3600)
    with streamkit.connect(day.url, clock=off) as client:
        other = client.store(day.id)
        other.produce("orders", "a", [Record(b"2")], expected_sequence=1)
        day.append(b"3")
        entries = list(other.consume_space("orders"))
        assert [entry.payload for entry in entries] == [b"1", b"2", b"3"]
        stamps = [entry.timestamp for entry in entries]
        assert stamps == sorted(stamps)
        assert [e.payload for e in day.store.consume_space("orders", offset=entries[0].space_offset)] == [b"2", b"3"]
        for holder, rival in ((other, day.store), (day.store, other)):
            with holder.lease("leader", ttl=5) as lease:
                assert 0 < lease.remaining() <= 5
                with pytest.raises(streamkit.LeaseNotAcquired):
                    rival.with_lease("leader", lambda held: None, ttl=5)


def test_a_clock_that_is_off_so_far_that_signatures_are_refused(day: Day) -> None:
    day.append(b"1")
    skewed = refusal(
        day.cloud, 403, "RequestTimeTooSkewed", "AuthenticationFailed", {"Date": formatdate(time.time() - 3600)}
    )
    day.answer(skewed)
    for call in (lambda: day.append(b"2"), day.read):
        day.refused(PermanentError, "this machine's clock is (about 60 minutes ahead|36.. s ahead)", call)
    day.good()
    day.goes_on(b"1")


def test_throttling_for_a_minute(day: Day) -> None:
    """A patient client does not notice; another one is told so in time, and may go on when it is over."""
    day.append(b"1")
    busy = refusal(day.cloud, 503, "SlowDown", "ServerBusy")
    end = day.clock.monotonic() + 60
    for proxy in day.proxies:
        proxy.plan = lambda request: busy if day.clock.monotonic() < end else PASS
    began = day.clock.monotonic()
    day.refused(Throttled, "slow down|ServerBusy", lambda: day.append(b"2"))
    assert 30 <= day.clock.monotonic() - began < 31
    assert day.there() == [b"1"]
    with streamkit.connect(day.url, timeout=90, clock=day.clock) as patient:
        store = patient.store(day.id)
        assert store.produce("orders", "a", [Record(b"2")], expected_sequence=1).last_sequence == 2
        assert end <= day.clock.monotonic() < end + 10
        assert 5 < store.statistics().retries < 60, "backed off, with jitter"
    day.goes_on(b"1", b"2")


# -- what is not installed ------------------------------------------------------------------------------------------

_BLOCKED = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in {blocked!r} else PathFinder.find_spec(name, path, target)

sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
import streamkit
from uuid import uuid4
try:
    with streamkit.connect({url!r}) as client:
        client.store(uuid4()).produce("orders", "a", [streamkit.Record(b"1")])
except streamkit.MissingDependency as error:
    print(error)
with streamkit.connect("memory://") as client:
    print(client.store(uuid4()).produce("orders", "a", [streamkit.Record(b"1")]).last_sequence)
"""


@pytest.mark.parametrize(
    ("blocked", "url", "fix"),
    [
        (["boto3", "botocore"], "s3://bucket/prefix", "pip install 'streamkit-store[s3]'"),
        (["azure"], "azurite:///prefix", "pip install 'streamkit-store[azure]'"),
    ],
)
def test_an_sdk_that_is_not_installed(blocked: list[str], url: str, fix: str) -> None:
    program = _BLOCKED.format(blocked=set(blocked), url=url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said, *others = done.stdout.splitlines()
    assert fix in said
    assert others == ["1"], "the others work"
