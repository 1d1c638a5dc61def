"""One store: a table, and blobs for values that do not fit into its rows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from streamkit.backend import ANY, Etag, Expect, Grant, Limits, Range, Row, ServiceTime, Value
from streamkit.errors import StoreClosed

from .account import ARCHIVE
from .blobs import Blobs
from .keys import encode_partition
from .lease import Leases
from .leftovers import remove_leftovers
from .read import Reader
from .service import Clients, Service
from .write import Writer

__all__ = ["AzureBackend"]

_RATE = 2000.0
"""Entities a second of a table partition: learn.microsoft.com/azure/storage/tables/scalability-targets."""


class AzureBackend:
    """Made by `AzureDriver.open`."""

    def __init__(self, service: Service, store: UUID, page: int) -> None:
        account = service.account
        self._service = service
        self._store = store
        self._closed = False
        self._limits = Limits(remote=True, page=page, rate=_RATE)
        self._counts: Counter[str] = Counter()
        self._processes: dict[int, Clients] = {}
        self._blobs = blobs = Blobs(self._clients, account.blobs, store)
        self._reader = Reader(self._clients, blobs, account.tables, page)
        self._writer = Writer(self._clients, self._reader, blobs, account.tables)
        self._leases = Leases(self._clients, account.blobs, store)

    def __repr__(self) -> str:
        table = self._service.account.table(self._store)
        return f"<AzureBackend {table} at {self._service.account.tables} {'closed' if self._closed else 'open'}>"

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def requests(self) -> Mapping[str, int]:
        return dict(self._counts)

    def service_time(self) -> ServiceTime | None:
        clients = self._processes.get(os.getpid())
        return None if clients is None else clients.clock.time

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        self._clients()
        return self._reader.get(partition, keys)

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        self._clients()
        return self._reader.read(partition, ranges)

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        self._clients()
        encode_partition(partition)
        if limit < 0:
            raise ValueError(f"limit is zero (no limit) or more, not {limit}")
        return self._scan(partition, start, end, limit, values)

    def _scan(self, partition: bytes, start: bytes, end: bytes, limit: int, values: bool) -> Iterator[Row]:
        if start < end:
            yield from self._reader.scan(partition, start, end, limit, values)

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        """Always durable: Azure answers when the row is stored."""
        return self._writer.put(partition, key, value, expect)

    def delete(self, partition: bytes, keys: Sequence[bytes]) -> None:
        self._clients()
        self._writer.delete(partition, keys)

    def delete_if(self, partition: bytes, key: bytes, etag: Etag) -> None:
        """See `streamkit.backend.DeletesIf`."""
        self._clients()
        self._writer.delete_if(partition, key, etag)

    def scrub(self, partition: bytes) -> str | None:
        """Remove the values of all partitions: a blob does not tell its own."""
        return self.remove_leftovers()

    def remove_leftovers(self) -> str | None:
        """Remove the blobs that no row refers to any more: see `streamkit.backend.RemovesLeftovers`."""
        return remove_leftovers(self._clients(), self._blobs, self._reader, self._service.account.tables)

    def kept_copies(self) -> str | None:
        """Not of rows: tables keep no copies."""
        prefixes = (f"{self._store}/", f"{ARCHIVE}/{self._store}/")
        found = [prefix for prefix in prefixes if self._blobs.has_copies(prefix)]
        if not found:
            return None
        return (
            f"the container {self._service.account.container!r} keeps snapshots, earlier versions or deleted blobs "
            f"under {' and '.join(map(repr, found))} (snapshots, versioning, soft delete): delete them, or have a "
            "lifecycle rule do it, or wait until their retention ends"
        )

    def acquire(self, name: str, ttl: float) -> Grant | None:
        return self._leases.acquire(name, ttl)

    def renew(self, grant: Grant) -> Grant:
        return self._leases.renew(grant)

    def release(self, grant: Grant) -> None:
        self._leases.release(grant)

    def is_held(self, name: str) -> bool:
        return self._leases.is_held(name)

    def close(self) -> None:
        self._closed = True

    def _clients(self) -> Clients:
        """The SDK's clients of this process. Asked for before each request, so that a closed store sends none."""
        if self._closed:
            raise StoreClosed("the store was closed; open it again")
        self._service.check_open()
        process = os.getpid()
        clients = self._processes.get(process)
        if clients is None:
            clients = self._processes.setdefault(process, self._service.clients(self._store, self._counts))
        return clients
