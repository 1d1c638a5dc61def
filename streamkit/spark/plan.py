"""What a read consists of: files of the archive and ranges of the log, from one look at every partition's watermark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ..archive.table import File
from ..client import Client
from ..errors import PermanentError
from ..log.offsets import Offset
from ..log.partition import Partition
from ..log.read import first_at, position_of
from ..store import Store, inner
from .options import Options

__all__ = ["Piece", "Span", "partitions_of", "pieces", "spans"]


class Span(NamedTuple):
    """Transactions first..last of one partition, of which those up to `archived` are read from the archive."""

    store: UUID
    space: str
    partition: int
    first: int
    last: int
    archived: int
    skip: int = 0
    """Entries of the first transaction that an offset has passed."""
    stop: int = 0
    """Entries of transaction last + 1 that are still before an offset."""


@dataclass(frozen=True)
class Piece:
    """What one task reads: transactions first..last of a partition, from a file of the archive or from the log."""

    store: UUID
    space: str
    partition: int
    first: int
    last: int
    file: File | None = None
    skip: int = 0
    min_timestamp: int = 0
    max_timestamp: int = 0


def partitions_of(client: Client, options: Options) -> Iterator[tuple[Store, str, Partition]]:
    """Every partition that is read. PermanentError if a store or a space does not exist."""
    there = sorted(client.stores())
    stores = there if options.stores is None else options.stores
    found = False
    for id in stores:
        if id not in there:
            raise PermanentError(f"the store {id} does not exist (or was deleted); stores here: {len(there)}")
        store = client.store(id)
        for space in store.get_spaces() if options.space is None else (options.space,):
            known = inner(store).look_up(space)[0]
            if known is None:
                if options.stores is not None and len(options.stores) == 1:
                    spaces = ", ".join(repr(name) for name in list(store.get_spaces())[:10])
                    raise PermanentError(f"the store {id} has no space {space!r}; it has {spaces or 'none'}")
                continue
            found = True
            for partition in known.partitions:
                yield store, space, partition
    if not found and options.space is not None:
        raise PermanentError(f"none of the {len(stores)} stores has a space {options.space!r}")


def spans(client: Client, options: Options) -> list[Span]:
    """The whole of what the options ask for, as of now."""
    found = []
    for store, space, partition in partitions_of(client, options):
        last = partition.refresh()
        first, skip, stop = 1, 0, 0
        if isinstance(options.first, str):
            first, skip = _position(options.first, partition, last)
        elif options.first:
            first = first_at(partition, options.first, 1, last)
        if isinstance(options.last, str):
            last, stop = _position(options.last, partition, last)
            last -= 1
        archived = min(partition.head.archived, last)
        found.append(Span(store.id, space, partition.partition, first, last, archived, skip, stop))
    return found


def _position(text: str, partition: Partition, end: int) -> tuple[int, int]:
    return position_of(partition, Offset.decode(text, partition.space), end)


def pieces(client: Client, options: Options, found: list[Span]) -> list[Piece]:
    """The tasks of `found`; those of the archive first. The bounds of an offset are kept by the reader of the log."""
    low = options.first if isinstance(options.first, int) else 0
    high = options.last if isinstance(options.last, int) else 0
    cold: list[Piece] = []
    hot: list[Piece] = []
    for span in found:
        place = (span.store, span.space, span.partition)
        store = client.store(span.store)
        known = inner(store).look_up(span.space)[0]
        if known is None:
            raise PermanentError(f"the space {span.space!r} of the store {span.store} is gone")
        partition = known.partitions[span.partition]
        begin = span.first
        if span.skip:
            # One transaction in parts: by the reader that knows how.
            if begin <= span.last and options.tier != "cold":
                hot.append(Piece(*place, begin, begin, None, span.skip, low, high))
            begin += 1
        if begin <= span.archived and options.tier != "hot":
            snapshot = inner(store).archive(span.space).snapshot(span.partition, span.archived)
            for cluster in snapshot.clusters(span.partition):
                for file in cluster:
                    if file.numbers[0] > span.archived or file.numbers[1] < begin:
                        continue
                    if file.timestamps[1] < low or (high and file.timestamps[0] > high):
                        continue
                    first, last = max(begin, file.numbers[0]), min(span.archived, file.numbers[1])
                    cold.append(Piece(*place, first, last, file, 0, low, high))
        begin = max(begin, span.archived + 1)
        if begin <= span.last and options.tier != "cold":
            hot += _ranges(partition, place, begin, span.last, options.split, low, high)
    return cold + hot


def _ranges(
    partition: Partition, place: tuple[UUID, str, int], first: int, last: int, split: int, low: int, high: int
) -> Iterator[Piece]:
    """Ranges of transactions of about `split` entries, as far as the log can tell cheaply."""
    begin, end = partition.header(first), partition.header(last)
    entries = end.position + end.count - begin.position if begin and end else 0
    parts = max(1, -(-entries // split))
    step = -(-(last - first + 1) // parts)
    for at in range(first, last + 1, step):
        yield Piece(*place, at, min(at + step - 1, last), None, 0, low, high)
