"""`spark.readStream.format("streamkit")`: offsets are transaction numbers, one for each partition."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ..archive.fallback import ArchiveOrLog
from ..client import Client
from ..log.partition import Partition
from .options import Options
from .plan import Span, partitions_of, pieces, spans
from .rows import read_piece
from .source import Task

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StreamReader"]

Offset = dict[str, Any]
_VERSION = "version"


def _name(store: Any, space: str, partition: int) -> str:
    return json.dumps([str(store), space, partition])


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A batch is what lies between two offsets: the same entries after a restart, whatever the archiver did."""

    def __init__(self, options: Options) -> None:
        if isinstance(options.first, str) or options.last:
            raise ValueError("a stream takes a timestamp as 'from', and no 'until'")
        self.options = options
        self._client: Client | None = None
        self._target: dict[str, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def _open(self) -> Client:
        if self._client is None:
            self._client = self.options.client()
        return self._client

    def initialOffset(self) -> Offset:
        return _offset({_name(*span[:3]): span.first - 1 for span in spans(self._open(), self.options)})

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_rows) if self.options.max_rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {
            _name(store.id, space, partition.partition): partition.refresh()
            for store, space, partition in partitions_of(self._open(), self.options)
        }

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        reached = _numbers(start)
        budget = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        waiting = []
        for store, space, partition in partitions_of(self._open(), self.options):
            name = _name(store.id, space, partition.partition)
            end = partition.refresh()
            if self._target is not None:
                # What came into being since then has no place in it.
                end = min(end, self._target.get(name, 0))
            begin = reached.setdefault(name, 0)
            if end > begin:
                waiting.append((name, partition, begin, end))
        for at, (name, partition, begin, end) in enumerate(waiting):
            if not budget:
                reached[name] = end
                continue
            share = budget // (len(waiting) - at)
            before = _entries(partition, begin)
            reached[name] = _reaching(partition, begin, end, before + max(share, 1))
            budget = max(1, budget - (_entries(partition, reached[name]) - before))
        return _offset(reached)

    def reportLatestOffset(self) -> Offset:
        return _offset(
            {
                _name(store.id, space, partition.partition): partition.refresh()
                for store, space, partition in partitions_of(self._open(), self.options)
            }
        )

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        client, before, found = self._open(), _numbers(start), []
        ends = _numbers(end)
        for store, space, partition in partitions_of(client, self.options):
            name = _name(store.id, space, partition.partition)
            first, last = before.get(name, 0) + 1, ends.get(name, 0)
            if first <= last:
                partition.refresh()
                archived = min(partition.head.archived, last)
                found.append(Span(store.id, space, partition.partition, first, last, archived))
        return [Task(piece) for piece in pieces(client, self.options, found)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return read_piece(partition.piece, self.options, ())

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _offset(numbers: dict[str, int]) -> Offset:
    return {_VERSION: 1, **numbers}


def _numbers(offset: Offset) -> dict[str, int]:
    if offset.get(_VERSION) != 1:
        raise ValueError(
            f"the checkpoint's offset has version {offset.get(_VERSION)!r}; this release reads 1. Upgrade streamkit, "
            "or begin with a new checkpoint"
        )
    return {name: number for name, number in offset.items() if name != _VERSION}


def _entries(partition: Partition, number: int) -> int:
    """Entries of the partition up to transaction `number`."""
    if number == 0:
        return 0
    if number > partition.head.archived:
        header = partition.header(number)
        if header is not None:
            return header.position + header.count
        partition.look_at_head()
    archive: ArchiveOrLog = partition.archive()  # type: ignore[assignment]
    return archive.entries_until(partition, number)


def _reaching(partition: Partition, begin: int, end: int, entries: int) -> int:
    """The last transaction of begin+1..end with at most `entries` up to it; begin + 1 if there is none."""
    low, high = begin + 1, end
    while low < high:
        middle = (low + high + 1) // 2
        if _entries(partition, middle) <= entries:
            low = middle
        else:
            high = middle - 1
    return low
