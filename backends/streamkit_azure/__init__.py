"""Stores on Azure Storage: a table each, and blobs for leases and for values that do not fit into a row.

`azure://account/prefix` is a storage account. The names of its tables begin with the prefix, and its blob container has
the prefix as its name; the default is `streamkit`. The credentials are the first of these variables that is set:
AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN. Without them azure-identity signs in.
`azurite:///prefix` is the emulator, on its own ports, or at the place that AZURITE_CONNECTION_STRING names.

| option | means |
|---|---|
| `endpoint_suffix=core.chinacloudapi.cn` | azure: another cloud than core.windows.net |
| `host=127.0.0.1`, `blob_port=10000`, `table_port=10002` | azurite: where it listens |

A row is one entity and one request. A value above 704 KiB is in a blob, which is written first; the row's etag names
it, so that a range with the etag is read from it at once. A put with ANY over such a row leaves the old blob behind
until the store is deleted.
"""

from __future__ import annotations

from .account import archive_place
from .driver import AzureDriver, connect

__all__ = ["AzureDriver", "archive_place", "connect"]
