"""Every legal name works on a server that keeps objects as files, where no part of a name is longer than 255 bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_proxy import PASS, Fault, Proxy, Request, status
from fix_s3 import S3Bucket

import streamkit
from streamkit import Client, Record

pytestmark = pytest.mark.s3

REFUSED = b"<Error><Code>KeyTooLongError</Code><Message>Your key is too long</Message></Error>"
NAMES = [
    *("a" * size for size in (1, 150, *range(164, 184), 191, 250, 254, 255)),
    *(character * (255 // len(character.encode())) for character in "é€🎉/% "),
    "a" * 254 + "b",
    "é" * 126 + "a",
]
SOME = (
    NAMES if EXHAUSTIVE else [name for name in NAMES if len(name.encode()) not in range(164, 184) or len(name) % 6 == 0]
)


def refuse_long_parts(request: Request) -> Fault:
    names = [urlsplit(request.target).path]
    names += re.findall(r"<Key>([^<]*)</Key>", request.body.decode("latin-1")) if request.method == "POST" else []
    parts = [part for name in names for part in unquote(name, "latin-1").split("/")]
    return status(400, REFUSED) if max(map(len, parts)) > 255 else PASS


@pytest.fixture
def connect(s3_bucket: S3Bucket, make_proxy: Callable[[str, int], Proxy]) -> Iterator[Callable[[], Client]]:
    proxy = make_proxy(s3_bucket.server.host, s3_bucket.server.port)
    proxy.plan = refuse_long_parts
    clients: list[Client] = []

    def connect() -> Client:
        clients.append(streamkit.connect(s3_bucket.url(endpoint_url=proxy.endpoint)))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def test_segments(connect: Callable[[], Client]) -> None:
    store_id = uuid4()
    store = connect().store(store_id)
    for turn in range(2):
        for name in NAMES:
            status = store.produce("orders", name, [Record(b"%d" % turn)], expected_sequence=turn)
            assert status.last_sequence == turn + 1
        store.maintain()
    for reader in (store, connect().store(store_id)):
        assert sorted(reader.get_segments("orders")) == sorted(NAMES)
        for name in NAMES:
            assert [entry.payload for entry in reader.consume_segment("orders", name)] == [b"0", b"1"]
        assert len(list(reader.consume_space("orders"))) == 2 * len(NAMES)


def test_spaces_keys_and_leases(connect: Callable[[], Client]) -> None:
    store_id = uuid4()
    store = connect().store(store_id)
    for name in SOME:
        first = store.produce(name, name, [Record(b"x")], idempotency_key=name)
        assert store.produce(name, name, [Record(b"x")], idempotency_key=name) == first
        store.maintain(name)
        with store.lease(name) as held:
            store.produce(name, "leader", [Record(b"y")], lease=held)
    other = connect()
    assert sorted(other.store(store_id).get_spaces()) == sorted(SOME)
    for name in SOME:
        assert other.store(store_id).peek(name, name).payload == b"x"
    other.delete_store(store_id)
    assert list(other.stores()) == []
