"""A store for coroutines."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import UUID

from ..errors import Fenced
from ..leases import Lease
from ..lexkey import LexKey
from ..log.commit import Committer
from ..model import Entry, Record, SegmentStatus
from ..statistics import Statistics
from ..store import AnyOffset, Store
from ..transaction import Draft
from .leases import AsyncLease
from .reading import Watch, follow, items
from .threads import Calls, Threads
from .transaction import AsyncTransaction
from .writing import Lane, LoopRequest

if TYPE_CHECKING:
    import pyarrow as pa

    from ..archive import ArchiveReport, CompactReport, RestoreReport
    from ..index.verify import VerifyReport
    from ..routes import RouteStatus
    from ..views.view import View
    from .clients import AsyncMembers, AsyncRoute, AsyncView

__all__ = ["AsyncStore"]

_T = TypeVar("_T")
Progress = Callable[[int, int], None]


class AsyncStore:
    """From `client.store(id)` of `streamkit.aio`: what `streamkit.Store` does, for the coroutines of one event loop.

    What gives a value is awaited, what gives many is read with `async for`. Arguments, results and errors are those of
    `streamkit.Store`; also RuntimeError in another event loop, or after a fork.
    """

    def __init__(self, store: Store, threads: Threads) -> None:
        self.id = store.id
        self.sync = store
        """The same store for threads; what is written by it shares commits with this one."""
        self.calls = Calls(threads, f"store {store.id}")
        self._watch = Watch(self.calls)
        self._lanes: dict[Committer, Lane] = {}
        self._opening: dict[str, asyncio.Future[Committer]] = {}
        self._closing: asyncio.Task[None] | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        """Itself: nothing is opened before it is used."""
        return self
        yield

    # -- spaces -------------------------------------------------------------------------------------------------

    async def create_space(
        self,
        space: str,
        partitions: int = 1,
        durability: str = "committed",
        *,
        idempotency_window: float = 86_400.0,
        archive_grace: float = 3600.0,
    ) -> None:
        """See Store.create_space."""
        settings = {"idempotency_window": idempotency_window, "archive_grace": archive_grace}
        await self.calls.call(lambda: self.sync.create_space(space, partitions, durability, **settings))

    def get_spaces(self) -> AsyncGenerator[str, None]:
        """The names of the spaces, in code-point order."""
        self.calls.check()
        return items(self.calls, _lazy(self.sync.get_spaces))

    def get_segments(self, space: str) -> AsyncGenerator[str, None]:
        """The names of the space's segments, in code-point order."""
        self.calls.check()
        return items(self.calls, self.sync.get_segments(space))

    # -- writing ------------------------------------------------------------------------------------------------

    async def produce(
        self,
        space: str,
        segment: str,
        records: Iterable[Record],
        *,
        expected_sequence: int | None = None,
        idempotency_key: str | None = None,
        lease: AsyncLease | Lease | None = None,
    ) -> SegmentStatus:
        """Append `records` to a segment as one transaction; returns the segment's status when they are durable.

        See Store.produce. Cancelled: see `streamkit.aio`.
        """
        async with self.transaction(space, idempotency_key, lease) as transaction:
            transaction.produce(segment, records, expected_sequence=expected_sequence)
        status = transaction.statuses.get(segment)
        return await self.segment_status(space, segment) if status is None else status

    def transaction(
        self, space: str, idempotency_key: str | None = None, lease: AsyncLease | Lease | None = None
    ) -> AsyncTransaction:
        """A transaction over several segments: `async with store.transaction(space) as trx: trx.produce(…)`."""
        self.calls.check()
        held = lease.held if isinstance(lease, AsyncLease) else lease
        return AsyncTransaction(self, Draft(self.sync, space, idempotency_key, held))

    async def commit(self, draft: Draft) -> None:
        """Commit what is in it, together with what other coroutines commit."""
        committer = await self._committer(draft)
        lane = self._lanes.get(committer)
        if lane is None:
            lane = self._lanes[committer] = Lane(self.calls, committer)
        request = draft.request(LoopRequest)
        try:
            await lane.commit(request)
        except Fenced:
            draft.fenced()
            raise
        draft.committed(committer, request)

    async def _committer(self, draft: Draft) -> Committer:
        """One coroutine opens a space, the others wait for it."""
        space = draft.space
        while not draft.is_open:
            self.calls.check()
            opening = self._opening.get(space)
            if opening is not None:
                await asyncio.wait([opening])
                continue
            opening = self._opening[space] = asyncio.wrap_future(self.calls.submit(draft.committer))
            opening.add_done_callback(lambda _: self._opening.pop(space, None))
            return await asyncio.shield(opening)
        self.calls.check()
        return draft.committer()

    async def outcome(self, transaction_id: UUID | str) -> Literal["committed", "absent", "unknown"]:
        """What became of a transaction that ended with OutcomeUnknown, or whose write was cancelled.

        "committed" or "absent" are final; "unknown" if the storage still cannot be reached.
        """
        return await self.calls.call(self.sync.outcome, transaction_id)

    # -- reading ------------------------------------------------------------------------------------------------

    async def peek(self, space: str, segment: str) -> Entry:
        """The latest entry of a segment; one with sequence 0 if there is none."""
        return await self.calls.call(self.sync.peek, space, segment)

    async def segment_status(self, space: str, segment: str) -> SegmentStatus:
        """First and last sequence and timestamp of a segment; zeros if it does not exist."""
        return await self.calls.call(self.sync.segment_status, space, segment)

    async def lookup(
        self, space: str, idempotency_key: str, segment: str | None = None
    ) -> dict[str, SegmentStatus] | None:
        """What the first write with the key was given, by segment; None if there was none. See Store.lookup."""
        return await self.calls.call(self.sync.lookup, space, idempotency_key, segment)

    async def end_offset(self, space: str) -> LexKey:
        """The offset after everything that is committed so far."""
        return await self.calls.call(self.sync.end_offset, space)

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
    ) -> AsyncGenerator[Entry, None]:
        """A segment's entries in sequence order, lazily. See Store.consume_segment."""
        self.calls.check()
        entries = self.sync.consume_segment(
            space,
            segment,
            min_sequence=min_sequence,
            max_sequence=max_sequence,
            min_timestamp=min_timestamp,
            max_timestamp=max_timestamp,
            limit=limit,
            reverse=reverse,
        )
        return items(self.calls, entries)

    def consume_space(
        self,
        space: str,
        *,
        offset: AnyOffset | None = None,
        min_timestamp: int = 0,
        max_timestamp: int = 0,
        limit: int = 0,
        reverse: bool = False,
    ) -> AsyncGenerator[Entry, None]:
        """A space's entries in commit order, lazily, after `offset`. See Store.consume_space."""
        self.calls.check()
        entries = self.sync.consume_space(
            space,
            offset=offset,
            min_timestamp=min_timestamp,
            max_timestamp=max_timestamp,
            limit=limit,
            reverse=reverse,
        )
        return items(self.calls, entries)

    def consume(
        self,
        offsets: Mapping[str, AnyOffset | None],
        *,
        min_timestamp: int = 0,
        max_timestamp: int = 0,
        limit: int = 0,
    ) -> AsyncGenerator[Entry, None]:
        """Several spaces merged by timestamp, each after its offset (None: from the start). {} reads nothing."""
        self.calls.check()
        entries = self.sync.consume(offsets, min_timestamp=min_timestamp, max_timestamp=max_timestamp, limit=limit)
        return items(self.calls, entries)

    # -- following ----------------------------------------------------------------------------------------------

    def follow_segment(
        self, space: str, segment: str, *, after: int = 0, timeout: float | None = None
    ) -> AsyncGenerator[Entry, None]:
        """A segment's entries after sequence `after`, then those that come; ends after `timeout` s of silence.

        Like all followers and subscribers it has a thread while it looks, and none while it waits.
        """
        return self._follow(self.sync.follow_segment(space, segment, after=after, timeout=timeout))

    def follow_space(
        self, space: str, *, offset: AnyOffset | None = None, timeout: float | None = None
    ) -> AsyncGenerator[Entry, None]:
        """A space's entries after `offset`, then those that come; ends after `timeout` s of silence."""
        return self._follow(self.sync.follow_space(space, offset=offset, timeout=timeout))

    def subscribe_to_segment(
        self, space: str, segment: str, *, timeout: float | None = None
    ) -> AsyncGenerator[SegmentStatus, None]:
        """The segment's present status, then its latest whenever it has changed; ends after `timeout` s of silence."""
        return self._follow(self.sync.subscribe_to_segment(space, segment, timeout=timeout))

    def subscribe_to_space(self, space: str, *, timeout: float | None = None) -> AsyncGenerator[SegmentStatus, None]:
        """The status of each segment of the space, then the latest of each that has changed."""
        return self._follow(self.sync.subscribe_to_space(space, timeout=timeout))

    def _follow(self, following: Iterator[_T]) -> AsyncGenerator[_T, None]:
        self.calls.check()
        return follow(self.calls, self._watch, following)

    # -- leases -------------------------------------------------------------------------------------------------

    def lease(self, key: str, ttl: float = 30.0, wait: float | None = None) -> AsyncLease:
        """A lease to hold: `async with store.lease("leader") as lease`. See Store.lease."""
        self.calls.check()
        self.sync.lease(key, ttl, wait)  # checks
        return AsyncLease(self.calls, self.sync.lease(key, ttl), wait)

    async def with_lease(self, key: str, fn: Callable[[AsyncLease], Awaitable[_T] | _T], ttl: float = 30.0) -> _T:
        """await fn(lease) while the lease is held, and its result; `fn` may be an async function or a plain one.

        LeaseNotAcquired at once if it is held by someone else.
        """
        if not callable(fn):
            raise TypeError(f"fn is called with the lease; a {type(fn).__name__} cannot be called")
        async with self.lease(key, ttl) as lease:
            result = fn(lease)
            return await result if isinstance(result, Awaitable) else result

    # -- the store itself ---------------------------------------------------------------------------------------

    async def maintain(self, space: str | None = None) -> None:
        """Bring the index up to the log, in one space or in all. See Store.maintain."""
        await self.calls.call(self.sync.maintain, space, long=True)

    async def to_arrow(
        self,
        space: str,
        *,
        offset: AnyOffset | None = None,
        columns: Sequence[str] | None = None,
        tier: Literal["all", "cold", "hot"] = "all",
    ) -> pa.RecordBatchReader:
        """A space's entries as Arrow record batches. See Store.to_arrow. The reader blocks: read it in a thread."""

        def read() -> pa.RecordBatchReader:
            return self.sync.to_arrow(space, offset=offset, columns=columns, tier=tier)

        return await self.calls.call(read, long=True)

    async def archive(
        self,
        space: str,
        *,
        until: int | None = None,
        min_age: float | None = None,
        target_file_bytes: int = 64 << 20,
        progress: Progress | None = None,
    ) -> ArchiveReport:
        """Move committed transactions into the space's Delta table. See Store.archive.

        `progress` is called on the event loop. Cancelled, it ends after the next commit to the table.
        """
        return await self._long(
            progress,
            lambda told: self.sync.archive(
                space, until=until, min_age=min_age, target_file_bytes=target_file_bytes, progress=told
            ),
        )

    async def compact(
        self,
        space: str,
        *,
        target_file_bytes: int = 64 << 20,
        retention_hours: float = 168.0,
        progress: Progress | None = None,
    ) -> CompactReport:
        """Bring small files of the space's archive together. See Store.compact. `progress` as for `archive`."""
        return await self._long(
            progress,
            lambda told: self.sync.compact(
                space, target_file_bytes=target_file_bytes, retention_hours=retention_hours, progress=told
            ),
        )

    async def restore(
        self,
        space: str,
        source: AsyncStore | Store,
        *,
        until: int | None = None,
        tier: Literal["all", "cold"] = "all",
        progress: Progress | None = None,
    ) -> RestoreReport:
        """Copy a space of the store `source` into this one. See Store.restore. `progress` as for `archive`."""
        plain = source.sync if isinstance(source, AsyncStore) else source
        return await self._long(
            progress, lambda told: self.sync.restore(space, plain, until=until, tier=tier, progress=told)
        )

    async def verify(self, space: str | None = None, *, progress: Progress | None = None) -> VerifyReport:
        """Walk the log of one space, or of all. See Store.verify. `progress` is called on the event loop."""
        return await self._long(progress, lambda told: self.sync.verify(space, progress=told))

    async def repair(self, space: str | None = None) -> int:
        """Build the index of one space, or of all, again from the log. See Store.repair."""
        return await self.calls.call(self.sync.repair, space, long=True)

    async def _long(self, progress: Progress | None, work: Callable[[Progress], _T]) -> _T:
        """`work(progress)` in a thread; cancelled, it ends where it tells its progress next."""
        ended: list[BaseException] = []

        def tell(done: int, of: int) -> None:
            if ended:
                raise ended[0]
            if progress is not None:
                self.calls.threads.call_soon(lambda: call(done, of))

        def call(done: int, of: int) -> None:
            assert progress is not None
            if not ended:
                try:
                    progress(done, of)
                except BaseException as error:
                    ended.append(error)

        try:
            found = await self.calls.call(work, tell, long=True)
        except asyncio.CancelledError as error:
            ended.append(error)
            raise
        if ended:  # in the last call, which was not waited for
            raise ended[0]
        return found

    async def view(
        self,
        name: str,
        view: View,
        spaces: Iterable[str],
        path: str | os.PathLike[str] | None = None,
        publish: bool = False,
        *,
        on_error: Literal["pause", "skip"] = "pause",
        batch: int = 10_000,
        publish_every: float = 300.0,
    ) -> AsyncView:
        """Open a view: a SQLite database that follows `spaces`. See Store.view; its methods are awaited."""
        options: dict[str, Any] = {"on_error": on_error, "batch": batch, "publish_every": publish_every}
        found = await self.calls.call(lambda: self.sync.view(name, view, spaces, path, publish, **options))
        from .clients import AsyncView

        return AsyncView(found, self.calls)

    async def route(
        self,
        name: str,
        source: str,
        target: str,
        where: Callable[[Entry], bool] | None = None,
        segment: Callable[[Entry], str] | str | None = None,
        transform: Callable[[Entry], Record | bytes | None] | None = None,
        target_store: AsyncStore | Store | None = None,
        start: AnyOffset | Literal["beginning", "end"] = "beginning",
    ) -> AsyncRoute:
        """Open a route: entries of one space copied into another. See Store.route; its functions run in threads."""
        there = target_store.sync if isinstance(target_store, AsyncStore) else target_store
        found = await self.calls.call(
            lambda: self.sync.route(name, source, target, where, segment, transform, there, start)
        )
        from .clients import AsyncRoute

        return AsyncRoute(found, self.calls)

    async def get_routes(self) -> list[RouteStatus]:
        """What each route of this store is at, by name. Their sources are not asked."""
        return await self.calls.call(self.sync.get_routes)

    def members(self, group: str) -> AsyncMembers:
        """Who is there: `await store.members("workers").join(name)`, `.list()`."""
        from .clients import AsyncMembers

        self.calls.check()
        return AsyncMembers(self.sync.members(group), self.calls)

    async def statistics(self) -> Statistics:
        """What was done since this store was opened here: requests by kind, conflicts, retries, cache hits."""
        self.calls.check()
        return self.sync.statistics()

    async def close(self) -> None:
        """Close this handle, after what it has under way. What reads and follows by it ends. Again is fine."""
        if self._closing is None:
            self.calls.threads.loop  # noqa: B018  (checks)
            self.calls.closed = True
            self._watch.close()
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        while waiting := [future for lane in self._lanes.values() for future in lane.waiting]:
            await asyncio.wait(waiting)
            await asyncio.sleep(0)
        await self.calls.wait()
        await asyncio.wrap_future(self.calls.start(self.calls.threads.long, self.sync.close))

    async def __aenter__(self) -> AsyncStore:
        self.calls.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self.sync)[1:]}"


def _lazy(make: Callable[[], Iterable[_T]]) -> Generator[_T, None, None]:
    yield from make()
