"""The SDK's clients for one account. Each process makes its own, at the first use."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.data.tables import TableClient, TableServiceClient

from streamkit.errors import MissingDependency, StoreClosed
from streamkit.importing import IMPORTING
from streamkit.reentry import Mutex

from .account import Account
from .threads import Threads
from .transport import Connections, Transport

if TYPE_CHECKING:
    from azure.storage.blob import ContainerClient

__all__ = ["Clients", "Service"]

T = TypeVar("T")

_WHOLE = 256 << 20
"""Bytes of a blob up to which one request sends or brings all of it."""


class _Shared:
    """Connections, threads and credentials that all stores of a driver share in one process."""

    def __init__(self, account: Account, timeout: float) -> None:
        self.connections = Connections(timeout)
        self.threads = Threads()
        self.credential = _credential(account)

    def close(self) -> None:
        self.threads.close()
        self.connections.close()


def _credential(account: Account) -> AzureNamedKeyCredential | AzureSasCredential | TokenCredential:
    if account.key:
        return AzureNamedKeyCredential(account.name, account.key)
    if account.sas:
        return AzureSasCredential(account.sas)
    try:
        with IMPORTING:
            from azure.identity import DefaultAzureCredential
    except ImportError:
        raise MissingDependency(
            "the account has neither a key nor a SAS token, and signing in needs azure-identity: "
            "pip install 'streamkit-store[azure]'"
        ) from None
    return DefaultAzureCredential()


class Clients:
    """One store's clients in one process; each is made at its first use."""

    def __init__(self, account: Account, shared: _Shared, store: UUID | None, counts: Counter[str]) -> None:
        self._account = account
        self._shared = shared
        self._store = store
        self._counts = counts
        self._lock = Mutex()
        self._made: dict[str, Any] = {}
        self.threads = shared.threads
        self.clock = shared.connections.clock

    @property
    def table(self) -> TableClient:
        """The store's table."""
        assert self._store is not None
        name = self._account.table(self._store)
        return self._once("table", lambda: TableClient(self._account.tables, name, **self._options("table")))

    @property
    def tables(self) -> TableServiceClient:
        return self._once("tables", lambda: TableServiceClient(self._account.tables, **self._options("table")))

    @property
    def container(self) -> ContainerClient:
        """The container of all stores."""
        return self._once("container", self._make_container)

    def _make_container(self) -> ContainerClient:
        with IMPORTING:  # a quarter of a second, and most stores have no large values
            from azure.storage.blob import ContainerClient

        options = self._options("blob") | {"max_single_put_size": _WHOLE, "max_single_get_size": _WHOLE}
        return ContainerClient(self._account.blobs, self._account.container, **options)

    def _once(self, name: str, make: Callable[[], T]) -> T:
        # No lock, which a fork could leave locked in the child: the first one in the dict is taken by all.
        made: T | None = self._made.get(name)
        return self._made.setdefault(name, make()) if made is None else made

    def _options(self, service: str) -> dict[str, Any]:
        transport = Transport(service, self._shared.connections, self._counts, self._lock)
        return {"credential": self._shared.credential, "transport": transport, "retry_total": 0}


class Service:
    """One account, in whichever process asks: a forked child gets connections and threads of its own."""

    def __init__(self, account: Account, timeout: float) -> None:
        self.account = account
        self._timeout = timeout
        self._shared: dict[int, _Shared] = {}
        self._closed = False

    def check_open(self) -> None:
        """StoreClosed after close."""
        if self._closed:
            raise StoreClosed(f"the client of the account {self.account.name!r} was closed; connect again")

    def clients(self, store: UUID | None, counts: Counter[str]) -> Clients:
        """The clients of `store`; None: those for all stores. StoreClosed after close."""
        self.check_open()
        process = os.getpid()
        shared = self._shared.get(process)
        if shared is None:  # no lock, as above
            shared = self._shared.setdefault(process, _Shared(self.account, self._timeout))
        return Clients(self.account, shared, store, counts)

    def close(self) -> None:
        self._closed = True
        shared = self._shared.pop(os.getpid(), None)
        if shared is not None:
            shared.close()
