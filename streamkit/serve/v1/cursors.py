"""Cursors of streams: where a connection is in a segment, or in a space."""

from __future__ import annotations

from collections.abc import Iterable

from ...aio import AsyncStore
from ...gaps import Gap
from ...lexkey import LexKey
from ...log.offsets import Offset
from ...model import Entry
from ...store import Store
from ..encoding import entry_line
from ..ring import Batch, Item, last_entry, place_of
from ..sse import event

__all__ = ["SegmentCursor", "SpaceCursor"]

_ENTRIES = 1_000
_BYTES = 1 << 20
"""Of one page from the store."""


def _events(items: Iterable[Item], id: str | None) -> bytes:
    """Runs of entries are one event each, and so is each gap. The last one has the `id`."""
    found: list[tuple[str, bytes]] = []
    run: list[bytes] = []
    for item in items:
        if type(item.what) is Gap:
            if run:
                found.append(("entries", b"[%b]" % b",".join(run)))
                run = []
            found.append(("gap", item.data))
        else:
            run.append(item.data)
    if run:
        found.append(("entries", b"[%b]" % b",".join(run)))
    last = len(found) - 1
    return b"".join([event(name, data, id if at == last else None) for at, (name, data) in enumerate(found)])


def _page(entries: Iterable[Entry | Gap]) -> tuple[list[Item], bool]:
    """The first items, and whether there are no more."""
    items: list[Item] = []
    size = 0
    for entry in entries:
        items.append(Item(entry, entry_line(entry)))
        size += len(items[-1].data)
        if len(items) >= _ENTRIES or size >= _BYTES:
            return items, False
    return items, True


class SegmentCursor:
    """After a sequence of a segment."""

    def __init__(self, store: AsyncStore, space: str, segment: str, after: int) -> None:
        self.segment: str = segment
        self._store = store
        self._space = space
        self._after = after

    async def page(self) -> tuple[bytes, bool]:
        items, is_end = await self._store.calls.call(self._read, self._store.sync)
        return self._given(items), is_end

    def _read(self, store: Store) -> tuple[list[Item], bool]:
        return _page(store.consume_segment(self._space, self.segment, min_sequence=self._after + 1, gaps="yield"))

    def _given(self, items: list[Item]) -> bytes:
        if not items:
            return b""
        self._after = _sequence(items[-1])
        return _events(items, str(self._after))

    def batch(self, batch: Batch) -> bytes:
        items = batch.by_segment.get(self.segment)
        if items is None:
            return b""
        if _sequence(items[0]) > self._after:
            self._after = _sequence(items[-1])
            return batch.frame(self.segment, items, lambda items: _events(items, str(_sequence(items[-1]))))
        return self._given([item for item in items if _sequence(item) > self._after])

    def caught_up(self) -> bytes:
        return event("caught-up", b'{"next":%d}' % self._after, str(self._after))


def _sequence(item: Item) -> int:
    """The last sequence that an item is about."""
    what = item.what
    return what.last_sequence if type(what) is Gap else what.sequence  # type: ignore[union-attr]


class SpaceCursor:
    """After an offset of a space."""

    segment = None

    def __init__(self, store: AsyncStore, space: str, offset: LexKey | None) -> None:
        self._store = store
        self._space = space
        self._offset: LexKey = Offset.beginning(space).encode() if offset is None else offset
        self._last: Entry | None = None
        """The last one that it gave: `_offset` is older then, and made anew when it is asked for."""

    @property
    def offset(self) -> LexKey:
        """After what it has given."""
        if self._last is not None:
            self._offset, self._last = self._last.space_offset, None
        return self._offset

    async def page(self) -> tuple[bytes, bool]:
        items, is_end = await self._store.calls.call(self._read, self._store.sync, self.offset)
        last = last_entry(items)
        if last is not None:
            self._last = last
        return _events(items, self.offset.hex()), is_end

    def _read(self, store: Store, offset: LexKey) -> tuple[list[Item], bool]:
        return _page(store.consume_space(self._space, offset=offset, gaps="yield"))

    def batch(self, batch: Batch) -> bytes:
        last, first = batch.last, batch.first
        if last is None or first is None:
            return _events(batch.items, None)
        if last.origin.partitions == 1:
            seen = self._last
            if place_of(first) > place_of(seen) if seen is not None else self._is_before(first):
                self._last = last
                return batch.frame(None, batch.items, lambda items: _events(items, last.space_offset.hex()))
        return self._merge(batch, last)

    def _is_before(self, entry: Entry) -> bool:
        return place_of(entry) >= Offset.decode(self._offset, self._space).position(0)

    def _merge(self, batch: Batch, last: Entry) -> bytes:
        """Of a batch of which the connection may have seen a part, maybe in another order of the partitions."""
        seen = Offset.decode(self.offset, self._space)

        def is_new(what: Entry | Gap) -> bool:
            return type(what) is not Entry or place_of(what) >= seen.position(what.origin.partition)

        items = [item for item in batch.items if is_new(item.what)]
        if not items:
            return b""
        reached = Offset.decode(last.space_offset, self._space)
        if len(seen.positions) == len(reached.positions):
            positions = tuple(map(max, reached.positions, seen.positions))
            reached = reached._replace(positions=positions, timestamp=max(reached.timestamp, seen.timestamp))
        self._offset = reached.encode()
        return _events(items, self._offset.hex())

    def caught_up(self) -> bytes:
        offset = self.offset.hex()
        return event("caught-up", b'{"next":"%b"}' % offset.encode(), offset)
