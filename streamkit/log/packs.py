"""The packed part of a log: transactions that upkeep has brought together, many to a file."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence

import msgspec

from ..backend import Backend, Range
from ..errors import CorruptData, StreamkitError, UnsupportedVersion
from .damaged_file import in_log
from .keys import run_key
from .pack_format import MOST, PackBlock, PackRows, PackTable, open_block, read_table
from .ranges import read_ranges

__all__ = ["Frame", "PackFile", "Packs", "TableCache", "in_pack"]

_AHEAD = 1 << 20
"""Bytes of neighbouring blocks that one request brings."""
_AHEAD_LOCAL = 1 << 16
"""Bytes of neighbouring blocks that one call brings on a local disk: a page reads little more than its own blocks."""
_TABLES = 4 << 20

Frame = tuple[int, int, int]
"""(transaction, start, bytes): a part of its record."""


class PackFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A pack: `length` bytes from `start` of the row `run_key(id)`; the last `tail` of them are its table. It holds the
    transactions first..last, but for those that are too large."""

    id: bytes
    etag: str
    start: int
    length: int
    tail: int
    first: int
    last: int
    timestamp: int
    """The timestamp of the first record."""


class TableCache:
    """Tables of packs by the id of their file, in bounded memory. Shared by the threads of a store."""

    def __init__(self, limit: int = _TABLES) -> None:
        self._tables: OrderedDict[bytes, PackTable] = OrderedDict()
        self._limit = limit
        self._bytes = 0

    def get(self, id: bytes) -> PackTable | None:
        return self._tables.get(id)

    def put(self, id: bytes, table: PackTable) -> None:
        if table.size * 2 > self._limit or id in self._tables:
            return
        self._bytes += table.size
        self._tables[id] = table
        while self._bytes > self._limit and self._tables:
            try:
                self._bytes -= self._tables.popitem(last=False)[1].size
            except KeyError:
                return  # another thread was faster


class Packs:
    """The packs that one head names. Immutable; every call raises RunGone if one was merged into another since."""

    def __init__(
        self,
        backend: Backend,
        partition: bytes,
        seed: int,
        files: Sequence[PackFile],
        inline: bytes,
        cache: TableCache,
        most: int = 2 * MOST,
    ) -> None:
        """`most`: bytes of the largest block. Larger records are packed in backups only."""
        self.files = files
        self._backend = backend
        self.partition = partition
        self._seed = seed
        self._inline = inline
        self._cache = cache
        self._most = most
        self._ahead = _AHEAD if backend.limits.remote else _AHEAD_LOCAL
        self._lasts = [file.last for file in files]
        self._inline_table = read_table(inline, seed) if inline else None
        self._block: tuple[bytes, int, bytes] = (b"", 0, b"")
        """The block that was opened last: (file's id, its number, raw bytes)."""

    @property
    def last(self) -> int:
        """The last transaction that a pack covers; 0 if there is none."""
        if self._inline_table is not None:
            return self._inline_table.last
        return self._lasts[-1] if self._lasts else 0

    def _pack(self, number: int) -> tuple[PackFile | None, PackTable] | None:
        """The pack that covers `number`, None as its file for the inline one; None if there is none."""
        at = bisect_left(self._lasts, number)
        if at < len(self._lasts):
            file = self.files[at]
            return (file, self._table(file)) if number >= file.first else None
        table = self._inline_table
        return (None, table) if table is not None and table.first <= number <= table.last else None

    @in_log
    def _table(self, file: PackFile) -> PackTable:
        table = self._cache.get(file.id)
        if table is None:
            start = file.start + file.length - file.tail
            data = read_ranges(
                self._backend, self.partition, [Range(run_key(file.id), start, file.tail, file.etag or None)]
            )[0]
            try:
                table = read_table(data, self._seed)
            except (CorruptData, UnsupportedVersion) as error:
                raise in_pack(file, error) from error
            if (table.first, table.last) != (file.first, file.last) or not table.blocks:
                raise CorruptData(f"the pack {run_key(file.id)!r} is not the one that the head names")
            self._cache.put(file.id, table)
        return table

    @in_log
    def _stored(self, file: PackFile | None, table: PackTable, first: int, after: int) -> bytes:
        """The stored bytes of the blocks first..after - 1, which are neighbours, in one request."""
        begin, end = table.blocks[first].place, table.blocks[after - 1].place + table.blocks[after - 1].stored
        if file is None:
            return self._inline[begin:end]
        place = Range(run_key(file.id), file.start + begin, end - begin, file.etag or None)
        return read_ranges(self._backend, self.partition, [place])[0]

    @in_log
    def _open(self, file: PackFile | None, block: PackBlock, stored: bytes) -> bytes:
        """The raw bytes of a block."""
        try:
            return open_block(block, stored, self._seed, self._most)
        except (CorruptData, UnsupportedVersion) as error:
            raise (in_pack(file, error) if file is not None else error) from error

    def _blocks(self, file: PackFile | None, table: PackTable, first: int, after: int) -> Iterator[bytes]:
        """The raw bytes of the blocks first..after - 1, which are neighbours. It opens one at a time."""
        id = file.id if file is not None else b""
        if after == first + 1 and self._block[:2] == (id, first) and self._block[2]:
            yield self._block[2]
            return
        stored, begin = self._stored(file, table, first, after), table.blocks[first].place
        for number in range(first, after):
            block = table.blocks[number]
            raw = self._open(file, block, stored[block.place - begin : block.place - begin + block.stored])
            self._block = (id, number, raw)
            yield raw

    def holds(self, number: int) -> bool:
        """True if the record of `number` is in a pack."""
        found = self._pack(number)
        return found is not None and found[1].holds(number)

    def next_held(self, number: int) -> int:
        """The first transaction from `number` on that is in a pack; one beyond every log if there is none."""
        while True:
            found = self._pack(number)
            if found is None:
                at = bisect_left(self._lasts, number)
                if at < len(self._lasts):
                    number = self.files[at].first
                elif self._inline_table is not None and number < self._inline_table.first:
                    number = self._inline_table.first
                else:
                    return 1 << 63
                continue
            table = found[1]
            while number <= table.last:
                if table.holds(number):
                    return number
                number += 1

    def file_of(self, number: int) -> PackFile | None:
        """The file that `number` should be in, or the first one after it."""
        at = bisect_left(self._lasts, number)
        return self.files[at] if at < len(self.files) else None

    def without(self, ids: Collection[bytes]) -> Packs:
        """The others than the files with these ids."""
        files = [file for file in self.files if file.id not in ids]
        return Packs(self._backend, self.partition, self._seed, files, self._inline, self._cache)

    def beyond(self, number: int) -> int:
        """The first transaction after the pack that covers `number`, or the next one that a pack covers."""
        at = bisect_left(self._lasts, number)
        return self._lasts[at] + 1 if at < len(self._lasts) else max(number, self.last) + 1

    def records(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield (number, record) from `first` on, up to `last` or the first one that is not in a pack."""
        for found in self.batches(first, last):
            yield from found

    def batches(self, first: int, last: int) -> Iterator[PackRows]:
        """Yield the transactions of `records` in parts. No part is empty, and each can be read once."""
        number = first
        while number <= last and (found := self._pack(number)) is not None:
            file, table = found
            block = table.block_of(number)
            if block < 0 or not table.holds(number):
                return
            until = min(last, table.last)
            after, size = block + 1, table.blocks[block].stored
            while after < len(table.blocks) and table.blocks[after].number <= until and size < self._ahead:
                size += table.blocks[after].stored
                after += 1
            for at, raw in enumerate(self._blocks(file, table, block, after), block):
                end = min(last, table.last_of(at))
                rows = table.records(at, raw, number, end)
                if len(rows) <= end - number:
                    rows = table.records(at, raw, number, table.reach(number, end))
                number += len(rows)
                yield rows
                if number <= end:
                    return

    def all(self) -> Iterator[tuple[int, bytes]]:
        """Yield (number, record) of everything, in order."""
        number = 0
        while (number := self.next_held(number)) <= self.last:
            for at, record in self.records(number, self.last):
                yield at, record
                number = at + 1

    def get(self, numbers: Sequence[int]) -> list[bytes | None]:
        """The records of `numbers`, None for one that is not in a pack."""
        return [next((record for _, record in self.records(number, number)), None) for number in numbers]

    def frames(self, wanted: Sequence[Frame]) -> list[bytes | None]:
        """Parts of records, None of one that is not in a pack. Those of large records come in one request."""
        parts: list[bytes | None] = [None] * len(wanted)
        ranges: list[Range] = []
        places: list[int] = []
        for at, (number, start, length) in enumerate(wanted):
            found = self._pack(number)
            if found is None or not found[1].holds(number):
                continue
            file, table = found
            index = table.block_of(number)
            block = table.blocks[index]
            begin = table.start(index, number) + start
            if block.flags or file is None:
                parts[at] = next(self._blocks(file, table, index, index + 1))[begin : begin + length]
            else:
                places.append(at)
                ranges.append(Range(run_key(file.id), file.start + block.place + begin, length, file.etag or None))
        if ranges:
            for at, data in zip(places, read_ranges(self._backend, self.partition, ranges), strict=True):
                parts[at] = data
        return parts

    def narrow(self, timestamp: int, first: int, last: int) -> tuple[int, int]:
        """Within which of first..last the first one is that is not older than `timestamp`, as (low, high): everything
        before `low` is older, `high` is not older, or is `last` + 1."""
        end = last
        at = bisect_left(self.files, timestamp, key=lambda file: file.timestamp)
        if at < len(self.files):
            # Its timestamp is that of its first record. Earlier transactions have rows of their own.
            last = min(last, self._table(self.files[at]).blocks[0].number - 1)
        if at:
            file = self.files[at - 1]
            if file.last >= first:
                first = max(first, self._table(file).first_at(timestamp))
        first = min(first, end + 1)
        return first, max(last, first - 1) + 1


def in_pack(file: PackFile, error: StreamkitError) -> StreamkitError:
    """The error with the name of the pack."""
    return type(error)(f"the pack {run_key(file.id)!r}: {error}")
