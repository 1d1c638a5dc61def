"""The stores of an account: which there are, and the removal of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from .account import ARCHIVE, Account
from .errors import code_of, foreign
from .service import Clients

__all__ = ["delete", "stores"]


def stores(clients: Clients, account: Account) -> Iterator[UUID]:
    """Each store with a table of its own: the first row made it."""
    between = f"TableName ge '{account.prefix}0' and TableName lt '{account.prefix}g'"
    pages = clients.tables.query_tables(between).by_page()
    while True:
        with foreign(account.tables):
            try:
                names = [table.name for table in next(pages)]
            except StopIteration:
                return
        for name in names:
            store = account.store(name)
            if store is not None:
                yield store


def delete(clients: Clients, account: Account, store: UUID) -> None:
    """The table first: with it the store is gone for every reader, and what follows only frees space."""
    with foreign(account.tables):
        try:
            clients.table.delete_table()
        except HttpResponseError as error:
            if code_of(error) != "TableBeingDeleted":
                raise
    for folder in (f"{store}/", f"{ARCHIVE}/{store}/"):
        _empty(clients, account, folder)


def _empty(clients: Clients, account: Account, folder: str) -> None:
    pages = clients.container.list_blob_names(name_starts_with=folder).by_page()
    while True:
        with foreign(account.blobs):
            try:
                names = list(next(pages))
            except StopIteration:
                return
            except ResourceNotFoundError as error:
                if code_of(error) != "ContainerNotFound":
                    raise
                return
        clients.threads.each(lambda name: _remove(clients, account, name), names)


def _remove(clients: Clients, account: Account, name: str) -> None:
    """Remove a blob; a lease on it is broken first."""
    from azure.storage.blob import BlobLeaseClient

    blob = clients.container.get_blob_client(name)
    with foreign(account.blobs), suppress(ResourceNotFoundError):
        try:
            blob.delete_blob()
        except HttpResponseError as error:
            if code_of(error) != "LeaseIdMissing":
                raise
            BlobLeaseClient(blob).break_lease(0)
            blob.delete_blob()
