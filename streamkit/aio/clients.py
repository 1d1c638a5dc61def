"""Views, routes and presence for coroutines. Threads do the work, and the event loop waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..arguments import check_function, completed
from ..leases import LeaseGrant
from ..members import Member, Members, Membership
from .threads import Calls

if TYPE_CHECKING:
    from ..routes import RouteControl, RouteStatus
    from ..routes.route import Route
    from ..views.open_view import OpenView

__all__ = ["AsyncMembers", "AsyncMembership", "AsyncRoute", "AsyncRouteControl", "AsyncView"]


class _Client:
    """`sync` is the same thing for threads; its methods are awaited here under the same names."""

    def __init__(self, sync: OpenView | Route, calls: Calls) -> None:
        self.sync = sync
        self.name = sync.name
        self._calls = calls

    async def run(self, *, seconds: float | None = None) -> None:
        """Run until it or its store is closed, it is cancelled, or `seconds` have passed. It has a thread of its
        own."""
        self._calls.check()
        stop = self.sync.new_stop()
        thread = ThreadPoolExecutor(1, "streamkit-run")
        work = partial(copy_context().run, self.sync.run, stop, seconds=seconds)
        running = asyncio.wrap_future(self._calls.start(thread, work))
        self._calls.stops.add(stop.set)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            stop.set()
            await running
            raise
        finally:
            self._calls.stops.discard(stop.set)
            thread.shutdown(wait=False)

    async def close(self) -> None:
        await self._calls.call(self.sync.close)

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __getattr__(self, name: str) -> Any:
        """The method of that name, to be awaited: it is called in a thread."""
        if name.startswith("_") or "sync" not in self.__dict__:
            raise AttributeError(name)
        found = getattr(self.sync, name)
        if not callable(found):
            return found

        async def call(*arguments: Any, **named: Any) -> Any:
            return await self._calls.call(lambda: found(*arguments, **named))

        return call

    def __repr__(self) -> str:
        return f"<Async {repr(self.sync)[1:]}"


class AsyncView(_Client):
    """A view, from `await store.view(…)`: `await view.catch_up()`, `await view.wait_for(offset)`, `await
    view.get(key)`."""

    sync: OpenView

    def __getattr__(self, name: str) -> Any:
        """See _Client. The connection belongs to threads."""
        if name == "db":
            raise AttributeError(
                "a coroutine asks the database in a thread: await view.ask(lambda db: db.execute(…).fetchall())"
            )
        return super().__getattr__(name)

    async def ask(self, query: Callable[[Any], Any]) -> Any:
        """query(db) in a thread, with a read-only connection to the database."""
        check_function("query", query, "a connection")
        return await self._calls.call(lambda: completed("query", query(self.sync.db)))


class AsyncRoute(_Client):
    """A route, from `await store.route(…)`: `await route.catch_up()`, `await route.status()`."""


class AsyncRouteControl:
    """The control of a route, from `await store.find_route(name)`: `await control.status()`, `.pause()`, `.resume()`,
    `.delete()`."""

    def __init__(self, sync: RouteControl, calls: Calls) -> None:
        self.name = sync.name
        self._sync = sync
        self._calls = calls

    async def status(self) -> RouteStatus:
        """See Route.status."""
        return await self._calls.call(self._sync.status)

    async def pause(self) -> None:
        """See Route.pause."""
        await self._calls.call(self._sync.pause)

    async def resume(self, *, skip: bool = False) -> None:
        """See Route.resume."""
        await self._calls.call(partial(self._sync.resume, skip=skip))

    async def delete(self) -> None:
        """See Route.delete."""
        await self._calls.call(self._sync.delete)


class AsyncMembers:
    """The members of a group, from `store.members(group)`."""

    def __init__(self, sync: Members, calls: Calls) -> None:
        self.group = sync.group
        self._sync = sync
        self._calls = calls

    async def join(self, name: str, metadata: Mapping[str, str] | None = None, ttl: float = 15.0) -> AsyncMembership:
        """See Members.join. A cancelled call adds no member."""
        joining = self._calls.submit(lambda: self._sync.join(name, metadata, ttl))
        try:
            return AsyncMembership(await asyncio.wrap_future(joining), self._calls)
        except asyncio.CancelledError:
            # The join may still succeed. Then its lease would be renewed until the process ends.
            joining.add_done_callback(self._leave)
            raise

    def _leave(self, joining: Future[Membership]) -> None:
        if not joining.cancelled() and joining.exception() is None:
            self._calls.start(self._calls.threads.long, joining.result().leave)

    async def enter(self, name: str, metadata: Mapping[str, str] | None = None, ttl: float = 15.0) -> LeaseGrant:
        """See Members.enter."""
        return await self._calls.call(partial(self._sync.enter, name, metadata, ttl))

    async def exit(self, name: str, grant: LeaseGrant) -> None:
        """See Members.exit."""
        await self._calls.call(partial(self._sync.exit, name, grant))

    def check_grant(self, name: str, grant: LeaseGrant) -> None:
        """See Members.check_grant."""
        self._sync.check_grant(name, grant)

    async def list(self) -> list[Member]:
        """List the members, by name."""
        return await self._calls.call(self._sync.list)


class AsyncMembership:
    """A membership, from `join`: `async with`, or `await leave()`."""

    def __init__(self, sync: Membership, calls: Calls) -> None:
        self.name = sync.name
        self.sync = sync
        self._calls = calls

    async def leave(self) -> None:
        """Be gone at once. Again is fine."""
        await self._calls.call(self.sync.leave)

    async def __aenter__(self) -> AsyncMembership:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()
