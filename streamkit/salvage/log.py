"""The readable transactions of one partition, from rows of the log, packs and the archive."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from ..backend import Backend
from ..compression import load_zstd
from ..errors import CorruptData, StreamkitError, UnsupportedVersion
from ..index.readable import readable_rows
from ..index.salvage import Salvage
from ..log.floors import Erasure, Floor
from ..log.keys import CATALOG, HEAD, RUNS, partition_key, space_key, transaction_number, transaction_prefix
from ..log.pack_format import MOST
from ..log.partition import seed_of
from ..log.record_format import Header, decode_header, decode_transaction
from ..log.rows import Head, Settings, decode_row
from ..model import Entry

__all__ = ["IntactLog", "Transaction", "partitions_of", "settings_of"]

_RECORD = b"SKTX"
_ZSTD = b"\x28\xb5\x2f\xfd"
_LENGTH = struct.Struct("<Q")
_LENGTH_AT = 16
_START = 24
_UNREADABLE = (CorruptData, UnsupportedVersion)


class Transaction(NamedTuple):
    header: Header | None
    """None of one that only the archive has."""
    frames: list[list[Entry]]


class IntactLog:
    """The readable part of a partition's log. `numbers` are those of transactions that are, or were, in it."""

    def __init__(self, backend: Backend, space: str, partition: int, settings: Settings) -> None:
        self.partition = partition
        self.head = Head(settings)
        self.floor = Floor()
        """The first transaction that is not trimmed."""
        self.erased: list[Erasure] = []
        self.removed: dict[str, tuple[int, str]] = {}
        """The last removed sequence of each trimmed or deleted segment, and the reason."""
        self._space, self._settings = space, settings
        key = bytes(partition_key(space, partition))
        self._seed = seed_of(settings, key)
        found = readable_rows(backend, key)
        self._rows, self.damage, self._pieces = found.rows, tuple(found.damage), found.pieces
        self._packed: dict[int, bytes] = {}
        self._read_head()
        prefix = transaction_prefix(settings.incarnation)
        self._logged = {
            transaction_number(row): row for row in self._rows if row.startswith(prefix) and len(row) == len(prefix) + 8
        }
        self._read_misplaced()
        self._read_packs()
        self._read_index(backend, key)
        intact = self._read_controls()
        # A damaged record may have a damaged number, far beyond the others.
        doubtful = self._logged.keys() - intact
        most = max(intact, default=self.head.watermark) + len(doubtful)
        for number in [number for number in doubtful if number > most]:
            del self._logged[number]
        self.numbers = intact | {number for number in doubtful if number <= most}

    def holds(self, number: int) -> bool:
        """True if there is a row or a packed record of a transaction, intact or not."""
        return number in self._logged or number in self._packed

    def _read_head(self) -> None:
        read = self._rows.get(bytes(HEAD))
        with suppress(*_UNREADABLE):
            self.head = decode_row(Head, HEAD, read()) if read is not None else self.head
        self.floor = self.head.floor
        self.erased += self.head.erasing

    def _read_misplaced(self) -> None:
        """Records whose keys are damaged. Each record names its own transaction."""
        for number in list(self._logged):
            header = self.header(number)
            if header is not None and header.number != number:
                self._packed[header.number] = self._record(number)
                del self._logged[number]

    def _read_packs(self) -> None:
        for data in self._packs():
            for number, record in _records_in(data, self._seed):
                if number not in self._logged or not self._is_intact(number):
                    self._packed[number] = record

    def _packs(self) -> Iterator[bytes]:
        yield from self._pieces
        if self.head.pack:
            yield self.head.pack
        for key, read in self._rows.items():
            if key.startswith(bytes(RUNS)):
                with suppress(*_UNREADABLE):
                    yield read()

    def _is_intact(self, number: int) -> bool:
        try:
            self.transaction(number)
        except _UNREADABLE:
            return False
        return True

    def _read_index(self, backend: Backend, key: bytes) -> None:
        """The removals of segments that the index knows."""
        found = Salvage(backend, key, self._seed)
        with suppress(StreamkitError):
            found.add_manifest(self.head.manifest)
        for segment, row in found.segments.items():
            if row.first_sequence > 1:
                self._remove(segment, row.first_sequence - 1, row.gaps[-1][1] if row.gaps else "trimmed")

    def _read_controls(self) -> set[int]:
        """Apply the removals of the transactions. Return the numbers of those with intact headers."""
        intact: set[int] = set()
        for number in {*self._logged, *self._packed}:
            header = self.header(number)
            if header is None:
                continue
            intact.add(number)
            if header.control is None:
                continue
            for removal in header.control.removals:
                self._remove(removal.segment, removal.last, removal.reason)
            self.erased += header.control.erasures
            if header.control.floor is not None and header.control.floor.number > self.floor.number:
                self.floor = header.control.floor
        return intact

    def _remove(self, segment: str, last: int, reason: str) -> None:
        self.removed[segment] = max((last, reason), self.removed.get(segment, (0, "")))

    def _record(self, number: int) -> bytes:
        if number in self._packed:
            return self._packed[number]
        if number not in self._logged:
            raise CorruptData("it is missing")
        return self._rows[self._logged[number]]()

    def header(self, number: int) -> Header | None:
        """The header of a transaction, which may have damaged frames; None if it cannot be read."""
        with suppress(*_UNREADABLE):
            return decode_header(self._record(number), self._seed)
        return None

    def transaction(self, number: int) -> Transaction:
        """A transaction of the log. CorruptData or UnsupportedVersion if it is not intact."""
        record = self._record(number)
        header = decode_header(record, self._seed)
        frames = decode_transaction(
            self._space, self.partition, self._settings.partitions, record, self._seed, self._settings.incarnation
        )
        if header.number != number or len(frames) != len(header.frames):
            raise CorruptData(f"the record is that of transaction {header.number}, or is cut short")
        return Transaction(header, [entries for _, _, entries in frames if entries])


def _records_in(data: bytes, seed: int) -> Iterator[tuple[int, bytes]]:
    """Yield (number, record) of all whole records in a file, also beside damaged blocks and without its table."""
    at = 0
    while True:
        starts = [place for place in (data.find(_RECORD, at), data.find(_ZSTD, at)) if place >= 0]
        if not starts:
            return
        at = min(starts)
        if data.startswith(_RECORD, at):
            size = _LENGTH.unpack_from(data, at + _LENGTH_AT)[0] if at + _START <= len(data) else 0
            record = data[at : at + size]
            try:
                yield decode_header(record, seed).number, record
            except _UNREADABLE:
                at += 1
            else:
                at += size
            continue
        block, used = _decompressed(data, at)
        yield from _records_in(block, seed) if _RECORD in block else ()
        at += used or 1


def _decompressed(data: bytes, at: int) -> tuple[bytes, int]:
    """Decompress the zstd frame at an offset, up to the size of the largest block. Also returns the frame's length."""
    zstd = load_zstd()
    decompressor = zstd.ZstdDecompressor()
    try:
        found: bytes = decompressor.decompress(data[at : at + 2 * MOST], max_length=2 * MOST)
    except (zstd.ZstdError, EOFError):
        return b"", 0
    return found, min(len(data) - at, 2 * MOST) - len(decompressor.unused_data) if decompressor.eof else 0


def settings_of(backend: Backend, space: str) -> Settings | None:
    """Find the settings of a space: in the catalog, in its head, or from its keys. None if the space has no rows."""
    first = readable_rows(backend, bytes(partition_key(space, 0))).rows
    if (read := first.get(bytes(HEAD))) is not None:
        with suppress(*_UNREADABLE):
            return decode_row(Head, HEAD, read()).settings
    key = bytes(space_key(space))
    if (read := readable_rows(backend, bytes(CATALOG)).rows.get(key)) is not None:
        with suppress(*_UNREADABLE):
            return decode_row(Settings, key, read())
    prefix = transaction_prefix(b"")
    for row in reversed(list(first)):
        if row.startswith(prefix):
            return Settings(partitions_of(backend, space), incarnation=row[len(prefix) : -8])
    return None


def partitions_of(backend: Backend, space: str) -> int:
    """Count the partitions that have rows; at least 1."""
    count = 1
    while readable_rows(backend, bytes(partition_key(space, count))).rows:
        count += 1
    return count
