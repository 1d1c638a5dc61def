"""Places of archives: directories and prefixes of any name, and services of their own."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest
from fix_azurite import Azurite
from fix_s3 import S3Bucket

import streamkit
from harness.deep_search import files_below, found_in
from streamkit import CorruptData, PermanentError, Record, Store


def write_and_archive(store: Store, times: int = 2) -> None:
    for number in range(times):
        store.produce("space", "s", [Record(b"%d" % number)])
        store.archive("space")


def assert_archived(store: Store, times: int = 2) -> None:
    entries = [(entry.payload, entry.tier) for entry in store.consume_space("space")]
    assert entries == [(b"%d" % number, "cold") for number in range(times)]
    assert store.verify("space").ok


@pytest.mark.parametrize(
    "name", ["a%20b", "a%41", "%2E%2E", "50%", "a%zz", "a\\b", "a b", "a#b?c", "[x]*{y}", "a'\"b", "ü"]
)
def test_an_archive_is_kept_under_a_directory_of_any_name(tmp_path: Path, name: str) -> None:
    url = (tmp_path / "in" / name).as_uri()
    with streamkit.connect(url) as client, client.store(uuid4()) as store:
        write_and_archive(store)
        store.produce("space", "erased", [Record(b"secret")])
        store.archive("space")
        store.erase("space", "erased")
        store.compact("space", retention_hours=0)
    with streamkit.connect(url) as client:
        assert_archived(client.store(store.id))
        write_and_archive(client.store(store.id), 1)
        assert os.listdir(tmp_path / "in") == [name], "and nothing is written beside it"
        client.delete_store(store.id)
        assert not list(tmp_path.glob("in/*/archive"))


def test_a_directory_that_delta_rs_misreads_needs_another_one_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t%20").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t%20"))
    with streamkit.connect((tmp_path / "a%20b").as_uri()) as client, client.store(uuid4()) as store:
        store.produce("space", "s", [Record(b"")])
        with pytest.raises(PermanentError, match="TMPDIR"):
            store.archive("space")


@pytest.mark.parametrize("prefix", ["a%20b", "a%23b%3Fc", "50%25", "a'b"])
def test_an_archive_is_kept_under_a_prefix_of_any_name(s3_bucket: S3Bucket, prefix: str) -> None:
    url = s3_bucket.url(prefix)
    with streamkit.connect(url) as client, client.store(uuid4()) as store:
        write_and_archive(store)
        store.compact("space")
    with streamkit.connect(url) as client:
        assert_archived(client.store(store.id))


def test_a_prefix_that_delta_rs_misreads_holds_stores_and_no_archive(s3_bucket: S3Bucket) -> None:
    with streamkit.connect(s3_bucket.url("a%2541")) as client, client.store(uuid4()) as store:
        store.produce("space", "s", [Record(b"1")])
        assert [entry.payload for entry in store.consume_space("space")] == [b"1"]
        with pytest.raises(PermanentError, match="use another prefix"):
            store.archive("space")
        store.delete_space("space")


def test_an_archive_on_another_service_is_where_its_url_says(
    s3_bucket: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = s3_bucket.url("cold")
    with streamkit.connect(tmp_path.as_uri(), archive=archive) as client, client.store(uuid4()) as store:
        write_and_archive(store)
        assert any(name.startswith(f"cold/{store.id}/") for name in s3_bucket.names())
    monkeypatch.setenv("STREAMKIT_URL", tmp_path.as_uri())
    monkeypatch.setenv("STREAMKIT_ARCHIVE", archive)
    with streamkit.connect() as client:
        assert_archived(client.store(store.id))
        client.delete_store(store.id)
        assert not s3_bucket.names()


@pytest.mark.parametrize("remote", [False, True])
def test_an_erasure_without_the_place_of_the_archive_says_so_and_is_completed_by_the_next_with_it(
    tmp_path: Path, remote: bool
) -> None:
    url = f"memory://{uuid4().hex}?remote=1" if remote else (tmp_path / "root").as_uri()
    cold, secret = (tmp_path / "cold").as_uri(), os.urandom(24)
    with streamkit.connect(url, archive=cold) as client, client.store(uuid4()) as store:
        store.produce("space", "s", [Record(b"0")])
        store.produce("space", "erased", [Record(secret)])
        store.archive("space")
    with streamkit.connect(url) as client:
        for by in ({"segment": "erased"}, {"segment": "erased"}, {"metadata": {"no": "entry"}}):
            (text,) = client.store(store.id).erase("space", **by).unreached  # type: ignore[arg-type]
            assert "connect(archive=URL)" in text
    assert found_in(files_below(tmp_path), secret)
    with streamkit.connect(url, archive=cold) as client:
        assert client.store(store.id).erase("space", "erased").unreached == ()
        assert found_in(files_below(tmp_path), secret) == []
        assert [entry.payload for entry in client.store(store.id).consume_space("space")] == [b"0"]


def test_an_archive_in_another_container_is_where_its_url_says(azurite: Azurite, tmp_path: Path) -> None:
    container = f"cold{uuid4().hex[:8]}"
    with streamkit.connect(azurite.url(container)) as client, client.store(uuid4()) as other:
        other.with_lease("it makes the container", lambda _: None)
    archive = azurite.url(f"{container}/a b")
    with streamkit.connect(tmp_path.as_uri(), archive=archive) as client, client.store(uuid4()) as store:
        write_and_archive(store)
    with streamkit.connect(azurite.url(container), archive=f"az://{container}/a%20b") as client:
        archived = client.store(store.id)._archive("space").table
        assert archived.state() is not None, "the same place, named in the account of the stores"
    with streamkit.connect(tmp_path.as_uri(), archive=archive) as client:
        assert_archived(client.store(store.id))
        client.delete_store(store.id)
        assert archived.state() is None


@pytest.mark.parametrize("outer", ["", "a"])
def test_the_deletion_of_a_store_leaves_one_under_a_prefix_where_its_archive_is(
    s3_bucket: S3Bucket, outer: str
) -> None:
    id, inner = uuid4(), f"{outer}/archive".strip("/")
    with streamkit.connect(s3_bucket.url(outer)) as client, streamkit.connect(s3_bucket.url(inner)) as other:
        write_and_archive(client.store(id))
        write_and_archive(other.store(id), 3)
        client.delete_store(id)
        assert_archived(other.store(id), 3)
        assert list(other.stores()) == [id]
        assert [name for name in s3_bucket.names() if name.startswith(f"{inner}/{id}/space/")] == []


@pytest.mark.parametrize("remote", [False, True])
def test_the_deletion_of_a_store_leaves_another_one_at_its_archive_url(
    s3_bucket: S3Bucket, tmp_path: Path, remote: bool
) -> None:
    id, place = uuid4(), s3_bucket.url("x") if remote else (tmp_path / "x").as_uri()
    with (
        streamkit.connect((tmp_path / "y").as_uri(), archive=place) as client,
        streamkit.connect(place) as other,
    ):
        write_and_archive(client.store(id))
        if remote:
            other.store(id).produce("a", "s", [Record(b"1")])
        else:
            with pytest.raises(CorruptData, match="is missing"):
                other.store(id).produce("a", "s", [Record(b"1")])
            client.delete_store(id)
            other.store(id).produce("a", "s", [Record(b"1")])
            write_and_archive(client.store(id))
        with pytest.raises(PermanentError, match="keep archives outside of the stores"):
            client.delete_store(id)
        assert [entry.payload for entry in other.store(id).consume_space("a")] == [b"1"]
        assert list(client.stores()) == []
