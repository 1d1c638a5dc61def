"""The cold tier on S3 and Azure, against their emulators."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record, Store

pytest.importorskip("deltalake")

SPACE = "a space/ü"


def look(store: Store) -> Any:
    entries = list(store.consume_space(SPACE))
    segments = {name: list(store.consume_segment(SPACE, name)) for name in store.get_segments(SPACE)}
    last = {name: store.peek(SPACE, name) for name in segments}
    return [(entry, entry.space_offset, entry.stream_id) for entry in entries], segments, last


def archived_and_back(url: str) -> None:
    id = uuid4()
    with streamkit.connect(url) as client:
        store = client.store(id)
        store.create_space(SPACE, 2, archive_grace=1.0)
        for at in range(24):
            store.produce(SPACE, f"s{at % 5}", [Record(b"%d" % at, {"k": "v"} if at % 2 else None)] * 3)
        before = look(store)
        assert store.archive(SPACE, target_file_bytes=50).entries == 72
        assert {entry.tier for entry, _, _ in look(store)[0]} == {"cold"}
        assert look(store) == before
        assert list(client.stores()) == [id]
    with streamkit.connect(url) as client:
        store = client.store(id)
        assert look(store) == before
        store._archives.clear()
        known = store._known(SPACE)
        assert known is not None
        store._clock = _Later()
        for partition in known.partitions:
            partition.clock = store._clock
        store.maintain()
        assert not any(list(store._backend.scan(p.key, b"TXN\x00", b"TXN\x01")) for p in known.partitions)
        assert look(store) == before
        store.produce(SPACE, "s0", [Record(b"more")])
        assert len(look(store)[0]) == 73
    with streamkit.connect(url) as client:
        client.delete_store(id)
        assert list(client.stores()) == []
        assert look(client.store(id)) == ([], {}, {})


class _Later:
    """The system's clock, a minute ahead."""

    def __init__(self) -> None:
        from streamkit.clock import SYSTEM_CLOCK

        self._clock = SYSTEM_CLOCK

    def now(self) -> int:
        return self._clock.now() + 60_000

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.s3
@pytest.mark.usefixtures("no_environment")
def test_a_space_on_s3_is_archived_read_and_deleted(s3_bucket: Any) -> None:
    archived_and_back(s3_bucket.url("some/prefix"))
    assert s3_bucket.names() == []


@pytest.mark.azure
@pytest.mark.xfail(
    reason="delta-rs 1.6 lists from an offset in a way that Azurite 3.36 does not answer: second commits fail"
)
def test_a_space_on_azure_is_archived_read_and_deleted(azurite: Any) -> None:
    archived_and_back(azurite.url("arch" + uuid4().hex[:12]))
