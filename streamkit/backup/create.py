"""A backup: a new point of a store, while the store is in use.

First all that never changes is copied: files of index and log, and of archives. That takes long, and others write
meanwhile. Then the point is chosen. It lies after everything that was copied, so what remains is the few latest
transactions of each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from os import PathLike

from ..errors import UNREADABLE, StoreClosed, Unavailable
from ..leases import Lease
from ..log.keys import partition_key, transaction_key, transaction_prefix
from ..log.moments import SKEW
from ..store import Store, inner
from ..warn import warn
from .copy_space import Copied, SpaceMoved, add_tail, copy_space
from .cut import Cut, find_cut
from .prune import remove_points, remove_unfinished
from .readable import ReadableSpaces
from .report import BackupPoint, BackupReport
from .repository import Repository, open_repository

__all__ = ["backup_points", "backup_store"]

_TRIES = 50


def backup_points(store: Store, url: str | PathLike[str]) -> list[BackupPoint]:
    """The points of a store that are at `url`, the oldest first."""
    with open_repository(url, store.id) as repository:
        return repository.points()


def backup_store(
    store: Store,
    url: str | PathLike[str],
    keep: int | None,
    skip_damaged: bool,
    progress: Callable[[int, int], None] | None,
) -> BackupReport:
    """Make a point of the store at `url`, and keep the latest `keep` ones. See `Store.backup`."""
    with open_repository(url, store.id, progress) as repository, repository.lease() as lease:
        points = repository.points()
        remove_unfinished(repository, points)
        spaces = ReadableSpaces(store, skip_damaged)
        point = _Backup(store, repository, lease, points[-1].number if points else 0, spaces).run()
        lease.check()
        repository.put_point(point)
        # Older points may hold the last copy of a space that was skipped, or of a store that is not at its URL now.
        missing = keep is not None and not point.spaces and _is_elsewhere(store, repository, points)
        if missing:
            warn("the store %s is not at its URL, so older points of it stay in the backup: check its URL", store.id)
        stay = bool(point.skipped) or missing
        removed = 0 if keep is None or stay else remove_points(repository, [*points, point], keep)
        return BackupReport(point, repository.files, repository.bytes, removed)


def _is_elsewhere(store: Store, repository: Repository, points: Sequence[BackupPoint]) -> bool:
    """True if a point has spaces, and the store has none of their logs. A deleted log leaves its end in the store."""
    backend = inner(store).backend
    latest = next((point for point in reversed(points) if point.spaces), None)
    for part in repository.parts(latest.number) if latest is not None else ():
        prefix = transaction_prefix(part.incarnation)
        start, end = transaction_key(prefix, 0), transaction_key(prefix, 1 << 64)
        if any(backend.scan(partition_key(part.space, part.partition), start, end, limit=1, values=False)):
            return False
    return latest is not None


class _Backup:
    """One point in the making."""

    def __init__(
        self, store: Store, repository: Repository, lease: Lease, previous: int, spaces: ReadableSpaces
    ) -> None:
        self._store = store
        self._repository = repository
        self._lease = lease
        self._previous = previous
        self._number = previous + 1
        self._spaces = spaces
        self._copied: dict[str, Copied] = {}

    def run(self) -> BackupPoint:
        for _ in range(_TRIES):
            self._copy_spaces()
            moment = self._moment()
            cuts = find_cut(self._store, self._spaces, moment)
            late: list[str] = []
            for space, cut in cuts.items():
                with self._spaces.reading(space):
                    if not self._finish(space, cut):
                        late.append(space)
            cuts = {space: cut for space, cut in cuts.items() if space not in self._spaces.skipped}
            if not late:
                self._drop_all_but(cuts)
                transactions = sum(sum(cut.ends) for cut in cuts.values())
                skipped = tuple(sorted(self._spaces.skipped))
                return BackupPoint(self._number, self._store.id, moment, len(cuts), transactions, skipped)
            for space in late:
                self._copied.pop(space, None)
        raise Unavailable("the store changes faster than it can be copied; back up again later")

    def _copy_spaces(self) -> None:
        for space in self._spaces.names():
            if space not in self._copied:
                self._lease.check()
                with self._spaces.reading(space):
                    copied = copy_space(self._store, self._repository, space, self._number, self._previous)
                    if copied is not None:
                        self._copied[space] = copied

    def _moment(self) -> int:
        """The present time, and not before the copied entries. Clocks may differ by a little; a wrong clock does not
        count."""
        now = inner(self._store).clock.now()
        ahead = [copied.timestamp for copied in self._copied.values() if copied.timestamp <= now + SKEW]
        return max([now - 1, *ahead])

    def _finish(self, space: str, cut: Cut) -> bool:
        """Copy the rest of a space, up to the point. False if its copy does not fit: then it is copied again."""
        copied = self._copied.get(space)
        if copied is None or copied.incarnation != cut.incarnation or len(copied.watermarks) != len(cut.ends):
            return False
        pairs = zip(copied.watermarks, cut.ends, strict=True)
        if any(watermark > end for watermark, end in pairs):
            return False
        if any(number > cut.ends[partition] for partition, number in copied.archived.items()):
            return False
        for partition in self._spaces.partitions(space):
            self._lease.check()
            index = partition.partition
            part = self._repository.part(self._number, space, index)
            if part is None or part.incarnation != partition.settings.incarnation:
                return False
            before = self._repository.part(self._previous, space, index) if self._previous else None
            if before is not None and before.incarnation != part.incarnation:
                before = None
            try:
                partition.refresh()
            except (StoreClosed, *UNREADABLE):
                self._spaces.forget(space)  # it was deleted, or the next round finds the damage
                return False
            try:
                self._repository.put_part(
                    self._number, add_tail(partition, self._repository, part, cut.ends[index], before)
                )
            except SpaceMoved:
                return False
        return True

    def _drop_all_but(self, spaces: Collection[str]) -> None:
        """Remove the parts of spaces that were deleted meanwhile, or are damaged."""
        if self._copied.keys() - spaces or self._spaces.skipped:
            for part in list(self._repository.parts(self._number)):
                if part.space not in spaces:
                    self._repository.remove_part(self._number, part.space, part.partition)
