"""Every kind of conditional write, through the real SDKs, on a connection that loses, doubles and delays it.

A scenario is run once without faults, which tells all kinds of writes that it makes; then again with each fault at
the first write of each kind. Whatever happens, each call returns as if nothing had, and each entry is there once.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import unquote
from uuid import UUID, uuid4

import pytest
from fix_azurite import Azurite
from fix_covered import EXHAUSTIVE
from fix_proxy import (
    DROP_ANSWER,
    DROP_REQUEST,
    DUPLICATE,
    LATE,
    LATE_CONFLICT,
    PASS,
    Fault,
    Proxy,
    Request,
    hold,
    status,
)
from fix_s3 import S3Bucket

import streamkit
import streamkit_azure.keys
import streamkit_s3.layout
from harness.cramped import cramped
from streamkit import Client, OutcomeUnknown, Record, Store, Unavailable
from streamkit.testing import ManualClock

pytestmark = [pytest.mark.slow, pytest.mark.sampled(2)]

FAULTS = {
    "lost after it was applied": DROP_ANSWER,
    "lost before": DROP_REQUEST,
    "a server error after it was applied": status(500, applied=True),
    "delivered twice": DUPLICATE,
    "delivered late": LATE,
}


class Cloud:
    """A place in a cloud, behind proxies and past them."""

    def __init__(self, name: str, url: str, direct: str, proxies: list[Proxy]) -> None:
        self.name = name
        self.proxies = proxies
        self.url = url
        self.clients: list[Client] = []
        self.client = self._connect(url)
        self.past = self._connect(direct)

    def _connect(self, url: str) -> Client:
        # Its patience is long, and takes no time.
        self.clients.append(streamkit.connect(url, clock=ManualClock(time.time())))
        return self.clients[-1]

    def store(self, store_id: UUID) -> Store:
        return self.client.store(store_id)

    def direct(self, store_id: UUID) -> Store:
        """The store without the proxies, opened for the first time."""
        self.past.store(store_id).close()
        return self.past.store(store_id)

    def other(self, store_id: UUID) -> Store:
        """The store behind the proxies, as another process would open it."""
        return self._connect(self.url).store(store_id)

    def plan(self, plan: Callable[[Request], Fault]) -> None:
        for proxy in self.proxies:
            proxy.plan = plan

    def pass_all(self) -> None:
        self.plan(lambda request: PASS)

    def deliver(self) -> list[int]:
        """Deliver the late requests now; return the statuses of the answers, which no client gets."""
        return [code for proxy in self.proxies for code in proxy.deliver()]

    def kind(self, request: Request) -> str:
        """Name the target and the condition of a write; "" for a request without a condition."""
        return _s3_kind(request) if self.name == "s3" else _azure_kind(request)

    def is_commit(self, request: Request) -> bool:
        return "TXN" in self.kind(request)


def _s3_kind(request: Request) -> str:
    condition = "absent" if "if-none-match" in request.headers else "etag" if "if-match" in request.headers else ""
    if request.method != "PUT" or not condition or "/probe/" in request.target:
        return ""
    last = request.target.partition("?")[0].rpartition("/")[2]
    key = streamkit_s3.layout.decode(last)
    return f"{last if key is None or last == 'FORMAT' else _row(key)} if {condition}"


_ROW_KEY = re.compile(r"""RowKey["']?[:=]\s*["'](k[0-9a-v]*)["']""")


def _azure_kind(request: Request) -> str:
    target = unquote(request.target)
    if target.endswith("/Tables") and request.method == "POST":
        return "the table if absent"
    if request.method == "POST":
        row, condition = _ROW_KEY.search(request.body.decode(errors="replace")), "absent"
    else:
        row, condition = _ROW_KEY.search(target), "etag"
        if not request.headers.get("if-match", "*").startswith("W"):
            return ""
    return f"{_row(streamkit_azure.keys.decode_key(row[1]))} if {condition}" if row else ""


def _row(key: bytes) -> str:
    """The kind of a row, by its lexkey."""
    words = key.split(b"\0")
    return (words[0] if words[0] in (b"TXN", b"RUN") else b" ".join(words[:2])).decode()


@pytest.fixture(autouse=True)
def tight() -> Iterator[None]:
    """Have every other commit write files of the index, which are merged."""
    with cramped():
        yield


@pytest.fixture(params=["s3", "azure"])
def cloud(request: pytest.FixtureRequest, make_proxy: Callable[[str, int], Proxy]) -> Iterator[Cloud]:
    if request.param == "s3":
        bucket: S3Bucket = request.getfixturevalue("s3_bucket")
        proxy = make_proxy(bucket.server.host, bucket.server.port)
        found = Cloud("s3", bucket.url("x", endpoint_url=proxy.endpoint), bucket.url("x"), [proxy])
    else:
        azurite: Azurite = request.getfixturevalue("azurite")
        blobs, tables = make_proxy("127.0.0.1", azurite.blob_port), make_proxy("127.0.0.1", azurite.table_port)
        prefix = "lost" + uuid4().hex[:10]
        through = Azurite(blobs.port, tables.port).url(prefix)
        found = Cloud("azure", through, azurite.url(prefix), [blobs, tables])
    yield found
    for client in found.clients:
        client.close()


# -- every write, every fault ---------------------------------------------------------------------------------------


def work(store: Store, segments: int) -> dict[str, list[bytes]]:
    """Make the store and two spaces, commit, and bring the index forward. Returns the expected entries."""
    store.produce("orders", "a", [Record(b"1")], expected_sequence=0)
    store.produce("orders", "a", [Record(b"2"), Record(b"3")], expected_sequence=1, idempotency_key="k")
    with store.transaction("orders") as trx:
        for number in range(segments):
            trx.produce(f"wide-{number:02}", [Record(b"w")])
    store.maintain()
    assert store.produce("orders", "a", [Record(b"4")], expected_sequence=3).last_sequence == 4
    store.maintain()
    store.create_space("wide", partitions=2)
    store.produce("wide", "b", [Record(b"5")])
    again = store.produce("orders", "a", [Record(b"2"), Record(b"3")], expected_sequence=1, idempotency_key="k")
    assert again.last_sequence == 3
    return {"a": [b"1", b"2", b"3", b"4"], "b": [b"5"]} | {f"wide-{number:02}": [b"w"] for number in range(segments)}


def check(store: Store, expected: dict[str, list[bytes]]) -> None:
    """Exactly what was written, once each, by segment and by space; and log and index agree."""
    entries = [entry for space in ("orders", "wide") for entry in store.consume_space(space)]
    found: dict[str, list[bytes]] = {}
    for entry in entries:
        found.setdefault(entry.segment, []).append(entry.payload)
        assert entry.sequence == len(found[entry.segment])
    assert found == expected
    for space, segment in (("orders", "a"), ("orders", "wide-00"), ("wide", "b")):
        assert [entry.payload for entry in store.consume_segment(space, segment)] == expected[segment]
    report = store.verify()
    assert report.ok, report.findings


_KINDS: dict[str, list[str]] = {}
"""The kinds of writes by the name of a cloud. A run of the scenario finds them."""


def kinds(cloud: Cloud, segments: int) -> list[str]:
    """All kinds of conditional writes that the work makes, in the order of the first of each."""
    if cloud.name not in _KINDS:
        for proxy in cloud.proxies:
            proxy.seen.clear()
        store_id = uuid4()
        expected = work(cloud.store(store_id), segments)
        found = [cloud.kind(request) for proxy in cloud.proxies for request in proxy.seen]
        check(cloud.direct(store_id), expected)
        _KINDS[cloud.name] = list(dict.fromkeys(filter(None, found)))
    return _KINDS[cloud.name]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_write_that_is(cloud: Cloud, fault: Fault) -> None:
    segments = 2
    every = kinds(cloud, segments)
    wanted = {"INV SPACES if absent", "INV PARTITIONS if absent", "TXN if absent", "RUN if absent"}
    assert set(every) > {*wanted, "INV PARTITIONS if etag"}
    for kind in every if EXHAUSTIVE else every[list(FAULTS.values()).index(fault) % 3 :: 3]:
        store_id = uuid4()
        met: list[Request] = []

        def plan(request: Request, kind: str = kind, met: list[Request] = met) -> Fault:
            if met or cloud.kind(request) != kind:
                return PASS
            met.append(request)
            return fault

        cloud.plan(plan)
        expected = work(cloud.store(store_id), segments)
        cloud.pass_all()
        assert met, f"{kind}: the fault met nothing"
        if fault is LATE:
            # Others have written since, so a late request is refused.
            other = cloud.direct(store_id)
            other.produce("orders", "a", [Record(b"6")], expected_sequence=4)
            other.maintain()
            expected["a"].append(b"6")
            codes = cloud.deliver()
            # A file may come back after it was merged into another one: nothing names it.
            merged = kind.startswith("RUN")
            assert codes in ([412], [409]) or merged, f"{kind}: {codes}"
        check(cloud.direct(store_id), expected)


@pytest.mark.parametrize("cloud", ["s3"], indirect=True)
def test_a_write_that_is_refused_while_its_first_copy_is_under_way(cloud: Cloud) -> None:
    """The first copy arrives just before the next write of its kind."""
    for kind in kinds(cloud, 2):
        store_id, met = uuid4(), list[Request]()

        def plan(request: Request, kind: str = kind, met: list[Request] = met) -> Fault:
            if cloud.kind(request) != kind or len(met) == 2:
                return PASS
            met.append(request)
            if len(met) == 1:
                return LATE_CONFLICT
            arrived = threading.Event()
            threading.Thread(target=lambda: (cloud.deliver(), arrived.set())).start()
            return hold(arrived)

        cloud.plan(plan)
        expected = work(cloud.store(store_id), 2)
        cloud.pass_all()
        assert met, f"{kind}: the fault met nothing"
        cloud.deliver()
        check(cloud.direct(store_id), expected)


# -- when reading back fails too ------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """A commit that met `OutcomeUnknown`, on a connection that is cut since."""

    store: Store
    store_id: UUID
    transaction_id: UUID


def cut_off(cloud: Cloud, fault: Fault) -> Cut:
    """A commit gets `fault`, and no request after it an answer."""
    store_id = uuid4()
    store = cloud.store(store_id)
    store.produce("orders", "a", [Record(b"1")])
    cut: list[Request] = []

    def plan(request: Request) -> Fault:
        if cut:
            return DROP_REQUEST
        if cloud.is_commit(request):
            cut.append(request)
            return fault
        return PASS

    cloud.plan(plan)
    with pytest.raises(OutcomeUnknown, match="ask store") as refused:
        store.produce("orders", "a", [Record(b"2")])
    assert store.outcome(refused.value.transaction_id) == "unknown"
    return Cut(store, store_id, refused.value.transaction_id)


def payloads(cloud: Cloud, store_id: UUID) -> list[bytes]:
    return [entry.payload for entry in cloud.direct(store_id).consume_segment("orders", "a")]


@pytest.mark.parametrize("asked", ["the same process", "another process"])
@pytest.mark.parametrize("fault", [DROP_ANSWER, DROP_REQUEST], ids=["applied", "not applied"])
def test_what_cannot_be_read_back_is_settled_afterwards(cloud: Cloud, fault: Fault, asked: str) -> None:
    cut = cut_off(cloud, fault)
    cloud.pass_all()
    store = cut.store if asked == "the same process" else cloud.other(cut.store_id)
    applied = fault is DROP_ANSWER
    for _ in range(2):
        assert store.outcome(cut.transaction_id) == ("committed" if applied else "absent")
    expected = [b"1", b"2"] if applied else [b"1"]
    assert payloads(cloud, cut.store_id) == expected
    assert cut.store.produce("orders", "a", [Record(b"3")]).last_sequence == len(expected) + 1
    assert payloads(cloud, cut.store_id) == [*expected, b"3"]


def test_absent_is_final_though_the_write_arrives_later(cloud: Cloud) -> None:
    cut = cut_off(cloud, LATE)
    cloud.pass_all()
    assert cut.store.outcome(cut.transaction_id) == "absent"
    assert len(cloud.deliver()) == 1
    assert cut.store.outcome(cut.transaction_id) == "absent"
    assert payloads(cloud, cut.store_id) == [b"1"]
    assert cut.store.produce("orders", "a", [Record(b"2 again")], expected_sequence=1).last_sequence == 2


def test_a_write_that_arrives_after_another_writers_recovery_is_refused(cloud: Cloud) -> None:
    cut = cut_off(cloud, LATE)
    cloud.pass_all()
    other = cloud.other(cut.store_id)
    assert other.produce("orders", "a", [Record(b"other")], expected_sequence=1).last_sequence == 2
    assert len(cloud.deliver()) == 1
    assert payloads(cloud, cut.store_id) == [b"1", b"other"]
    for store in (cut.store, other):
        assert store.outcome(cut.transaction_id) == "absent"
    assert cut.store.produce("orders", "a", [Record(b"3")]).last_sequence == 3


def test_a_write_that_arrives_before_anyone_asks_is_committed(cloud: Cloud) -> None:
    cut = cut_off(cloud, LATE)
    cloud.pass_all()
    assert len(cloud.deliver()) == 1
    assert cut.store.outcome(cut.transaction_id) == "committed"
    assert payloads(cloud, cut.store_id) == [b"1", b"2"]


def test_only_a_commit_can_be_of_unknown_outcome(cloud: Cloud) -> None:
    """A store or a space that cannot be made is unavailable; and the index waits, without a word."""
    for kind in kinds(cloud, 2):
        if "TXN" in kind:
            continue
        met: list[Request] = []

        def plan(request: Request, kind: str = kind, met: list[Request] = met) -> Fault:
            if not met and cloud.kind(request) != kind:
                return PASS
            met.append(request)
            return DROP_REQUEST

        cloud.plan(plan)
        store_id = uuid4()
        with pytest.raises(Unavailable):
            work(cloud.store(store_id), 2)
        cloud.pass_all()
        assert met
        before = payloads(cloud, store_id)
        assert before in ([], [b"1", b"2", b"3"], [b"1", b"2", b"3", b"4"])
        cloud.store(store_id).produce("orders", "a", [Record(b"more")], expected_sequence=len(before))
        assert payloads(cloud, store_id) == [*before, b"more"]
        assert cloud.direct(store_id).verify().ok
