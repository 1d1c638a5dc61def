"""A section of sorted rows: an immutable part of a run, as bytes.

    section = "SKRN", version u8, zero u8, zero u16, block, block, …, tail
    block   = crc32, flags u8, zero u8, zero u16, rows u32, raw bytes u32, body
    body    = lengths of all keys, lengths of all values (u16; u32 if flagged), keys, values; in zstd where it shrinks
    tail    = index, filter, footer
    index   = lengths of the blocks' first keys u16, lengths of the blocks u32, first keys; in zstd where it shrinks
    filter  = subject_filter's words
    footer  = bytes of the index u32, raw bytes of the index u32, words of the filter u32, blocks u32, rows u64,
              bytes before the tail u64, flags u8, zero u8, zero u16, version u8, zero u8, zero u16, crc32 of the tail,
              "SKRT"

Each checksum begins with a number that is made of the partition's seed, the section's id and the place in the section:
a block of another partition, of another section, or of another place is refused as if it were damaged. Magic, version
and checksum at the end stay where they are in every version. Integers are little endian.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from itertools import accumulate, islice, pairwise
from operator import add, lt
from typing import Any, NamedTuple, NoReturn

from .. import speed
from ..checksum import crc32
from ..compression import Compressor, compress, decompress
from ..errors import CorruptData, UnsupportedVersion
from ..log.keys import DATA_END, SEQUENCE_BYTES, run_key
from ..log.manifest import RunFile
from .subject_filter import BITS, PREFIXES, filter_of, hash_of, hashes_of, read_filter, subject_of

__all__ = [
    "BLOCK_BYTES",
    "Block",
    "RunTail",
    "SectionBuilder",
    "Stored",
    "decode_block",
    "decode_inline",
    "decode_section",
    "decode_tail",
    "encode_inline",
    "renew_section",
    "salvage_section",
]

VERSION = 1
BLOCK_BYTES = 4096
"""A block ends with the row with which it reaches so many bytes."""
_HEAD = b"SKRN" + bytes([VERSION, 0, 0, 0])
_TAIL_MAGIC = b"SKRT"
_BLOCK = struct.Struct("<IBxxxII")
_BLOCK_REST = struct.Struct("<BxxxII")
_FOOTER = struct.Struct("<IIIIQQBxxxBxxxI4s")
_FOOTER_FRONT = struct.Struct("<IIIIQQBxxxBxxx")
_CRC = struct.Struct("<I")
_ZSTD = 1
_WIDE = 2
_SMALL = 256
_MOST = 1 << 30
_DEDUPE = 1 << 16
_INLINE_ID = b""
_twin: Any = speed.twin
_STEP = 16
"""A tail keeps the first key of every 16th block as an object of its own."""


def _numbers(code: str, data: bytes) -> array[int]:
    numbers = array(code, data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _sums(code: str, data: bytes, first: int) -> array[int]:
    """Return `first`, and its sums with the numbers so far."""
    summed = None if _twin is None else _twin.running_sums(data, 2 if code == "H" else 4, first)
    if summed is None:
        return array("I", accumulate(_numbers(code, data), initial=first))
    sums = array("I")
    sums.frombytes(summed)
    return sums


def _bytes(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _compressed(body: bytes, compress: Callable[[bytes], bytes] = compress) -> tuple[bytes, int]:
    if len(body) >= _SMALL:
        packed = compress(body)
        if len(packed) < len(body) * 0.95:
            return packed, _ZSTD
    return body, 0


def _decompressed(body: memoryview, raw: int, flags: int) -> bytes:
    """The body that `_compressed` was given. ValueError, or a class of it, for other bytes."""
    if raw > _MOST:
        raise ValueError("it claims to be larger than any is")
    found = decompress(body, raw) if flags & _ZSTD else bytes(body)
    if len(found) != raw:
        raise ValueError("it has another length than it says")
    return found


def _seed(id: bytes, seed: int) -> int:
    return crc32(id, seed)


def _damaged(id: bytes, what: str) -> NoReturn:
    where = f"the run {run_key(id)!r}" if id else "the inline run of the head"
    raise CorruptData(f"{where} is damaged: {what}")


class Block:
    """Sorted rows. Keys and values are cut out of its bytes when they are asked for."""

    __slots__ = ("_data", "_starts", "rows", "used")

    def __init__(self, data: bytes, starts: array[int], rows: int) -> None:
        self._data = data
        self._starts = starts
        self.rows = rows
        self.used = False
        """True if it was used since the cache last looked."""

    @property
    def size(self) -> int:
        """Bytes that it occupies, about."""
        return len(self._data) + self._starts.itemsize * len(self._starts) + 200

    def __len__(self) -> int:
        return self.rows

    def seek(self, key: bytes, low: int = 0) -> int:
        """The number of the first row, from `low` on, that is not before `key`."""
        data, starts = self._data, self._starts
        high = self.rows
        while low < high:
            middle = (low + high) >> 1
            if data[starts[middle] : starts[middle + 1]] < key:
                low = middle + 1
            else:
                high = middle
        return low

    def get(self, key: bytes) -> bytes | None:
        data, starts, low = self._data, self._starts, 0
        high = rows = self.rows
        while low < high:
            middle = (low + high) >> 1
            if data[starts[middle] : starts[middle + 1]] < key:
                low = middle + 1
            else:
                high = middle
        if low == rows or data[starts[low] : starts[low + 1]] != key:
            return None
        return data[starts[rows + low] : starts[rows + low + 1]]

    def between(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """The rows with start <= key < end."""
        data, starts, rows = self._data, self._starts, self.rows
        found: list[tuple[bytes, bytes]] = []
        for at in range(self.seek(start), rows):
            key = data[starts[at] : starts[at + 1]]
            if key >= end:
                break
            found.append((key, data[starts[rows + at] : starts[rows + at + 1]]))
        return found

    def keys(self, low: int, high: int) -> list[bytes]:
        data = self._data
        return [data[start:end] for start, end in pairwise(self._starts[low : high + 1])]

    def values(self, low: int, high: int) -> list[bytes]:
        data, rows = self._data, self.rows
        return [data[start:end] for start, end in pairwise(self._starts[rows + low : rows + high + 1])]


def _encode_block(keys: Sequence[bytes], values: Sequence[bytes], start: int) -> bytes:
    """Encode a block. `start` is the start value of the checksum."""
    return _encode_body(len(keys), *_body(keys, values), start)


def _body(keys: Sequence[bytes], values: Sequence[bytes]) -> tuple[bytes, int]:
    """The body of a block, not yet compressed, and its flags."""
    lengths = [*map(len, keys), *map(len, values)]
    flags = 0
    try:
        table = array("H", lengths)
    except OverflowError:
        table, flags = array("I", lengths), _WIDE
    return b"".join([_bytes(table), *keys, *values]), flags


def _encode_body(
    rows: int, body: bytes, flags: int, start: int, compress: Callable[[bytes], bytes] = compress
) -> bytes:
    """The block of so many `rows` with this body."""
    raw = len(body)
    body, packed = _compressed(body, compress)
    rest = _BLOCK_REST.pack(flags | packed, rows, raw)
    return _CRC.pack(crc32(body, crc32(rest, start))) + rest + body


def _decode_block(data: bytes, start: int) -> Block:
    """The block that `_encode_block` was given. ValueError or struct.error for other bytes."""
    if _twin is not None:
        block: Block | None = _twin.decode_block(data, start)
        if block is not None:
            return block
    view = memoryview(data)
    crc, flags, rows, raw = _BLOCK.unpack_from(view)
    if crc32(view[_CRC.size :], start) != crc:
        raise ValueError("its checksum is wrong")
    body = _decompressed(view[_BLOCK.size :], raw, flags)
    code, width = ("I", 4) if flags & _WIDE else ("H", 2)
    table = 2 * rows * width
    starts = array("I", accumulate(_numbers(code, body[:table]), initial=table))
    if rows == 0 or len(starts) != 2 * rows + 1 or starts[-1] != raw:
        raise ValueError("its rows do not fill it")
    return Block(body, starts, rows)


def decode_block(data: bytes, file: RunFile, offset: int, seed: int) -> Block:
    """The block at `offset` of the section. CorruptData if it is not that one, or is damaged."""
    try:
        return _decode_block(data, crc32(file.id, seed) ^ offset)
    except (ValueError, OverflowError, struct.error) as error:
        _damaged(file.id, f"the block at byte {file.start + offset}, of {len(data)} bytes: {error}")


class RunTail:
    """The index of a section. Block number n is the bytes from `offsets[n]` to `offsets[n + 1]`."""

    __slots__ = ("_index", "_starts", "_steps", "_twin", "blocks", "offsets", "rows", "single", "size", "used", "words")

    def __init__(
        self, index: bytes, starts: array[int], offsets: array[int], words: array[int], rows: int, last_key: bytes
    ) -> None:
        """The first key of block n is in `index`, from `starts[n]` to `starts[n + 1]`."""
        self._twin: Any = None if _twin is None else _twin.firsts(index, starts, offsets, words)
        self._index = index
        self._starts = starts
        self.blocks = len(offsets) - 1
        self._steps = [] if self._twin is not None else [self.first(number) for number in range(0, self.blocks, _STEP)]
        self.offsets = offsets
        """The offset of each block, and the end of the last block."""
        self.words = words
        self.rows = rows
        subjects = 64 * len(words) / BITS
        self.single = rows < 1.25 * subjects * (1 if last_key < DATA_END else 2)
        """Most segments have one data row here, and their status if it has statuses."""
        self.size = (
            len(index)
            + 8 * len(words)
            + starts.itemsize * len(starts)
            + offsets.itemsize * len(offsets)
            + sum(map(len, self._steps))
            + 45 * len(self._steps)
            + 500
        )
        self.used = False

    def first(self, block: int) -> bytes:
        """The first key of a block."""
        starts = self._starts
        return self._index[starts[block] : starts[block + 1]]

    def may_hold(self, hash: int, mask: int) -> bool:
        """False if no row of the subject is here."""
        words = self.words
        return words[hash % len(words)] & mask == mask

    def block_of(self, key: bytes) -> int:
        """The block that holds `key` if any does; 0 if it is before the first."""
        if self._twin is not None:
            block: int = self._twin.block_of(key)
            return block
        low = ((bisect_right(self._steps, key) or 1) - 1) * _STEP
        high = min(low + _STEP, self.blocks)
        index, starts = self._index, self._starts
        while high - low > 1:
            middle = (low + high) >> 1
            if index[starts[middle] : starts[middle + 1]] <= key:
                low = middle
            else:
                high = middle
        return low

    def last_block(self, end: bytes) -> int:
        """The last block that has a key below `end`; -1 if none has."""
        block = self.block_of(end)
        return block if self.first(block) < end else block - 1


def decode_tail(data: bytes, file: RunFile, seed: int) -> RunTail:
    """The tail of the section. CorruptData, or UnsupportedVersion."""
    if len(data) != file.tail or len(data) < _FOOTER.size:
        _damaged(file.id, f"its tail is cut short ({len(data)} of {file.tail} bytes)")
    at = len(data) - _FOOTER.size
    index_bytes, raw, words, blocks, rows, before, flags, version, crc, magic = _FOOTER.unpack_from(data, at)
    if magic != _TAIL_MAGIC or crc32(memoryview(data)[:-8], _seed(file.id, seed) ^ (file.length - file.tail)) != crc:
        _damaged(file.id, f"the checksum of its tail, of {len(data)} bytes, is wrong")
    _check_version(file.id, version)
    try:
        if before + len(data) != file.length or rows != file.rows or index_bytes + 8 * words != at or not words:
            raise ValueError("it is not that of the section that the head names")
        index = _decompressed(memoryview(data)[:index_bytes], raw, flags)
        firsts_at = 6 * blocks
        starts = _sums("H", index[: 2 * blocks], firsts_at)
        offsets = _sums("I", index[2 * blocks : firsts_at], len(_HEAD))
        if len(starts) != blocks + 1 or len(offsets) != blocks + 1 or starts[-1] != raw or offsets[-1] != before:
            raise ValueError("its index does not fill it")
        if index[firsts_at : starts[1]] != file.first_key:
            raise ValueError("it does not begin with the key that the head names")
    except (ValueError, OverflowError, IndexError) as error:
        _damaged(file.id, f"its tail: {error}")
    return RunTail(index, starts, offsets, read_filter(data[index_bytes:at]), rows, file.last_key)


class Stored(NamedTuple):
    """Neighbouring blocks of a section as they are stored, all with rows of one segment, in which another block
    follows."""

    file: RunFile
    tail: RunTail
    number: int
    """The number of the first block."""
    blocks: list[bytes]

    @property
    def end(self) -> bytes:
        """The first key after their rows."""
        return self.tail.first(self.number + len(self.blocks))


def _moved(stored: bytes, file: RunFile, offset: int, before: int, now: int) -> bytes:
    """The block at `offset` of a section, for another place. `before` and `now` are the start values of the checksums.
    CorruptData if it is damaged."""
    rest = memoryview(stored)[_CRC.size :]
    if len(stored) < _BLOCK.size or crc32(rest, before) != _CRC.unpack_from(stored)[0]:
        _damaged(file.id, f"the block at byte {file.start + offset}, of {len(stored)} bytes")
    return b"".join((_CRC.pack(crc32(rest, now)), rest))


def _moved_blocks(stored: Stored, before: int, size: int, now: int) -> tuple[bytes, int, bytes]:
    """(the blocks, for a place from byte `size` of a section on; their rows; their lengths, as an array's bytes).
    `before` and `now` start the checksums of both sections, together with the places. CorruptData if one is damaged."""
    moved: list[bytes] = []
    offsets = stored.tail.offsets[stored.number : stored.number + len(stored.blocks)]
    for offset, block in zip(offsets, stored.blocks, strict=True):
        moved.append(_moved(block, stored.file, offset, before ^ offset, now ^ size))
        size += len(block)
    lengths = array("I", map(len, moved))
    return b"".join(moved), sum([_BLOCK.unpack_from(block)[2] for block in moved]), lengths.tobytes()


def _check_version(id: bytes, version: int) -> None:
    if version != VERSION:
        where = f"the run {run_key(id)!r}" if id else "the inline run of the head"
        raise UnsupportedVersion(
            f"{where} has format version {version}; this release reads {VERSION}. Upgrade streamkit."
        )


def _section_rows(
    keys: Sequence[bytes], values: Sequence[bytes], new: int, last: bytes | None
) -> tuple[bytes, list[tuple[int, bytes, int]]]:
    """Return (hashes, blocks) of rows. The rows from `new` on are new. The hashes are those of the subjects, each once,
    as an array's bytes. A block is full: (rows up to its end, body, flags).

    ValueError if a key is not after the one before it, or not after `last`, the one before `new`.
    """
    added = keys[new:]
    if (last is not None and added[0] <= last) or not all(map(lt, added, islice(added, 1, None))):
        raise ValueError("the keys of a run ascend")
    ends = list(accumulate(map(add, map(len, keys), map(len, values))))
    blocks: list[tuple[int, bytes, int]] = []
    at = done = 0
    while (cut := bisect_left(ends, done + BLOCK_BYTES, at)) < len(ends):
        blocks.append((cut + 1, *_body(keys[at : cut + 1], values[at : cut + 1])))
        at, done = cut + 1, ends[cut]
    return array("I", hashes_of(added)).tobytes(), blocks


class SectionBuilder:
    """Makes a section out of sorted rows, holding little more than the section itself.

    `room`: the bytes to make room for, if it is known how large the section will be. It may become larger.
    """

    def __init__(self, id: bytes, seed: int, room: int = 0) -> None:
        self._id = id
        self._partition_seed = seed
        self._seed = _seed(id, seed)
        self._compress = Compressor().compress
        self._data = BytesIO()
        """Head and blocks. It gives its bytes without a copy."""
        if room:
            # It is made once: one that grows is copied from place to place, and leaves holes behind.
            self._data.seek(room)
            self._data.write(b"\0")
            self._data.seek(0)
        self._data.write(_HEAD)
        self._lengths = array("I")
        """The lengths of the blocks."""
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._firsts: list[bytes] = []
        self._hashes = array("I")
        self._rows = 0
        self._last = b""
        """The last key, or one before which it is and after which the next one is, if `_copied`."""
        self._copied: tuple[bytes, int] | None = None
        """The last block and the start value of its checksum, if it was taken over as it is."""
        self.size = len(_HEAD)
        """Bytes so far, without the rows of the block that is not full and the tail."""

    @property
    def rows(self) -> int:
        return self._rows

    def add(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Rows whose keys ascend, also from call to call. ValueError if they do not."""
        if not keys:
            return
        pending = len(self._keys)
        keys, values = [*self._keys, *keys], [*self._values, *values]
        before = self._last if self._rows else None
        found = None if _twin is None else _twin.section_rows(keys, values, pending, before, BLOCK_BYTES, PREFIXES)
        if found is None:
            found = _section_rows(keys, values, pending, before)
        hashes, blocks = found
        self._last, self._copied = keys[-1], None
        self._rows += len(keys) - pending
        self._hashes.frombytes(hashes)
        at = 0
        for end, body, flags in blocks:
            self._write(keys[at], end - at, body, flags)
            at = end
        self._keys, self._values = keys[at:], values[at:]

    def add_stored(self, stored: Stored) -> None:
        """Take over blocks, whose keys are after those before. ValueError if they are not, CorruptData if a bit of one
        has changed."""
        file, tail, number, blocks = stored
        first = tail.first(number)
        if self._rows and first <= self._last:
            raise ValueError("the keys of a run ascend")
        self._end_block()
        before, offset = _seed(file.id, self._partition_seed), tail.offsets[number]
        moved = None if _twin is None else _twin.moved_blocks(blocks, offset, before, self.size, self._seed)
        if moved is None:
            moved = _moved_blocks(stored, before, self.size, self._seed)
        data, rows, lengths = moved
        self._data.write(data)
        self._lengths.frombytes(lengths)
        self._firsts += [tail.first(at) for at in range(number, number + len(blocks))]
        self._rows += rows
        self.size += len(data)
        length = len(blocks[-1])
        end = stored.end
        self._last = end[:-SEQUENCE_BYTES] + (int.from_bytes(end[-SEQUENCE_BYTES:]) - 1).to_bytes(SEQUENCE_BYTES)
        self._copied = data[-length:], self._seed ^ (self.size - length)
        hash = hash_of(subject_of(first))
        if not self._hashes or self._hashes[-1] != hash:
            self._hashes.append(hash)

    def _end_block(self) -> None:
        if self._keys:
            self._write(self._keys[0], len(self._keys), *_body(self._keys, self._values))
            self._keys, self._values = [], []

    def _write(self, first: bytes, rows: int, body: bytes, flags: int) -> None:
        self._put(first, _encode_body(rows, body, flags, self._seed ^ self.size, self._compress))

    def _put(self, first: bytes, block: bytes) -> None:
        self._firsts.append(first)
        self._data.write(block)
        self._lengths.append(len(block))
        self.size += len(block)

    def finish(self, more: bytes = b"") -> tuple[bytes, RunFile]:
        """The section, and `more` behind it; and its entry of the manifest without an etag. ValueError if there are no
        rows."""
        self._end_block()
        if self._copied is not None:
            block = _decode_block(*self._copied)
            self._last = block.keys(block.rows - 1, block.rows)[0]
        firsts = self._firsts
        if not firsts:
            raise ValueError("a run has rows")
        # A large section rarely holds two kinds of rows of one subject, and a set of many numbers is large itself.
        words = filter_of(self._hashes, once=len(self._hashes) <= _DEDUPE)
        return _with_tail(self._id, self._seed, self._data, self._lengths, firsts, words, self._last, self._rows, more)


def _with_tail(
    id: bytes,
    seed: int,
    data: BytesIO,
    blocks: array[int],
    firsts: Sequence[bytes],
    words: bytes,
    last: bytes,
    rows: int,
    more: bytes = b"",
) -> tuple[bytes, RunFile]:
    """The section whose head and blocks are in `data`, up to its position, with `more` behind it; and its entry.

    `seed`: that of the section; `blocks`: their lengths; `firsts`: their first keys; `words`: the filter; `last`: the
    section's last key.
    """
    size = data.tell()
    keys = array("H", map(len, firsts))
    raw = b"".join([_bytes(keys), _bytes(blocks), *firsts])
    index, flags = _compressed(raw)
    front = _FOOTER_FRONT.pack(len(index), len(raw), len(words) // 8, len(firsts), rows, size, flags, VERSION)
    tail = b"".join((index, words, front))
    tail += _CRC.pack(crc32(tail, seed ^ size)) + _TAIL_MAGIC
    data.write(tail)
    length = data.tell()
    data.write(more)
    data.truncate()
    return data.getvalue(), RunFile(id, "", 0, length, len(tail), firsts[0], last, rows)


def decode_section(data: bytes, file: RunFile, seed: int) -> tuple[list[bytes], list[bytes]]:
    """Return (keys, values) of a whole section. Every byte is checked: CorruptData, or UnsupportedVersion."""
    if len(data) != file.length:
        _damaged(file.id, f"it has {len(data)} bytes instead of {file.length}")
    tail = decode_tail(data[file.length - file.tail :], file, seed)
    if data[: len(_HEAD)] != _HEAD:
        _damaged(file.id, "its first bytes are not those of a run")
    keys: list[bytes] = []
    values: list[bytes] = []
    for number, (start, end) in enumerate(pairwise(tail.offsets)):
        block = decode_block(data[start:end], file, start, seed)
        if block.keys(0, 1) != [tail.first(number)]:
            _damaged(file.id, f"the block at byte {start} does not begin where the index says")
        keys += block.keys(0, block.rows)
        values += block.values(0, block.rows)
    if len(keys) != tail.rows or keys[-1] != file.last_key or not all(map(lt, keys, islice(keys, 1, None))):
        _damaged(file.id, "its rows are not those that the head names")
    return keys, values


def salvage_section(data: bytes, file: RunFile, seed: int) -> tuple[list[Block], list[tuple[bytes, bytes]]]:
    """The blocks of a section that can be read, and (from, to) of the keys in the others. UnsupportedVersion."""
    blocks: list[Block] = []
    lost: list[tuple[bytes, bytes]] = []
    after = file.last_key + b"\x00"
    try:
        tail = decode_tail(data[file.length - file.tail :], file, seed)
    except CorruptData:
        blocks = list(_found_blocks(data, _seed(file.id, seed)))
        if sum(block.rows for block in blocks) != file.rows:
            last = blocks[-1].keys(blocks[-1].rows - 1, blocks[-1].rows)[0] + b"\x00" if blocks else file.first_key
            lost.append((last, after))
        return blocks, lost
    for number, (start, end) in enumerate(pairwise(tail.offsets)):
        try:
            blocks.append(decode_block(data[start:end], file, start, seed))
        except CorruptData:
            lost.append((tail.first(number), tail.first(number + 1) if number + 1 < tail.blocks else after))
    return blocks, lost


def _found_blocks(data: bytes, seed: int) -> Iterator[Block]:
    """The blocks up to the first that cannot be read, where nothing tells their ends but that their checksums are right
    there. `seed`: that of the section."""
    at = len(_HEAD)
    while at + _BLOCK.size < len(data):
        wanted = _CRC.unpack_from(data, at)[0]
        crc = crc32(data[at + _CRC.size : at + _BLOCK.size], seed ^ at)
        for end in range(at + _BLOCK.size + 1, len(data) + 1):
            crc = crc32(data[end - 1 : end], crc)
            if crc == wanted:
                try:
                    block = _decode_block(data[at:end], seed ^ at)
                except (ValueError, OverflowError, struct.error):
                    continue
                yield block
                at = end
                break
        else:
            return


def renew_section(
    data: bytes,
    file: RunFile,
    seed: int,
    id: bytes,
    spans: Iterable[tuple[bytes, bytes]],
    renew: Callable[[list[bytes], list[bytes]], Sequence[bytes]],
) -> tuple[bytes, RunFile]:
    """A whole section with other values, and its entry under another `id`. The rows are the same.

    `renew(keys, values)` gives the values of a block that may hold a key of `spans`, each (start, end); the other
    blocks are copied. Every byte is checked: CorruptData, or UnsupportedVersion.
    """
    if len(data) != file.length:
        _damaged(file.id, f"it has {len(data)} bytes instead of {file.length}")
    end = data[file.length - file.tail :]
    tail = decode_tail(end, file, seed)
    if data[: len(_HEAD)] != _HEAD:
        _damaged(file.id, "its first bytes are not those of a run")
    touched: set[int] = set()
    for low, high in spans:
        touched.update(range(tail.block_of(low), tail.last_block(high) + 1))
    before, now = _seed(file.id, seed), _seed(id, seed)
    made, lengths = BytesIO(), array("I")
    size = made.write(_HEAD)
    for number, (start, stop) in enumerate(pairwise(tail.offsets)):
        stored = data[start:stop]
        part: bytes | None = None
        if number in touched:
            block = decode_block(stored, file, start, seed)
            keys, values = block.keys(0, block.rows), block.values(0, block.rows)
            renewed = renew(keys, values)
            if renewed != values:
                part = _encode_block(keys, renewed, now ^ size)
        if part is None:
            part = _moved(stored, file, start, before ^ start, now ^ size)
        size += made.write(part)
        lengths.append(len(part))
    firsts = [tail.first(number) for number in range(tail.blocks)]
    # The keys have not changed, so the filter is still right.
    index_bytes = _FOOTER.unpack_from(end, len(end) - _FOOTER.size)[0]
    words = end[index_bytes : len(end) - _FOOTER.size]
    return _with_tail(id, now, made, lengths, firsts, words, file.last_key, tail.rows)


def encode_inline(keys: Sequence[bytes], values: Sequence[bytes], seed: int) -> bytes:
    """Rows, whose keys ascend, as the inline run of a head: crc32, version u8, one block. Empty if there are none."""
    if not keys:
        return b""
    start = _seed(_INLINE_ID, seed)
    rest = bytes([VERSION]) + _encode_block(keys, values, start)
    return _CRC.pack(crc32(rest, start)) + rest


def decode_inline(data: bytes, seed: int) -> Block:
    """CorruptData, or UnsupportedVersion."""
    start = _seed(_INLINE_ID, seed)
    if len(data) <= _CRC.size or crc32(memoryview(data)[4:], start) != _CRC.unpack_from(data)[0]:
        _damaged(_INLINE_ID, f"the checksum of its {len(data)} bytes is wrong")
    _check_version(_INLINE_ID, data[4])
    try:
        return _decode_block(data[5:], start)
    except (ValueError, OverflowError, struct.error) as error:
        _damaged(_INLINE_ID, str(error))
