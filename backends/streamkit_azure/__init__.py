"""Stores on Azure Storage: a table each, and blobs for leases and for values that do not fit into a row.

`azure://account/prefix` is a storage account; the prefix, `streamkit` by default, is where its tables' names start,
and the name of its blob container. Credentials come from the environment, the first of these that is set:
AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN; without them azure-identity signs in.
`azurite:///prefix` is the emulator, on its own ports or as AZURITE_CONNECTION_STRING says.

| option | means |
|---|---|
| `endpoint_suffix=core.chinacloudapi.cn` | azure: another cloud than core.windows.net |
| `host=127.0.0.1`, `blob_port=10000`, `table_port=10002` | azurite: where it listens |

Azure enforces of an `Append` that its key is new, not that it is the greatest: the engine sees to that with the head
row, whose etag is in the same batch. `Put` of a value that was in a blob, with ANY, leaves the old blob behind until
the store is deleted.
"""

from __future__ import annotations

from .driver import AzureDriver, connect

__all__ = ["AzureDriver", "connect"]
