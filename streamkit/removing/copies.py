"""The copies of a store's entries outside the log and the index, from which an erasure removes them too.

These are snapshots of aggregates, published views, the texts of failures of groups and routes, and the archive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ..backend import RemovesLeftovers
from ..errors import UNREADABLE, AccessDenied, MissingDependency, StoreClosed, repair_for
from ..leases import Lease
from ..log.partition import Partition
from ..names import InternalName
from ..space import Space
from ..store import Store, complete_deletion, eraser_lease, inner
from ..warn import warn
from .erase import erase_matching
from .imports import incomplete_writes
from .ranges import Ranges
from .report import Rewritten
from .snapshots import erase_snapshots, snapshots_of

if TYPE_CHECKING:
    from ..routes.state import RouteFailure

__all__ = ["Copies"]


class Copies:
    """The copies of one store's entries."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shared = inner(store)

    def lease(self, name: str, wait: float) -> Lease:
        """The lease of an archiver, under which copies are cleaned."""
        return eraser_lease(self._store, name, wait)

    def clean(self, partition: Partition, ranges: Ranges) -> Rewritten:
        """Erase the ranges of a partition from all copies."""
        space = partition.space
        if isinstance(space, InternalName):
            return Rewritten()  # it has none of them
        done = self._clean_states(space, ranges).plus(self._delete_published())
        if not self._may_be_archived(partition):
            return done
        from ..archive.erase import erase_archived

        archive, archived = self._shared.archive(space), partition.head.archived
        files = erase_archived(archive, partition.partition, ranges.by_segment)
        if files is None and archived:
            text = f"the archive may still hold erased entries: {archive.missing(archived)}. Then erase again"
            return done.plus(Rewritten(unreached=(text,), unfinished=True))
        return done.plus(Rewritten(files=files or 0))

    def clean_again(self, partition: Partition, ranges: Ranges) -> Rewritten:
        """Remove files and texts that processes made of the ranges, and did not remove because they were killed."""
        if isinstance(partition.space, InternalName):
            return Rewritten()
        done = self._clean_states(partition.space, ranges)
        if not self._may_be_archived(partition):
            return done
        try:
            from ..archive.erase import remove_unnamed

            left = remove_unnamed(self._shared.archive(partition.space), ranges.by_segment)
        except MissingDependency:
            return done
        except UNREADABLE as error:
            left = f"the archive may hold erased entries in files of killed processes: {error}"
        return done.plus(Rewritten(unreached=(left,))) if left else done

    def _clean_states(self, space: str, ranges: Ranges) -> Rewritten:
        """Erase the ranges from snapshots of aggregates, and the texts of failures that may quote them."""
        since = {segment: parts[0][0] for segment, parts in ranges.by_segment.items()}
        done = self.erase_snapshots(space, since)
        return done.plus(self.forget_erased(space, ranges))

    def clean_deleted(self, space: str) -> Rewritten:
        """Erase the remains of a deleted space: published views, texts of failures, and values that no row has."""
        if not self._shared.exists(space):
            done = self._delete_published(space).plus(self.forget_failures(space, lambda failure: True))
            left = self.remove_leftovers()
            unreached = [*incomplete_writes(self._shared.backend, space), *([left] if left else ())]
            if self._shared.has_archive(space):
                # An archiver may have written it after the deletion. If the log was lost, it is the last copy.
                unreached.append(
                    f"space {space!r} does not exist, but files of its archive do, and they may hold entries: "
                    f"delete_space({space!r}) removes them"
                )
            return done.plus(Rewritten(unreached=tuple(unreached)))
        text = f"space {space!r} has lost its head, so its entries were not found: {repair_for(space)}"
        return Rewritten(unreached=(f"{text}. Erase again then",))

    def clean_earlier(self, first: Partition) -> Rewritten:
        """Erase the remains of deleted spaces that had the name of this one: published views, and texts of failures.
        Name their archive."""
        done = self._delete_published(first.space).plus(self.forget_removed(first.space))
        left = self._earlier_archive(first)
        return done.plus(Rewritten(unreached=(left,))) if left else done

    def _earlier_archive(self, first: Partition) -> str | None:
        """A sentence if an archiver of a deleted space has left its files where those of this space belong."""
        if not self._shared.has_archive(first.space):
            return None
        table = self._shared.archive(first.space).table
        table.forget()
        try:
            state = table.state()
            if state is not None:
                table.check_incarnation(state, first.settings)
                return None
        except UNREADABLE as error:
            return f"the archive may hold entries of a deleted space: {error}. Then erase again"
        return (
            f"{table.url} holds files and no table. If no archiver is at work, one has left them, maybe after a "
            "deletion of the space: remove that directory, and erase again"
        )

    def forget_erased(self, space: str, ranges: Ranges) -> Rewritten:
        """Erase the texts of failures at entries of the ranges."""
        return self.forget_failures(space, lambda failure: bool(ranges.reason(failure.segment, failure.sequence)))

    def forget_removed(self, space: str) -> Rewritten:
        """Erase the texts of failures at entries that readers cannot get."""

        def is_gone(failure: RouteFailure) -> bool:
            at = failure.sequence
            if not at:
                return False  # the target refused, and no entry is named
            found = self._store.consume_segment(space, failure.segment, min_sequence=at, max_sequence=at, gaps="skip")
            return all(entry.timestamp != failure.timestamp for entry in found)

        return self.forget_failures(space, is_gone)

    def remove_leftovers(self, space: str | None = None) -> str | None:
        """Remove values that no row has, of all spaces; with `space` only if an erasure in it has ended."""
        known = None if space is None else self._space(space)
        backend = self._shared.backend
        is_due = space is None or (known is not None and any(partition.head.erased for partition in known.partitions))
        return backend.remove_leftovers() if is_due and isinstance(backend, RemovesLeftovers) else None

    def erase_snapshots(self, space: str, since: Mapping[str, int]) -> Rewritten:
        """Erase the snapshots of segments that contain a sequence from `since` on."""
        if isinstance(space, InternalName):
            return Rewritten()
        name = snapshots_of(space)
        for attempt in range(2):
            try:
                snapshots = self._space(name)
                return Rewritten() if snapshots is None else erase_snapshots(snapshots, since, self)
            except StoreClosed:
                # A deletion of the space begins with its snapshots, and may have been interrupted there.
                if attempt:
                    raise
                complete_deletion(self._store, name)
        return Rewritten()

    def archived_with(self, partition: Partition, metadata: Mapping[str, str], last: int) -> Iterable[tuple[str, int]]:
        """Return (segment, sequence) of a partition's archived entries, up to transaction `last`, that have all pairs.

        Other entries may be among them.
        """
        if not self._may_be_archived(partition):
            return ()
        from ..archive.hidden import archived_with

        return archived_with(self._shared.archive(partition.space), partition.partition, metadata, last)

    def derived(self, space: str) -> list[str]:
        """The places that may hold values made of a space's entries, which an erasure by metadata does not search."""
        from ..views.publish import published_views

        snapshots = next(iter(self._store.consume_space(snapshots_of(space), gaps="skip", limit=1)), None)
        found = ["snapshots of aggregates"] if snapshots is not None else []
        views = ", ".join(map(repr, sorted(published_views(self._store))))
        return [*found, f"the published views {views}"] if views else found

    def _space(self, name: str) -> Space | None:
        return self._shared.look_up(name)[0]

    def _may_be_archived(self, partition: Partition) -> bool:
        # An archiver may have been stopped before its files were recorded in the head. The next archiver takes them
        # over.
        return bool(partition.head.archived) or self._shared.has_archive(partition.space)

    def _delete_published(self, space: str | None = None) -> Rewritten:
        """Delete published views, because they may hold erased entries. The next `publish` writes new ones.

        `space`: only views of this space; they are read for that.
        """
        from ..views.publish import delete_published, delete_published_of

        try:
            count = delete_published(self._store) if space is None else delete_published_of(self._store, space)
            return Rewritten(views=count)
        except AccessDenied as error:
            text = f"published views may still hold erased entries: {error}. Then erase again"
            warn("%s", text)
            return Rewritten(unreached=(text,), unfinished=True)
        except MissingDependency as error:
            text = f"published views of the store {self._store.id}, if any, still hold erased entries: {error}"
            warn("%s", text)
            return Rewritten(unreached=(text,))

    def forget_failures(self, space: str, is_gone: Callable[[RouteFailure], bool]) -> Rewritten:
        """Erase the texts of failures that groups and routes keep, because they may quote an erased entry."""
        from ..groups.forget import forget_failures
        from ..routes import state as routes

        done = Rewritten()
        try:
            found = list(forget_failures(self._store, space))
            found.append(routes.forget_failures(self._store, space, is_gone))
        except UNREADABLE as error:
            text = f"groups and routes of space {space!r} may keep failures that quote erased entries: {error}"
            warn("%s", text)
            return Rewritten(unreached=(text,))
        for internal, segments in found:
            known = self._space(internal)
            if known is not None and segments:
                done = done.plus(erase_matching(known, segments, lambda entry: False, self))
        return done
