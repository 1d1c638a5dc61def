"""The dispatcher of one process: it follows the streams, wakes subscriptions, and sends webhooks.

Every process of a store may run one. A wake is a conditional write, so one of them wins. The dispatcher keeps nothing
that is not in the log: after a start it compares all positions with the tails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from ...decoders import json_decoder
from ...errors import InvalidOffset, StoreClosed, StreamkitError
from ...model import Entry
from .registry import LIST, PREFIX, Kept, Registry, kept_of
from .state import Refused, has_state, is_data, state_of
from .subscriptions import Subscription, acked, is_match, pending, streams_of
from .webhooks import check_url, send

if TYPE_CHECKING:
    from .streams import Streams

__all__ = ["Dispatcher"]

_log = logging.getLogger("streamkit.serve")
_LOOK_SECONDS = 30.0
"""Seconds between two looks whether there are subscriptions at all, and after an error."""


class Dispatcher:
    """Runs until it is cancelled. `loopback`: webhooks may go to this machine."""

    def __init__(self, streams: Streams, registry: Registry, *, loopback: bool) -> None:
        self._streams = streams
        self._registry = registry
        self._loopback = loopback
        self._kept: dict[str, Kept] = {}
        self._tails: dict[str, int] = {}
        self._gone: set[str] = set()
        """Streams that were deleted. Subscriptions drop the links that only their pattern made, once they are idle."""
        self._wake = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look now whether there are subscriptions."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        else:
            self._wake.set()

    def close(self) -> None:
        """End."""
        for task in (self._task, *self._sending):
            if task is not None:
                task.cancel()

    # -- the loop -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                if await self._registry.ids():
                    await self._follow()
            except StoreClosed:
                return
            except (StreamkitError, Refused) as error:
                _log.warning("the subscriptions of store %s wait: %s", self._streams.store.id, error)
            await _wait(self._wake, _LOOK_SECONDS)

    async def _follow(self) -> None:
        streams = self._streams
        offset = await streams.store.end_offset(streams.space)
        await self._start_over()
        entries = streams.store.follow_space(streams.space, offset=offset)
        coming: asyncio.Task[Entry] | None = None
        try:
            while self._kept:
                if coming is None:
                    coming = asyncio.ensure_future(anext(entries))
                await asyncio.wait((coming,), timeout=self._pause())
                if coming.done():
                    try:
                        await self._see(coming.result())
                    except InvalidOffset:
                        return
                    finally:
                        coming = None
                else:
                    await self._look_at_all()
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.wait([coming])
            await entries.aclose()

    async def _start_over(self) -> None:
        loaded = await self._registry.load_all(await self._registry.ids())
        self._kept = {id: kept for id, kept in loaded.items() if kept.subscription is not None}
        paths = {path for kept in self._kept.values() if kept.subscription for path in kept.subscription.links}
        self._tails = await self._registry.tails(paths)
        self._gone = paths - self._tails.keys()
        await self._look_at_all()
        await self._find_new_streams()

    async def _find_new_streams(self) -> None:
        """Link the streams that match a pattern and were created while nothing followed."""
        kept = [kept.subscription for kept in self._kept.values() if kept.subscription is not None]
        if all(subscription.config.pattern is None for subscription in kept):
            return
        async for path in self._registry.paths():
            for subscription in kept:
                pattern = subscription.config.pattern
                if pattern is not None and path not in subscription.links and is_match(pattern, path):
                    self._tails |= await self._registry.tails([path])
                    if path in self._tails:
                        self._gone.discard(path)
                        await self._try(self._kept[subscription.id], path)

    def _pause(self) -> float:
        """Seconds until a lease ends or a delivery is tried again."""
        due = [kept.subscription.due() for kept in self._kept.values() if kept.subscription is not None]
        times = [at for at in due if at is not None]
        if not times:
            return 3600.0
        return max((min(times) - self._streams.clock.now()) / 1000, 0.01)

    async def _see(self, entry: Entry) -> None:
        """Take note of a committed entry."""
        if entry.segment.startswith(PREFIX):
            kept = kept_of(entry)
            id = json_decoder(_Named).decode(entry.payload).id
            if kept.subscription is None:
                self._kept.pop(id, None)
            else:
                links = kept.subscription.links
                if id in self._kept:
                    # Messages that were erased meanwhile must not wake it again.
                    is_idle = kept.subscription.is_idle(self._streams.clock.now())
                    behind = [path for path, link in links.items() if is_idle and self._tails.get(path, 0) > link.acked]
                else:
                    behind = list(links)
                self._kept[id] = kept
                self._tails |= await self._registry.tails(behind)
                await self._try(kept)
        elif entry.segment == LIST:
            new = [id for id in await self._registry.ids() if id not in self._kept]
            self._kept |= await self._registry.load_all(new)
        elif not entry.segment.startswith("__ds/"):
            await self._see_stream(entry)

    async def _see_stream(self, entry: Entry) -> None:
        path = entry.segment
        interested = [
            kept
            for kept in self._kept.values()
            if kept.subscription is not None
            and (
                path in kept.subscription.links
                or (kept.subscription.config.pattern and is_match(kept.subscription.config.pattern, path))
            )
        ]
        if not interested:
            return
        state = state_of(entry) if has_state(entry) else (await self._streams.load(path)).state
        if state is None or state.gone:
            self._tails.pop(path, None)
            self._gone.add(path)
            for kept in interested:
                await self._try(kept)
            return
        self._gone.discard(path)
        self._tails[path] = max(self._tails.get(path, 0), state.tail)
        if is_data(entry):
            for kept in interested:
                await self._try(self._kept.get(kept.subscription.id, kept) if kept.subscription else kept, path)

    async def _look_at_all(self) -> None:
        for kept in list(self._kept.values()):
            await self._try(kept)

    # -- waking -------------------------------------------------------------------------------------------------

    async def _try(self, kept: Kept, path: str | None = None) -> None:
        """Wake the subscription if it is idle and has pending work. `path`: a stream that got a message."""
        while kept.subscription is not None:
            subscription = kept.subscription
            now = self._streams.clock.now()
            links = subscription.links
            if path is not None and path not in links and subscription.config.pattern is not None:
                state = (await self._streams.load(path)).state
                if state is not None:
                    subscription = subscription.linked(path, state.parts(path)[0].after)
            if subscription.is_idle(now):
                subscription = subscription.without(self._gone)
            if not subscription.is_idle(now) or not pending(subscription, self._tails):
                if subscription is kept.subscription or await self._registry.replace(kept, subscription):
                    return
            else:
                woken = subscription.woken(f"w_{secrets.token_hex(12)}", now, self._tails_of(subscription))
                if await self._write_wake(kept, woken, path):
                    return
            kept = await self._registry.load(subscription.id)
            self._kept[subscription.id] = kept

    def _tails_of(self, subscription: Subscription) -> dict[str, int]:
        return {path: self._tails[path] for path in subscription.links if path in self._tails}

    async def _write_wake(self, kept: Kept, woken: Subscription, path: str | None) -> bool:
        """Commit the wake; then send its webhook. False if another write came first."""
        if woken.config.type == "webhook":
            if not await self._registry.replace(kept, woken):
                return False
            self._kept[woken.id] = Kept(kept.sequence + 1, woken)
            task = asyncio.create_task(self._deliver(woken))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
            return True
        behind = [name for name, link in woken.links.items() if self._tails.get(name, 0) > link.acked]
        event = {
            "type": "wake",
            "subscription_id": woken.id,
            "stream": path if path in behind else behind[0],
            "generation": woken.generation,
            "ts": self._streams.clock.now(),
        }
        try:
            return await self._registry.replace_and_tell(kept, woken, msgspec.json.encode(event))
        except Refused as refused:
            _log.warning("the wake stream of a subscription takes no event: %s", refused.reason)
            assert kept.subscription is not None
            return await self._registry.replace(kept, kept.subscription.failed(self._streams.clock.now()))

    async def _deliver(self, woken: Subscription) -> None:
        """Send the webhook of a wake. Its answer may say that all is done."""
        assert woken.config.webhook is not None
        assert woken.wake is not None
        registry = self._registry
        try:
            signer = await registry.signer()
            body = msgspec.json.encode(
                {
                    "subscription_id": woken.id,
                    "wake_id": woken.wake,
                    "generation": woken.generation,
                    "streams": streams_of(woken, woken.snapshot),
                    "callback_url": f"{woken.url}/__ds/subscriptions/{quote(woken.id, safe='')}/callback",
                    "callback_token": signer.token(woken.id, woken.generation, woken.wake),
                }
            )
            target = check_url(woken.config.webhook.url, loopback=self._loopback)
            answer = await asyncio.to_thread(send, target, body, signer.sign(body))
            done = isinstance(answer, dict) and answer.get("done") is True
        except (OSError, Refused) as error:
            _log.warning("a webhook could not be delivered and is tried again: %s", error)
            await self._after(woken, lambda now: now.failed(self._streams.clock.now()))
            return
        if done:
            await self._after(woken, lambda now: acked(now, woken.snapshot, {}).released())

    async def _after(self, woken: Subscription, change: Callable[[Subscription], Subscription]) -> None:
        """Change the subscription if its wake is still the same."""
        try:
            await self._registry.change(woken.id, lambda now: change(now) if now.wake == woken.wake else now)
        except (StreamkitError, Refused) as error:
            _log.warning("the state after a webhook could not be written: %s", error)


class _Named(msgspec.Struct):
    id: str


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
