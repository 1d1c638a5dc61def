"""The ring: the latest entries of a space, each encoded once, for all connections of the process that follow it.

One follower fills it. A connection is a cursor on it: the number of the batch that comes next. A connection that falls
behind the oldest batch reads from the store again, so a slow client costs the others nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..aio import AsyncStore
from ..errors import TransientError
from ..gaps import Gap
from ..model import Entry
from .waiting import Waiter

__all__ = ["Encode", "EncodedBatch", "Item", "Ring", "last_entry", "place_of"]

Encode = Callable[[Entry | Gap], bytes]
Place = tuple[int, int]
"""(number of the transaction, index in it)"""

_PAUSE = 0.2, 5.0
"""Seconds between two tries of the follower, at first and at most."""


def place_of(entry: Entry) -> Place:
    """Return the place of an entry in its partition."""
    origin = entry.origin
    return entry.trx.number, origin.index + entry.sequence - origin.first_sequence


class Item:
    """An entry, or a gap, and its encoded form."""

    __slots__ = ("data", "what")

    def __init__(self, what: Entry | Gap, data: bytes) -> None:
        self.what = what
        self.data = data


def first_entry(items: Iterable[Item]) -> Entry | None:
    """The first entry among them; None if there are only gaps."""
    return next((item.what for item in items if type(item.what) is Entry), None)


def last_entry(items: Sequence[Item]) -> Entry | None:
    """The last entry among them; None if there are only gaps."""
    return first_entry(reversed(items))


class EncodedBatch:
    """The entries that the follower found at one look. `frame` keeps their encodings for all connections."""

    __slots__ = ("by_segment", "first", "frames", "gaps", "items", "last", "size")

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.size = sum([len(item.data) for item in items])
        self.gaps = sum([type(item.what) is Gap for item in items])
        self.by_segment: dict[str, list[Item]] = {}
        for item in items:
            self.by_segment.setdefault(item.what.segment, []).append(item)
        self.first = first_entry(items)
        self.last = last_entry(items)
        self.frames: dict[Any, bytes] = {}

    def frame(self, key: Any, items: list[Item], make: Callable[[list[Item]], bytes]) -> bytes:
        """make(items), made once for each `key`."""
        frame = self.frames.get(key)
        if frame is None:
            frame = self.frames[key] = make(items)
        return frame


class Ring:
    """Holds the latest batches of one space, at most `most` bytes of them, and wakes its listeners.

    Batches are numbered from 0: `first` is the oldest one in the ring, `end` the number of the next one. Every entry
    that is committed after `start` has returned comes in a batch from the `end` of that moment on.
    """

    def __init__(self, store: AsyncStore, space: str, most: int, encode: Encode) -> None:
        self.store = store
        self.space = space
        self.first = 0
        self.end = 0
        self.misses = 0
        """The number of times that a connection had to read from the store again."""
        self.error: Exception | None = None
        """Why it has ended, if it has."""
        self._most = most
        self._size = 0
        self._encode = encode
        self._batches: deque[EncodedBatch] = deque()
        self._found: list[Item] = []
        self._listeners: dict[str | None, dict[Waiter, None]] = {}
        self._starting: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when the follower has its place. The first call starts it."""
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_future()
            self._task = asyncio.ensure_future(self._follow(self._starting))
        await asyncio.wait((self._starting,))
        self._starting.result()

    async def _follow(self, starting: asyncio.Future[None]) -> None:
        offset: Any = None
        last: Entry | None = None
        pause = _PAUSE[0]
        while True:
            try:
                if offset is None:
                    offset = await self.store.end_offset(self.space)
                    starting.set_result(None)
                if last is not None:
                    offset = last.space_offset
                async for found in self.store.follow_space(self.space, offset=offset, gaps="yield"):
                    if not self._found:
                        # The follower hands out the entries of one look without a pause: this is called after it.
                        asyncio.get_running_loop().call_soon(self._publish)
                    self._found.append(Item(found, self._encode(found)))
                    if type(found) is Entry:
                        last = found
                        pause = _PAUSE[0]
            except TransientError as error:
                if offset is None:
                    self._fail(error, starting)
                    return
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE[1])
            except Exception as error:
                self._publish()
                self._fail(error, starting)
                return

    def _fail(self, error: Exception, starting: asyncio.Future[None]) -> None:
        self.error = error
        if not starting.done():
            starting.set_exception(error)
            starting.exception()  # waiters are woken; there may be none
        self.wake_all()

    def _publish(self) -> None:
        found, self._found = self._found, []
        if not found:
            return
        batch = EncodedBatch(found)
        self._batches.append(batch)
        self.end += 1
        self._size += batch.size
        while self._size > self._most and len(self._batches) > 1:
            self._size -= self._batches.popleft().size
            self.first += 1
        for segment in batch.by_segment:
            self._wake(segment)
        self._wake(None)
        if "" in batch.by_segment:  # a gap of the whole space
            self.wake_all()

    def _wake(self, segment: str | None) -> None:
        for waiter in self._listeners.get(segment, ()):
            waiter.wake()

    def wake_all(self) -> None:
        """Have every listener look."""
        for listeners in self._listeners.values():
            for waiter in listeners:
                waiter.wake()

    def batches(self, number: int) -> Iterator[EncodedBatch]:
        """The batches from `number` on; it is not below `first`."""
        at = number - self.first
        if at == len(self._batches) - 1:
            return iter((self._batches[-1],))
        return iter([self._batches[index] for index in range(at, len(self._batches))])

    def listen(self, waiter: Waiter, segment: str | None = None) -> None:
        """Wake `waiter` for every batch, or for those with entries of `segment`, until `unlisten`."""
        self._listeners.setdefault(segment, {})[waiter] = None

    def unlisten(self, waiter: Waiter, segment: str | None = None) -> None:
        listeners = self._listeners.get(segment)
        if listeners is not None:
            listeners.pop(waiter, None)
            if not listeners:
                del self._listeners[segment]

    @property
    def listeners(self) -> int:
        """The number of waiters."""
        return sum(map(len, self._listeners.values()))

    def end_with(self, error: Exception) -> None:
        """Have the listeners end, because of `error`."""
        self.error = error
        self.wake_all()

    def stop(self) -> None:
        """End the follower."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """End the follower, and wait for its end."""
        self.stop()
        if self._task is not None:
            await asyncio.wait((self._task,))
