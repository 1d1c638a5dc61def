"""A store: one tenant's spaces and segments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload
from uuid import UUID

from .arguments import (
    check_choice,
    check_count,
    check_erasure,
    check_function,
    check_gaps,
    check_hours,
    check_listing,
    check_names_of,
    check_reverse,
    check_seconds,
    check_sequence,
    check_timestamp,
    check_type,
    completed,
    newest_of,
)
from .backend import Ambiguous
from .causation import present_causes, with_causes
from .errors import (
    UNREADABLE,
    CorruptData,
    LeaseNotAcquired,
    OutcomeUnknown,
    StoreClosed,
    StreamkitError,
    TransientError,
)
from .following import Follower
from .handle import Handle
from .html import html_table
from .leases import Lease, LeaseGrant, acquire, check_grant, release, renew
from .lexkey import LexKey
from .log.floors import Gaps
from .log.idempotency import digest_of, find_use, first_result
from .log.ids import is_id
from .log.keys import CATALOG, USERS_SPACES, segment_name
from .log.offsets import Offset
from .log.partition import Partition
from .log.read_space import end_of, merge
from .log.record_format import encode_body
from .log.request import Part, Request
from .log.statuses import written
from .model import Entry, Record, SegmentStatus, no_entry
from .names import InternalName, check_name, internal_name
from .open_store import OpenStore
from .reading import Reader, bounds_of
from .space import Space, SpaceSettings, create_space, settings_of
from .statistics import Statistics, snapshot
from .terminal import amount
from .transaction import Draft, Transaction
from .warn import warn
from .writing import Writer, check_key, check_lease, fence

if TYPE_CHECKING:
    import pyarrow as pa

    from .archive import ArchiveReport, CompactReport, RestoreReport, Spread
    from .archive.read import Archive
    from .backup import BackupPoint, BackupReport, BackupRestored
    from .groups import Group, GroupOptions, Queue, QueueOptions
    from .index.verify import VerifyReport
    from .members import Members
    from .removing.report import EraseReport, StoreSize, TrimReport
    from .retention import Retention
    from .routes import Route, RouteControl, RouteStatus
    from .salvage import SalvageReport
    from .types.registry import Registry, Unknown
    from .types.store import TypedStore
    from .views.open_view import OpenView
    from .views.view import View

__all__ = ["Store", "inner", "writer_of"]

_T = TypeVar("_T")
AnyOffset = LexKey | bytes | str
_SHOWN = 50
"""Spaces that a notebook shows."""
_SINGLE = 4
"""Transactions of a partition that an archiver asks for one by one. Asking for the one after the last is a request,
too."""


class Store:
    """A store: a handle from `client.store(id)`. Closing it closes no other handle.

    Safe to share between threads; a forked child continues with its own state. Every method raises InvalidName or
    TypeError for a wrong name, StoreClosed after `close()`, and Unavailable, Throttled, AccessDenied or CorruptData for
    an error of the storage.
    """

    def __init__(self, shared: OpenStore, release: Callable[[OpenStore], None]) -> None:
        self.id = shared.id
        self._shared = shared
        self._release = release
        self._backend = shared.backend
        self._handle = Handle(shared)
        self._writer = Writer(self._handle)
        self._reader = Reader(self._handle)
        self._follower = Follower(self._handle, self._reader)

    # -- spaces -------------------------------------------------------------------------------------------------

    def create_space(
        self,
        space: str,
        partitions: int = 1,
        durability: str = "committed",
        *,
        idempotency_window: float = 86_400.0,
        archive_grace: float = 3600.0,
    ) -> None:
        """Create `space` with settings that a first write cannot choose. The same settings again change nothing.
        `partitions` (1 to 1024) are independent logs of the space. `durability` is "committed" or "buffered".
        `idempotency_window` is in seconds. `archive_grace`: seconds for which an archived transaction is also kept in
        the log. SpaceExists if the space exists with other settings; ValueError for impossible settings.
        """
        check_name(space, "space")
        settings = settings_of(partitions, durability, idempotency_window, archive_grace)
        self._handle.check_open()
        create_space(self._backend, self._shared.clock, space, settings, exact=True)

    def space_settings(self, space: str) -> SpaceSettings | None:
        """Return the settings of a space and its retention; None if the space does not exist."""
        check_name(space, "space")
        known = self._known(space)
        if known is None:
            return None
        known.partitions[0].refresh()
        return known.described()

    def get_spaces(self) -> Iterator[str]:
        """The names of the spaces, in code-point order."""
        self._handle.check_open()
        rows = self._backend.scan(bytes(CATALOG), *USERS_SPACES, values=False)
        return (segment_name(row.key) for row in rows)

    def get_segments(self, space: str, *, prefix: str = "", after: str | None = None, limit: int = 0) -> Iterator[str]:
        """The names of the space's segments, in code-point order; empty for an unknown space.

        `prefix`: only names that begin with it. `after`: only names that come after this one. `limit`: the largest
        number of names, 0 for all. To read in pages, pass the last name of a page as `after` of the next one.
        """
        check_name(space, "space")
        check_listing(prefix, after, limit)
        self._handle.check_open()
        return islice(self._reader.segments(space, prefix, after), limit or None)

    def segment_statuses(
        self, space: str, *, prefix: str = "", after: str | None = None, limit: int = 0
    ) -> Iterator[SegmentStatus]:
        """The statuses of the segments that `get_segments` lists, in its order."""
        names = self.get_segments(space, prefix=prefix, after=after, limit=limit)
        return (self._reader.status(space, name, 0) for name in names)

    def _known(self, space: str) -> Space | None:
        return self._handle.space(space)

    def _archive(self, space: str) -> Archive:
        return self._shared.archive(space)

    # -- writing ------------------------------------------------------------------------------------------------

    def produce(
        self,
        space: str,
        segment: str,
        records: Iterable[Record],
        *,
        expected_sequence: int | None = None,
        idempotency_key: str | None = None,
        lease: Lease | LeaseGrant | None = None,
    ) -> SegmentStatus:
        """Append `records` to a segment as one transaction, and return the segment's status when they are durable.

        `expected_sequence`: the segment's last sequence (0: the segment is new). If it is another, SequenceMismatch is
        raised and nothing is written. `idempotency_key`: the same key with the same records again returns the first
        result; with other records it raises TransactionIdMismatch. Each partition remembers its own keys. `lease`: the
        write raises Fenced once a later holder has written. RecordTooLarge, TransactionTooLarge, InvalidRecord,
        TypeError before anything is written; OutcomeUnknown if the storage's answer was lost for good.
        """
        plain = idempotency_key is None and lease is None
        if plain and present_causes() is None:
            part = self._writer.lone(space, segment, records, expected_sequence)
            if part is not None:
                return self._writer.commit_part(space, part)
        check_name(space, "space")
        check_name(segment, "segment")
        if idempotency_key is not None:
            check_key(idempotency_key)
        if lease is not None:
            check_lease(lease, self.id)
        records = with_causes(space, records)
        part = self._writer.part(space, segment, records, expected_sequence, idempotency_key is not None)
        if part is None:
            return self.segment_status(space, segment)
        if part.body is None:
            return self._writer.guard(space, [part], lease)[segment]
        if plain:
            return self._writer.commit_part(space, part)
        request = Request((part,), idempotency_key, None if lease is None else fence(lease))
        return self._writer.commit_one(space, segment, request, lease)

    def transaction(
        self, space: str, idempotency_key: str | None = None, lease: Lease | LeaseGrant | None = None
    ) -> Transaction:
        """Begin a transaction over several segments: `with store.transaction(space) as trx: trx.produce(…)`."""
        return Transaction(Draft(self._writer, space, idempotency_key, lease))

    def outcome(self, transaction_id: UUID | str) -> Literal["committed", "absent", "unknown"]:
        """Look up a transaction that ended with OutcomeUnknown: "committed", "absent" or "unknown".

        "committed" and "absent" are final. "absent": another transaction has the only place in the log that the lost
        one could get. If the place is free, an empty transaction is written there first. "unknown": the storage cannot
        be reached yet, or the place cannot be filled. An id that belongs to no transaction of this store is "absent",
        and nothing is written for it. CorruptData if the log is damaged at that place.
        """
        check_type(transaction_id, (UUID, str), "a transaction id is a UUID or its text")
        self._handle.check_open()
        try:
            id = (transaction_id if isinstance(transaction_id, UUID) else UUID(transaction_id)).bytes
        except ValueError:
            text = f"{str(transaction_id)[:60]!r} is not a transaction id: pass OutcomeUnknown.transaction_id"
            raise ValueError(text) from None
        if not is_id(id):
            return "absent"
        try:
            for space in list(self._shared.spaces.values()):
                for committer in space.committers:
                    if id in committer.unknown:
                        return committer.outcome(id)
            for name in self._names(None):
                known = self._known(name)
                for committer in known.committers if known else ():
                    if committer.outcome(id) == "committed":
                        return "committed"
        except (TransientError, OutcomeUnknown, Ambiguous):
            return "unknown"
        return "absent"

    # -- reading ------------------------------------------------------------------------------------------------

    def peek(self, space: str, segment: str) -> Entry:
        """Return the latest entry of a segment; an entry with sequence 0 if there is none."""
        check_name(segment, "segment")
        entry = self._reader.last_entry(check_name(space, "space"), segment)
        return no_entry(space, segment) if entry is None else entry

    def segment_status(self, space: str, segment: str) -> SegmentStatus:
        """Return the first and last sequence and timestamp of a segment; zeros if it does not exist."""
        check_name(segment, "segment")
        return self._reader.status(check_name(space, "space"), segment)

    def lookup(self, space: str, idempotency_key: str, segment: str | None = None) -> dict[str, SegmentStatus] | None:
        """Return the statuses of the first write with the key, by segment, like `Transaction.statuses`; None if there
        was none.

        A key is remembered for as long as `produce` remembers it. Each partition remembers its own keys: with `segment`
        only the segment's partition is asked, otherwise all are.
        """
        check_name(space, "space")
        check_type(idempotency_key, str, "an idempotency key is str")
        check_key(idempotency_key)
        if segment is not None:
            check_name(segment, "segment")
        known, since = self._handle.look_up(space)
        digest = digest_of(idempotency_key)
        found: dict[str, SegmentStatus] | None = None
        for partition in (known.partitions if segment is None else [known.partition(segment)]) if known else ():
            partition.refresh((), since)
            use = find_use(partition, digest)
            if use is not None:
                rows, trx = first_result(partition, use)
                found = {**(found or {}), **written(partition, rows, trx, use.count)}
        return found

    def end_offset(self, space: str) -> LexKey:
        """Return the offset after everything that is committed so far: `consume_space` from it yields only later
        entries.

        For a space that does not exist (yet) it is the offset before everything.
        """
        known, since = self._handle.look_up(check_name(space, "space"))
        return (end_of(known.partitions, since) if known else Offset.beginning(space)).encode()

    def consume_segment(
        self,
        space: str,
        segment: str,
        *,
        min_sequence: int = 0,
        max_sequence: int = 0,
        min_timestamp: int = 0,
        max_timestamp: int = 0,
        limit: int = 0,
        reverse: bool = False,
        gaps: Gaps = "raise",
    ) -> Iterator[Entry]:
        """Yield a segment's entries in sequence order, lazily. Bounds are inclusive, timestamps in ms; 0 is no bound.

        With `reverse` the newest comes first, and `limit` counts from the last one. `gaps` chooses the treatment of
        removed entries: "raise" EntriesRemoved if trimmed or expired entries are missing after `min_sequence`; "skip"
        them; or "yield" a Gap in their place, also for erased entries.
        """
        check_name(space, "space")
        check_name(segment, "segment")
        bounds = bounds_of(min_sequence, max_sequence, min_timestamp, max_timestamp, limit, gaps)
        check_reverse(reverse)
        self._handle.check_open()
        batches = self._reader.segment_batches(space, segment, bounds, reverse)
        return self._reader.entries(batches, limit, reverse, gaps)

    def consume_space(
        self,
        space: str,
        *,
        offset: AnyOffset | None = None,
        min_timestamp: int = 0,
        max_timestamp: int = 0,
        limit: int = 0,
        reverse: bool = False,
        gaps: Gaps = "raise",
    ) -> Iterator[Entry]:
        """Yield a space's entries in commit order, lazily, after `offset` (an entry's `space_offset`, or its hex text).

        With `reverse` the newest comes first, down to `offset`, and `limit` counts from the last one. Several
        partitions are merged by timestamp. InvalidOffset for an offset that is damaged or belongs to another space.
        `gaps`: as in `consume_segment`, for entries after `offset` that the space has lost to a trim or to its
        retention.
        """
        check_name(space, "space")
        after = None if offset is None else Offset.decode(offset, space)
        bounds = bounds_of(0, 0, min_timestamp, max_timestamp, limit, gaps)
        check_reverse(reverse)
        self._handle.check_open()
        return self._reader.entries(
            self._reader.space_batches(space, after, bounds, reverse, together=True), limit, reverse, gaps
        )

    def consume(
        self,
        offsets: Mapping[str, AnyOffset | None],
        *,
        min_timestamp: int = 0,
        max_timestamp: int = 0,
        limit: int = 0,
        gaps: Gaps = "raise",
    ) -> Iterator[Entry]:
        """Yield the entries of several spaces, merged by timestamp, each after its offset (None: from the start). {}
        reads nothing."""
        check_type(offsets, Mapping, "consume takes a mapping of space to offset or None")
        bounds = bounds_of(0, 0, min_timestamp, max_timestamp, limit, gaps)
        after = {
            check_name(space, "space"): None if offset is None else Offset.decode(offset, space)
            for space, offset in offsets.items()
        }
        self._handle.check_open()
        logs = {space: self._reader.space_batches(space, offset, bounds) for space, offset in after.items()}
        return self._reader.entries(merge(logs), limit, False, gaps)

    # -- removing -----------------------------------------------------------------------------------------------

    def trim(
        self,
        space: str,
        segment: str | None = None,
        *,
        before: AnyOffset | int | None = None,
        keep_entries: int | None = None,
        keep_bytes: int | None = None,
        max_age: float | None = None,
        dry_run: bool = False,
    ) -> TrimReport:
        """Remove the first entries of a segment, or the first transactions of a space. Give exactly one bound.
        `before`: for a segment, a sequence: lower sequences are removed; for a space, an offset: the entries up to it
        are removed. `keep_entries`, `keep_bytes` (of payload): the most that stays; `max_age`: the age in seconds up to
        which entries stay. A segment is trimmed to the entry, a space to the transaction. Readers begin at the new
        floor at once, and upkeep frees the storage. Sequences continue, also if nothing remains. `dry_run` changes
        nothing and reports the entries that would be removed. For an unknown space or segment nothing is done.
        """
        from .removing.limits import limit_of
        from .removing.report import TrimReport
        from .removing.trim import trim_segment, trim_space

        check_name(space, "space")
        if segment is not None:
            check_name(segment, "segment")
        limit = limit_of(space, segment, before, keep_entries, keep_bytes, max_age)
        known = self._known(space)
        if isinstance(limit.before, Offset):
            limit.before.check(known.settings if known else None)
        if known is None:
            return TrimReport(space, segment or "", dry_run=dry_run)
        if segment is None:
            return trim_space(known.committers, limit, "trimmed", dry_run)
        return trim_segment(known.committer(segment), segment, limit, "trimmed", dry_run)

    def delete_segment(self, space: str, segment: str) -> TrimReport:
        """Remove all present entries of a segment. It is listed again after the next write, which continues after its
        last sequence.

        A missing segment is no error.
        """
        from .removing.copies import Copies
        from .removing.limits import limit_of
        from .removing.report import TrimReport
        from .removing.trim import trim_segment

        check_name(space, "space")
        check_name(segment, "segment")
        known = self._known(space)
        if known is None:
            return TrimReport(space, segment)
        limit = limit_of(space, segment, None, 0, None, None)
        report = trim_segment(known.committer(segment), segment, limit, "deleted", False)
        Copies(self).erase_snapshots(space, {segment: 1})
        return report

    def set_retention(self, space: str, retention: Retention, *, expected: SpaceSettings | None = None) -> None:
        """Replace the retention of the space. A missing space is created.

        Readers see the new retention at once; the next upkeep frees the storage. With `expected`, from
        `space_settings`, the space must have exactly these settings, else SpaceExists is raised and nothing changes.
        TypeError or ValueError for an invalid retention.
        """
        from .log.floors import Control, Retained
        from .removing.limits import check_shares, stored

        check_name(space, "space")
        kept = stored(retention)
        check_type(expected, SpaceSettings, "expected is what store.space_settings(…) returned", optional=True)
        self._handle.check_open()
        known = self._shared.ready(space, ())
        check_shares(space, kept, len(known.partitions))
        request = Request((), control=Control(retention=kept))
        if expected is not None:
            request.condition = lambda: known.described() == expected
        known.committers[0].commit(request)
        wanted: Retained | None = kept
        while wanted is not None:
            for committer in known.committers[1:]:
                committer.commit(Request((), control=Control(retention=wanted)))
            # Calls at the same time may reach the partitions in different orders: all follow the first partition.
            known.partitions[0].refresh()
            now = known.partitions[0].retention
            wanted = now if now != wanted else None

    def change_space(
        self,
        space: str,
        *,
        idempotency_window: float | None = None,
        archive_grace: float | None = None,
        trimmed_rows: Literal["keep", "remove"] | None = None,
    ) -> None:
        """Change settings of `create_space`, in seconds, from the next upkeep on. None keeps a setting.

        A missing space is created. `create_space` still accepts the settings that the space was created with. A setting
        cannot be less than a tenth of its value at creation (ValueError): other processes rely on that, even one that
        has not seen the change. Forgotten keys do not come back. `trimmed_rows`: "remove" takes the rows of trimmed and
        expired entries out of the archive's table, at each `archive` and `maintain`, so that other engines read the
        same entries as the store's readers. "keep", the default, leaves them there.
        """
        from .log.floors import Control
        from .space import changed_settings, check_change

        check_name(space, "space")
        self._handle.check_open()
        changed = changed_settings(idempotency_window, archive_grace, trimmed_rows)
        committers = self._shared.ready(space, ()).committers
        check_change(space, committers[0].partition.settings, changed)
        for committer in committers:
            committer.commit(Request((), control=Control(changed=changed)))

    def delete_space(self, space: str) -> None:
        """Remove a space with all its entries, its archive and its groups. A missing space is no error.

        A space of the same name that is created later is another space: offsets of this one raise InvalidOffset there.
        Processes that have the space open get StoreClosed or CorruptData, and must open the store again. If the call is
        interrupted, the next one completes it, or `maintain` does; until then the space raises StoreClosed. The rows of
        an import of the space that was begun and not completed are removed: end that process first. A damaged space is
        deleted too, but processes that have it open may not notice: stop them first.
        """
        check_name(space, "space")
        self._handle.check_open()
        if not isinstance(space, InternalName):
            from .removing.snapshots import snapshots_of

            self.delete_space(snapshots_of(space))
        self._shared.forget_space(space)
        try:
            partitions = list(self._shared.unread_partitions(space))
        except UNREADABLE:
            partitions = self._damaged_partitions(space)
        self._delete(space, partitions)

    def _delete(self, space: str, partitions: list[Partition], is_over: Callable[[], bool] | None = None) -> None:
        from .groups.forget import delete_groups
        from .removing.imports import has_import, remove_import
        from .removing.space import delete_space, has_remains

        if partitions:
            archived = any(partition.head.archived for partition in partitions)

            def delete_rest() -> None:
                if archived or self._shared.has_archive(space):
                    self._shared.delete_archive(space)
                if not isinstance(space, InternalName):
                    delete_groups(self, space, partitions[0].settings.incarnation)

            delete_space(self._backend, space, partitions, delete_rest, is_over)
        elif has_remains(self._backend, space):
            delete_space(self._backend, space, self._damaged_partitions(space), lambda: None)
        else:
            if has_import(self._backend, space):
                remove_import(self._backend, space)
            if self._shared.has_archive(space):
                self._shared.delete_archive(space)  # an archiver was at work longer than the deletion
            if not isinstance(space, InternalName):
                delete_groups(self, space)
        self._shared.forget_space(space)

    def _half_deleted(self, space: str) -> list[Partition]:
        """The partitions of a space whose deletion was interrupted, or is under way; none of another space."""
        self._handle.check_open()
        partitions = list(self._shared.unread_partitions(space))
        return partitions if partitions and partitions[0].look_for_end() else []

    def _complete_deletion(self, space: str) -> bool:
        """Complete the interrupted deletion of a space. False if there is none."""
        partitions = self._half_deleted(space)
        if partitions:
            self._delete(space, partitions)
        return bool(partitions)

    def _damaged_partitions(self, space: str) -> list[Partition]:
        """The partitions of a space whose first head cannot be read, by its intact rows."""
        from .salvage.log import partitions_of
        from .salvage.log import settings_of as intact_settings

        make = self._shared.unread(space)
        settings = intact_settings(self._backend, space)
        if settings is None:
            settings = settings_of(partitions_of(self._backend, space), "committed", 86_400.0)
        return [make(number, settings) for number in range(settings.partitions)]

    def size(self, space: str | None = None) -> StoreSize:
        """Measure one space or all: entries, segments, bytes of payload, and stored bytes by tier.

        It looks at statuses of segments, at heads and at the archive's table, and reads no entry. Erased entries count
        until they are trimmed. Transactions that the log holds twice, because they were just packed, count once. On a
        local disk the log counts what its files hold, until maintenance removes it.
        Internal spaces hold the state of groups, queues, views and routes. Only their stored bytes count, in a tier of
        their own. `StoreSize.damaged` names the spaces of a store that cannot be read: they do not count. CorruptData
        if `space` itself cannot be read.
        """
        from .removing.report import total_of

        names = self._names(space)
        if space is not None:
            return self._measure(space)
        damaged: list[str] = []
        sizes: list[StoreSize] = []
        internal = 0
        for name in names:
            try:
                found = self._measure(name)
            except UNREADABLE as error:
                message = "the size of the store lacks the damaged space %r: %s"
                warn(message, name, error, store=self.id, space=name)
                damaged.append(name)
                continue
            except StoreClosed:
                if not self._half_deleted(name):
                    raise
                continue
            if isinstance(name, InternalName):
                internal += found.stored_bytes
            else:
                sizes.append(found)
        return total_of(sizes, internal, damaged)

    def _measure(self, space: str) -> StoreSize:
        from .removing.size import size_of

        known = self._known(space)
        partitions = known.partitions if known is not None else []
        archived = 0
        if any(partition.head.archived for partition in partitions):
            table = self._archive(space).table.snapshot()
            archived = sum(file.size for file in table.files) if table is not None else 0
        return size_of(partitions, archived)

    def erase(
        self,
        space: str,
        segment: str | None = None,
        *,
        first: int = 1,
        last: int | None = None,
        metadata: Mapping[str, str] | None = None,
        sequences: Iterable[int] | None = None,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> EraseReport:
        """Make entries unreadable for ever, everywhere: log, index, archive with its older versions, snapshots and
        published views.

        `segment`: a name, or a glob for several segments ("user-17/*"), with the sequences `first` to `last` (None: all
        so far); `sequences`: only these sequences of the one segment `segment`. `metadata`: entries that have all of
        these pairs. Both together select the entries that match both; ValueError without either. No read that begins
        after the return yields the entries, and no byte that the store owns holds their payloads or metadata, also if
        they were archived, trimmed, expired or deleted before. Their segments' names, sequences and timestamps stay.
        `EraseReport.unreached` names the copies that could not be reached; `EraseReport.proof()` is a line to keep as
        evidence. Call it again after an interruption; `maintain` removes the entries that readers do not get any more.
        `progress(searched, all)` counts entries. Copies that a storage service keeps on its own (versions of objects,
        backups) are not reached.
        LeaseNotAcquired while another process archives: the entries are unreadable already, and the next call removes
        them from storage. Of a space that does not exist, the report has 0 entries. If the space was deleted, texts of
        failures that quote its entries are erased. An interrupted deletion is completed.
        """
        from .removing.copies import Copies
        from .removing.erase import erase_deleted, erase_space

        check_name(space, "space")
        chosen = check_erasure(segment, first, last, metadata, sequences)
        self._handle.check_open()
        try:
            known = self._shared.look_up(space, headless=True)[0]
            if known is not None:
                report = erase_space(known, segment, first, last, metadata, dry_run, progress, Copies(self), chosen)
        except StoreClosed:
            if dry_run or not self._complete_deletion(space):
                raise
            known = None
        if known is None:
            report = erase_deleted(space, self._backend, self._shared.clock, dry_run, Copies(self))
        return report.of(self.id, segment, first, last, metadata, chosen)

    # -- following ----------------------------------------------------------------------------------------------

    def follow_segment(
        self, space: str, segment: str, *, after: int = 0, timeout: float | None = None, gaps: Gaps = "raise"
    ) -> Iterator[Entry]:
        """Yield a segment's entries after sequence `after`, then new entries. Ends after `timeout` s without an entry.

        `gaps`: as in `consume_segment`. `after=0` begins with the first entry that is left, also after a trim.
        """
        check_name(space, "space")
        check_name(segment, "segment")
        check_sequence("after", after)
        return self._follower.segment(space, segment, after, timeout, check_gaps(gaps))

    def follow_space(
        self, space: str, *, offset: AnyOffset | None = None, timeout: float | None = None, gaps: Gaps = "raise"
    ) -> Iterator[Entry]:
        """Yield a space's entries after `offset`, then new entries. Ends after `timeout` s without an entry.

        `gaps`: as in `consume_space`.
        """
        check_name(space, "space")
        after = None if offset is None else Offset.decode(offset, space)
        return self._follower.space(space, after, timeout, check_gaps(gaps))

    def follow(
        self, offsets: Mapping[str, AnyOffset | None], *, timeout: float | None = None, gaps: Gaps = "raise"
    ) -> Iterator[Entry]:
        """Yield the entries of several spaces, each after its offset, and then new entries as they are written.

        The iterator ends after `timeout` seconds without an entry. `offsets`: as in `consume`; None is the beginning.
        Together they are one cursor: update it by `offsets[entry.space] = entry.space_offset`, and follow from it
        again later. Entries of one look come by timestamp. The entries of each space keep their order. {} ends at once.
        """
        check_type(offsets, Mapping, "follow takes a mapping of space to offset or None")
        after = {
            check_name(space, "space"): None if offset is None else Offset.decode(offset, space)
            for space, offset in offsets.items()
        }
        return self._follower.spaces(after, timeout, check_gaps(gaps))

    def subscribe_to_segment(
        self, space: str, segment: str, *, timeout: float | None = None
    ) -> Iterator[SegmentStatus]:
        """Yield the segment's present status, then its latest after each change. Ends after `timeout` s without a
        change."""
        check_name(space, "space")
        check_name(segment, "segment")
        return self._follower.status(space, segment, timeout)

    def subscribe_to_space(self, space: str, *, timeout: float | None = None) -> Iterator[SegmentStatus]:
        """Yield the status of each segment of the space, then the latest of each segment that has changed.

        A slow reader gets fewer, newer statuses; a writer never waits. Ends after `timeout` seconds without a change.
        """
        check_name(space, "space")
        return self._follower.statuses(space, timeout)

    # -- leases -------------------------------------------------------------------------------------------------

    def lease(self, key: str, ttl: float = 30.0, wait: float | None = None) -> Lease:
        """Hold a lease: `with store.lease("leader") as lease`. LeaseNotAcquired if another holder has it.

        A thread renews it. It ends `ttl` seconds after its last renewal. `wait`: seconds for which it is tried again.
        """
        check_type(key, str, "a lease's name is str")
        check_name(key, "lease")
        check_seconds("ttl", ttl)
        if wait is not None:
            check_seconds("wait", wait, endless=True)
        if not 1 <= ttl <= 3600:
            raise ValueError(f"a lease's ttl is 1 to 3600 seconds, not {ttl}")
        self._handle.check_open()
        return Lease(self.id, self._backend, self._shared.clock, key, float(ttl), wait)

    def acquire_lease(self, key: str, ttl: float = 30.0) -> LeaseGrant:
        """Take a lease without a thread that renews it; LeaseNotAcquired if another holder has it.

        The lease ends `ttl` seconds after this call, unless a process calls `renew_lease` in time. A write takes the
        grant as its `lease`. If one block of code holds the lease, use `lease` instead.
        """
        self.lease(key, ttl)  # checks
        return acquire(self._backend, key, float(ttl))

    def renew_lease(self, grant: LeaseGrant) -> LeaseGrant:
        """Renew a lease for another ttl from now, with the same token. LeaseLost if it was taken or released."""
        check_grant(grant)
        self._handle.check_open()
        return renew(self._backend, grant)

    def release_lease(self, grant: LeaseGrant) -> None:
        """Release a lease, so that it can be acquired at once. A lost lease is no error."""
        check_grant(grant)
        self._handle.check_open()
        release(self._backend, grant)

    def with_lease(self, key: str, fn: Callable[[Lease], _T], ttl: float = 30.0) -> _T:
        """Call fn(lease) while the lease is held, and return its result. LeaseNotAcquired at once if another
        holder has it."""
        check_function("fn", fn, "the lease")
        with self.lease(key, ttl) as lease:
            return completed("fn", fn(lease))

    # -- groups -------------------------------------------------------------------------------------------------

    def group(
        self,
        space: str,
        name: str,
        *,
        start: AnyOffset | Literal["beginning", "end"] = "beginning",
        **settings: Unpack[GroupOptions],
    ) -> Group:
        """Open the group `name` of a space; create it if it does not exist. Given settings must equal those of an
        existing group.

        `mode`: "shared" (each entry goes to one of its consumers), "exclusive" (one consumer receives, others stand by)
        or "key_shared" (entries of one key go to one consumer at a time, in order). `key`: the name of the metadata
        that is the key, None for the segment. `start`: the place where a new group begins. `segments`: only these.
        `ack_timeout` (30): seconds for which a delivery is its consumer's alone. `max_deliveries` (5): attempts before
        an entry is a dead letter. `retry_delay` (1): seconds until the next attempt, doubled with each. `max_pending`
        (1000): the most entries of one consumer at a time. `lanes` (8): the number of consumers that do not compete for
        a write. GroupExists if it has other settings; TypeError, ValueError.
        """
        from .groups.group import open_group

        self._handle.check_open()
        return open_group(self, space, name, start, settings)

    def queue(self, name: str, **settings: Unpack[QueueOptions]) -> Queue:
        """Open the queue `name`: a space of jobs with one shared group, whose acknowledged entries are trimmed.
        Settings are `ack_timeout`, `max_deliveries`, `retry_delay`, `max_pending` and `lanes`, as of `group`.
        """
        from .groups.queue import open_queue

        self._handle.check_open()
        return open_queue(self, name, settings)

    def get_groups(self, space: str) -> list[str]:
        """The names of the space's groups, in code-point order."""
        from .groups.group import group_names

        self._handle.check_open()
        return group_names(self, space)

    def find_group(self, space: str, name: str) -> Group | None:
        """Return the group `name` of a space with its settings; None if it does not exist. Nothing is created."""
        from .groups.group import find_group

        self._handle.check_open()
        return find_group(self, space, name)

    def find_queue(self, name: str) -> Queue | None:
        """Return the queue `name`; None if it does not exist. Nothing is created."""
        from .groups.queue import find_queue

        self._handle.check_open()
        return find_queue(self, name)

    def get_queues(self) -> list[str]:
        """The names of the store's queues, in code-point order."""
        from .groups.queue import queues_of

        self._handle.check_open()
        return queues_of(self)

    def members(self, group: str) -> Members:
        """A group of members: `store.members("workers").join(name, metadata, ttl=15.0)`, `.list()`, `.watch()`."""
        from .members import Members

        self._handle.check_open()
        return Members(self, group)

    # -- views --------------------------------------------------------------------------------------------------

    def view(
        self,
        name: str,
        view: View,
        spaces: Iterable[str],
        path: str | os.PathLike[str] | None = None,
        publish: bool = False,
        *,
        on_error: Literal["pause", "skip"] = "pause",
        batch: int = 25_000,
        publish_every: float = 300.0,
    ) -> OpenView:
        """Open a view: a SQLite database that follows `spaces`. Only its own methods, such as `catch_up` and `run`,
        bring it forward.

        `path`: the database, a file of this machine that its processes share. None: beside the store's archives if
        these are in a directory, else in a cache directory. If there is no database yet, the newest published one is
        taken. `publish`: `catch_up` and `run` also publish it, every `publish_every` seconds. `on_error`: the action if
        `apply` raises: pause there, or record the error and "skip" the entry. `batch`: the most entries in one SQLite
        transaction. ValueError and TypeError for wrong arguments; PermanentError for a path that cannot be used.
        """
        from .views.open_view import open_view

        return open_view(self, name, view, spaces, path, publish, on_error, batch, publish_every)

    # -- routes -------------------------------------------------------------------------------------------------

    def route(
        self,
        name: str,
        source: str,
        target: str,
        where: Callable[[Entry], bool] | None = None,
        segment: Callable[[Entry], str] | str | None = None,
        transform: Callable[[Entry], Record | bytes | None] | None = None,
        target_store: Store | None = None,
        start: AnyOffset | Literal["beginning", "end"] = "beginning",
    ) -> Route:
        """Open a route: it copies entries of the space `source` into `target`, of this store or of `target_store`.

        `where(entry)`: True for entries to copy. `segment`: the segment of the copies, a name or a function; None: the
        same segment. `transform(entry)`: the copy, as a Record, a payload (the metadata stays), or None to leave it
        out. These functions must depend on the entry alone. `start`: the place where a new route begins. Copies have
        `streamkit.from` and `streamkit.via` in their metadata. PermanentError if the route exists with another source
        or target.
        """
        from .routes.route import open_route

        return open_route(self, name, source, target, where, segment, transform, target_store, start)

    def get_routes(self) -> list[RouteStatus]:
        """Return the status of each route of this store, by name. Their sources are not asked."""
        from .routes.state import get_routes

        self._handle.check_open()
        return get_routes(self)

    def find_route(self, name: str) -> RouteControl | None:
        """Return the control of the route `name`, or None: look at it, pause, resume or delete it, also if another
        process runs it."""
        from .routes.control import find_route

        self._handle.check_open()
        return find_route(self, name)

    # -- types --------------------------------------------------------------------------------------------------

    @overload
    def typed(self, registry: Registry[_T], *, unknown: Literal["raise", "skip"] = "raise") -> TypedStore[_T, _T]: ...
    @overload
    def typed(self, registry: Registry[_T], *, unknown: Literal["raw"]) -> TypedStore[_T, _T | Unknown]: ...
    def typed(self, registry: Any, *, unknown: Literal["raise", "skip", "raw"] = "raise") -> Any:
        """Return this store for objects of the registry's classes: it writes them, and reads them beside their entries.

        `unknown`: for an entry whose type or later version the registry lacks, readers "raise" UnknownType or
        UnsupportedVersion, "skip" the entry, or give an Unknown ("raw").
        """
        from .types.store import TypedStore

        self._handle.check_open()
        return TypedStore(self, registry, unknown)

    # -- the store itself ---------------------------------------------------------------------------------------

    def maintain(self, space: str | None = None) -> None:
        """Do all upkeep that is due, in one space or in all. It is optional: it frees storage, and makes reads faster.

        Index and packs are brought up to the log and merged, files of stopped processes are removed, and transactions
        that were packed or archived for longer than the space's grace are removed from the log. On Azure, large values
        that no row has are removed an hour after they were written; with `space` only if it had an erasure. An
        interrupted deletion of a space is completed. If spaces are damaged, the others are maintained first. Then
        CorruptData names the damaged ones. If another process archives a space or erases from it, an erasure that is to
        be completed there stays, and LeaseNotAcquired names the space.
        """
        damaged: dict[str, StreamkitError] = {}
        busy: list[str] = []
        for name in self._names(space):
            try:
                self._maintain(name)
            except UNREADABLE as error:
                if space is not None:
                    raise
                damaged[name] = error
            except LeaseNotAcquired:
                if space is not None:
                    raise
                busy.append(name)
            except StoreClosed:
                if not self._complete_deletion(name):
                    raise
        from .removing.copies import Copies
        from .views.publish import sweep_published

        sweep_published(self)
        Copies(self).remove_leftovers(space)
        if damaged:
            found = "; ".join(f"space {name!r}: {error}" for name, error in damaged.items())
            raise CorruptData(f"{len(damaged)} damaged, all other spaces are maintained: {found}")
        if busy:
            raise LeaseNotAcquired(
                f"another process archives these spaces, or erases from them: {', '.join(map(repr, busy))}. All other "
                "spaces are maintained; call maintain() again later"
            )

    def _maintain(self, space: str) -> None:
        from .index.thin import expire, expire_floor, thin
        from .index.upkeep import maintain
        from .removing.copies import Copies
        from .removing.erase import finish

        if space.startswith(internal_name("group")):
            from .groups.forget import clear_deleted

            clear_deleted(self, InternalName(space))
        known = self._known(space)
        if known is None:
            return
        for committer in known.committers:
            partition = committer.partition
            partition.refresh()
            for text in finish(partition, Copies(self)).unreached:
                warn("%s", text, store=self.id, space=space)
            expire_floor(committer)
            maintain(partition)
            if partition.changed.trimmed_rows == "remove":
                expire(committer, least=0.0)
            else:
                expire(committer)
            thin(partition)
        archived = [partition for partition in known.partitions if partition.archived_since(1)]
        if archived:
            from .archive.archiver import remove_space

            remove_space(archived, self._archive(known.name), self._archiver_lease)
            _purge_released(archived)

    def to_arrow(
        self,
        space: str,
        *,
        offset: AnyOffset | None = None,
        columns: Sequence[str] | None = None,
        tier: Literal["all", "cold", "hot"] = "all",
    ) -> pa.RecordBatchReader:
        """Return a space's entries as Arrow record batches, in commit order, from both tiers, with constant memory.

        `columns`: those to read, None for all: store, space, partition, number, index, position, segment, sequence,
        timestamp (UTC), trx_id, trx_node, payload, metadata, tier. `offset`: only entries after it. `tier`: "cold" for
        archived entries only, "hot" for the others. It reads the entries that are committed at the call. An unknown
        space is empty. InvalidOffset; ValueError for an unknown column; EntriesRemoved if entries after the offset were
        trimmed, or are trimmed during the read; MissingDependency without the extra `archive`. pandas, Polars and
        DuckDB accept the result.
        """
        from .archive.arrow import read_arrow

        check_name(space, "space")
        after = None if offset is None else Offset.decode(offset, space)
        cursor, _ = self._reader.cursor(space, after)
        return read_arrow(self.id, space, cursor.partitions if cursor else (), after, columns, tier)

    def archive(
        self,
        space: str,
        *,
        until: int | None = None,
        min_age: float | None = None,
        target_file_bytes: int = 64 << 20,
        progress: Callable[[int, int], None] | None = None,
        spread: Spread | None = None,
    ) -> ArchiveReport:
        """Move committed transactions into the space's Delta table. All readers of the store read the table too.

        `until`: the newest timestamp (ms) to archive. `min_age`: only transactions older than so many seconds.
        Transactions that were archived for longer than the space's grace are removed from the log. `target_file_bytes`:
        payload in one file, before compression; about five times as much memory is used. `progress(transactions,
        entries)` is called after each commit to the table. `spread`: other processes write the files of the partitions,
        as with `streamkit.archive.Processes(url, 4)`. The call may be stopped anywhere and repeated. LeaseNotAcquired
        while another process archives the space; MissingDependency without the extra `archive`; CorruptData if another
        program changed the table. For a space that does not exist nothing is done, and the logger `streamkit` warns.
        """
        from .archive import ArchiveReport
        from .archive.archiver import archive_space
        from .index.upkeep import index_all
        from .removing.copies import Copies
        from .removing.erase import finish, record_expired

        check_name(space, "space")
        newest = newest_of(until, min_age, self._shared.clock.now())
        check_count("target_file_bytes", target_file_bytes)
        known = self._known(space)
        if known is None:
            warn("there is no space %r: nothing was archived", space, store=self.id, space=space)
            return ArchiveReport(space)
        archive = self._archive(space)
        for committer in known.committers:
            partition = committer.partition
            if partition.remote:
                # Few of many partitions have new transactions: one by one costs few requests.
                partition.catch_up(_SINGLE)
            else:
                partition.refresh()
            if partition.erasing:
                finish(partition, Copies(self))
            if partition.changed.trimmed_rows == "remove":
                record_expired(committer)
        index = partial(index_all, look=False)
        report = archive_space(
            known.partitions, archive, self._archiver_lease, index, newest, target_file_bytes, progress, spread
        )
        _purge_released(known.partitions)
        return report

    def compact(
        self,
        space: str,
        *,
        target_file_bytes: int = 64 << 20,
        retention_hours: float = 168.0,
        progress: Callable[[int, int], None] | None = None,
        spread: Spread | None = None,
    ) -> CompactReport:
        """Join small files of the space's archive, and put files of other engines into order.

        `target_file_bytes`: the most payload in one file, before compression; about five times as much memory is used.
        Files of one partition with less than half of that are joined with those of others. `retention_hours`: files
        that no version of the table has needed for this long are deleted; choose more than the longest read takes.
        `spread`: as in `archive`, several processes write the files, and this one commits them. `progress(done, all)`
        counts files. Archivers and readers may continue meanwhile. The call may be stopped anywhere and repeated.
        MissingDependency without the extra `archive`; CorruptData if another program changed rows. For a space without
        an archive nothing is done. If the space does not exist, the logger `streamkit` warns.
        """
        from .archive import CompactReport
        from .archive.compact import compact_space

        check_name(space, "space")
        check_count("target_file_bytes", target_file_bytes)
        check_hours("retention_hours", retention_hours)
        if self._known(space) is None:
            warn("there is no space %r: nothing was compacted", space, store=self.id, space=space)
            return CompactReport(space)
        archive = self._archive(space)
        if not self._shared.has_archive(space):
            return CompactReport(space)  # its container may not exist yet
        return CompactReport(space, *compact_space(archive, target_file_bytes, retention_hours, progress, spread))

    def restore(
        self,
        space: str,
        source: Store,
        *,
        until: int | None = None,
        tier: Literal["all", "cold"] = "all",
        progress: Callable[[int, int], None] | None = None,
    ) -> RestoreReport:
        """Copy a space of the store `source` into this one, which may be of another client.

        `until`: the newest timestamp (ms) to copy. `tier="cold"`: from the archive of `source` alone, if its log is
        lost. Transactions stay whole and in their order, segments keep their sequences; timestamps and transaction ids
        are new, and offsets of `source` are not valid here. Groups and process managers start again, so they repeat
        their effects. After a loss, use `backup` and `restore_backup` instead. `progress(transactions, entries)` is
        called after each transaction. Existing entries are skipped, so the call may be stopped anywhere and repeated.
        CorruptData if this store has other entries there; PermanentError if `source` has no such space.
        """
        from .archive.restore import restore_space

        check_name(space, "space")
        check_type(source, Store, "source is a store")
        if source.id == self.id and source._shared.archive_root()[0] == self._shared.archive_root()[0]:
            raise ValueError("the source and the target are the same store: choose a new UUID for the target")
        check_choice("tier", tier, "all", "cold")
        check_timestamp("until", until)
        self._handle.check_open()
        source._handle.check_open()
        return restore_space(source, self, space, until or 0, tier == "cold", progress)

    def backup(
        self,
        url: str | os.PathLike[str],
        *,
        keep: int | None = None,
        skip_damaged: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> BackupReport:
        """Back up the whole store to `url`, while it is in use: a new point, a state of all spaces at one moment.

        `url`: as for `connect`, or a path. One URL may hold the backups of many stores. Only data that is new since the
        last point is copied. `keep`: the number of latest points to keep; the others are removed. `skip_damaged`: leave
        out spaces that cannot be read, and name them in `BackupPoint.skipped`. No older point is removed then, because
        it may hold their last copy. CorruptData names a damaged space otherwise. `progress(files, bytes)` is called
        after each copy. The next call completes a stopped one. LeaseNotAcquired while another backup of the store runs;
        MissingDependency without the extra `archive` if a space is archived; Unavailable if the store changes faster
        than it can be copied.
        """
        from .backup.create import backup_store

        self._handle.check_open()
        if keep is not None:
            check_count("keep", keep)
        return backup_store(self, url, keep, skip_damaged, progress)

    def backups(self, url: str | os.PathLike[str]) -> list[BackupPoint]:
        """Return the points of this store at `url`, the oldest first."""
        from .backup.create import backup_points

        self._handle.check_open()
        return backup_points(self, url)

    def restore_backup(
        self,
        url: str | os.PathLike[str],
        *,
        point: int | None = None,
        spaces: Iterable[str] | None = None,
        backup_of: UUID | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> BackupRestored:
        """Restore the backup at `url` into this store, which must be empty. It is then exactly as it was at the point.

        Transactions keep their numbers, ids and timestamps. Idempotency keys, groups, queues, routes, snapshots,
        retention and archives are restored. Offsets stay valid. `point`: its number; None for the latest. `spaces`: the
        only spaces to restore. Their groups and routes are in spaces of their own, and start again unless those are
        named too. `backup_of`: the UUID of the store that was backed up, if this store has another one. Routes and
        views do not know this store then, and start again. `progress(files, bytes)` is called after each copy. No other
        process may use the store meanwhile. The same call completes a stopped one. Erasures that later points know are
        repeated. PermanentError if the store is not empty or has no such point; CorruptData if the backup is damaged.
        """
        from .backup.restore import restore_backup

        self._handle.check_open()
        if point is not None:
            check_count("point", point)
        check_type(backup_of, UUID, "backup_of is a uuid.UUID", optional=True)
        names = None if spaces is None else check_names_of("spaces", spaces, "space")
        return restore_backup(self, url, point, names, backup_of, progress)

    def _eraser_lease(self, name: str, wait: float) -> Lease:
        return self.lease(name, 60.0, wait)

    def _archiver_lease(self, name: str) -> Lease:
        return self.lease(name, 60.0)

    def verify(self, space: str | None = None, *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Check one space or all: log and archive have no gap and no damage, and the index agrees with them.

        Every byte of the archive is read. `progress(done, all)` counts transactions of the partition at hand. Findings
        name the wrong row, or the file, as `archive/…`. A space that cannot be read is a finding too, and the others
        are checked all the same. Internal spaces hold the state of groups, queues, views and routes. They are checked
        too, but the counts are those of the user's own spaces. PermanentError if `space` does not exist, so that a
        mistyped name does not look sound. A store that nobody has written to has no findings and 0 transactions. So
        look at the counts if its UUID may be wrong. MissingDependency if there is an archive and the extra `archive` is
        not installed.
        """
        from .index.verify import verify_spaces

        names = None if space is None else self._names(space)
        self._handle.check_open()
        if space is not None:
            self._shared.check_exists(space)
        return verify_spaces(self._backend, names, self._shared, progress)

    def salvage(
        self,
        space: str,
        target: str,
        *,
        into: Store | None = None,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> SalvageReport:
        """Copy every intact transaction of a damaged space to the new space `target`, and name each lost one.

        `into`: the store of the new space; this one if None. The damaged space is not changed. No process may write to
        it meanwhile. Entries keep their sequences; timestamps and transaction ids are new. In the new space, lost
        entries read as if they had been erased. Entries that were trimmed, deleted or erased are not copied. Retention,
        groups, views and routes are not copied. `dry_run` writes nothing and reports the same. `progress(done, all)`
        counts transactions of the partition at hand.

        SpaceExists if `target` exists, PermanentError if the space has no rows at all. The packed records of one
        partition, and all its keys, are held in memory.
        """
        from .salvage.copy import salvage_space

        check_name(space, "space")
        check_name(target, "space")
        check_type(into, Store, "into is a Store", optional=True)
        self._handle.check_open()
        return salvage_space(self, space, into or self, target, dry_run, progress)

    def repair(self, space: str | None = None) -> int:
        """Rebuild the index of one space, or of all, from log and archive; return the number of rows that differed.

        Log and archive are not changed: CorruptData if they are damaged. A damaged archive does not matter if the log
        still holds its entries. Only the index knows idempotency keys, lease tokens and removed segments of
        transactions that left the log. Its readable part supplies them; the logger `streamkit` warns of the others.
        A damaged list of spaces is written again from its intact rows: repair a space by its name if the list has lost
        it. Stop all writers and archivers of the store first. PermanentError if `space` does not exist.
        """
        from .index.repair import repair_catalog, repair_space

        self._handle.check_open()
        count = repair_catalog(self._backend)
        if space is not None:
            self._shared.check_exists(check_name(space, "space"))
        for name in self._names(space):
            count += repair_space(self._backend, name, self._shared.unread(name))
            # The cached state came from the earlier index.
            self._shared.spaces.pop(name, None)
        return count

    def _names(self, space: str | None) -> list[str]:
        names = [check_name(space, "space")] if space is not None else self._shared.space_names()
        self._handle.check_open()
        return names

    def statistics(self) -> Statistics:
        """Count the work since this store was opened here: requests by kind, conflicts, retries, cache hits."""
        return snapshot(self._shared.counters, self._backend.requests)

    def close(self) -> None:
        """Close this handle; the last one releases the store's resources. Its reads end. A second call does nothing."""
        if not self._handle.closed:
            self._handle.closed = True
            self._shared.notifier.notify_waiters()
            self._release(self._shared)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = self._handle.closed or self._shared.closed
        state = "closed" if closed else f"{amount(len(self._shared.spaces), 'space')} open"
        return f"<Store {self.id} {state}>"

    def _repr_html_(self) -> str:
        """The store with the names of its first spaces, for notebooks."""
        rows: list[tuple[str, str]] = [("store", str(self.id))]
        try:
            names = list(islice(self.get_spaces(), _SHOWN + 1))
            rows += [("space", name) for name in names[:_SHOWN]] + [("…", "more spaces")] * (len(names) > _SHOWN)
        except StreamkitError as error:
            rows.append(("spaces", str(error)))
        return html_table("Store", rows)


def inner(store: Store) -> OpenStore:
    """Return the open store behind a handle. Only the archive, Spark and the command line use it. StoreClosed after
    close."""
    store._handle.check_open()
    return store._shared


def eraser_lease(store: Store, name: str, wait: float) -> Lease:
    """The lease under which erased entries are removed. It waits up to `wait` seconds."""
    return store._eraser_lease(name, wait)


def complete_deletion(store: Store, space: str) -> bool:
    """Complete the interrupted deletion of a space that raises StoreClosed, and forget the space. False if no deletion
    was interrupted."""
    completed = store._complete_deletion(space)
    store._shared.forget_space(space)
    return completed


def delete_if(store: Store, space: InternalName, is_over: Callable[[], bool]) -> None:
    """Delete an internal space, if `is_over` is true when its log ends. It is called several times."""
    partitions = list(store._shared.unread_partitions(space))
    if partitions and is_over():
        store._delete(space, partitions, is_over)


def append_expected(store: Store, space: str, segment: str, payload: bytes, expected: int) -> None:
    """Append one record with an expected sequence, like `store.produce`, but without a status: for states kept in a
    segment.

    The space must exist and the arguments must be valid: nothing is checked.
    """
    part = Part(segment, encode_body([payload], None), len(payload), expected)
    store._writer.append(space, Request((part,)))


def reader_of(store: Store) -> Reader:
    """Return the reader of a handle, for `places`."""
    return store._reader


def _purge_released(partitions: Sequence[Partition]) -> None:
    """Rewrite the indexes that still have rows of transactions that only the archive holds."""
    from .index.upkeep import purge

    for partition in partitions:
        if partition.head.purged < partition.head.released:
            purge(partition)


def writer_of(store: Store) -> Writer:
    """Return the writer of a store, for coroutines."""
    return store._writer
