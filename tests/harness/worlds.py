"""The root of a store on each backend, and every byte that is kept below it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from fix_azurite import Azurite
from fix_s3 import S3Bucket

import streamkit
from harness.deep_search import files_below, rows_in_memory
from streamkit import Store
from streamkit.archive_url import archive_place
from streamkit.backend import Driver
from streamkit.client import Client

__all__ = ["KINDS", "PATIENCE", "World", "account_of", "bucket_of", "directory", "memory", "without_leases"]

KINDS = [
    pytest.param("memory", marks=pytest.mark.exhaustive_only),
    "remote",
    "local",
    pytest.param("s3", marks=pytest.mark.s3),
    pytest.param("azure", marks=pytest.mark.azure),
]
PATIENCE = 60.0
"""Seconds for which an emulator is asked again, on a machine that is busy."""


class World:
    """A root of one backend; `stored()` gives the name and the bytes of all that is kept below it."""

    def __init__(self, url: str, path: Path, stored: Callable[[], Iterator[tuple[str, bytes]]]) -> None:
        self.url = url
        self.path = path
        self.stored = stored
        self.is_service = url.startswith(("s3:", "azurite:"))
        self.cold = f"file://{path}/cold" if url.startswith("memory:") else None
        self.archive = None if self.cold is None else archive_place(self.cold)

    def driver(self) -> Driver:
        from streamkit.client import _driver

        return _driver(self.url, PATIENCE)

    def client(self) -> Client:
        return streamkit.connect(self.url, timeout=PATIENCE, archive=self.cold)


def memory(url: str, path: Path) -> World:
    def stored() -> Iterator[tuple[str, bytes]]:
        yield from rows_in_memory(url)
        yield from files_below(path / "cold")

    return World(url, path, stored)


def bucket_of(bucket: S3Bucket, path: Path) -> World:
    plain = bucket.server.client()

    def stored() -> Iterator[tuple[str, bytes]]:
        for name in bucket.names():
            yield name, plain.get_object(Bucket=bucket.name, Key=name)["Body"].read()

    return World(bucket.url("erasing"), path, stored)


def account_of(azurite: Azurite, path: Path) -> World:
    from azure.data.tables import TableServiceClient
    from azure.storage.blob import BlobServiceClient

    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    ends = (
        f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={key};"
        f"BlobEndpoint=http://127.0.0.1:{azurite.blob_port}/devstoreaccount1;"
        f"TableEndpoint=http://127.0.0.1:{azurite.table_port}/devstoreaccount1;"
    )
    prefix = "er" + uuid4().hex[:10]
    tables, blobs = TableServiceClient.from_connection_string(ends), BlobServiceClient.from_connection_string(ends)

    def stored() -> Iterator[tuple[str, bytes]]:
        for table in tables.list_tables():
            if prefix in table.name:
                for entity in tables.get_table_client(table.name).list_entities():
                    parts = [entity[name] for name in sorted(entity) if isinstance(entity[name], bytes)]
                    yield f"{table.name}/{entity['RowKey']}", b"".join(parts)
        for container in blobs.list_containers():
            inside = blobs.get_container_client(container.name)
            for blob in inside.list_blobs():
                if prefix in container.name or prefix in blob.name:
                    yield blob.name, inside.download_blob(blob.name).readall()

    return World(azurite.url(prefix), path, stored)


def directory(path: Path) -> World:
    root = path / "root"
    return World(root.as_uri(), path, lambda: files_below(root))


class _Held:
    """Take a lease whose holder was killed, after its end."""

    def __enter__(self) -> _Held:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def check(self) -> None:
        return None


@contextlib.contextmanager
def without_leases() -> Iterator[None]:
    """Leases of killed processes are over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "_eraser_lease", lambda *_: _Held())
        patch.setattr(Store, "_archiver_lease", lambda *_: _Held())
        patch.setattr(Store, "lease", lambda *_, **__: _Held())
        yield
