"""The driver: a bucket and a prefix, and the stores under it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from urllib.parse import unquote, urlsplit
from uuid import UUID

from streamkit.backend import url_options
from streamkit.errors import MissingDependency

from .backend import S3Backend
from .bucket import Bucket
from .connection import Connection
from .failures import Target
from .layout import LONGEST_PREFIX, is_own
from .marker import Marker

__all__ = ["S3Driver", "connect"]

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_BATCH = 1000
_SHARE = 8 << 20
"""What a batch of deletes counts for in the window of parallel calls: eight at a time."""


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
        self._connection.check_open()
        return self._stores()

    def _stores(self) -> Iterator[UUID]:
        folders = filter(None, map(_store, self._bucket.folders(self._root)))
        # A folder that is named by a UUID may be anybody's: the marker tells.
        for store, marker in self._connection.each(self._look, folders):
            if marker:
                yield store

    def _look(self, store: UUID) -> tuple[UUID, bool]:
        return store, self._bucket.get(f"{self._path(store)}FORMAT") is not None

    def open(self, store: UUID) -> S3Backend:
        self._connection.check_open()
        return S3Backend(self._connection, store, self._path(store), self._page)

    def delete(self, store: UUID) -> None:
        """The marker goes last: a store that is half gone is still listed. Foreign objects are left alone."""
        path = self._path(store)
        marker = f"{path}FORMAT"
        for _ in self._connection.each(self._bucket.delete_all, self._batches(path, marker), lambda _: _SHARE):
            pass
        for _ in self._connection.each(self._bucket.delete_all, self._archived(store), lambda _: _SHARE):
            pass
        self._bucket.delete(marker)
        Marker(self._bucket, path).forget()

    def _batches(self, path: str, marker: str) -> Iterator[list[str]]:
        names = (item.name for item in self._bucket.list(path))
        own = (name for name in names if name != marker and is_own(name[len(path) :]))
        while batch := list(islice(own, _BATCH)):
            yield batch

    def _archived(self, store: UUID) -> Iterator[list[str]]:
        names = (item.name for item in self._bucket.list(f"{self._root}archive/{store}/"))
        while batch := list(islice(names, _BATCH)):
            yield batch

    def archive_root(self) -> tuple[str, dict[str, str]]:
        """See `ArchiveHost`. Credentials that do not expire go with it; for others delta-rs asks where boto3 does."""
        target = self._connection.target
        options: dict[str, str] = {}
        if target.region:
            options["AWS_REGION"] = target.region
        if target.endpoint:
            options["AWS_ENDPOINT_URL"] = target.endpoint
            options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "false"
            if target.endpoint.startswith("http://"):
                options["AWS_ALLOW_HTTP"] = "true"
        return f"s3://{target.bucket}/{self._root}archive", options | _lasting_credentials()

    def close(self) -> None:
        self._connection.close()

    def _path(self, store: UUID) -> str:
        return f"{self._root}{store}/"


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
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError(
            "an s3:// URL holds no credentials; put them where boto3 looks: the environment, a profile, or a role"
        )
    bucket = parts.netloc
    if parts.scheme != "s3" or parts.fragment or not _BUCKET.fullmatch(bucket):
        raise ValueError(
            f"expected a URL such as s3://bucket/prefix or s3://bucket?endpoint_url=http://127.0.0.1:9000, not {url!r}"
        )
    if bucket.endswith("--x-s3"):
        raise ValueError(
            f"the bucket {bucket!r} is an S3 Express directory bucket, whose lists have no order; "
            "use a general purpose bucket"
        )
    prefix = unquote(parts.path).strip("/")
    if prefix:
        _check_prefix(prefix)
    options = url_options(url, ("endpoint_url", "region"))
    region = options.get("region")
    if region is not None and not _REGION.fullmatch(region):
        raise ValueError(f"region in an s3:// URL is a name such as eu-central-1, not {region!r}")
    endpoint = options.get("endpoint_url")
    if endpoint is not None:
        _check_endpoint(endpoint)
    if find_spec("boto3") is None:
        raise MissingDependency("an s3:// URL needs boto3: pip install 'streamkit-store[s3]'")
    return S3Driver(Target(bucket, region, endpoint), prefix, timeout)


def _check_prefix(prefix: str) -> None:
    size = len(prefix.encode())
    if size > LONGEST_PREFIX:
        raise ValueError(
            f"the prefix of an s3:// URL has at most {LONGEST_PREFIX} bytes, or long names would not fit into the "
            f"1024 bytes of an S3 key; this one has {size}"
        )
    if any(part in ("", ".", "..") for part in prefix.split("/")) or not prefix.isprintable():
        raise ValueError(f"the prefix of an s3:// URL has no empty, '.' or '..' part: {prefix!r}")


def _check_endpoint(endpoint: str) -> None:
    parts = urlsplit(endpoint)
    if "@" in parts.netloc:
        raise ValueError("endpoint_url holds no credentials; put them where boto3 looks for them")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"endpoint_url is http(s)://host[:port], not {endpoint!r}")
