"""The stores of an account: listing and deleting them.

A store is its table. If rows must outlive it, the table stays with them and with a mark that holds their count: while
it has no more rows than that, the store counts as deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.data.tables import TableClient, UpdateMode

from .account import ARCHIVE, Account
from .blobs import folder
from .errors import code_of, foreign
from .keys import encode_key, encode_partition
from .rows import FORMAT, Blob
from .service import Clients

__all__ = ["delete", "stores"]

_BREAKS = 5
"""Number of times that a blob's lease is broken while others take it again."""
_MARK = ("deleted", "kept")
"""PartitionKey and RowKey: no row's, which begin with k."""


def stores(clients: Clients, account: Account) -> Iterator[UUID]:
    """Yield the stores that have a table. The first row of a store makes its table."""
    between = f"TableName ge '{account.prefix}0' and TableName lt '{account.prefix}g'"
    for page in _pages(clients.tables.query_tables(between), account.tables, ""):
        found = {table.name: store for table in page if (store := account.store(table.name)) is not None}
        exist = clients.threads.each(lambda name: _exists(clients.tables.get_table_client(name), account), list(found))
        yield from (store for store, there in zip(found.values(), exist, strict=True) if there)


def _exists(table: TableClient, account: Account) -> bool:
    """True if the table holds more than the mark of a deleted store."""
    with foreign(account.tables):
        try:
            kept = table.get_entity(*_MARK)["count"]
        except ResourceNotFoundError as error:
            if code_of(error) not in ("ResourceNotFound", "EntityNotFound", "TableNotFound"):
                raise
            return code_of(error) != "TableNotFound"
    rows = table.query_entities("PartitionKey ge 'k'", select=["RowKey"], results_per_page=kept + 1)
    count = 0
    for page in _pages(rows, account.tables, "TableNotFound"):
        count += len(page)
        if count > kept:
            return True
    return False


def delete(clients: Clients, account: Account, store: UUID, keep: Collection[tuple[bytes, bytes]]) -> None:
    """The table first: without it no reader sees the store, and the next steps only free space."""
    spared = {(encode_partition(partition), encode_key(key)) for partition, key in keep}
    kept = _delete_rows(clients, account, spared) if spared else {}
    with foreign(account.tables):
        if kept:
            mark = {"PartitionKey": _MARK[0], "RowKey": _MARK[1], "f": FORMAT, "count": len(kept)}
            clients.table.upsert_entity(mark, mode=UpdateMode.REPLACE)
        else:
            try:
                clients.table.delete_table()
            except HttpResponseError as error:
                if code_of(error) != "TableBeingDeleted":
                    raise
    blobs = {folder(store) + blob.name for blob in kept.values() if blob is not None}
    for path in (f"{store}/", f"{ARCHIVE}/{store}/"):
        names = clients.container.list_blob_names(name_starts_with=path)
        for page in _pages(names, account.blobs, "ContainerNotFound"):
            clients.threads.each(lambda name: _remove(clients, account, name), [n for n in page if n not in blobs])


_Address = tuple[str, str]


def _delete_rows(clients: Clients, account: Account, spared: set[_Address]) -> dict[_Address, Blob | None]:
    """Remove all rows but these. Return those of them that exist, and the blobs that they refer to."""
    kept: dict[_Address, Blob | None] = {}

    def remove(row: _Address) -> None:
        with foreign(account.tables, writing=True):
            clients.table.delete_entity(*row)

    found = clients.table.list_entities(select=["PartitionKey", "RowKey", "b"])
    for page in _pages(found, account.tables, "TableNotFound"):
        rows = {(entity["PartitionKey"], entity["RowKey"]): Blob.of(entity.get("b") or "") for entity in page}
        clients.threads.each(remove, [row for row in rows if row not in spared])
        kept |= {row: blob for row, blob in rows.items() if row in spared}
    return kept


def _pages(items: Any, where: str, missing: str) -> Iterator[list[Any]]:
    """The pages of a list of the SDK; none where the service says `missing`."""
    pages: Iterator[Iterable[Any]] = items.by_page()
    while True:
        with foreign(where):
            try:
                page = list(next(pages))
            except StopIteration:
                return
            except ResourceNotFoundError as error:
                if code_of(error) != missing:
                    raise
                return
        yield page


def _remove(clients: Clients, account: Account, name: str) -> None:
    """Remove a blob; a lease on it is broken first, by its holder or by this."""
    from azure.storage.blob import BlobLeaseClient

    blob = clients.container.get_blob_client(name)
    with foreign(account.blobs), suppress(ResourceNotFoundError):
        for left in reversed(range(_BREAKS)):
            try:
                blob.delete_blob(delete_snapshots="include")
                return
            except HttpResponseError as error:
                if code_of(error) != "LeaseIdMissing" or not left:
                    raise
            try:
                BlobLeaseClient(blob).break_lease(0)
            except HttpResponseError as error:
                if code_of(error) != "LeaseNotPresentWithLeaseOperation":
                    raise
