"""The cold tier on S3 and Azure, against their emulators."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import pytest
from fix_archiving import ArchivedConformance, race

import streamkit
from harness.store_checks.paging import Paging
from streamkit import Record, Store
from streamkit.archive.compact import compact_space
from streamkit.errors import CorruptData
from streamkit.log.policy import REMOTE
from streamkit.log.records import all_records

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
        store.create_space(SPACE, 2, archive_grace=0.5)
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
        store._shared.archives.clear()
        let_go(store)
        assert look(store) == before
        store.produce(SPACE, "s0", [Record(b"more")])
        assert len(look(store)[0]) == 73
    with streamkit.connect(url) as client:
        client.delete_store(id)
        assert list(client.stores()) == []
        assert look(client.store(id)) == ([], {}, {})


def let_go(store: Store) -> None:
    """Run upkeep until the log holds no archived transaction. The service's clock decides, and a test cannot set it."""
    known = store._known(SPACE)
    assert known is not None
    end = time.monotonic() + 60
    while any(next(all_records(partition, partition.packs, 1), None) for partition in known.partitions):
        assert time.monotonic() < end
        time.sleep(0.2)
        store.maintain()


_PART = pytest.mark.sampled(2)
_FEW = pytest.mark.sampled(6)


@pytest.fixture(
    params=[pytest.param("s3", marks=[pytest.mark.s3, _PART]), pytest.param("azure", marks=[pytest.mark.azure, _PART])]
)
def root(request: pytest.FixtureRequest) -> str:
    """The URL of an empty root."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3_bucket").url("some/prefix"))
    return str(request.getfixturevalue("azurite").url("arch" + uuid4().hex[:12]))


def test_a_space_is_archived_read_and_deleted(root: str, request: pytest.FixtureRequest) -> None:
    archived_and_back(root)
    if root.startswith("s3:"):
        # The ends of the logs of the two partitions, and the empty transactions in the place of the last ones.
        names = request.getfixturevalue("s3_bucket").names()
        assert 2 <= len(names) <= 2 * (1 + 2 * REMOTE.upkeep)
        assert all("/p." in name for name in names)


def test_a_table_goes_on_past_its_checkpoints_and_is_compacted(root: str) -> None:
    """A checkpoint is there: a list that begins at its name finds the versions after it."""
    from deltalake import DeltaTable

    id, each = uuid4(), 5
    with streamkit.connect(root) as client:
        store = client.store(id)
        for at in range(13):
            for number in range(each):
                store.produce(SPACE, f"s{number % 2}", [Record(b"%d" % (at * each + number))])
            assert store.archive(SPACE).commits == 1
            if at == 0:
                table = store._archive(SPACE).table
                found = DeltaTable(table.url, storage_options=table.options)
                found.alter.set_table_properties({"delta.checkpointInterval": "4"})
            if at % 5 == 0:
                with streamkit.connect(root) as stranger:
                    assert [e.payload for e in stranger.store(id).consume_space(SPACE)] == [
                        b"%d" % number for number in range((at + 1) * each)
                    ]
        before = look(store)
        loaded = store._archive(SPACE).table.load()
        assert loaded is not None
        assert loaded.version() >= 13
        assert "_last_checkpoint" in {info.base_name for info in log_of(store)}
        assert compact_space(store._archive(SPACE), 64 << 20, 0)[:2] == (13, 1)
        store.produce(SPACE, "s0", [Record(b"more")])
        assert store.archive(SPACE).commits == 1
    with streamkit.connect(root) as client:
        assert look(client.store(id))[0][:-1] == before[0]


def log_of(store: Store) -> Any:
    import pyarrow.fs as fs

    return store._archive(SPACE).table.filesystem.get_file_info(fs.FileSelector("_delta_log"))


def test_what_is_missing_is_said(root: str) -> None:
    id = uuid4()
    with streamkit.connect(root) as client:
        store = client.store(id)
        store.create_space(SPACE, archive_grace=0.5)
        store.produce(SPACE, "s", [Record(b"1")])
        store.archive(SPACE)
        let_go(store)
        archive = store._archive(SPACE)
        snapshot = archive.table.snapshot()
        assert snapshot is not None
        archive.table.filesystem.delete_file(snapshot.files[0].path)
    with streamkit.connect(root) as client:
        with pytest.raises(CorruptData, match=f"{snapshot.files[0].path}.* is missing"):
            list(client.store(id).consume_space(SPACE))
        with pytest.raises(CorruptData, match="missing"):
            list(client.store(id).consume_segment(SPACE, "s"))


def test_an_archive_elsewhere_is_deleted_with_its_store(root: str) -> None:
    archive = f"{root.split('?')[0].replace('azurite:///', 'az://')}/elsewhere"
    if not archive.startswith("s3:"):
        pytest.skip("an archive elsewhere on Azurite needs its endpoint in the environment")
    with streamkit.connect(root, archive=archive) as client:
        store = client.store(uuid4())
        store.produce(SPACE, "s", [Record(b"1")])
        assert store.archive(SPACE).entries == 1
        files = store._archive(SPACE).table.filesystem
        assert names_in(files)
        client.delete_store(store.id)
        assert not names_in(files)
        client.delete_store(store.id)


def names_in(files: Any) -> list[str]:
    import pyarrow.fs as fs

    return [info.path for info in files.get_file_info(fs.FileSelector("", allow_not_found=True, recursive=True))]


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "a#b?c/%2F"])
def test_a_space_of_any_name_is_archived(root: str, name: str) -> None:
    id = uuid4()
    with streamkit.connect(root) as client:
        client.store(id).produce(name, name, [Record(b"1")])
        assert client.store(id).archive(name).entries == 1
    with streamkit.connect(root) as client:
        (entry,) = client.store(id).consume_space(name)
        assert (entry.tier, entry.space, entry.segment, entry.payload) == ("cold", name, name, b"1")


# -- all the time ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_readers_lose_nothing_while_writers_and_an_archiver_race(root: str) -> None:
    race(root, SPACE, 2, each=12)


class ArchivedInTheCloud(ArchivedConformance):
    sample = (Paging,)
    rounds = 2
    keeps = True
    partitions = (1,)
    patience = 300.0
    pause = 0.1

    _url = ""

    def root(self) -> str:
        return self._url


@pytest.mark.slow
@_FEW
@pytest.mark.s3
class TestArchivedOnS3(ArchivedInTheCloud):
    @pytest.fixture(autouse=True)
    def _bucket(self, s3_bucket: Any) -> None:
        self._url = s3_bucket.url("conformance")


@pytest.mark.slow
@_FEW
@pytest.mark.azure
class TestArchivedOnAzure(ArchivedInTheCloud):
    @pytest.fixture(autouse=True)
    def _prefix(self, azurite: Any) -> None:
        self._url = azurite.url("conf" + uuid4().hex[:12])
