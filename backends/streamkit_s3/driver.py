"""The driver: a bucket and a prefix, and the stores under it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from itertools import islice
from urllib.parse import quote
from uuid import UUID

from streamkit.errors import MissingDependency, PermanentError

from .backend import S3Backend
from .bucket import Bucket
from .connection import Connection
from .errors import Target
from .layout import encode, is_own, label
from .marker import Marker
from .url import target_of

__all__ = ["S3Driver", "archive_place", "connect"]

_BATCH = 1000
_SHARE = 8 << 20
"""The weight of a batch of deletes in the window of parallel calls: eight fit at a time."""


class S3Driver:
    """The stores under `prefix` ("" or a path without slashes at its ends). Lists ask for `page` names at a time."""

    def __init__(self, target: Target, prefix: str, timeout: float, page: int = 1000) -> None:
        self._connection = Connection(target, timeout)
        self._root = f"{prefix}/" if prefix else ""
        self._page = page
        self._bucket = Bucket(self._connection, Counter(), page)

    def __repr__(self) -> str:
        return f"<S3Driver s3://{self._connection.target.bucket}/{self._root}>"

    def stores(self) -> Iterator[UUID]:
        """Iterate over the stores under the prefix: one request for each page of folders, and one for each store."""
        self._connection.check_open()
        return self._stores()

    def _stores(self) -> Iterator[UUID]:
        folders = filter(None, map(_store, self._bucket.folders(self._root)))
        # A folder with the name of a UUID may belong to another program: the marker tells.
        for store, marker in self._connection.each(self._look, folders):
            if marker:
                yield store

    def _look(self, store: UUID) -> tuple[UUID, bool]:
        return store, self._bucket.get(f"{self._path(store)}FORMAT") is not None

    def open(self, store: UUID) -> S3Backend:
        """Return the store's backend, without I/O. StoreClosed if the driver is closed."""
        self._connection.check_open()
        return S3Backend(self._connection, store, self._path(store), self._page)

    def delete(self, store: UUID, keep: Collection[tuple[bytes, bytes]] = ()) -> None:
        """The marker goes last: a store that is half gone is still listed. Foreign objects are left alone."""
        path = self._path(store)
        marker = f"{path}FORMAT"
        spared = {marker, *(f"{path}{label(partition)}/{encode(key)}" for partition, key in keep)}
        for _ in self._connection.each(self._bucket.delete_all, self._batches(path, spared), lambda _: _SHARE):
            pass
        for _ in self._connection.each(self._bucket.delete_all, self._archived(store), lambda _: _SHARE):
            pass
        self._bucket.delete(marker)
        Marker(self._bucket, path).forget()

    def _batches(self, path: str, spared: set[str]) -> Iterator[list[str]]:
        names = (item.name for item in self._bucket.list(path))
        own = (name for name in names if name not in spared and is_own(name[len(path) :]))
        while batch := list(islice(own, _BATCH)):
            yield batch

    def _archived(self, store: UUID) -> Iterator[list[str]]:
        path = f"{self._root}archive/{store}/"
        listed = (item.name for item in self._bucket.list(path))
        # A store of this UUID under a prefix that ends with "archive" is in this folder, too: it stays.
        shared = self._bucket.get(f"{path}FORMAT") is not None
        names = (name for name in listed if not (shared and is_own(name[len(path) :])))
        while batch := list(islice(names, _BATCH)):
            yield batch

    def archive_root(self) -> tuple[str, dict[str, str]]:
        """See `ArchiveHost`. Credentials that do not expire go with it; for others delta-rs asks where boto3 does.

        PermanentError if the prefix is one under which delta-rs finds nothing.
        """
        try:
            return _directory(self._connection.target, f"{self._root}archive")
        except ValueError as error:
            raise PermanentError(f"no archive can be kept beside these stores: {error}") from None

    def put_archived(self, path: str, data: bytes) -> None:
        """See `ArchiveWriter`."""
        self._bucket.put(f"{self._root}archive/{path}", data)

    def close(self) -> None:
        """Close the connections. A second call does nothing."""
        self._connection.close()

    def _path(self, store: UUID) -> str:
        return f"{self._root}{store}/"


def archive_place(url: str) -> tuple[str, dict[str, str]]:
    """Return the place of archives at an s3:// URL of their own, in the form of `archive_root`. Raises ValueError for
    another URL."""
    return _directory(*target_of(url))


def _directory(target: Target, path: str) -> tuple[str, dict[str, str]]:
    """A folder of a bucket as delta-rs names it, and its storage options. ValueError if delta-rs cannot name it."""
    if re.search("%[0-9A-Fa-f]{2}", path):
        raise ValueError("delta-rs cannot read a prefix that has % and two hex digits in its name: use another prefix")
    options: dict[str, str] = {}
    if target.region:
        options["AWS_REGION"] = target.region
    # The variables are those of boto3, so the archive is where the stores are.
    endpoint = target.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        options["AWS_ENDPOINT_URL"] = endpoint
        options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "false"
        if endpoint.startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
    return f"s3://{target.bucket}/{quote(path)}".rstrip("/"), options | _lasting_credentials()


def _lasting_credentials() -> dict[str, str]:
    from botocore.session import Session

    found = Session().get_credentials()
    if found is None or found.method not in ("env", "shared-credentials-file", "config-file"):
        return {}
    frozen = found.get_frozen_credentials()
    options = {"AWS_ACCESS_KEY_ID": frozen.access_key or "", "AWS_SECRET_ACCESS_KEY": frozen.secret_key or ""}
    return options | {"AWS_SESSION_TOKEN": frozen.token} if frozen.token else options


def _store(folder: str) -> UUID | None:
    try:
        store = UUID(folder)
    except ValueError:
        return None
    return store if str(store) == folder else None


def connect(url: str, *, timeout: float) -> S3Driver:
    """The driver of `s3://bucket[/prefix][?endpoint_url=...][&region=...]`.

    `timeout` is the seconds after which the caller gives up in all; a single request gets at most half of it.
    ValueError for another URL. MissingDependency without boto3, which is imported at the first request only.
    """
    target, prefix = target_of(url)
    if find_spec("boto3") is None:
        raise MissingDependency("an s3:// URL needs boto3: pip install 'streamkit-store[s3]'")
    return S3Driver(target, prefix, timeout)
