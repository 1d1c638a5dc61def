"""Values too big for a table row, each in a blob of its own that is never changed.

A blob is written before the row that refers to it and removed after it. A blob that a crash in between leaves is
unreferenced, and the next scrub removes it (see leftovers.py). A blob is not removed when its row's write was refused:
the refusal may be the answer to a second copy of the request, and the first may have been applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID, uuid4

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError

from streamkit.errors import CorruptData, StreamkitError, Unavailable

from .errors import code_of, foreign
from .rows import Blob
from .service import Clients
from .transport import CONNECTING

__all__ = ["Blobs", "folder", "make_container"]


def make_container(clients: Clients, where: str) -> None:
    """Create the container of all stores' blobs. An existing one is no error."""
    with foreign(where):
        try:
            clients.container.create_container()
        except ResourceExistsError as error:
            if code_of(error) != "ContainerAlreadyExists":
                raise


_SLOWEST = 1 << 18
"""Bytes a second. The SDK's connection timeout also limits the time for sending a value."""


def folder(store: UUID) -> str:
    """Return the folder of the blobs of a store's rows."""
    return f"{store}/rows/"


class Blobs:
    def __init__(self, clients: Callable[[], Clients], where: str, store: UUID) -> None:
        self._clients = clients
        self._where = where
        self._path = folder(store)

    def put(self, value: bytes, blob: Blob | None = None) -> Blob:
        """Keep `value` under a new name, or again as `blob`."""
        clients = self._clients()
        blob = blob or Blob(uuid4().hex, len(value))
        client = clients.container.get_blob_client(self._path + blob.name)
        sending = CONNECTING + len(value) / _SLOWEST
        for _ in range(2):
            with foreign(self._where):
                try:
                    client.upload_blob(value, overwrite=True, connection_timeout=sending)
                    return blob
                except ResourceNotFoundError as error:
                    if code_of(error) != "ContainerNotFound":
                        raise
            make_container(clients, self._where)
        name = clients.container.container_name
        raise Unavailable(f"the container {name!r} was removed while it was written to; try again")

    def get(self, blob: Blob, start: int, length: int) -> bytes | None:
        """`length` bytes from `start`, cut at the end; None if the blob is not there."""
        length = min(length, blob.size - start)
        if length <= 0:
            return b""
        client = self._clients().container.get_blob_client(self._path + blob.name)
        with foreign(self._where):
            try:
                data = client.download_blob(offset=start, length=length).readall()
            except ResourceNotFoundError as error:
                if code_of(error) not in ("BlobNotFound", "ContainerNotFound"):
                    raise
                return None
            except HttpResponseError as error:
                if error.status_code != 416:
                    raise
                data = b""
        if len(data) != length:
            raise CorruptData(f"the blob {self._path}{blob.name} is cut short: expected {blob.size} bytes")
        return data

    def path_of(self, name: str) -> str:
        """Return the path in the container of a blob."""
        return self._path + name

    def stored(self) -> dict[str, float]:
        """The names of all blobs of the store, and when each was written, by the service's clock."""
        container = self._clients().container
        with foreign(self._where):
            try:
                return {
                    blob.name.removeprefix(self._path): blob.last_modified.timestamp()
                    for blob in container.list_blobs(name_starts_with=self._path)
                }
            except ResourceNotFoundError as error:
                if code_of(error) != "ContainerNotFound":
                    raise
                return {}

    def has_copies(self, prefix: str) -> bool:
        """True if the service keeps snapshots, earlier versions or deleted blobs under `prefix`."""
        container = self._clients().container
        with foreign(self._where):
            try:
                return any(
                    blob.deleted or blob.snapshot or (blob.version_id and not blob.is_current_version)
                    for blob in container.list_blobs(
                        name_starts_with=prefix, include=["snapshots", "versions", "deleted"]
                    )
                )
            except ResourceNotFoundError as error:
                if code_of(error) != "ContainerNotFound":
                    raise
                return False

    def discard(self, blobs: Sequence[Blob]) -> None:
        """Remove blobs that no row names any more. A blob that cannot be removed stays, unused."""
        clients = self._clients()

        def remove(blob: Blob) -> None:
            with suppress(StreamkitError), foreign(self._where), suppress(ResourceNotFoundError):
                clients.container.delete_blob(self._path + blob.name, delete_snapshots="include")

        if len(blobs) == 1:
            remove(blobs[0])
        else:
            clients.threads.each(remove, blobs)
