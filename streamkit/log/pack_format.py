"""A pack: the records of many transactions as one section of a file, so that a log is read in few large requests.

    pack   = magic "SKPK", version u8, zero u8, zero u16, block, block, …, table, footer
    block  = whole records one after the other, in zstd where that shrinks them
    table  = zstd of: first u64, last u64, blocks u32, then for each block its first number u64, first timestamp u64,
             place u64, stored bytes u32, raw bytes u32, flags u32, checksum u32; then for each number the bytes of its
             record u32
    footer = stored bytes of the table u32, raw bytes of the table u32, version u32, checksum of table, sizes and
             version u32

Records are those of the log, byte for byte. One that has no bytes here is a row of its own. Checksums start with the
partition's seed, and that of a block covers where it belongs. Integers are little endian.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import accumulate, count
from itertools import compress as held
from operator import lt
from typing import NamedTuple, Protocol

import msgspec

from .. import speed
from ..checksum import crc32
from ..compression import Compressor, compress, decompress
from ..errors import CorruptData, UnsupportedVersion

__all__ = [
    "MOST",
    "START",
    "EncodedPack",
    "PackBuilder",
    "PackRows",
    "PackTable",
    "check_start",
    "encode_pack",
    "open_block",
    "read_table",
    "table_bytes",
]

VERSION = 1
MOST = 1 << 20
"""Bytes of the largest record that is packed."""
_MAGIC = b"SKPK"
_FIRST = struct.Struct("<4sBBH")
START = _FIRST.size
"""Bytes before the first block."""
_FRONT = struct.Struct("<QQI")
_BLOCK = struct.Struct("<QQQIIII")
_FOOTER = struct.Struct("<IIII")
_NUMBER = struct.Struct("<Q")
_twin = speed.twin
_ZSTD = 1
_MOST = 1 << 31
"""Bytes of a block or a table, decompressed: more is refused before it is decompressed."""
_LAST = 1 << 62
"""The last transaction of any log."""
_RAW = 64 << 10
"""Bytes of records in a block."""
_LARGE = 16 << 10
"""Bytes of a record that has a block of its own. The block is not compressed, because the frames are."""
_FEW = 16 << 10
"""Neighbouring blocks of fewer bytes become one when packs are merged."""


class PackBlock(NamedTuple):
    number: int
    """The number of its first record."""
    timestamp: int
    place: int
    """The start of the block in the pack."""
    stored: int
    raw: int
    flags: int
    crc: int


class EncodedPack(msgspec.Struct, frozen=True, gc=False):
    data: bytes
    table: int
    """Bytes at its end that hold the table."""
    first: int
    last: int
    timestamp: int
    """The timestamp of its first record; 0 if it has none."""
    records: int


class PackRows(Protocol):
    """(number, record) of several transactions, in order."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[int, bytes]]: ...


class PackTable:
    """The places of a pack's records."""

    def __init__(self, blocks: list[PackBlock], first: int, last: int, lengths: array[int]) -> None:
        self.blocks = blocks
        self.first = first
        self.last = last
        self.lengths = lengths
        self._numbers = [block.number for block in blocks]

    def block_of(self, number: int) -> int:
        """The block that `number` is in, if it is in any."""
        return bisect_right(self._numbers, number) - 1

    def holds(self, number: int) -> bool:
        return self.first <= number <= self.last and self.lengths[number - self.first] > 0

    def reach(self, number: int, last: int) -> int:
        """The last transaction before the first one of number..last that has no record."""
        while number <= last and self.holds(number):
            number += 1
        return number - 1

    def last_of(self, block: int) -> int:
        """The last transaction that is in a block, if it is in any."""
        return self._numbers[block + 1] - 1 if block + 1 < len(self._numbers) else self.last

    def start(self, block: int, number: int) -> int:
        """The start of record `number` in the raw bytes of its block."""
        first = self.first
        return sum(self.lengths[self._numbers[block] - first : number - first])

    def records(self, block: int, raw: bytes, first: int = 0, last: int = _LAST) -> PackRows:
        """Return (number, record) of the transactions first..last that are in a block, in order: to be read once."""
        numbers, start = self._numbers, self.first
        begin = max(first, numbers[block])
        after = min(last, self.last_of(block)) + 1
        if begin >= after:
            return []
        lengths = self.lengths[begin - start : after - start]
        place = sum(self.lengths[numbers[block] - start : begin - start])
        if _twin is not None:
            rows: PackRows | None = _twin.pack_rows(raw, lengths, begin, place)
            if rows is not None:
                return rows
        source = BytesIO(raw)
        source.seek(place)
        return list(held(zip(count(begin), map(source.read, lengths)), lengths))

    def first_at(self, timestamp: int) -> int:
        """A number before which every transaction is older than `timestamp`: at the beginning of a block."""
        at = bisect_right(self.blocks, timestamp - 1, key=lambda block: block.timestamp) - 1
        return self._numbers[max(at, 0)] if self._numbers else self.first

    @property
    def size(self) -> int:
        """Bytes in memory, about."""
        return 4 * len(self.lengths) + 200 * len(self.blocks)


class PackBuilder:
    """Makes a pack of the transactions first..last. `timestamp_of` is asked of some records."""

    def __init__(self, first: int, last: int, timestamp_of: Callable[[int, bytes], int], seed: int) -> None:
        self._first = first
        self._last = last
        self._timestamp_of = timestamp_of
        self._seed = seed
        self._lengths = array("I", bytes(4 * (last - first + 1)))
        self._blocks: list[PackBlock] = []
        self._parts = [_FIRST.pack(_MAGIC, VERSION, 0, 0)]
        self._place = _FIRST.size
        self._compress = Compressor().compress
        self._records = 0
        self._batch: list[bytes] = []
        self._size = self._begin = self._since = 0
        """The batch's bytes, its first number, and the timestamp of that record."""

    def add(self, number: int, record: bytes) -> None:
        """The numbers ascend."""
        length = len(record)
        if self._batch and (self._size + length > _RAW or length >= _LARGE):
            self._close()
        if not self._batch:
            self._begin, self._since = number, self._timestamp_of(number, record)
        self._batch.append(record)
        self._lengths[number - self._first] = length
        self._records += 1
        self._size += length
        if length >= _LARGE:
            self._close()

    def add_all(self, numbers: Sequence[int], records: list[bytes]) -> None:
        """Add many records, as `add` does, to a pack that has none so far."""
        lengths = [*map(len, records)]
        if max(lengths, default=0) >= _LARGE:
            for number, record in zip(numbers, records, strict=True):
                self.add(number, record)
            return
        if numbers and numbers[-1] - numbers[0] == len(numbers) - 1:
            begin = numbers[0] - self._first
            self._lengths[begin : begin + len(numbers)] = array("I", lengths)
        else:
            for number, length in zip(numbers, lengths, strict=True):
                self._lengths[number - self._first] = length
        self._records = len(records)
        ends = [*accumulate(lengths, initial=0)]
        at = 0
        while at < len(records):
            self._close()
            after = bisect_right(ends, ends[at] + _RAW) - 1
            self._begin, self._since = numbers[at], self._timestamp_of(numbers[at], records[at])
            self._batch, self._size = records[at:after], ends[after] - ends[at]
            at = after

    def add_pack(
        self, table: PackTable, data: bytes, start: int = 0, changed: Mapping[int, bytes] | None = None
    ) -> None:
        """Add the records of another pack from number `start` on. `changed` replaces the records of some numbers.

        Its blocks are taken as they are, but for those of changed records, and for small neighbours. CorruptData if a
        bit of one has changed.
        """
        numbers = sorted(changed or ())
        blocks, lengths = table.blocks, table.lengths
        for at, block in enumerate(blocks):
            after = blocks[at + 1].number if at + 1 < len(blocks) else table.last + 1
            if after <= start:
                continue
            stored = data[block.place : block.place + block.stored]
            is_small = block.raw < _FEW and (self._batch or (at + 1 < len(blocks) and blocks[at + 1].raw < _FEW))
            if block.number < start or is_small or bisect_left(numbers, block.number) < bisect_left(numbers, after):
                for number, record in table.records(at, open_block(block, stored, self._seed)):
                    if number >= start:
                        self.add(number, record if changed is None else changed.get(number, record))
                continue
            _check_block(block, stored, self._seed)
            self._close()
            low, high = block.number - table.first, after - table.first
            self._lengths[block.number - self._first : after - self._first] = lengths[low:high]
            self._records += high - low - lengths[low:high].count(0)
            self._put(block._replace(place=self._place), stored)

    def _close(self) -> None:
        batch = self._batch
        if not batch:
            return
        raw = b"".join(batch)
        stored, flags = raw, 0
        if len(raw) < _LARGE or len(batch) > 1 or raw.count(0) * 2 > len(raw):
            packed = self._compress(raw)
            if len(packed) < len(raw):
                stored, flags = packed, _ZSTD
        crc = _block_crc(stored, self._begin, self._seed)
        self._put(PackBlock(self._begin, self._since, self._place, len(stored), len(raw), flags, crc), stored)
        batch.clear()
        self._size = 0

    def _put(self, block: PackBlock, stored: bytes) -> None:
        self._blocks.append(block)
        self._parts.append(stored)
        self._place += len(stored)

    def finish(self) -> EncodedPack:
        self._close()
        blocks, parts = self._blocks, self._parts
        front = _FRONT.pack(self._first, self._last, len(blocks))
        table = b"".join((front, *(_BLOCK.pack(*block) for block in blocks), _little(self._lengths)))
        stored = compress(table)
        sizes = _FOOTER.pack(len(stored), len(table), VERSION, 0)[:-4]
        crc = crc32(sizes, crc32(stored, self._seed))
        parts += (stored, _FOOTER.pack(len(stored), len(table), VERSION, crc))
        timestamp = blocks[0].timestamp if blocks else 0
        data = b"".join(parts)
        return EncodedPack(data, len(stored) + _FOOTER.size, self._first, self._last, timestamp, self._records)


def encode_pack(
    first: int,
    last: int,
    records: Iterable[tuple[int, bytes]],
    timestamp_of: Callable[[int, bytes], int],
    seed: int,
) -> EncodedPack:
    """A pack of `records`, each (number, record), of the transactions first..last. Some are asked for timestamps."""
    builder = PackBuilder(first, last, timestamp_of, seed)
    for number, record in records:
        builder.add(number, record)
    return builder.finish()


def _block_crc(stored: bytes | memoryview, number: int, seed: int) -> int:
    return crc32(stored, crc32(_NUMBER.pack(number), seed))


def _little(lengths: array[int]) -> bytes:
    if sys.byteorder == "big":
        lengths = array("I", lengths)
        lengths.byteswap()
    return lengths.tobytes()


def table_bytes(data: bytes) -> int:
    """The bytes at the end of `data` that may be the table of a pack; 0 if they are none."""
    if len(data) < _FOOTER.size:
        return 0
    size = int(_FOOTER.unpack_from(data, len(data) - _FOOTER.size)[0]) + _FOOTER.size
    return size if size <= len(data) else 0


def read_table(tail: bytes, seed: int) -> PackTable:
    """The table in the last bytes of a pack. CorruptData if a bit of it has changed, UnsupportedVersion for a pack of a
    newer release."""
    if len(tail) < _FOOTER.size:
        raise CorruptData("the table of the pack is cut short")
    stored_bytes, raw_bytes, version, crc = _FOOTER.unpack_from(tail, len(tail) - _FOOTER.size)
    stored = tail[-_FOOTER.size - stored_bytes : -_FOOTER.size]
    sizes = tail[-_FOOTER.size : -4]
    if len(stored) != stored_bytes or crc32(sizes, crc32(stored, seed)) != crc:
        raise CorruptData("the table of the pack is damaged")
    _check_version(version)
    table = _unpack(stored, raw_bytes)
    try:
        first, last, count = _FRONT.unpack_from(table)
        end = _FRONT.size + count * _BLOCK.size
        blocks = [PackBlock(*fields) for fields in _BLOCK.iter_unpack(table[_FRONT.size : end])]
        lengths = array("I")
        lengths.frombytes(table[end:])
    except (struct.error, ValueError) as error:
        raise CorruptData("the table of the pack is damaged") from error
    if sys.byteorder == "big":
        lengths.byteswap()
    begins = [block.number for block in blocks]
    held = next((number for number, length in enumerate(lengths, first) if length), None)
    if (
        len(lengths) != last - first + 1
        or (begins[0] if begins else None) != held
        or not all(map(lt, begins, begins[1:]))
        or (begins and begins[-1] > last)
    ):
        raise CorruptData("the table of the pack is damaged")
    return PackTable(blocks, first, last, lengths)


def check_start(data: bytes) -> None:
    """The first bytes of a pack. UnsupportedVersion for one of a newer release."""
    if len(data) < START or data[:4] != _MAGIC or any(data[5:START]):
        raise CorruptData("the pack is damaged: it does not begin with the mark of a pack")
    _check_version(data[4])


def _check_version(version: int) -> None:
    if version != VERSION:
        raise UnsupportedVersion(
            f"the pack has format version {version}; this release reads {VERSION}. Upgrade streamkit."
        )


def open_block(block: PackBlock, stored: bytes, seed: int, most: int = 2 * MOST) -> bytes:
    """The raw bytes of a block. CorruptData if a bit of it has changed, or if it claims more than `most` bytes."""
    _check_block(block, stored, seed)
    if block.raw > most:
        raise CorruptData(
            f"the pack's block of transaction {block.number} claims {block.raw} bytes; a block has at most {most}"
        )
    return _unpack(stored, block.raw) if block.flags & _ZSTD else stored


def _check_block(block: PackBlock, stored: bytes, seed: int) -> None:
    if len(stored) != block.stored or _block_crc(stored, block.number, seed) != block.crc:
        raise CorruptData(f"the pack's block of transaction {block.number} is damaged")


def _unpack(stored: bytes, raw: int) -> bytes:
    if raw > _MOST:
        raise CorruptData(f"a part of the pack claims {raw} bytes; a part has at most {_MOST}")
    try:
        data = decompress(stored, raw)
    except (ValueError, OverflowError) as error:
        raise CorruptData("a part of the pack cannot be decompressed") from error
    if len(data) != raw:
        raise CorruptData(f"a part of the pack has {len(data)} bytes instead of {raw}")
    return data
