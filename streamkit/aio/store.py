"""A store for coroutines."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from ..arguments import check_function, completed
from ..causation import present_causes
from ..errors import Fenced
from ..leases import Lease, LeaseGrant
from ..log.commit import Committer
from ..log.request import Part
from ..model import Entry, Record, SegmentStatus
from ..statistics import Statistics
from ..store import AnyOffset, Store, writer_of
from ..transaction import Draft
from .leases import AsyncLease
from .methods import Progress, awaited, followed, in_thread, iterated, with_progress
from .reading import Watch, items
from .threads import Calls, Threads
from .transaction import AsyncTransaction, as_given, is_much, tell_none
from .writing import CommitQueue, LoopRequest

if TYPE_CHECKING:
    from ..archive import RestoreReport
    from ..groups import GroupOptions, QueueOptions
    from ..routes import RouteStatus
    from ..salvage import SalvageReport
    from ..types.aio import AsyncTypedStore
    from ..types.registry import Registry, Unknown
    from ..views.view import View
    from .clients import AsyncMembers, AsyncRoute, AsyncRouteControl, AsyncView
    from .groups import AsyncGroup, AsyncQueue

__all__ = ["AsyncStore"]

_T = TypeVar("_T")


class AsyncStore:
    """A store for the coroutines of one event loop, from `client.store(id)` of `streamkit.aio`.

    A method that returns one value is awaited; a method that returns many is read with `async for`. Arguments, results
    and errors are those of `streamkit.Store`; also RuntimeError in another event loop, or after a fork. `progress` is
    called on the event loop. A cancelled call that takes `progress` ends at its next call of it. Followers and
    subscribers use a thread while they look, and none while they wait. The reader that `to_arrow` returns blocks: use
    it in a thread.
    """

    def __init__(self, store: Store, threads: Threads) -> None:
        self.id = store.id
        self.sync = store
        """The same store for threads. Its writes share commits with the writes of this one."""
        self.calls = Calls(threads, f"store {store.id}")
        self.watch = Watch(self.calls)
        """The watch on which this store's followers wait."""
        self._writer = writer_of(store)
        self._lanes: dict[Committer, CommitQueue] = {}
        self._opening: dict[str, asyncio.Future[Committer]] = {}
        self._closing: asyncio.Task[None] | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        """Itself: nothing is opened before it is used."""
        return self
        yield

    # -- spaces -------------------------------------------------------------------------------------------------

    create_space = awaited(Store.create_space)
    space_settings = awaited(Store.space_settings)

    def get_spaces(self) -> AsyncGenerator[str, None]:
        """The names of the spaces, in code-point order."""
        self.calls.check()
        return items(self.calls, _lazy(self.sync.get_spaces))

    get_segments = iterated(Store.get_segments)
    segment_statuses = iterated(Store.segment_statuses)

    # -- writing ------------------------------------------------------------------------------------------------

    async def produce(
        self,
        space: str,
        segment: str,
        records: Iterable[Record],
        *,
        expected_sequence: int | None = None,
        idempotency_key: str | None = None,
        lease: AsyncLease | Lease | LeaseGrant | None = None,
    ) -> SegmentStatus:
        """Append `records` to a segment as one transaction; returns the segment's status when they are durable.

        See Store.produce. Cancelled: see `streamkit.aio`.
        """
        self.calls.check()
        records = as_given(records)
        much = is_much(records)
        plain = idempotency_key is None and lease is None and present_causes() is None
        if plain and not much:
            lone = self._writer.lone(space, segment, records, expected_sequence)
            if lone is not None and self._writer.is_open(space):
                return await self._commit_lone(space, lone)
        draft = self._draft(space, idempotency_key, lease)
        if much:
            async with AsyncTransaction(self, draft) as transaction:
                transaction.produce(segment, records, expected_sequence=expected_sequence)
        else:
            draft.entered = True
            draft.add(segment, records, expected_sequence)
            draft.ended = True
            await self.commit(draft)
        status = draft.statuses.get(segment)
        return await self.segment_status(space, segment) if status is None else status

    async def _commit_lone(self, space: str, part: Part) -> SegmentStatus:
        """Commit `part` in an open space, as `commit` does; in fewer steps."""
        committer, request = self._writer.committer(space, (part,)), LoopRequest((part,))
        try:
            await self._lane(committer).commit(request)
        except asyncio.CancelledError as cancelled:
            tell_none(cancelled)
            raise
        return self._writer.status(committer.partition, part.segment, request)

    def transaction(
        self, space: str, idempotency_key: str | None = None, lease: AsyncLease | Lease | LeaseGrant | None = None
    ) -> AsyncTransaction:
        """A transaction over several segments: `async with store.transaction(space) as trx: trx.produce(…)`."""
        return AsyncTransaction(self, self._draft(space, idempotency_key, lease))

    def _draft(self, space: str, key: str | None, lease: AsyncLease | Lease | LeaseGrant | None) -> Draft:
        self.calls.check()
        return Draft(self._writer, space, key, lease.held if isinstance(lease, AsyncLease) else lease)

    async def commit(self, draft: Draft) -> None:
        """Commit the transaction, together with those of other coroutines."""
        try:
            if draft.guards:
                await self.calls.call(draft.guard)
                return
            committer = await self._committer(draft)
            request = draft.request(LoopRequest)
            await self._lane(committer).commit(request)
        except Fenced:
            draft.fenced()
            raise
        except asyncio.CancelledError as cancelled:
            tell_none(cancelled)
            raise
        draft.committed(committer, request)

    def _lane(self, committer: Committer) -> CommitQueue:
        lane = self._lanes.get(committer)
        if lane is None:
            lane = self._lanes[committer] = CommitQueue(self.calls, committer)
        return lane

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

    outcome = awaited(Store.outcome)

    # -- reading ------------------------------------------------------------------------------------------------

    peek = awaited(Store.peek)
    segment_status = awaited(Store.segment_status)
    lookup = awaited(Store.lookup)
    end_offset = awaited(Store.end_offset)
    consume_segment = iterated(Store.consume_segment)
    consume_space = iterated(Store.consume_space)
    consume = iterated(Store.consume)

    # -- removing -----------------------------------------------------------------------------------------------

    trim = awaited(Store.trim)
    set_retention = awaited(Store.set_retention)
    change_space = awaited(Store.change_space)
    erase = with_progress(Store.erase)
    delete_segment = awaited(Store.delete_segment)
    delete_space = awaited(Store.delete_space, long=True)
    size = awaited(Store.size)

    # -- following ----------------------------------------------------------------------------------------------

    follow_segment = followed(Store.follow_segment)
    follow_space = followed(Store.follow_space)
    follow = followed(Store.follow)
    subscribe_to_segment = followed(Store.subscribe_to_segment)
    subscribe_to_space = followed(Store.subscribe_to_space)

    # -- leases -------------------------------------------------------------------------------------------------

    def lease(self, key: str, ttl: float = 30.0, wait: float | None = None) -> AsyncLease:
        """A lease to hold: `async with store.lease("leader") as lease`. See Store.lease."""
        self.calls.check()
        self.sync.lease(key, ttl, wait)  # checks
        return AsyncLease(self.calls, self.sync.lease(key, ttl), wait)

    acquire_lease = awaited(Store.acquire_lease)
    renew_lease = awaited(Store.renew_lease)
    release_lease = awaited(Store.release_lease)

    async def with_lease(self, key: str, fn: Callable[[AsyncLease], Awaitable[_T] | _T], ttl: float = 30.0) -> _T:
        """Call fn(lease) while the lease is held, and return its result; `fn` may be an async function or a plain one.

        LeaseNotAcquired at once if another holder has it.
        """
        check_function("fn", fn, "the lease", awaited=True)
        async with self.lease(key, ttl) as lease:
            result = fn(lease)
            return completed("fn", await result if isinstance(result, Awaitable) else result)

    # -- the store itself ---------------------------------------------------------------------------------------

    maintain = awaited(Store.maintain, long=True)
    to_arrow = awaited(Store.to_arrow, long=True)
    archive = with_progress(Store.archive)
    compact = with_progress(Store.compact)

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
        work = partial(self.sync.restore, space, plain, until=until, tier=tier)
        return await in_thread(self.calls, progress, work)

    async def salvage(
        self,
        space: str,
        target: str,
        *,
        into: AsyncStore | Store | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> SalvageReport:
        """Copy every intact transaction of a damaged space to a new one. See Store.salvage."""
        plain = into.sync if isinstance(into, AsyncStore) else into
        work = partial(self.sync.salvage, space, target, into=plain, dry_run=dry_run)
        return await in_thread(self.calls, progress, work)

    backup = with_progress(Store.backup)
    backups = awaited(Store.backups, long=True)
    restore_backup = with_progress(Store.restore_backup)
    verify = with_progress(Store.verify)
    repair = awaited(Store.repair, long=True)

    async def view(
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

    async def find_route(self, name: str) -> AsyncRouteControl | None:
        """The controls of the route `name` if it exists. See Store.find_route."""
        found = await self.calls.call(partial(self.sync.find_route, name))
        from .clients import AsyncRouteControl

        return None if found is None else AsyncRouteControl(found, self.calls)

    async def get_routes(self) -> list[RouteStatus]:
        """Return the status of each route of this store, by name. Their sources are not asked."""
        return await self.calls.call(self.sync.get_routes)

    def members(self, group: str) -> AsyncMembers:
        """Return a group of members: `await store.members("workers").join(name)`, `.list()`."""
        from .clients import AsyncMembers

        self.calls.check()
        return AsyncMembers(self.sync.members(group), self.calls)

    # -- groups -------------------------------------------------------------------------------------------------

    async def group(
        self,
        space: str,
        name: str,
        *,
        start: AnyOffset | Literal["beginning", "end"] = "beginning",
        **settings: Unpack[GroupOptions],
    ) -> AsyncGroup:
        """The group `name` of a space, made if it is not there. See Store.group; its methods are awaited."""
        found = await self.calls.call(partial(self.sync.group, space, name, start=start, **settings))
        from .groups import AsyncGroup

        return AsyncGroup(found, self.calls)

    async def queue(self, name: str, **settings: Unpack[QueueOptions]) -> AsyncQueue:
        """The queue `name`: a space of jobs with one shared group. See Store.queue; its methods are awaited."""
        found = await self.calls.call(partial(self.sync.queue, name, **settings))
        from .groups import AsyncQueue

        return AsyncQueue(found, self.calls)

    async def find_group(self, space: str, name: str) -> AsyncGroup | None:
        """The group `name` of a space if it exists. See Store.find_group."""
        found = await self.calls.call(partial(self.sync.find_group, space, name))
        from .groups import AsyncGroup

        return None if found is None else AsyncGroup(found, self.calls)

    async def find_queue(self, name: str) -> AsyncQueue | None:
        """The queue `name` if it exists. See Store.find_queue."""
        found = await self.calls.call(partial(self.sync.find_queue, name))
        from .groups import AsyncQueue

        return None if found is None else AsyncQueue(found, self.calls)

    get_groups = awaited(Store.get_groups)
    get_queues = awaited(Store.get_queues)

    @overload
    def typed(
        self, registry: Registry[_T], *, unknown: Literal["raise", "skip"] = "raise"
    ) -> AsyncTypedStore[_T, _T]: ...
    @overload
    def typed(self, registry: Registry[_T], *, unknown: Literal["raw"]) -> AsyncTypedStore[_T, _T | Unknown]: ...
    def typed(self, registry: Any, *, unknown: Literal["raise", "skip", "raw"] = "raise") -> Any:
        """Return this store for objects of the registry's classes. See Store.typed."""
        from ..types.aio import AsyncTypedStore

        self.calls.check()
        return AsyncTypedStore(self, registry, unknown)

    async def statistics(self) -> Statistics:
        """Count the work since this store was opened here: requests by kind, conflicts, retries, cache hits."""
        self.calls.check()
        return self.sync.statistics()

    async def close(self) -> None:
        """Close this handle, after its running calls. Its readers and followers end. A second call does nothing."""
        if self._closing is None:
            self.calls.threads.loop  # noqa: B018  (checks)
            self.calls.closed = True
            self.watch.close()
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
