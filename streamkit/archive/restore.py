"""The archive without its log: which spaces there are, and their transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import UUID

from ..client import archive_root
from ..clock import SYSTEM_CLOCK
from ..errors import CorruptData
from ..log.rows import Head, Settings
from .errors import mapped
from .place import Place
from .table import check_installed, space_of

if TYPE_CHECKING:
    from ..client import Client
    from ..log.read import Batch, Bounds
    from .read import Archive

__all__ = ["archived_spaces", "read_archived"]


def archived_spaces(client: Client, store: UUID) -> list[str]:
    """The names of the spaces that have an archive."""
    check_installed()
    import pyarrow.fs as fs

    place = Place(*archive_root(client))
    url = place.store(store)
    if url.startswith("file://"):
        system: Any = fs.LocalFileSystem()
        base = unquote(url.removeprefix("file://"))
    else:
        from deltalake.fs import DeltaStorageHandler

        system, base = fs.PyFileSystem(DeltaStorageHandler(url, place.options)), ""
    with mapped(url, place.options):
        entries = system.get_file_info(fs.FileSelector(base, allow_not_found=True))
    names = [entry.base_name for entry in entries if entry.type == fs.FileType.Directory]
    return sorted(name for name in (space_of(place, f"{url}/{path}") for path in names) if name is not None)


class _Lost:
    """What the archive's reader must know of a partition whose log is not there."""

    def __init__(self, space: str, partition: int, partitions: int, archived: int) -> None:
        self.space = space
        self.partition = partition
        self.settings = Settings(partitions)
        self.head = Head(self.settings, archived=archived)
        self.clock = SYSTEM_CLOCK


def read_archived(archive: Archive, bounds: Bounds) -> list[Iterator[Batch]]:
    """For each partition of a space, its archived transactions."""
    table = archive.table.load()
    snapshot = archive.table.snapshot()
    if table is None or snapshot is None:
        return []
    partitions = archive.table.partitions(table)
    if snapshot.archived and max(snapshot.archived) >= partitions:
        raise CorruptData(f"{archive.table.url} has more partitions than the {partitions} that it says")
    lost: list[Any] = [
        _Lost(archive.space, partition, partitions, snapshot.archived.get(partition, 0))
        for partition in range(partitions)
    ]
    return [archive.transactions(one, (1, 0), one.head.archived, bounds) for one in lost]
