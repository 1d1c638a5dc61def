"""Chunks: packs of transactions that no file of the log holds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import partial

from ..index.upkeep import timestamp_of
from ..log.pack_format import encode_pack
from ..log.partition import Partition
from .format import Chunk
from .repository import Repository

__all__ = ["Chunks", "is_current", "missing_from"]

_BYTES = 4 << 20
_NUMBERS = 1 << 16
"""The most that one chunk spans: its table has four bytes for each number."""


class Chunks:
    """Writes records of one partition to a backup, a few MiB at a time. The numbers ascend."""

    def __init__(self, partition: Partition, repository: Repository, used: Sequence[Chunk] = ()) -> None:
        """`used`: existing chunks, which must not be overlapped."""
        self._firsts = [chunk.first for chunk in used]
        self.written: list[Chunk] = []
        self._partition = partition
        self._repository = repository
        self._records: list[tuple[int, bytes]] = []
        self._bytes = 0

    def add(self, number: int, record: bytes) -> None:
        if self._records:
            first = self._records[0][0]
            passed = bisect_left(self._firsts, first) < bisect_left(self._firsts, number)
            if passed or self._bytes + len(record) > _BYTES or number - first >= _NUMBERS:
                self.flush()
        self._records.append((number, record))
        self._bytes += len(record)

    def flush(self) -> None:
        if not self._records:
            return
        partition, records = self._partition, self._records
        first, last = records[0][0], records[-1][0]
        pack = encode_pack(first, last, records, partial(timestamp_of, partition), partition.seed)
        id = self._repository.put_chunk(partition.space, partition.partition, pack.data)
        trx = partition.decode_header(records[-1][1], last).id.hex()
        self.written.append(Chunk(id, _runs(number for number, _ in records), trx))
        self._records, self._bytes = [], 0


def is_current(partition: Partition, chunk: Chunk) -> bool:
    """True if the log still has the transactions of a chunk. It has the earlier ones if it has the last one."""
    header = partition.header(chunk.last)
    return header is not None and header.id.hex() == chunk.trx


def missing_from(numbers: Sequence[int], chunks: Sequence[Chunk]) -> tuple[list[int], list[Chunk]]:
    """Return (those of `numbers` that no chunk has, the chunks to use), both in order. A chunk is used if it has all of
    the numbers between its first and its last one. So new chunks do not overlap it."""
    left, used, at = list[int](), list[Chunk](), 0
    for chunk in sorted(chunks, key=lambda chunk: chunk.first):
        begin = bisect_left(numbers, chunk.first, at)
        end = bisect_right(numbers, chunk.last, begin)
        inside = numbers[begin:end]
        if inside and _holds(chunk, inside):
            left += numbers[at:begin]
            used.append(chunk)
            at = end
    return left + list(numbers[at:]), used


def _holds(chunk: Chunk, numbers: Sequence[int]) -> bool:
    firsts = [first for first, _ in chunk.runs]
    return all(number <= chunk.runs[bisect_right(firsts, number) - 1][1] for number in numbers)


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
