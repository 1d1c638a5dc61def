"""The service behind the application: the client, its open stores, the limits, and whether it drains."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from uuid import UUID

import msgspec

from ..aio import AsyncClient, AsyncStore, connect
from ..errors import StoreClosed
from .access import EVERYTHING, Access
from .gate import Gate
from .keys import KeyFile, refused
from .limits import Limits
from .metrics import Metrics
from .opened_groups import OpenedGroups
from .priorities import Priorities
from .problems import Problem
from .rings import Rings
from .tokens import TOKEN, Tokens
from .waiting import Ticker, Waiter

__all__ = ["Service"]


class Service:
    """Holds the state of one process of the server: which stores are open, and whether it is draining."""

    def __init__(
        self, client: AsyncClient | str | None, store: UUID | str | None, limits: Limits, archive: str | None = None
    ) -> None:
        self.limits = limits
        self.headers: tuple[tuple[bytes, bytes], ...] = ((b"x-content-type-options", b"nosniff"),)
        """The headers of every answer."""
        self.own_store = None if store is None else UUID(str(store))
        """The store that `_` names."""
        self._given = client
        self._archive = archive
        self._client: AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stores: OrderedDict[UUID, AsyncStore] = OrderedDict()
        self._opened: dict[UUID, float] = {}
        self.is_draining = False
        """The process is about to end: streams say goodbye, and long-polls answer with the entries they have."""
        self.on_start: list[Callable[[Service], object]] = []
        """Functions that are called when the process starts."""
        self.on_close: list[Callable[[], object]] = []
        """Functions that are called when the process ends."""
        self.keys: KeyFile | None = None
        self.tokens: Tokens | None = None
        self.has_console = False
        """Sessions of the console are taken in place of keys."""
        self.codes: dict[str, str] = {}
        """One-time codes that begin a session of the console: the ids of their keys."""
        self.hosts: frozenset[str] = frozenset()
        """The names by which it may be asked for; empty: any."""
        self.origins: frozenset[bytes] = frozenset()
        """The origins of other sites' pages that may use the server."""
        self.gate = Gate(limits)
        self.priorities = Priorities()
        self.metrics = Metrics()
        self.ticker = Ticker(limits.heartbeat_seconds, limits.write_seconds, self.is_valid)
        self.rings = Rings(limits)
        self.groups = OpenedGroups()
        self.waiters: set[Waiter] = set()
        """Requests that wait for something else than a ring. They look when the process is about to end."""

    @property
    def client(self) -> AsyncClient:
        """The client; it is connected when it is first asked for."""
        if self._client is None:
            given = self._given
            self._client = given if isinstance(given, AsyncClient) else connect(given, archive=self._archive)
        return self._client

    def store(self, text: str) -> AsyncStore:
        """The store that a path names: a UUID, or `_` for the server's own."""
        store_id = self.store_id(text)
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._adopt(loop)
        store = self._stores.get(store_id)
        if store is None:
            store = self._stores[store_id] = self.client.store(store_id)
            self._opened[store_id] = time.monotonic()
            most = self.limits.stores
            if most and len(self._stores) > most:
                self._close_least_used()
        else:
            self._stores.move_to_end(store_id)
        return store

    def _adopt(self, loop: asyncio.AbstractEventLoop) -> None:
        """Go on in another event loop: some adapters run each request in one of its own, and the last one is gone."""
        if self._loop is not None and not isinstance(self._given, AsyncClient):
            self._stores.clear()
            self._client = None
            self.rings = Rings(self.limits)
        self._loop = loop

    def store_id(self, text: str) -> UUID:
        """The UUID of the store that a path names."""
        if text == "_":
            store_id = self.own_store
            if store_id is None:
                raise Problem(
                    "not-found", "the server has no store of its own, so a path names one by its UUID instead of '_'"
                )
            return store_id
        try:
            return UUID(text)
        except ValueError:
            raise Problem("not-found", "a store is named by its UUID, or by '_' for the server's own") from None

    @property
    def storage(self) -> str:
        """The scheme of the URL that the stores are at; "" if the client was given."""
        if isinstance(self._given, AsyncClient):
            return ""
        url = self._given or os.environ.get("STREAMKIT_URL") or ""
        return url.partition("://")[0] if "://" in url else "file"

    def opened(self, store_id: UUID) -> float:
        """The time at which this process opened a store, by the monotonic clock."""
        return self._opened.get(store_id, time.monotonic())

    @property
    def open_stores(self) -> int:
        """The number of open stores."""
        return len(self._stores)

    def statistics(self) -> Counter[str]:
        """Counts of the open stores together."""
        counts: Counter[str] = Counter()
        for store in list(self._stores.values()):  # it may be asked for in another thread
            for name, value in msgspec.structs.asdict(store.sync.statistics()).items():
                if isinstance(value, int):
                    counts[name] += value
        return counts

    async def authenticate(self, token: bytes | None, ticket: str | None, path: bytes) -> Access:
        """The rights of a caller, by a bearer token or a ticket. A Problem if neither is good."""
        if self.is_open:
            return EVERYTHING
        if self.keys is not None:
            await self.keys.refresh()
        if ticket is not None and self.keys is not None:
            access = self.keys.ticket_access(ticket, path)
            if access is not None:
                return Access(**{**msgspec.structs.asdict(access), "scopes": frozenset(("read",)) & _reading(access)})
        scheme, _, given = (token or b"").partition(b" ")
        if scheme.lower() == b"bearer":
            text = given.strip().decode("latin-1")
            access = None if self.keys is None else self.keys.access(text)
            if access is None and self.tokens is not None:
                access = await self.tokens.access(text)
            if access is not None:
                return access
        raise refused(ticket is not None)

    @property
    def is_open(self) -> bool:
        """True if callers need neither a key nor a token."""
        return self.keys is None and self.tokens is None

    async def make_session(self, token: str, seconds: float) -> str | None:
        """A session of the console for a key or a JWT; None if it is not valid."""
        session = None
        if self.keys is not None:
            await self.keys.refresh()
            session = self.keys.session(token, seconds)
        if session is None and self.tokens is not None and await self.tokens.access(token) is not None:
            session = token
        return session

    async def session_access(self, session: str) -> Access | None:
        """The rights of a session of the console; None if it has ended."""
        access = None
        if self.keys is not None:
            await self.keys.refresh()
            access = self.keys.session_access(session)
        if access is None and self.tokens is not None:
            access = await self.tokens.access(session)
        return access

    async def redeem(self, code: str, seconds: float) -> str | None:
        """A session for a one-time code; None if there is no such code, or it was used."""
        id = self.codes.pop(code, None)
        if id is None or self.keys is None:
            return None
        await self.keys.refresh()
        return self.keys.session_of_id(id, seconds)

    def is_valid(self, access: Access) -> bool:
        """True if a caller still has the rights that its request began with."""
        if access.expires and access.expires <= time.time():
            return False
        return self.keys is None or access is EVERYTHING or access.id.startswith(TOKEN) or self.keys.has(access.id)

    def reopen(self, store_id: UUID) -> None:
        """Have the next request open a store again, because another process deleted the open one."""
        store = self._stores.pop(store_id, None)
        if store is not None:
            self.rings.end(store_id, StoreClosed("a space of the store was deleted, so the store is opened again"))
            _in_background(store)

    def _close_least_used(self) -> None:
        for store_id, store in self._stores.items():
            if not self.rings.uses(store_id):
                del self._stores[store_id]
                self._opened.pop(store_id, None)
                _in_background(store)
                return

    def drain(self) -> None:
        """End all streams and all requests that wait."""
        self.is_draining = True
        self.ticker.wake_all()
        self.rings.wake_all()
        for waiter in list(self.waiters):
            waiter.wake()

    async def close(self) -> None:
        """Close the clients and stores that the service opened itself."""
        for end in self.on_close:
            end()
        await self.rings.close()
        stores = list(self._stores.values())
        self._stores.clear()
        if self._client is not None and self._client is not self._given:
            await self._client.close()
        else:
            await asyncio.gather(*[store.close() for store in stores])
        self._client = None


def _reading(access: Access) -> frozenset[str]:
    """Return the scope `read` if the key may read: admin contains it."""
    return frozenset(("read",)) if access.scopes & {"read", "admin"} else frozenset()


def _in_background(store: AsyncStore) -> None:
    """Close a store after its running calls."""
    closing = asyncio.ensure_future(store.close())
    closing.add_done_callback(lambda closing: closing.cancelled() or closing.exception())
