"""The driver: one storage account and a prefix in it, and the stores under that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING
from uuid import UUID

from streamkit.errors import MissingDependency, StoreClosed
from streamkit.importing import IMPORTING

from .account import ARCHIVE, account_of

if TYPE_CHECKING:
    from .service import Clients, Service
    from .store import AzureBackend

__all__ = ["AzureDriver", "connect"]

_NEEDED = ("azure.data.tables", "azure.storage.blob")


class AzureDriver:
    """The stores under a prefix, in pages of at most 1000 rows. The SDK is imported when the first store is opened."""

    def __init__(self, url: str, *, timeout: float, page: int = 1000) -> None:
        self._account = account_of(url)
        self._timeout = timeout
        self._page = page
        self._made: dict[str, Service] = {}
        self._closed = False
        for module in _NEEDED:
            _check_installed(module)

    def __repr__(self) -> str:
        return f"<AzureDriver {self._account.prefix} at {self._account.tables} {'closed' if self._closed else 'open'}>"

    def stores(self) -> Iterator[UUID]:
        """Iterate over the stores that exist under the prefix: see `Driver.stores`."""
        from .catalog import stores

        return stores(self._clients(), self._account)

    def open(self, store: UUID) -> AzureBackend:
        """Return the store's backend, without I/O. StoreClosed if the driver is closed."""
        with IMPORTING:
            from .store import AzureBackend

        return AzureBackend(self._service(), store, self._page)

    def delete(self, store: UUID, keep: Collection[tuple[bytes, bytes]] = ()) -> None:
        """Remove the store with its archive: see `Driver.delete`."""
        from .catalog import delete

        delete(self._clients(store), self._account, store, keep)

    def archive_root(self) -> tuple[str, dict[str, str]]:
        """See `ArchiveHost`."""
        return f"az://{self._account.container}/{ARCHIVE}", self._account.archive_options()

    def close(self) -> None:
        """Close the connections. A second call does nothing."""
        self._closed = True
        for service in self._made.values():
            service.close()

    def _service(self) -> Service:
        with IMPORTING:
            from .service import Service

        if self._closed:
            raise StoreClosed(f"the client of the account {self._account.name!r} was closed; connect again")
        # As everywhere here, no lock: a fork could leave it locked in the child.
        return self._made.get("") or self._made.setdefault("", Service(self._account, self._timeout))

    def _clients(self, store: UUID | None = None) -> Clients:
        return self._service().clients(store, Counter())


def _check_installed(module: str) -> None:
    found = None
    with suppress(ImportError):
        found = find_spec(module)
    if found is None:
        raise MissingDependency(f"stores on Azure need the package {module}: pip install 'streamkit-store[azure]'")


def connect(url: str, *, timeout: float) -> AzureDriver:
    """The driver of an azure:// or azurite:// URL; `timeout` is the seconds that one request may take.

    ValueError for another URL or unusable credentials in the environment, MissingDependency without the SDK.
    """
    return AzureDriver(url, timeout=timeout)
