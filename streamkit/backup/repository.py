"""The place where backups of one store are kept, at any URL that stores are kept at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from os import PathLike, fspath, urandom
from pathlib import Path
from uuid import UUID

from ..arguments import check_type
from ..backend import ABSENT, ANY, Ambiguous, Backend, Conflict, Expect, Scrubs
from ..client import Client, connect
from ..errors import PermanentError, Unavailable
from ..leases import Lease
from ..retry import delete_all, delete_rows
from ..store import Store, inner
from .format import (
    FILE,
    FORMAT,
    LOG,
    ROOT,
    PartitionBackup,
    PointRow,
    backup_id,
    data_partition,
    decode_json,
    encode_json,
    open_row,
    part_key,
    part_range,
    parts_from,
    point_key,
    points_range,
    seal_row,
    table_key,
)
from .report import BackupPoint

__all__ = ["Repository", "open_repository"]

_TRIES = 5
_LEASE = "backup"
_TTL = 60.0
_NAMED = 5
"""Stores that an error names at most."""
Progress = Callable[[int, int], None]


@contextmanager
def open_repository(url: str | PathLike[str], store: UUID, progress: Progress | None = None) -> Iterator[Repository]:
    """The backups of a store at `url`, which may be a path. ValueError for a URL that is none."""
    check_type(url, (str, PathLike), "a backup's URL is a str or a path")
    text = fspath(url)
    if not isinstance(url, str) or "://" not in text:
        try:
            text = Path(text).absolute().as_uri()
        except UnicodeEncodeError:
            raise ValueError("a backup's URL, or its path, has no lone surrogates: pass the name of a place") from None
    with connect(text) as client, client.store(backup_id(store)) as kept:
        yield Repository(client, kept, store, progress)


class Repository:
    """Points, and the copies that they name. `files` and `bytes` count the copied data."""

    def __init__(self, client: Client, kept: Store, store: UUID, progress: Progress | None) -> None:
        self.store = store
        self.files = self.bytes = 0
        self._client = client
        self._kept = kept
        self._backend: Backend = inner(kept).backend
        self._progress = progress

    def lease(self) -> Lease:
        """The lease that a backup holds, so that only one runs. LeaseNotAcquired while another one does."""
        return self._kept.lease(_LEASE, _TTL)

    # -- points -------------------------------------------------------------------------------------------------

    def points(self) -> list[BackupPoint]:
        """The complete ones, the oldest first."""
        rows = self._backend.scan(ROOT, *points_range())
        return [decode_json(PointRow, row.key, open_row(ROOT, row.key, row.data)).point for row in rows]

    def point(self, number: int | None) -> BackupPoint:
        """One point; the latest if None. PermanentError if there is none, saying which there are."""
        points = self.points()
        if not points:
            raise PermanentError(f"the target has no backup of the store {self.store}{self._others()}")
        for point in reversed(points):
            if number in (None, point.number):
                return point
        numbers = ", ".join(str(point.number) for point in points)
        raise PermanentError(f"the backup of the store {self.store} has no point {number}; it has {numbers}")

    def _others(self) -> str:
        """The stores with a backup here, for an error."""
        stores: list[str] = []
        for id in self._client.stores():
            with self._client.store(id) as kept:
                row = next(inner(kept).backend.scan(ROOT, *points_range(), limit=1), None)
                if row is not None:
                    stores.append(str(decode_json(PointRow, row.key, open_row(ROOT, row.key, row.data)).point.store))
        if not stores:
            return " or of any other store: name another target"
        more = f" and {len(stores) - _NAMED} others" if len(stores) > _NAMED else ""
        return f"; it has backups of {', '.join(sorted(stores)[:_NAMED])}{more}: name one of them with backup_of"

    def put_point(self, point: BackupPoint) -> None:
        """Record that a point is complete."""
        key = point_key(point.number)
        self._put(ROOT, key, encode_json(PointRow(FORMAT, point)), ANY)

    def remove_point(self, number: int) -> None:
        delete_rows(self._backend, ROOT, [point_key(number)])

    # -- parts --------------------------------------------------------------------------------------------------

    def parts(self, number: int) -> Iterator[PartitionBackup]:
        """All partitions of a point, in the order of the spaces' names and of the partitions."""
        for row in self._backend.scan(ROOT, *part_range(number)):
            yield decode_json(PartitionBackup, row.key, open_row(ROOT, row.key, row.data))

    def part(self, number: int, space: str, partition: int) -> PartitionBackup | None:
        key = part_key(number, space, partition)
        value = self._backend.get(ROOT, [key])[0]
        return None if value is None else decode_json(PartitionBackup, key, open_row(ROOT, key, value.data))

    def put_part(self, number: int, part: PartitionBackup) -> None:
        self._put(ROOT, part_key(number, part.space, part.partition), encode_json(part), ANY)

    def remove_part(self, number: int, space: str, partition: int) -> None:
        delete_rows(self._backend, ROOT, [part_key(number, space, partition)])

    def part_keys(self, first: int = 0) -> Iterator[bytes]:
        """The keys of the parts of all points from `first` on, complete or not."""
        return (row.key for row in self._backend.scan(ROOT, *parts_from(first), values=False))

    # -- copies -------------------------------------------------------------------------------------------------

    def data_keys(self, space: str, partition: int) -> set[bytes]:
        """The keys of all existing copies of a partition."""
        place = data_partition(space, partition)
        return {row.key for row in self._backend.scan(place, b"\x00", b"\xff" * 300, values=False)}

    def put_file(self, space: str, partition: int, id: bytes, data: bytes) -> None:
        self._put_copy(space, partition, FILE + id, data)

    def file(self, space: str, partition: int, id: str) -> bytes:
        return self._copy(space, partition, FILE + bytes.fromhex(id))

    def put_chunk(self, space: str, partition: int, data: bytes) -> str:
        """Store a pack of records; its id."""
        id = urandom(16)
        self._put_copy(space, partition, LOG + id, data)
        return id.hex()

    def chunk(self, space: str, partition: int, id: str) -> bytes:
        return self._copy(space, partition, LOG + bytes.fromhex(id))

    def put_table_part(self, space: str, path: str, part: int, data: bytes) -> None:
        self._put_copy(space, 0, table_key(path, part), data)

    def table_part(self, space: str, path: str, part: int) -> bytes:
        return self._copy(space, 0, table_key(path, part))

    def remove_copies(self, space: str, partition: int, keys: Collection[bytes]) -> None:
        place = data_partition(space, partition)
        delete_all(self._backend, place, list(keys))
        if isinstance(self._backend, Scrubs):
            self._backend.scrub(place)  # they may hold entries that were erased since

    def _copy(self, space: str, partition: int, key: bytes) -> bytes:
        place = data_partition(space, partition)
        value = self._backend.get(place, [key])[0]
        data = open_row(place, key, None if value is None else value.data)
        self.count(data)
        return data

    def _put_copy(self, space: str, partition: int, key: bytes, data: bytes) -> None:
        self._put(data_partition(space, partition), key, data, ABSENT)
        self.count(data)

    def count(self, data: bytes) -> None:
        self.files += 1
        self.bytes += len(data)
        if self._progress is not None:
            self._progress(1, len(data))

    def _put(self, partition: bytes, key: bytes, data: bytes, expect: Expect) -> None:
        """A repetition is fine, because only this process writes a row with this key."""
        value = seal_row(partition, key, data)
        for _ in range(_TRIES):
            try:
                self._backend.put(partition, key, value, expect)
                return
            except Conflict:
                there = self._backend.get(partition, [key])[0]
                if there is not None and there.data == value:
                    return
                if there is not None:
                    delete_rows(self._backend, partition, [key])  # a damaged copy, or one that was cut off
            except Ambiguous:
                continue
        raise Unavailable("the storage's answers are lost one after the other; back up again")
