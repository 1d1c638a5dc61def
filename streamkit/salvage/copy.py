"""Copying the intact transactions of a damaged space to a new one. The damaged space is not changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import CorruptData, PermanentError, SpaceExists, StreamkitError, UnsupportedVersion
from ..log.floors import Removed
from ..log.rows import Settings
from ..store import inner
from .archived import ArchivedPart
from .log import IntactLog, Transaction, settings_of
from .report import LostEntries, LostTransactions, SalvageReport
from .visible import Visible
from .write import Writer

if TYPE_CHECKING:
    from ..store import Store

__all__ = ["salvage_space"]

Progress = Callable[[int, int], None]


def salvage_space(
    source: Store, space: str, target: Store, name: str, dry_run: bool, progress: Progress | None
) -> SalvageReport:
    """Copy all intact transactions of a space to the space `name` of `target`, which must not exist."""
    opened = inner(source)
    settings = settings_of(opened.backend, space)
    if settings is None:
        raise PermanentError(f"the store {source.id} has no space {space!r}, or none of it can be read")
    if not dry_run:
        if inner(target).look_up(name)[0] is not None:
            raise SpaceExists(f"space {name!r} exists: salvage writes to a space that does not exist yet")
        target.create_space(
            name,
            settings.partitions,
            settings.durability,
            idempotency_window=settings.idempotency_window,
            archive_grace=settings.archive_grace,
        )
    copies = [
        _copy(source, space, settings, partition, None if dry_run else Writer(target, name, partition), progress)
        for partition in range(settings.partitions)
    ]
    return SalvageReport(
        space,
        name,
        sum(copy.transactions for copy in copies),
        sum(copy.entries for copy in copies),
        tuple(lost for copy in copies for lost in copy.lost),
        tuple(missing for copy in copies for missing in copy.missing),
        tuple(damage for copy in copies for damage in copy.damage),
        dry_run,
    )


class _Copy:
    """The findings of one partition."""

    def __init__(self, log: IntactLog) -> None:
        self.transactions = self.entries = 0
        self.lost: list[LostTransactions] = []
        self.missing: list[LostEntries] = []
        self.damage = log.damage
        self._partition = log.partition

    def lose(self, number: int, problem: str, segments: tuple[str, ...]) -> None:
        first, last = number, self.lost[-1] if self.lost else None
        if last is not None and (last.last, last.problem, last.segments) == (number - 1, problem, segments):
            first = self.lost.pop().first
        self.lost.append(LostTransactions(self._partition, first, number, problem, segments))


def _copy(
    source: Store, space: str, settings: Settings, partition: int, writer: Writer | None, progress: Progress | None
) -> _Copy:
    log = IntactLog(inner(source).backend, space, partition, settings)
    archive = ArchivedPart(source, space, settings, log)
    done, visible = _Copy(log), Visible(log)
    end = max(log.head.watermark, archive.last, *log.numbers, 0)
    for number, found in _in_order(log, archive, end):
        if isinstance(found, StreamkitError):
            header = log.header(number)
            done.lose(number, str(found), tuple(frame.segment for frame in header.frames) if header else ())
            if header is not None:
                visible.lose(header)
        elif parts := visible.parts(found, done.missing):
            done.transactions += 1
            done.entries += sum(not isinstance(entry.payload, Removed) for entries in parts for entry in entries)
            if writer is not None:
                writer.write(parts, found.header, visible)
        if progress is not None:
            progress(number - log.floor.number + 1, end - log.floor.number + 1)
    visible.end(done.missing)
    if archive.problem and not done.lost:
        done.damage = (*done.damage, archive.problem)
    if writer is not None:
        writer.end(visible)
    return done


def _in_order(log: IntactLog, archive: ArchivedPart, end: int) -> Iterator[tuple[int, Transaction | StreamkitError]]:
    """Yield each transaction from the floor to `end`, or the reason for which it cannot be read."""
    number = log.floor.number
    for archived, found in archive.transactions(number):
        yield from _logged(log, archive, number, archived - 1)
        yield archived, found
        number = archived + 1
    yield from _logged(log, archive, number, end)


def _logged(
    log: IntactLog, archive: ArchivedPart, first: int, last: int
) -> Iterator[tuple[int, Transaction | StreamkitError]]:
    for number in range(first, last + 1):
        if number <= archive.last and not log.holds(number):
            # An archive has no transactions without entries.
            if archive.is_lost(number):
                yield number, CorruptData(archive.problem)
            continue
        try:
            yield number, log.transaction(number)
        except (CorruptData, UnsupportedVersion) as error:
            yield number, error
