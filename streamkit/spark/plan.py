"""The plan of a read: files of the archive and ranges of the log, from one look at every partition's watermark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from ..archive.table import File
from ..client import Client
from ..errors import EntriesRemoved, PermanentError
from ..gaps import Gap
from ..log.archive_reader import ArchiveUnreadable
from ..log.first_at import first_at
from ..log.offsets import Offset
from ..log.partition import Partition
from ..log.read_space import is_named, position_of
from ..log.view import LogView
from ..log.visible import floor_of, may_hide_entries, number_gap, stops_readers
from ..store import Store, inner
from .options import LATEST, Options

__all__ = [
    "Span",
    "TaskShare",
    "begin_of",
    "entries_until",
    "limited",
    "packed",
    "partitions_of",
    "pieces",
    "reaching",
    "spans",
    "trimmed",
]


class Span(NamedTuple):
    """Transactions first..last of one partition. Those up to `archived` are read from the archive."""

    store: UUID
    space: str
    partition: int
    incarnation: str
    """The incarnation of the space, as hex text: a space that was made again with this name is not read instead."""
    first: int
    last: int
    archived: int
    skip: int = 0
    """Entries of transaction `first` that are before the range."""
    stop: int = 0
    """Entries of transaction `last` up to which the range goes; 0: all."""

    @property
    def owner(self) -> tuple[UUID, str, int]:
        return self.store, self.space, self.partition


@dataclass(frozen=True)
class TaskShare:
    """The share of one task: transactions first..last of a partition, from a file of the archive or from the log.

    `skip` and `stop` are those of Span.
    """

    store: UUID
    space: str
    partition: int
    incarnation: str
    first: int
    last: int
    file: File | None = None
    skip: int = 0
    stop: int = 0
    min_timestamp: int = 0
    """Older rows are left out. Only a stream sets it, because its transactions may come from any time."""
    rows: int = 0
    """About how many it has."""
    tier: str = "hot"
    """The tier of rows that are read from the log; empty: the tier that each entry has by then."""
    erased: bool = False
    """The file may have rows without payloads: they were erased."""
    named: bool = False
    """A stream's checkpoint names the place before it: it is an error if entries after it were removed."""

    @property
    def owner(self) -> tuple[UUID, str, int]:
        return self.store, self.space, self.partition


def partitions_of(client: Client, options: Options) -> Iterator[tuple[Store, str, Partition]]:
    """Yield every partition that is read. PermanentError if a store or a space does not exist."""
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


def spans(client: Client, options: Options, *, named: bool = True) -> list[Span]:
    """The transactions that the options name, as of now.

    EntriesRemoved if some behind an offset were trimmed, unless that does not count (not `named`, or fail_on_loss).
    """
    found = []
    for store, space, partition in partitions_of(client, options):
        end = partition.refresh()
        first, skip = begin_of(options.first, partition, end)
        if named and options.fail_on_loss and isinstance(options.first, str) and options.first != LATEST:
            seen = is_named(partition, Offset.decode(options.first, space), (first, skip))
            gap = number_gap(partition.space, (first, skip), partition.ask(floor_of)) if seen else None
            if gap is not None and stops_readers(gap):
                raise EntriesRemoved(
                    f"{gap}: entries after the offset are missing. Begin with the earliest, or set the option "
                    f"failOnDataLoss to false, to continue with the remaining entries",
                    gap,
                )
        first, skip = max((first, skip), (partition.ask(floor_of).number, 0))
        last, stop = _end_of(options.last, partition, end)
        archived = min(partition.head.archived, last)
        incarnation = partition.settings.incarnation.hex()
        found.append(
            Span(store.id, space, partition.partition, incarnation, first, last, archived, skip, stop),
        )
    return found


def trimmed(client: Client, span: Span, begin: int) -> Gap | None:
    """Return the gap of trimmed or expired entries between transaction `begin` and the span."""
    known = inner(client.store(span.store)).look_up(span.space)[0]
    if known is None or begin >= span.first:
        return None
    partition = known.partitions[span.partition]
    floor = partition.ask(floor_of)
    # Entries that the options skip were not to be read.
    gap = number_gap(partition.space, (begin, 0), floor) if floor.number >= span.first else None
    return gap if gap is not None and stops_readers(gap) else None


def begin_of(bound: int | str, partition: Partition, end: int) -> tuple[int, int]:
    """Return (transaction, entries of it that are passed): where a read begins in a partition that ends at `end`."""
    if bound == LATEST:
        return end + 1, 0
    if isinstance(bound, str):
        return position_of(partition, Offset.decode(bound, partition.space), end)
    return (partition.ask(first_at, bound, 1, end) if bound else 1), 0


def _end_of(bound: int | str, partition: Partition, end: int) -> tuple[int, int]:
    """Return (the last transaction, its entries up to which a read goes, 0 for all)."""
    if isinstance(bound, str):
        number, index = position_of(partition, Offset.decode(bound, partition.space), end)
        return (number, index) if index else (number - 1, 0)
    # Timestamps never decrease from one transaction to the next.
    return (partition.ask(first_at, bound + 1, 1, end) - 1 if bound else end), 0


def pieces(client: Client, options: Options, planned: list[Span]) -> list[TaskShare]:
    """The tasks of `planned`; those of the archive first. The client is new, or has planned them itself."""
    cold: list[TaskShare] = []
    hot: list[TaskShare] = []
    for span in planned:
        if span.first > span.last:
            continue
        store = client.store(span.store)
        known = inner(store).look_up(span.space)[0]
        if known is None:
            raise PermanentError(f"the space {span.space!r} of the store {span.store} is gone")
        archived = min(span.archived, span.last)  # it may have been made shorter since
        partition = known.partitions[span.partition]
        # Each partition tells by itself which of its entries were removed. One that this client has read is not read
        # again.
        partition.refresh((), 0)
        floor = partition.ask(floor_of).number
        if floor > span.first:
            span = span._replace(first=floor, skip=0)
            if span.first > span.last:
                continue
        if span.first <= archived and options.tier != "hot":
            files = None if may_hide_entries(partition.view()) else _files(store, span, archived)
            if files is None:
                # Only the reader of entries knows the removed entries, and reads the log in place of a damaged file.
                hot += _ranges(partition, span, span.first, options.split, archived)
            for file in files or ():
                first, last = max(span.first, file.numbers[0]), min(archived, file.numbers[1])
                whole = file.numbers[1] - file.numbers[0] + 1
                piece = _piece(span, first, last, file.rows * (last - first + 1) // whole, file)
                cold.append(replace(piece, erased=partition.head.erased > 0))
        begin = max(span.first, span.archived + 1)
        if begin <= span.last and options.tier != "cold":
            hot += _ranges(partition, span, begin, options.split, span.last)
    return cold + hot


def _files(store: Store, span: Span, archived: int) -> list[File] | None:
    """The archive's files for the archived part of the span; None if a look finds them damaged."""
    archive = inner(store).archive(span.space)
    try:
        clusters = archive.snapshot(span.partition, archived).clusters(span.partition)
        files = [file for cluster in clusters for file in cluster]
    except ArchiveUnreadable:
        return None
    files = [file for file in files if file.numbers[0] <= archived and file.numbers[1] >= span.first]
    directory = archive.table.directory
    # In the cloud an object is whole or absent; a power cut leaves files that are cut short.
    if directory is not None and not all(_is_whole(os.path.join(directory, file.path), file.size) for file in files):
        return None
    return files


def _is_whole(path: str, size: int) -> bool:
    try:
        return os.stat(path).st_size == size
    except OSError:
        return False


def _piece(span: Span, first: int, last: int, rows: int, file: File | None = None) -> TaskShare:
    return TaskShare(
        span.store,
        span.space,
        span.partition,
        span.incarnation,
        first,
        last,
        file,
        span.skip if first == span.first else 0,
        span.stop if last == span.last else 0,
        rows=rows,
    )


def packed(pieces: Sequence[TaskShare], rows: int) -> list[tuple[TaskShare, ...]]:
    """Pack pieces into tasks of about so many rows: one task for each small piece would cost more."""
    found: list[list[TaskShare]] = []
    size = 0
    for piece in pieces:
        # Archive and log are read differently, and take different times.
        alike = found and (found[-1][0].file is None) == (piece.file is None)
        if not alike or size + piece.rows > rows:
            found.append([])
            size = 0
        found[-1].append(piece)
        size += max(1, piece.rows)
    return [tuple(some) for some in found]


def limited(client: Client, planned: Sequence[Span], rows: int) -> list[Span]:
    """The first of them, of `rows` entries at most together, in whole transactions; a larger one comes alone."""
    found: list[Span] = []
    for span in planned:
        known = inner(client.store(span.store)).look_up(span.space)[0]
        if known is None:
            raise PermanentError(f"the space {span.space!r} of the store {span.store} is gone")
        partition = known.partitions[span.partition]

        def until(number: int, partition: Partition = partition) -> int:
            return entries_until(partition, number)

        before = until(span.first - 1)
        last = span.last
        if until(last) - before > rows:
            last = reaching(span.first - 1, last, before + rows, until)
            last = max(last, span.first) if not found else last
        if last >= span.first:
            found.append(span._replace(last=last, stop=span.stop if last == span.last else 0))
            rows -= until(last) - before
        if last < span.last or rows <= 0:
            break
    return found


def entries_until(partition: Partition, number: int) -> int:
    """Entries of the partition up to transaction `number`."""
    return partition.ask(_entries_until, number)


def _entries_until(view: LogView, number: int) -> int:
    floor = floor_of(view)
    if number < floor.number:
        return floor.position
    if number > view.cold_until:
        header = view.header(number)
        return header.position + header.count
    # Entries that were trimmed before they were archived, or with their files, cannot be counted.
    return max(floor.position, view.archive().entries_until(view, number))


def reaching(begin: int, end: int, entries: int, until: Callable[[int], int]) -> int:
    """The last transaction of begin..end with at most `entries` up to it, as `until` counts them."""
    low, high = begin, end
    while low < high:
        middle = (low + high + 1) // 2
        if until(middle) <= entries:
            low = middle
        else:
            high = middle - 1
    return low


def _ranges(partition: Partition, span: Span, first: int, split: int, last: int) -> Iterator[TaskShare]:
    """Ranges of transactions first..last of about `split` entries, as far as the log can tell cheaply."""
    begin, end = partition.header(first), partition.header(last)
    entries = end.position + end.count - begin.position if begin and end else 0
    parts = max(1, -(-entries // split))
    step = -(-(last - first + 1) // parts)
    for at in range(first, last + 1, step):
        piece = _piece(span, at, min(at + step - 1, last), -(-entries // parts))
        yield replace(piece, tier="") if at <= span.archived else piece
