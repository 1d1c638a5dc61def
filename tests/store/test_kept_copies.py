"""A storage that keeps replaced and deleted values by its own settings: an erasure and the doctor say so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_azurite import Azurite
from fix_s3 import S3Bucket

import streamkit
from harness.deep_search import holds
from harness.worlds import PATIENCE
from streamkit import Client, Record, Store
from streamkit.backend import Backend
from streamkit.doctor import diagnose
from streamkit.errors import AccessDenied, Unavailable
from streamkit.testing import ManualClock
from streamkit.views import Index
from streamkit_memory import MemoryDriver
from streamkit_s3.bucket import Bucket

_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def _told(store: Store) -> list[str]:
    return [finding.text for finding in diagnose(store).findings if finding.subject == "copies"]


@pytest.mark.s3
@pytest.mark.parametrize("state", ["Enabled", "Suspended", "Locked"])
def test_an_erasure_names_a_bucket_that_keeps_versions(
    s3_bucket: S3Bucket, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, plain, tag = s3_bucket, s3_bucket.server.client(), os.urandom(24)
    if state == "Locked":
        bucket = S3Bucket(s3_bucket.server, f"locked-{uuid4().hex}")
        plain.create_bucket(Bucket=bucket.name, ObjectLockEnabledForBucket=True)
    with streamkit.connect(bucket.url("p"), timeout=PATIENCE) as client:
        store = client.store(uuid4())
        if state != "Locked":
            store.produce("a", "user-1", [Record(b"x")])
            assert store.erase("a", "user-1").unreached == ()
            assert _told(store) == []
            plain.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"})
        store.produce("a", "user-1", [Record(tag)])
        if state == "Suspended":
            plain.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": state})
        (text,) = store.erase("a", "user-1").unreached
        assert bucket.name in text
        assert f"versioning is {'suspended' if state == 'Suspended' else 'enabled'}" in text
        assert len(_told(store)) == 1
        assert bucket.name in _told(store)[0]
        versions = plain.list_object_versions(Bucket=bucket.name)["Versions"]
        bodies = (plain.get_object(Bucket=bucket.name, Key=one["Key"], VersionId=one["VersionId"]) for one in versions)
        # moto forgets versions once it is suspended; S3 does not.
        assert state == "Suspended" or any(holds(body["Body"].read(), tag) for body in bodies), "it is not so"
        assert store.erase("a", "user-1").unreached == (text,), "the same again"

        def denied(_: Bucket) -> str:
            raise AccessDenied("s3:GetBucketVersioning")

        monkeypatch.setattr(Bucket, "versioning", denied)
        assert store.erase("a", "user-1").unreached == ()
        assert _told(store) == []


@pytest.mark.s3
def test_an_erasure_names_every_place_of_old_versions(s3_bucket: S3Bucket, tmp_path: Path) -> None:
    """Versions of the archive and of published views lie beside the store, and those of a deleted space stay too."""
    pytest.importorskip("deltalake")
    plain, tag = s3_bucket.server.client(), os.urandom(24)
    plain.put_bucket_versioning(Bucket=s3_bucket.name, VersioningConfiguration={"Status": "Enabled"})
    with streamkit.connect(s3_bucket.url("p"), timeout=PATIENCE) as client:
        store = client.store(uuid4())
        store.produce("a", "user-1", [Record(tag)])
        store.archive("a")
        with store.view("v", Index(lambda entry: entry.payload.hex()), ["a"], tmp_path / "v") as view:
            view.publish()
        (text,) = store.erase("a", "user-1").unreached
        store.delete_space("a")
        assert text in store.erase("a", "user-1").unreached
    pages = plain.get_paginator("list_object_versions").paginate(Bucket=s3_bucket.name)
    old = [(one["Key"], one["VersionId"]) for page in pages for one in page.get("Versions", ())]
    bodies = {key: plain.get_object(Bucket=s3_bucket.name, Key=key, VersionId=id)["Body"].read() for key, id in old}
    holding = [key for key, body in bodies.items() if holds(body, tag) or key.endswith(".sqlite.zst")]
    assert len(holding) >= 3
    assert [key for key in holding if not any(repr(f"{'/'.join(key.split('/')[:at])}/") in text for at in (2, 3))] == []


@pytest.mark.azure
@pytest.mark.parametrize("use", ["erase", "delete_space"])
def test_a_snapshot_of_a_file_of_the_archive_is_named_and_does_not_stop_an_erasure_for_ever(
    azurite: Azurite, use: str
) -> None:
    pytest.importorskip("deltalake")
    from azure.storage.blob import BlobServiceClient

    account, name = f"http://127.0.0.1:{azurite.blob_port}/devstoreaccount1", "kept" + uuid4().hex[:8]
    with (
        BlobServiceClient(account, _KEY) as service,
        streamkit.connect(azurite.url(name), timeout=PATIENCE) as client,
        client.store(uuid4()) as store,
    ):
        container, tag = service.get_container_client(name), os.urandom(24)
        store.produce("a", "user-1", [Record(tag)])
        store.archive("a")
        (file,) = [blob.name for blob in container.list_blobs() if blob.name.endswith(".parquet")]
        container.get_blob_client(file).create_snapshot()

        def remove() -> None:
            if use == "erase":
                assert store.erase("a", "user-1").unreached == ()
            else:
                store.delete_space("a")

        with pytest.raises(AccessDenied, match="delete the snapshots of the blobs"):
            remove()
        container.get_blob_client(file).delete_blob(delete_snapshots="only")
        remove()
        left = [container.download_blob(blob.name).readall() for blob in container.list_blobs()]
        assert not any(holds(data, tag) for data in left)


@pytest.mark.azure
def test_an_erasure_removes_snapshots_of_its_blobs_and_names_a_container_that_keeps_others(azurite: Azurite) -> None:
    from azure.storage.blob import BlobServiceClient

    account = f"http://127.0.0.1:{azurite.blob_port}/devstoreaccount1"
    name = "kept" + uuid4().hex[:8]
    with (
        BlobServiceClient(account, _KEY) as service,
        streamkit.connect(azurite.url(name), timeout=PATIENCE) as client,
        client.store(uuid4()) as store,
    ):
        container = service.get_container_client(name)
        tag = os.urandom(24)
        store.produce("a", "user-1", [Record(tag + os.urandom(900_000))])
        for blob in container.list_blobs(name_starts_with=f"{store.id}/rows/"):
            container.get_blob_client(blob.name).create_snapshot()
        assert len(_told(store)) == 1
        assert store.erase("a", "user-1").unreached == ()
        assert _told(store) == []
        left = container.list_blobs(include=["snapshots"])
        data = (container.get_blob_client(one.name, snapshot=one.snapshot).download_blob().readall() for one in left)
        assert not any(holds(one, tag) for one in data)

        store.produce("a", "user-2", [Record(os.urandom(900_000))])
        for blob in container.list_blobs(name_starts_with=f"{store.id}/rows/"):
            container.get_blob_client(blob.name).create_snapshot()
        store.produce("a", "user-1", [Record(tag)])
        (text,) = store.erase("a", "user-1").unreached
        assert f"{store.id}/" in text
        assert name in text
        client.delete_store(store.id)
        assert list(container.list_blobs(include=["snapshots"])) == []


def test_an_erasure_is_complete_also_if_the_storage_does_not_tell_what_it_keeps() -> None:
    clock, name = ManualClock(1_800_000_000.0), uuid4().hex
    driver = MemoryDriver(name, remote=True, clock=clock, sleep=clock.sleep)
    opened = driver.open

    class Silent:
        def __init__(self, backend: Backend) -> None:
            self._backend = backend

        def __getattr__(self, name: str) -> Any:
            return getattr(self._backend, name)

        def kept_copies(self) -> str | None:
            raise Unavailable("no answer")

    driver.open = lambda store: Silent(opened(store))  # type: ignore[method-assign, assignment, return-value]
    store = Client(f"memory://{name}", driver, PATIENCE, None, 64 << 20, clock, None).store(uuid4())
    store.produce("a", "user-1", [Record(b"x")])
    report = store.erase("a", "user-1")
    assert report.entries == 1
    (text,) = report.unreached
    assert "no answer" in text
