"""Published views: a fresh process begins from the newest, with few requests; a damaged one is passed over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record
from streamkit.compression import load_zstd
from streamkit.views import Latest, publish
from streamkit.views.publish import delete_published


def view(store: streamkit.Store, path: Path) -> streamkit.views.OpenView:
    return store.view("latest", Latest(lambda entry: entry.payload.decode()), ["log"], path)


@pytest.mark.s3
def test_a_fresh_process_on_s3_takes_it_with_few_requests(s3_bucket: Any, tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    id = uuid4()
    with streamkit.connect(s3_bucket.url("root")) as client:
        store = client.store(id)
        store.produce("log", "s", [Record(b"%d" % at) for at in range(2000)])
        with view(store, tmp_path / "one") as first:
            first.publish()
        store.produce("log", "s", [Record(b"%d" % at) for at in range(1900, 2100)])
    before = len(s3_bucket.requests())
    with streamkit.connect(s3_bucket.url("root")) as client, view(client.store(id), tmp_path / "two") as fresh:
        fresh.wait_for(client.store(id).end_offset("log"))
        seen = s3_bucket.requests()[before:]
        assert (len(fresh.view), fresh.get("2099").sequence) == (2100, 2200)
        assert len([path for _, path in seen if "_published" in path]) == 2, "listed, fetched"
        assert len(seen) <= 30, "of them 22 at once, for what may follow on the head of the log"
        assert not [method for method, _ in seen if method != "GET" and method != "HEAD"]
        assert delete_published(client.store(id)) == 1


@pytest.mark.azure
def test_a_fresh_process_on_azure_takes_it(azurite: Any, tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    id = uuid4()
    with streamkit.connect(azurite.url(f"v{uuid4().hex[:8]}")) as client:
        store = client.store(id)
        store.produce("log", "s", [Record(b"a"), Record(b"b")])
        with view(store, tmp_path / "one") as first:
            first.publish()
        with view(store, tmp_path / "two") as second:
            assert second.catch_up().entries == 2
            assert second.publish().entries == 2
        assert delete_published(store, "latest") == 2
        client.delete_store(id)


def test_a_published_view_that_is_damaged_or_gone_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with streamkit.connect(f"file://{tmp_path}/stores") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(b"a")])
        with view(store, tmp_path / "one") as first:
            first.publish()
            store.produce("log", "s", [Record(b"b")])
            first.catch_up()
            newest = first.publish()
        (found,) = Path(tmp_path, "stores", "archive").rglob(newest.name)
        found.write_bytes(found.read_bytes()[:-20])
        with view(store, tmp_path / "two") as second:
            assert second.catch_up().entries == 2
        assert any("passed over" in note for note in caplog.messages)
        for other in found.parent.iterdir():
            other.write_bytes(b"nonsense")
        with view(store, tmp_path / "three") as third:
            assert third.catch_up().entries == 2
        for _ in range(3):
            first = view(store, tmp_path / "one")
            first.publish()
        assert len(list(found.parent.iterdir())) == 2, "older ones go"


def test_with_publish_it_is_published_now_and_then(tmp_path: Path) -> None:
    with streamkit.connect(f"file://{tmp_path}/stores") as client:
        store = client.store(uuid4())
        for at, every in enumerate((0.0, 1000.0, 0.0)):
            store.produce("log", "s", [Record(b"%d" % at)])
            kind = Latest(lambda entry: entry.payload.decode())
            with store.view("v", kind, ["log"], tmp_path / "v", publish=True, publish_every=every) as one:
                one.catch_up()
                one.catch_up()
        names = sorted(path.name for path in Path(tmp_path, "stores", "archive").rglob("*.zst"))
        assert [name.split("-")[3] for name in names] == ["1", "3"]


def test_it_may_be_built_anew_while_another_one_publishes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers wait for each other, and the database that was there before is gone by then."""
    with streamkit.connect(f"file://{tmp_path}") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(b"a"), Record(b"b")])
        with view(store, tmp_path / "view") as one, view(store, tmp_path / "view") as other:
            one.catch_up()
            lease = streamkit.Store.lease

            def waited(*args: Any, **options: Any) -> Any:
                other.rebuild()
                return lease(*args, **options)

            monkeypatch.setattr(streamkit.Store, "lease", waited)
            assert one.publish().entries == 2


@pytest.mark.parametrize("name", ["é" * 127, "v" * 255, "/" * 255, "😀" * 63])
def test_a_view_of_any_name_is_published(tmp_path: Path, name: str) -> None:
    with streamkit.connect(f"file://{tmp_path}") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(b"a"), Record(b"b")])
        with store.view(name, Latest(lambda entry: entry.payload.decode()), ["log"]) as view:
            assert view.publish().entries == 2


def _hostile(size: int) -> bytes:
    """A frame of that many zeros: 64 KiB for 2 GiB."""
    zstd = load_zstd()
    compressor = zstd.ZstdCompressor(level=1)
    piece = bytes(1 << 20)
    return b"".join(compressor.compress(piece) for _ in range(size >> 20)) + compressor.flush()


_FETCH = """
import resource, sys
from pathlib import Path
import streamkit
from streamkit.views import Latest

url, id, path = sys.argv[1:]
with streamkit.connect(url) as client:
    view = client.store(id).view("latest", Latest(lambda entry: entry.payload.decode()), ["log"], path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert view.catch_up().entries == 1
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_hostile_published_view_costs_little_memory_and_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/stores"
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(b"a")])
        with view(store, tmp_path / "one") as first:
            done = first.publish()
        (found,) = Path(tmp_path, "stores", "archive").rglob(done.name)
        found.write_bytes(_hostile(1 << 30))
        assert found.stat().st_size < 1 << 17
        written: list[int] = []
        pieces = publish.decompress_pieces

        def counted(chunks: Iterable[bytes], most: int) -> Iterator[bytes]:
            for piece in pieces(chunks, most):
                written.append(len(piece))
                yield piece

        monkeypatch.setattr(publish, "decompress_pieces", counted)
        with view(store, tmp_path / "two") as second:
            assert second.catch_up().entries == 1
        assert any("holds more than" in note for note in caplog.messages)
        assert max(written) <= 1 << 20
        assert sum(written) <= (64 << 20) + 1000 * found.stat().st_size
        assert not list(tmp_path.glob("two.builds/*.part"))
        run = subprocess.run(
            [sys.executable, "-c", _FETCH, url, str(store.id), str(tmp_path / "three")],
            check=True,
            capture_output=True,
            text=True,
        )
        assert int(run.stdout) < 32 << 10, "KiB of memory"
