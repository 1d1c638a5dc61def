"""Erasing: a control record in the log makes the entries unreadable; then their bytes are removed everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from ..backend import Backend, KeepsCopies
from ..clock import Clock
from ..errors import LeaseNotAcquired, TransientError
from ..index.thin import expire, expire_floor
from ..index.upkeep import index_all, purge
from ..log.batches import Batch, Bounds, RequiredText
from ..log.commit import Committer
from ..log.erased import erasures_of
from ..log.floors import Control, Erasure, joined
from ..log.inbox_cleanup import clear_inbox
from ..log.log_end import has_earlier
from ..log.partition import Partition
from ..log.read_partition import partition_batches
from ..log.read_segment import segment_batches
from ..log.request import Part, Request
from ..log.segment_view import row_of
from ..log.segments import all_segments
from ..model import Entry
from ..space import Space
from .ranges import Ranges
from .report import EraseReport, Rewritten
from .rewrite import clean_partition, clear_leftovers, scrubbed
from .stored import has_pairs, hidden_up_to, stored_with

if TYPE_CHECKING:
    from .copies import Copies

__all__ = ["erase_deleted", "erase_matching", "erase_space", "finish", "record_expired"]

_AT_ONCE = 5000
"""Ranges that one transaction erases, at most."""
_STEP = 10_000
"""Searched entries between two reports of progress."""
_MANY = 100
"""Segments of a partition from which on one read of all its entries may cost less than a read of each of them."""
_EACH = 1000
"""Entries that are read together in less time than one segment of the archive. On a service that is a request."""
_WAIT = 60.0
"""Seconds to wait for an archiver."""

Progress = Callable[[int, int], None]


class _Wanted(NamedTuple):
    """The segments and metadata that an erasure names."""

    glob: str | None = None
    first: int = 1
    last: int | None = None
    metadata: Mapping[str, str] | None = None
    sequences: frozenset[int] | None = None
    """The sequences of one segment to be erased; None for a range or all."""

    @property
    def name(self) -> str | None:
        """The name of the segment; None if a pattern names several."""
        if self.sequences is not None:
            return self.glob
        return self.glob if self.glob is not None and not any(sign in self.glob for sign in "*?[") else None

    def takes(self, segment: str) -> bool:
        # Compiled patterns are cached.
        if self.glob is None or segment == self.glob:
            return True
        return self.sequences is None and fnmatchcase(segment, self.glob)

    def may_take(self, part: Part) -> bool:
        """True if records that are to be appended to a segment may be wanted."""
        if not self.takes(part.segment) or part.body is None:
            return False
        if self.metadata is None or len(part.body.data) != part.body.raw:  # it is compressed
            return True
        data = bytes(part.body.data)
        return all(text.encode() in data for pair in self.metadata.items() for text in pair)

    def covers(self, sequence: int) -> bool:
        if self.sequences is not None and sequence not in self.sequences:
            return False
        return self.first <= sequence and (self.last is None or sequence <= self.last)


class _Matches:
    """The matching entries of one partition: the ranges to erase, and their amounts."""

    def __init__(self) -> None:
        self.ranges: list[Erasure] = []
        self.entries = self.bytes = self.searched = 0
        self.numbers: set[int] = set()
        self.segments: set[str] = set()
        self._open: dict[str, int] = {}
        """The index in `ranges` of the last range of each of the latest segments."""

    def take(self, batch: Batch, matches: Callable[[Entry], bool]) -> None:
        entries = batch.entries
        self.searched += len(entries)
        for entry in entries:
            if type(entry.payload) is bytes and matches(entry):
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
    copies: Copies,
    sequences: frozenset[int] | None = None,
) -> EraseReport:
    """Erase the named entries of a space: first from readers, in all partitions, then from storage."""
    started = space.partitions[0].clock.now()
    total = EraseReport(space.name, started=started, dry_run=dry_run)
    if sequences is not None:
        first, last = min(sequences), max(sequences)
    wanted = _Wanted(glob, first, last, metadata, sequences)
    committers = [
        committer
        for committer in space.committers
        if wanted.name is None or space.partition(wanted.name) is committer.partition
    ]
    for committer in committers:
        partition = committer.partition
        if dry_run:
            partition.read_head()  # it tells which erasures of other processes have ended
        else:
            record_expired(committer)
        found = _search(partition, wanted, progress)
        hidden = _hidden(partition, wanted, copies, dry_run)
        hidden_count = _count(hidden) if metadata is not None else _count_new(partition, hidden)
        if not dry_run:
            _commit(committer, [*found.ranges, *hidden])
        total = replace(
            total,
            entries=total.entries + found.entries,
            bytes=total.bytes + found.bytes,
            segments=total.segments + len(found.segments),
            transactions=total.transactions + len(found.numbers),
            searched=total.searched + found.searched,
            hidden=total.hidden + hidden_count,
        )
    done = Rewritten()
    forgotten = False
    # Only now: nobody can read an entry of any partition any more, also if an archiver is in the way.
    for committer in () if dry_run else committers:
        partition = committer.partition
        partition.refresh()
        done = done.plus(finish(partition, copies) if partition.erasing else _clean_again(partition, wanted, copies))
        # Requests of killed processes, which another one might commit later. A living process commits its own.
        clear_inbox(partition, wanted.may_take)
        forgotten = forgotten or (metadata is not None and hidden_up_to(partition) > 0)
    if not dry_run and has_earlier(space.partitions[0]):
        done = done.plus(copies.clean_earlier(space.partitions[0]))
    elif forgotten:
        done = done.plus(copies.forget_removed(space.name))
    total = _completed(total, done, space.partitions[0].clock)
    if forgotten and (places := copies.derived(space.name)):
        text = (
            "Entries that were trimmed, expired or deleted before, and are not stored any more, cannot be found by "
            f"metadata. Values made of them may be in {' and '.join(places)}: erase their segments by name as well"
        )
        total = replace(total, unreached=(*total.unreached, text))
    return total if dry_run else _with_kept(total, space.partitions[0].backend)


def _clean_again(partition: Partition, wanted: _Wanted, copies: Copies) -> Rewritten:
    """Remove the rest of an earlier call, and files and texts that other processes have made of its entries since."""
    done = clear_leftovers(partition)
    erased = [erasure for erasure in erasures_of(partition) if wanted.takes(erasure.segment)]
    return done.plus(copies.clean_again(partition, Ranges(erased))) if erased else done


def _with_kept(report: EraseReport, backend: Backend) -> EraseReport:
    """`report` with the sentence about copies that the storage keeps. If it does not answer, the erasure is complete
    all the same."""
    try:
        kept = backend.kept_copies() if isinstance(backend, KeepsCopies) else None
    except TransientError as error:
        kept = f"the storage did not say if it keeps copies of erased entries; erase again to ask it again: {error}"
    return replace(report, unreached=(*report.unreached, kept)) if kept else report


def _count(erasures: Iterable[Erasure]) -> int:
    return sum(erasure.last - erasure.first + 1 for erasure in erasures)


def _count_new(partition: Partition, hidden: Sequence[Erasure]) -> int:
    """The number of sequences of `hidden` that no erasure has removed to the end yet."""
    if not hidden:
        return 0
    unfinished = {erasure.number for erasure in partition.erasing}
    done = Ranges([erasure for erasure in erasures_of(partition) if erasure.number not in unfinished])
    return sum(done.lacks(erasure.segment, erasure.first, erasure.last) for erasure in hidden)


def erase_deleted(space: str, backend: Backend, clock: Clock, dry_run: bool, copies: Copies) -> EraseReport:
    """Erase the remains of a space that does not exist, or not any more."""
    report = EraseReport(space, started=clock.now(), dry_run=dry_run)
    if dry_run:
        return _completed(report, Rewritten(), clock)
    return _with_kept(_completed(report, copies.clean_deleted(space), clock), backend)


def _completed(report: EraseReport, done: Rewritten, clock: Clock) -> EraseReport:
    return replace(
        report,
        rows=done.records + done.packs + done.runs,
        files=done.files,
        completed=clock.now(),
        records=done.records,
        packs=done.packs,
        runs=done.runs,
        views=done.views,
        unreached=done.unreached,
    )


def record_expired(committer: Committer) -> None:
    """Record in the log that hidden entries are gone, so that a wider retention does not bring them back."""
    partition = committer.partition
    partition.refresh()
    if partition.retention is None:
        return
    index_all(partition)
    expire(committer, least=0)
    expire_floor(committer)


def _hidden(partition: Partition, wanted: _Wanted, copies: Copies, dry_run: bool) -> list[Erasure]:
    """The matching entries that readers cannot get and that may still be stored."""
    if wanted.metadata is None:
        return [erasure for name in _names(partition, wanted) for erasure in _before_first(partition, name, wanted)]
    if not dry_run:
        index_all(partition)
        purge(partition)  # otherwise the index could hold copies of entries that the log no longer holds
    # Before an erasure the expired entries are noted in the log; a dry run writes nothing.
    last = partition.number if dry_run and partition.retention is not None else hidden_up_to(partition)
    if not last:
        return []
    sequences: dict[str, set[int]] = {}
    for segment, sequence in _stored(partition, wanted, wanted.metadata, last):
        sequences.setdefault(segment, set()).add(sequence)
    for segment, sequence in copies.archived_with(partition, wanted.metadata, last):
        if wanted.takes(segment):
            sequences.setdefault(segment, set()).add(sequence)
    erasures: list[Erasure] = []
    for segment, found in sequences.items():
        floor = partition.ask(row_of, segment).first_sequence
        hidden = sorted(sequence for sequence in found if sequence < floor and wanted.covers(sequence))
        erasures += (
            Erasure(segment, first, last) for first, last in joined((sequence, sequence) for sequence in hidden)
        )
    return erasures


def _stored(partition: Partition, wanted: _Wanted, metadata: Mapping[str, str], last: int) -> list[tuple[str, int]]:
    return partition.ask(lambda _: list(stored_with(partition, metadata, wanted.takes, last)))


def _before_first(partition: Partition, name: str, wanted: _Wanted) -> Iterator[Erasure]:
    """The sequences of a segment before the first one that can be read."""
    row = partition.ask(row_of, name)
    until = min(row.first_sequence - 1, wanted.last or row.last_sequence)
    if wanted.sequences is not None:
        hidden = [sequence for sequence in wanted.sequences if sequence <= until]
        yield from (Erasure(name, first, last) for first, last in joined((sequence, sequence) for sequence in hidden))
    elif wanted.first <= until:
        yield Erasure(name, wanted.first, until)


def erase_matching(
    space: Space,
    segments: Iterable[str],
    matches: Callable[[Entry], bool],
    copies: Copies,
) -> Rewritten:
    """Erase the matching entries of some segments, and all their entries that readers cannot get."""
    by_partition: dict[int, list[str]] = {}
    done = Rewritten()
    for segment in segments:
        by_partition.setdefault(space.partition(segment).partition, []).append(segment)
    for number, names in by_partition.items():
        committer = space.committers[number]
        partition = committer.partition
        partition.refresh(names)
        found = _Matches()
        for batch in _of_segments(partition, names, _Wanted()):
            found.take(batch, matches)
        hidden = [erasure for name in names for erasure in _before_first(partition, name, _Wanted())]
        ranges = [*found.ranges, *hidden]
        _commit(committer, ranges)
        done = done.plus(finish(partition, copies))
        # A killed process may have half written an entry: nobody can read it, and a local file has its bytes.
        if not ranges:
            done = done.plus(scrubbed(partition))
    return done


def _search(partition: Partition, wanted: _Wanted, progress: Progress | None) -> _Matches:
    """The matching entries that readers can get."""
    found = _Matches()
    end = partition.refresh()
    pairs = wanted.metadata

    def matches(entry: Entry) -> bool:
        return wanted.covers(entry.sequence) and (pairs is None or has_pairs(entry.metadata, pairs))

    reported = 0
    required = RequiredText(text for pair in (pairs or {}).items() for text in pair)
    for batch in _batches(partition, wanted, end, required):
        found.take(batch, matches)
        searched = found.searched + required.passed
        if progress is not None and searched - reported >= _STEP:
            reported = searched
            progress(searched, max(partition.position, searched))
    found.searched += required.passed
    return found


def _batches(partition: Partition, wanted: _Wanted, end: int, required: RequiredText) -> Iterator[Batch]:
    if wanted.glob is None:
        yield from partition_batches(partition, (1, 0), end, Bounds(), required=required)
        return
    names = list(_names(partition, wanted))
    if len(names) <= _MANY or len(names) * _EACH < partition.position:
        yield from _of_segments(partition, names, wanted)
        return
    for batch in partition_batches(partition, (1, 0), end, Bounds()):
        if wanted.takes(batch.entries[0].segment):
            yield batch


def _of_segments(partition: Partition, names: Iterable[str], wanted: _Wanted) -> Iterator[Batch]:
    for name in names:
        row = partition.ask(row_of, name)
        first = max(wanted.first, row.first_sequence)
        until = row.last_sequence if wanted.last is None else min(wanted.last, row.last_sequence)
        if first <= until:
            yield from segment_batches(partition, name, Bounds(first, until))


def _names(partition: Partition, wanted: _Wanted) -> Iterable[str]:
    """The named segments, also those without entries."""
    if wanted.name is not None:
        return [wanted.name]
    return [name for name in all_segments(partition) if wanted.takes(name)]


def _commit(committer: Committer, ranges: list[Erasure]) -> None:
    for at in range(0, len(ranges), _AT_ONCE):
        committer.commit(Request((), control=Control(erasures=tuple(ranges[at : at + _AT_ONCE]))))


def finish(partition: Partition, copies: Copies, wait: float | None = None) -> Rewritten:
    """Remove erased entries from all places that store them.

    LeaseNotAcquired if another process archives, or erases, for longer than `wait` seconds; None: a minute.
    """
    from ..archive.archiver import lease_name

    partition.refresh()
    if not partition.erasing:
        return Rewritten()
    try:
        with copies.lease(lease_name(partition.space, partition.partition), _WAIT if wait is None else wait):
            return clean_partition(partition, copies.clean)
    except LeaseNotAcquired as error:
        raise LeaseNotAcquired(
            f"another process archives space {partition.space!r}, or erases from it. The entries cannot be read any "
            "more, and are still stored: call erase() or maintain() again to remove them"
        ) from error
