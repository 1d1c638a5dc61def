"""Connecting: a URL, the driver behind it, and the stores under it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING
from uuid import UUID

from .archive_url import ArchivePlace, archive_place
from .arguments import check_count, check_poll, check_seconds, check_type
from .backend import Ambiguous, ArchiveHost, ArchiveWriter, Driver
from .clock import SYSTEM_CLOCK, Clock
from .errors import MissingDependency, PermanentError, StoreClosed, Unavailable
from .importing import IMPORTING
from .log.policy import policy_of
from .open_store import ArchiveRoot, OpenStore
from .reentry import mark_backend
from .retry import RetryingBackend
from .statistics import new_counters
from .store import Store
from .terminal import amount
from .url import shown_scheme, shown_text

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Client", "archive_root", "connect"]

MOST_BYTES = 64 << 20
_RESTING = 16
"""Stores that are kept when their last handle was closed."""


def connect(
    url: str | None = None,
    *,
    timeout: float = 30.0,
    poll: tuple[float, float] | None = None,
    max_transaction_bytes: int = MOST_BYTES,
    archive: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Client:
    """A client for the stores under `url` (else STREAMKIT_URL, else ./streamkit-data). Opens nothing remote.

    `timeout`: seconds for which a throttled or unavailable service is asked again. `poll`: seconds between two looks
    while following, at first and at most; the backend's own if None. `max_transaction_bytes`: bytes of payload that a
    transaction may have, and so a record; metadata does not count, nor does the state of groups, routes and snapshots.
    `archive`: the URL of a directory where `store.archive` keeps its tables: file:///path, s3://bucket/prefix,
    az://container/path (in the account of the stores), azure://account/container/path or azurite:///container/path,
    with the options of a store URL. If it is None, tables are beside the stores; if `url` is None too, they are where
    STREAMKIT_ARCHIVE says.
    ValueError for a malformed URL, an unknown scheme or an unknown option. The error does not repeat the URL.
    MissingDependency if the package behind the scheme is not installed.
    """
    if url is None:
        url = os.environ.get("STREAMKIT_URL") or _default_url()
        archive = archive or os.environ.get("STREAMKIT_ARCHIVE") or None
    if isinstance(url, os.PathLike):
        raise TypeError(f"a store URL is str, not {type(url).__name__}: for a directory pass path.absolute().as_uri()")
    check_type(url, str, "a store URL is str")
    timeout = check_seconds("timeout", timeout, positive=True, endless=True)
    poll = check_poll(poll)
    place = None if archive is None else archive_place(archive)
    check_count("max_transaction_bytes", max_transaction_bytes, most=1 << 30)
    return Client(url, _driver(url, timeout), timeout, poll, max_transaction_bytes, clock, place)


def _default_url() -> str:
    from pathlib import Path

    return Path("streamkit-data").absolute().as_uri()


_OURS = {
    "memory": "streamkit_memory",
    "file": "streamkit_local",
    "s3": "streamkit_s3",
    "azure": "streamkit_azure",
    "azurite": "streamkit_azure",
}
"""Entry points too; but to look these up takes longer than to open a store."""

_EXTRAS = ("s3", "azure")
"""The schemes that need an extra of their own name."""


def _driver(url: str, timeout: float) -> Driver:
    scheme, separator, _ = url.partition("://")
    module = _OURS.get(scheme) if separator else None
    if module is None:
        return _foreign_driver(url, scheme, separator, timeout)
    try:
        with IMPORTING:
            connect = import_module(module).connect
    except ImportError as error:
        extra = module.removeprefix("streamkit_")
        package = f"'streamkit-store[{extra}]'" if extra in _EXTRAS else "streamkit-store"
        raise MissingDependency(
            f"{scheme}:// needs {error.name}, which is not installed: pip install {package}"
        ) from error
    driver: Driver = connect(url, timeout=timeout)
    return driver


def _foreign_driver(url: str, scheme: str, separator: str, timeout: float) -> Driver:
    """The driver of a backend that another package brings."""
    point = _look_up(url, scheme, separator)
    try:
        connect = point.load()
    except ImportError as error:
        package = f"the package {point.dist.name}" if point.dist else f"the backend {point.value}"
        raise MissingDependency(
            f"{scheme}:// needs {error.name}, which is not installed: see the documentation of {package}"
        ) from error
    driver: Driver = connect(url, timeout=timeout)
    return driver


def _look_up(url: str, scheme: str, separator: str) -> EntryPoint:
    """Find another package's entry point for the scheme. Raises ValueError if there is none."""
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group="streamkit.backends")}
    known = ", ".join(f"{name}://" for name in sorted(found)) or "none: is streamkit installed?"
    if not separator:
        raise ValueError(
            f"this text is not a store URL, which starts with one of {known}; a directory is file:///absolute/path"
        )
    if scheme not in found:
        raise ValueError(f"no backend for {shown_scheme(url) or 'this scheme'}; installed: {known}")
    return found[scheme]


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._forget()


os.register_at_fork(after_in_child=_after_fork)


class Client:
    """A client of the stores under one URL, from `connect`. Safe to share between threads; `with` closes it and its
    stores."""

    def __init__(
        self,
        url: str,
        driver: Driver,
        timeout: float,
        poll: tuple[float, float] | None,
        max_transaction_bytes: int,
        clock: Clock,
        archive: ArchivePlace | None = None,
    ) -> None:
        self._scheme = url.partition("://")[0]
        self._driver = driver
        mark_backend(driver)
        self._archive = archive
        self._timeout = timeout
        self._poll = poll
        self._most_bytes = max_transaction_bytes
        self._clock = clock
        self._stores: dict[UUID, OpenStore] = {}
        self._resting: dict[UUID, OpenStore] = {}
        """Stores without a handle, the latest last. They are kept where opening a store again takes requests."""
        self._lost: set[OpenStore] = set()
        """Stores with a part that was deleted while they were open; older handles still use them."""
        self._closed = False
        self._forget()
        _clients.add(self)

    def _forget(self) -> None:
        """Replace the lock after a fork: another thread may have held it."""
        self._lock = threading.RLock()

    def store(self, store_id: UUID | str) -> Store:
        """Return a handle of the store with this UUID. No I/O: the first write creates the store.

        Each call returns a new handle. Closing it, also by `with`, closes no other handle. All handles of this client
        share their caches and their commits. If calls are network requests, the client keeps the caches of a few stores
        whose last handle was closed. If a handle has learned that a space or the store was deleted, the next call
        returns a handle with empty caches; earlier handles keep raising the error until they are closed.
        """
        found = _uuid(store_id)
        with self._lock:
            self._check_open()
            shared = self._stores.get(found)
            if shared is not None and shared.lost:
                self._lost.add(self._stores.pop(found))
                shared = None
            if shared is None:
                shared = self._stores[found] = self._rested(found) or self._open(found)
            shared.handles += 1
        return Store(shared, self._release)

    def _rested(self, store_id: UUID) -> OpenStore | None:
        return self._resting.pop(store_id) if store_id in self._resting else None

    def _release(self, shared: OpenStore) -> None:
        """Note that a handle was closed."""
        with self._lock:
            shared.handles -= 1
            if shared.handles:
                return
            self._lost.discard(shared)
            if self._stores.get(shared.id) is shared:
                del self._stores[shared.id]
                if shared.backend.limits.remote:
                    shared.rest()
                    self._resting[shared.id] = shared
                    if len(self._resting) <= _RESTING:
                        return
                    shared = self._resting.pop(next(iter(self._resting)))
        shared.close()

    def _open(self, store_id: UUID) -> OpenStore:
        backend = self._driver.open(store_id)
        mark_backend(backend)
        counters = new_counters()
        poll = self._poll or policy_of(backend.limits).poll
        if backend.limits.remote:
            backend = RetryingBackend(backend, self._clock, counters, self._timeout)
        return OpenStore(store_id, backend, counters, self._clock, poll, self._most_bytes, self._archive_root)

    def _archive_root(self) -> ArchiveRoot:
        """Return the root of the archives, its storage options for delta-rs, and the writer of small files there."""
        root, options = self._driver.archive_root() if isinstance(self._driver, ArchiveHost) else (None, {})
        if self._archive is None:
            if root is None:
                raise PermanentError(f"{self._scheme}:// has no place for archives: connect with archive=URL")
            return root, options, self._driver.put_archived if isinstance(self._driver, ArchiveWriter) else None
        place = self._archive
        same = root is not None and root.partition("://")[0] == place.root.partition("://")[0]
        return place.root, options if same and place.shares_options else place.options, None

    def stores(self) -> Iterator[UUID]:
        """The stores that exist, in no particular order."""
        self._check_open()
        return self._driver.stores()

    def delete_store(self, store_id: UUID | str) -> None:
        """Delete a store. A missing store is no error. No process may write to it meanwhile.

        A process that still has it open gets StoreClosed or CorruptData at its next call, and does no harm to a new
        store of this UUID. For that, small empty rows stay in the cloud: one for each partition, and one for each
        transaction of the last minutes (a thirtieth of the archive grace).
        """
        self._check_open()
        found = _uuid(store_id)
        with self._lock:
            left = [store for stores in (self._stores, self._resting) if (store := stores.pop(found, None)) is not None]
            left += [store for store in self._lost if store.id == found]
            self._lost.difference_update(left)
        for store in left:
            store.close()
        ending = self._open(found)
        try:
            ends = ending.end()
        finally:
            ending.close()
        try:
            self._driver.delete(found, ends) if ends else self._driver.delete(found)
        except Ambiguous as error:
            raise Unavailable(f"some of store {found} may be there yet, delete it again: {error}") from error
        if self._archive is not None:
            from .archive.location import ArchiveLocation

            ArchiveLocation(*self._archive_root()).delete(found)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the client is closed; connect again")

    def close(self) -> None:
        """Close the client and its stores. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            stores = [*self._stores.values(), *self._resting.values(), *self._lost]
            self._stores.clear()
            self._resting.clear()
            self._lost.clear()
        for store in stores:
            store.close()
        self._driver.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{amount(len(self._stores), 'store')} open"
        return f"<Client {self._scheme}:// {state}>"


def archive_root(client: Client) -> ArchiveRoot:
    """Return the place and the options of the archives of a client's stores."""
    return client._archive_root()


def _uuid(store_id: UUID | str) -> UUID:
    if isinstance(store_id, UUID):
        return store_id
    check_type(store_id, str, "a store's id is a UUID or its text")
    try:
        return UUID(store_id)
    except ValueError:
        raise ValueError(
            f"{shown_text(store_id)} is not a UUID; make one with uuid.uuid4(), once, and keep it"
        ) from None
