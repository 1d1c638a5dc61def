"""Erasing: what is found is said to be erased, in the log, so that nobody reads it; then it is removed everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import translate
from typing import Any

from ..errors import LeaseNotAcquired
from ..index.thin import expire, expire_floor
from ..leases import Lease
from ..log.commit import Committer
from ..log.floors import Control, Erasure
from ..log.partition import Partition
from ..log.read import Batch, Bounds, Needles, partition_batches, segment_batches
from ..log.request import Request
from ..log.visible import row_of
from ..space import Space, segments_of
from .report import EraseReport
from .rewrite import Ranges, clean_partition, index_all

__all__ = ["erase_matching", "erase_space", "finish", "pending"]

_AT_ONCE = 5000
"""Ranges that one transaction erases, at most."""
_STEP = 10_000
_WAIT = 60.0
"""Seconds to wait for an archiver."""

MakeLease = Callable[[str, float], Lease]
Progress = Callable[[int, int], None]


class _Found:
    """What is to be erased of one partition."""

    def __init__(self) -> None:
        self.ranges: list[Erasure] = []
        self.entries = self.bytes = self.searched = 0
        self.numbers: set[int] = set()
        self.segments: set[str] = set()
        self._open: dict[str, int] = {}
        """Of the segments met last, where their last range is in `ranges`."""

    def take(self, batch: Batch, matches: Callable[[Any], bool] | None) -> None:
        entries = batch.entries
        self.searched += len(entries)
        for entry in entries:
            if type(entry.payload) is bytes and (matches is None or matches(entry)):
                self._add(entry.segment, entry.sequence)
                self.entries += 1
                self.bytes += len(entry.payload)
                self.numbers.add(entry.trx.number)

    def _add(self, segment: str, sequence: int) -> None:
        at = self._open.get(segment)
        if at is not None and self.ranges[at].last == sequence - 1:
            self.ranges[at] = Erasure(segment, self.ranges[at].first, sequence)
            return
        if len(self._open) > 100_000:
            self._open.clear()
        self._open[segment] = len(self.ranges)
        self.ranges.append(Erasure(segment, sequence, sequence))
        self.segments.add(segment)


def erase_space(
    space: Space,
    glob: str | None,
    first: int,
    last: int | None,
    metadata: Mapping[str, str] | None,
    dry_run: bool,
    progress: Progress | None,
    lease: MakeLease,
    clean_archive: Callable[[Partition, Ranges], int],
) -> EraseReport:
    started = space.partitions[0].clock.now()
    total = EraseReport(space.name, started=started, dry_run=dry_run)
    for committer in space.committers:
        partition = committer.partition
        if glob is not None and not _is_pattern(glob) and space.partition(glob) is not partition:
            continue
        if not dry_run:
            _settle(committer)
        found = _search(partition, glob, first, last, metadata, progress)
        if glob is not None and metadata is None:
            found.ranges += _hidden(partition, glob, first, last)
        rows = files = 0
        if not dry_run:
            _commit(committer, found.ranges)
            # Also what an earlier call has left.
            rows, files = finish(partition, lease, clean_archive)
        total = EraseReport(
            space.name,
            total.entries + found.entries,
            total.bytes + found.bytes,
            total.segments + len(found.segments),
            total.transactions + len(found.numbers),
            total.rows + rows,
            total.files + files,
            total.searched + found.searched,
            started,
            partition.clock.now(),
            dry_run,
        )
    return total


def _settle(committer: Committer) -> None:
    """What a retention hides is not found: say in the log that it is gone, so that no wider one brings it back."""
    partition = committer.partition
    partition.refresh()
    if partition.retention is None:
        return
    index_all(partition)
    expire(committer, least=0)
    expire_floor(committer)


def _hidden(partition: Partition, glob: str, first: int, last: int | None) -> Iterator[Erasure]:
    """What nobody can read any more of these segments, and may still be stored."""
    for name in _names(partition, glob):
        row = row_of(partition, name)
        until = min(row.first_sequence - 1, last or row.last_sequence)
        if first <= until:
            yield Erasure(name, first, until)


def erase_matching(
    space: Space,
    segments: Iterable[str],
    matches: Callable[[Any], bool],
    lease: MakeLease,
    clean_archive: Callable[[Partition, Ranges], int],
) -> None:
    """Erase those entries of some segments that match."""
    by_partition: dict[int, list[str]] = {}
    for segment in segments:
        by_partition.setdefault(space.partition(segment).partition, []).append(segment)
    for number, names in by_partition.items():
        committer = space.committers[number]
        partition = committer.partition
        partition.refresh(names)
        found = _Found()
        for batch in _of_segments(partition, names, 1, None):
            found.take(batch, matches)
        _commit(committer, found.ranges)
        finish(partition, lease, clean_archive)


def _is_pattern(glob: str) -> bool:
    return any(sign in glob for sign in "*?[")


def _search(
    partition: Partition,
    glob: str | None,
    first: int,
    last: int | None,
    metadata: Mapping[str, str] | None,
    progress: Progress | None,
) -> _Found:
    found = _Found()
    end = partition.refresh()
    wanted = None if metadata is None else tuple(metadata.items())

    def matches(entry: Any) -> bool:
        there = entry.metadata
        return bool(there) and all(there.get(name) == value for name, value in wanted or ())

    told = 0
    needles = Needles(text for pair in wanted or () for text in pair)
    for batch in _batches(partition, glob, first, last, end, needles):
        found.take(batch, None if wanted is None else matches)
        searched = found.searched + needles.passed
        if progress is not None and searched - told >= _STEP:
            told = searched
            progress(searched, max(partition.position, searched))
    found.searched += needles.passed
    return found


def _batches(
    partition: Partition, glob: str | None, first: int, last: int | None, end: int, needles: Needles
) -> Iterator[Batch]:
    if glob is None:
        yield from partition_batches(partition, (1, 0), end, Bounds(), needles=needles)
        return
    yield from _of_segments(partition, _names(partition, glob), first, last)


def _of_segments(partition: Partition, names: Iterable[str], first: int, last: int | None) -> Iterator[Batch]:
    for name in names:
        row = row_of(partition, name)
        until = row.last_sequence if last is None else min(last, row.last_sequence)
        if until:
            yield from segment_batches(partition, name, Bounds(max(first, row.first_sequence), until))


def _names(partition: Partition, glob: str) -> list[str]:
    if not _is_pattern(glob):
        return [glob]
    pattern = re.compile(translate(glob))
    return [name for name in segments_of(partition) if name == glob or pattern.match(name)]


def _commit(committer: Committer, ranges: list[Erasure]) -> None:
    for at in range(0, len(ranges), _AT_ONCE):
        committer.commit(Request((), control=Control(erasures=tuple(ranges[at : at + _AT_ONCE]))))


def pending(partition: Partition) -> bool:
    """Whether something that is said to be erased may still be stored."""
    return bool(partition.erasing)


def finish(
    partition: Partition, lease: MakeLease, clean_archive: Callable[[Partition, Ranges], int]
) -> tuple[int, int]:
    """Remove everywhere what the log says is erased: (rows, files) that were written anew.

    LeaseNotAcquired while another process archives, or erases.
    """
    from ..archive.archiver import lease_name

    partition.refresh()
    if not pending(partition):
        return 0, 0
    try:
        with lease(lease_name(partition.space, partition.partition), _WAIT):
            return clean_partition(partition, clean_archive)
    except LeaseNotAcquired as error:
        raise LeaseNotAcquired(
            f"space {partition.space!r}: an archiver, or another erasure, is at it. What was to be erased is not given "
            "out any more; to have it removed from storage erase again, or call maintain(), after that has ended"
        ) from error
