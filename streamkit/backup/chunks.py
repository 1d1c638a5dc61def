"""Chunks: packs of transactions that no file of the log holds."""

from __future__ import annotations

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

    def __init__(self, partition: Partition, repository: Repository) -> None:
        self.written: list[Chunk] = []
        self._partition = partition
        self._repository = repository
        self._records: list[tuple[int, bytes]] = []
        self._bytes = 0

    def add(self, number: int, record: bytes) -> None:
        full = self._bytes + len(record) > _BYTES or (self._records and number - self._records[0][0] >= _NUMBERS)
        if self._records and full:
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
        self.written.append(Chunk(id, first, last, len(records), trx))
        self._records, self._bytes = [], 0


def is_current(partition: Partition, chunk: Chunk) -> bool:
    """Whether the log still has the transactions of a chunk. It has the earlier ones if it has the last one."""
    header = partition.header(chunk.last)
    return header is not None and header.id.hex() == chunk.trx


def missing_from(numbers: Iterable[int], chunks: Sequence[Chunk]) -> tuple[list[int], list[Chunk]]:
    """(the numbers that are in none of `chunks`, those of the chunks that are needed). Chunks hold all numbers of
    their range that are asked for; they do not overlap."""
    left, used, at = list[int](), list[Chunk](), 0
    ordered = sorted(chunks, key=lambda chunk: chunk.first)
    for number in numbers:
        while at < len(ordered) and ordered[at].last < number:
            at += 1
        if at < len(ordered) and ordered[at].first <= number:
            if not used or used[-1] is not ordered[at]:
                used.append(ordered[at])
        else:
            left.append(number)
    return left, used
