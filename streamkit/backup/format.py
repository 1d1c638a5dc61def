"""The rows of a backup.

A backup is kept through a backend, as a store is: the rows are files, objects or entities wherever the URL leads.

| partition | key | row |
|---|---|---|
| BACKUP | POINT, number | a point that is complete |
| BACKUP | PART, number, space, partition | one partition as of that point: its head, and the names of its copies |
| BACKUP, space, partition | FILE, id | a file of the index or the packed log, byte for byte |
| BACKUP, space, partition | LOG, id | transactions that are in no such file: a pack of their records |
| BACKUP, space, 0 | TABLE, digest of the path, part | a part of a file of the archive's table |

Points and parts are JSON, bytes in them base64. Every row ends with a line feed and a checksum: 32 hexadecimal digits
of BLAKE2b over the partition, the key and the data. Copies never change, so a later point names those of earlier ones.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar
from uuid import UUID, uuid5

import msgspec

from ..decoders import json_decoder
from ..errors import CorruptData, UnsupportedVersion
from ..lexkey import LexKey, Unsigned
from .report import BackupPoint

__all__ = [
    "FILE",
    "FORMAT",
    "LOG",
    "ROOT",
    "TABLE",
    "Chunk",
    "PartitionBackup",
    "PointRow",
    "TableCopy",
    "TableFile",
    "backup_id",
    "data_partition",
    "decode_json",
    "encode_json",
    "open_row",
    "part_key",
    "part_range",
    "parts_from",
    "point_key",
    "points_range",
    "seal_row",
    "table_key",
]

FORMAT = 1
ROOT = bytes(LexKey.encode("BACKUP"))
FILE, LOG, TABLE = b"FILE\x00", b"LOG\x00", b"TABLE\x00"
_NAMESPACE = UUID("5b1f6c0e-6f0a-4f5e-9d0c-0d8a4a6f2f11")
_DIGEST = 16
_SEAL = 1 + 2 * _DIGEST


class Chunk(msgspec.Struct, frozen=True):
    """A pack of records. The chunks of a partition do not overlap, and are in the order of their numbers."""

    id: str
    runs: list[tuple[int, int]]
    """(first, last): it holds these transactions."""
    trx: str
    """The id of the last transaction, in hex. A store that was set back may have others under these numbers."""

    @property
    def first(self) -> int:
        return self.runs[0][0]

    @property
    def last(self) -> int:
        return self.runs[-1][1]


class TableFile(msgspec.Struct, frozen=True):
    path: str
    """The path as the table's log has it."""
    size: int
    stats: str | None
    parts: int


class TableCopy(msgspec.Struct, frozen=True):
    """One version of a space's Delta table."""

    protocol: dict[str, Any]
    metadata: dict[str, Any]
    marks: dict[str, int]
    files: list[TableFile]


class PartitionBackup(msgspec.Struct, frozen=True):
    """One partition of a space as of a point. `head`, `archive` and `grace` are rows of the store, byte for byte."""

    space: str
    partition: int
    incarnation: bytes
    watermark: int
    """The last transaction that the files hold. The chunks hold the later ones."""
    end: int
    """The last transaction of the partition."""
    head: bytes | None
    archive: bytes | None
    grace: bytes | None
    files: list[str]
    chunks: list[Chunk]
    erasures: list[tuple[str, int, int]]
    """(segment, first, last sequence): all that was erased up to the point."""
    table: TableCopy | None = None
    later: list[tuple[str, int, int]] = []
    """Erasures by transactions after `end`, made while the point was copied: a restore repeats them."""


class PointRow(msgspec.Struct, frozen=True):
    format: int
    point: BackupPoint


_T = TypeVar("_T", PartitionBackup, PointRow)


def backup_id(store: UUID) -> UUID:
    """The UUID under which the backups of a store are kept. It is another one, so both may be under one URL."""
    return uuid5(_NAMESPACE, str(store))


def point_key(number: int) -> bytes:
    return bytes(LexKey.encode("POINT", Unsigned(number)))


def points_range() -> tuple[bytes, bytes]:
    return b"POINT\x00", b"POINT\x01"


def part_key(number: int, space: str, partition: int) -> bytes:
    return bytes(LexKey.encode("PART", Unsigned(number), space, Unsigned(partition)))


def part_range(number: int) -> tuple[bytes, bytes]:
    """The keys of all parts of a point."""
    start, end = LexKey.encode("PART", Unsigned(number)).children()
    return bytes(start), bytes(end)


def parts_from(number: int) -> tuple[bytes, bytes]:
    """The keys of all parts of this point and of later ones."""
    return bytes(LexKey.encode("PART", Unsigned(number))), b"PART\x01"


def table_key(path: str, part: int) -> bytes:
    return TABLE + hashlib.blake2b(path.encode(), digest_size=_DIGEST).digest() + part.to_bytes(4, "big")


def data_partition(space: str, partition: int) -> bytes:
    return bytes(LexKey.encode("BACKUP", space, Unsigned(partition)))


def _checksum(partition: bytes, key: bytes, data: bytes) -> bytes:
    found = hashlib.blake2b(len(partition).to_bytes(2, "big") + partition + key, digest_size=_DIGEST)
    found.update(b"\x00")
    found.update(data)
    return b"\n" + found.hexdigest().encode()


def seal_row(partition: bytes, key: bytes, data: bytes) -> bytes:
    """The row's value: `data` and its checksum."""
    return data + _checksum(partition, key, data)


def open_row(partition: bytes, key: bytes, value: bytes | None) -> bytes:
    """The data of a row. CorruptData if it is not there or a bit of it has changed."""
    if value is None:
        raise CorruptData(f"the backup's row {key!r} is missing: restore an earlier point")
    data = value[:-_SEAL]
    if len(value) < _SEAL or _checksum(partition, key, data) != value[-_SEAL:]:
        raise CorruptData(f"the backup's row {key!r} is damaged: restore an earlier point")
    return data


def encode_json(row: PartitionBackup | PointRow) -> bytes:
    return msgspec.json.encode(row)


def decode_json(kind: type[_T], key: bytes, data: bytes) -> _T:
    try:
        if kind is PointRow:
            found = json_decoder(dict[str, Any]).decode(data).get("format")
            if found != FORMAT:
                raise UnsupportedVersion(
                    f"the backup's point {key!r} has format {found!r}; this release reads {FORMAT}. Upgrade streamkit."
                )
        return json_decoder(kind).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptData(f"the backup's row {key!r} is damaged: restore an earlier point") from error
