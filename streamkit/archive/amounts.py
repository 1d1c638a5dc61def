"""Counts of archived entries and bytes of payload per transaction.

The statistics of a file tell its totals. To find a place within a file, some of its columns are read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from ..log.archive_reader import Amount
from .file_reader import FileReader
from .snapshot import File, TrimmedMark

__all__ = ["Amounts"]

_TRANSACTIONS = 400_000
"""The most transactions whose amounts are cached, for the files used last: 20 MB."""
_TOTALS = 1 << 16
_UNTRIMMED = TrimmedMark()


class _Transactions(NamedTuple):
    """The transactions of a file, in order: numpy arrays with one value for each transaction."""

    numbers: Any
    timestamps: Any
    begins: Any
    """Positions of their first entries, trimmed ones included."""
    ends: Any
    """Positions after their last entries in the file."""
    entries: Any
    sizes: Any
    """Bytes of payload; 0 unless it is `sized`."""
    sized: bool


class Amounts:
    """Amounts of the files of one table; `clusters` are the files of one partition. Safe to share between threads."""

    def __init__(self, files: FileReader) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, int], _Transactions] = OrderedDict()
        self._totals: dict[tuple[str, int], int] = {}

    def entries_until(self, clusters: Sequence[Sequence[File]], number: int, trimmed: TrimmedMark = _UNTRIMMED) -> int:
        """Entries of the partition up to transaction `number`; where all of them and of those after them were trimmed,
        up to a later one."""
        import numpy as np

        if number < trimmed.until:
            following = self._first_from(clusters, lambda file: file.numbers[1] > number, number + 1)
            if following is not None:
                return following[1]
        total = trimmed.position if number >= trimmed.until else 0
        for file in _flat(clusters):
            if file.numbers[1] <= number:
                total = max(total, file.positions[1] + 1)
            elif file.numbers[0] <= number:
                found = self._transactions(file)
                at = int(np.searchsorted(found.numbers, number, "right"))
                total = max(total, int(found.ends[at - 1]))
        return total

    def _first_from(
        self, clusters: Sequence[Sequence[File]], may_have: Callable[[File], bool], number: int = 0, position: int = -1
    ) -> tuple[int, int] | None:
        """Number and first position of the first transaction from `number` on with an entry at `position` or later.

        None if there is none.
        """
        for cluster in clusters:
            found: list[tuple[int, int]] = []
            for file in filter(may_have, cluster):
                known = self._transactions(file)
                at = _first(known.numbers, number) if number else _first(known.ends, position + 1)
                if at < len(known.numbers):
                    found.append((int(known.numbers[at]), int(known.begins[at])))
            if found:
                return min(found)
        return None

    def place(
        self, clusters: Sequence[Sequence[File]], number: int, trimmed: TrimmedMark = _UNTRIMMED
    ) -> tuple[int, int, int]:
        """The place of a transaction: entries before it, its own entries, its timestamp.

        The last two are 0 if it has no rows.
        """
        parts = list(self._parts_backwards(clusters, number, number, False))
        position = self.entries_until(clusters, number - 1, trimmed)
        return position, sum(part.entries for part in parts), parts[0].timestamp if parts else 0

    def number_of(
        self, clusters: Sequence[Sequence[File]], position: int, trimmed: TrimmedMark = _UNTRIMMED
    ) -> int | None:
        """The transaction that wrote the entry at `position`; None if there is none. If that entry was trimmed: the
        last transaction before the next remaining entry."""
        import numpy as np

        if position < trimmed.position:
            following = self._first_from(clusters, lambda file: file.positions[1] >= position, position=position)
            if following is None:
                return None
            number, begin = following
            return number if begin <= position else number - 1
        for file in _flat(clusters):
            if file.positions[0] <= position <= file.positions[1]:
                found = self._transactions(file)
                at = int(np.searchsorted(found.ends, position, "right"))
                if found.begins[at] <= position:  # else it is in another one, where those of others overlap
                    return int(found.numbers[at])
        return None

    def bytes_between(self, clusters: Sequence[Sequence[File]], first: int, last: int) -> int:
        """Bytes of payload of transactions first..last."""
        total = 0
        for file in _flat(clusters):
            if first <= file.numbers[0] and file.numbers[1] <= last:
                total += self._total(file)
            elif file.numbers[0] <= last and file.numbers[1] >= first:
                found = self._transactions(file, sized=True)
                total += int(found.sizes[(found.numbers >= first) & (found.numbers <= last)].sum())
        return total

    def first_within(self, clusters: Sequence[Sequence[File]], first: int, last: int, most: int) -> int:
        """The first transaction of first..last from which on they have at most `most` bytes of payload; last + 1 if
        the last one has more."""
        import numpy as np

        for cluster in reversed(clusters):
            files = [file for file in cluster if file.numbers[0] <= last and file.numbers[1] >= first]
            if not files:
                continue
            size = self.bytes_between([files], first, last)
            if size <= most:
                most -= size
                continue
            parts = [self._transactions(file, sized=True) for file in files]
            numbers = np.concatenate([part.numbers for part in parts])
            order = np.argsort(-numbers, kind="stable")
            left = most - np.cumsum(np.concatenate([part.sizes for part in parts])[order] * (numbers[order] <= last))
            if (left < 0).any():
                return max(first, int(numbers[order][np.argmax(left < 0)]) + 1)
            most = int(left[-1])  # the file said that it has more than it has
        return first

    def backwards(self, clusters: Sequence[Sequence[File]], first: int, last: int, sized: bool) -> Iterator[Amount]:
        """Amounts of transactions first..last that have entries, the last first. Sizes are 0 without `sized`."""
        for number, parts in groupby(self._parts_backwards(clusters, first, last, sized), key=attrgetter("number")):
            _, times, entries, sizes = zip(*parts, strict=True)  # in files of others a transaction may be parted
            yield Amount(number, times[0], sum(entries), sum(sizes))

    def _parts_backwards(
        self, clusters: Sequence[Sequence[File]], first: int, last: int, sized: bool
    ) -> Iterator[Amount]:
        import numpy as np

        for cluster in reversed(clusters):
            files = [file for file in cluster if file.numbers[0] <= last and file.numbers[1] >= first]
            if not files:
                continue
            parts = [self._transactions(file, sized) for file in files]
            wanted = [(part.numbers, part.timestamps, part.entries, part.sizes) for part in parts]
            columns = [np.concatenate(column) for column in zip(*wanted, strict=True)]
            kept = (columns[0] >= first) & (columns[0] <= last)
            order = np.argsort(-columns[0][kept], kind="stable")
            yield from map(Amount, *(column[kept][order].tolist() for column in columns))

    def _total(self, file: File) -> int:
        which = (file.path, file.partition)
        found = self._totals.get(which)
        if found is None:
            if file.shared and not file.ours:
                found = int(self._transactions(file, sized=True).sizes.sum())
            else:
                found = self._files.payload_bytes(file)
            with self._lock:
                if len(self._totals) >= _TOTALS:
                    self._totals.clear()
                self._totals[which] = found
        return found

    def _transactions(self, file: File, sized: bool = False) -> _Transactions:
        which = (file.path, file.partition)
        with self._lock:
            found = self._known.get(which)
            if found is not None and (found.sized or not sized):
                self._known.move_to_end(which)
                return found
        found = self._read(file, sized)
        with self._lock:
            self._known[which] = found
            self._known.move_to_end(which)
            while len(self._known) > 1 and sum(len(one.numbers) for one in self._known.values()) > _TRANSACTIONS:
                self._known.popitem(last=False)
        return found

    def _read(self, file: File, sized: bool) -> _Transactions:
        import numpy as np

        columns = ["number", "position", "timestamp", "index"]
        read = self._files.measured(file, columns) if sized else self._files.narrow(file, columns)
        parts = []
        for rows in read:
            sizes = rows["size"].to_numpy() if sized else np.zeros(rows.num_rows, np.int64)
            times = rows["timestamp"].cast("int64").to_numpy() // 1000
            narrow = (rows[name].to_numpy() for name in ("number", "position", "index"))
            parts.append((*narrow, times, sizes))
        unsorted = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(unsorted[1])
        number, position, index, times, sizes = (column[order] for column in unsorted)
        begins = np.flatnonzero(np.concatenate(([True], np.diff(number) != 0)))
        stops = np.concatenate((begins[1:], [len(number)]))
        return _Transactions(
            number[begins],
            times[begins],
            position[begins] - index[begins],
            position[stops - 1] + 1,
            stops - begins,
            np.add.reduceat(sizes, begins),
            sized,
        )


def _first(values: Any, least: int) -> int:
    """The index of the first of some sorted values that is not less than `least`."""
    import numpy as np

    return int(np.searchsorted(values, least, "left"))


def _flat(clusters: Sequence[Sequence[File]]) -> Iterator[File]:
    for cluster in clusters:
        yield from cluster
