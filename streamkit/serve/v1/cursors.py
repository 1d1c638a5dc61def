"""Cursors of streams: where a connection is in a segment, or in a space."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from ...aio import AsyncStore
from ...gaps import Gap
from ...lexkey import LexKey
from ...log.offsets import Offset
from ...model import Entry
from ...store import Store
from ..encoding import entry_line
from ..ring import EncodedBatch, Item, last_entry, place_of
from ..sse import event
from .composite import cursor_text
from .pages import joined, places_past_gaps
from .parameters import Reading

__all__ = ["SegmentCursor", "SeveralCursor", "SpaceCursor"]

_ENTRIES = 1_000
_BYTES = 1 << 20
"""The size of one page from the store."""


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
    """The first items, and True if there are no more. The next page begins after the last entry, because a gap has no
    place. So a page ends with an entry if there are more."""
    items: list[Item] = []
    size = 0
    has_entry = False
    for entry in joined(entries):
        items.append(Item(entry, entry_line(entry)))
        size += len(items[-1].data)
        has_entry = has_entry or type(entry) is Entry
        if has_entry and (len(items) >= _ENTRIES or size >= _BYTES):
            while type(items[-1].what) is Gap:
                items.pop()
            return items, False
    return items, True


class SegmentCursor:
    """A cursor after a sequence of a segment."""

    def __init__(self, store: AsyncStore, space: str, segment: str, after: int, bounds: Reading) -> None:
        self.segment: str = segment
        self._store = store
        self._space = space
        self._after = after
        self._bounds = bounds

    async def page(self) -> tuple[bytes, bool]:
        items, is_end = await self._store.calls.call(self._read, self._store.sync)
        return self._given(items), is_end

    def _read(self, store: Store) -> tuple[list[Item], bool]:
        entries = store.consume_segment(
            self._space,
            self.segment,
            min_sequence=self._after + 1 if self._after else 0,
            min_timestamp=self._bounds.min_timestamp,
            gaps=self._bounds.gaps,  # type: ignore[arg-type]
        )
        return _page(entries)

    def _given(self, items: list[Item]) -> bytes:
        if not items:
            return b""
        self._after = max(map(_sequence, items))
        return _events(items, str(self._after))

    def batch(self, at: int, batch: EncodedBatch) -> bytes:
        items = batch.by_segment.get(self.segment)
        if items is None:
            return b""
        if _sequence(items[0]) > self._after and (batch.gaps == 0 or self._bounds.gaps == "yield"):
            self._after = _sequence(items[-1])
            return batch.frame(self.segment, items, lambda items: _events(items, str(_sequence(items[-1]))))
        kept = [item for item in _listed(items, self._bounds) if _sequence(item) > self._after]
        return self._given(kept)

    def caught_up(self) -> bytes:
        return event("caught-up", b'{"next":%d}' % self._after, str(self._after))


def _listed(items: list[Item], bounds: Reading) -> list[Item]:
    """The items, without gaps if the caller wants none."""
    return items if bounds.gaps == "yield" else [item for item in items if type(item.what) is Entry]


def _sequence(item: Item) -> int:
    """The last sequence that an item is about."""
    what = item.what
    return what.last_sequence if type(what) is Gap else what.sequence  # type: ignore[union-attr]


class SpaceCursor:
    """A cursor after an offset of a space."""

    segment = None

    def __init__(self, store: AsyncStore, space: str, offset: LexKey | None, bounds: Reading) -> None:
        self._store = store
        self._space = space
        self._bounds = bounds
        self._offset: LexKey = Offset.beginning(space).encode() if offset is None else offset
        self._last: Entry | None = None
        """The last entry that it returned. `_offset` is older then, and is computed when it is asked for."""

    @property
    def offset(self) -> LexKey:
        """The cursor after the returned items."""
        if self._last is not None:
            self._offset, self._last = self._last.space_offset, None
        return self._offset

    async def page(self) -> tuple[bytes, bool]:
        items, is_end = await self._store.calls.call(self._read, self._store.sync, self.offset)
        last = last_entry(items)
        if last is not None:
            self.reached(last)
        return _events(items, self.offset.hex()), is_end

    def reached(self, entry: Entry) -> None:
        """Move the cursor after `entry`, which was read from its present place."""
        self._last = entry

    def move(self, offset: LexKey) -> None:
        """Move the cursor to an offset that is after its present place."""
        self._offset, self._last = offset, None

    def _read(self, store: Store, offset: LexKey) -> tuple[list[Item], bool]:
        entries = store.consume_space(
            self._space,
            offset=offset,
            min_timestamp=self._bounds.min_timestamp,
            gaps=self._bounds.gaps,  # type: ignore[arg-type]
        )
        return _page(entries)

    def batch(self, at: int, batch: EncodedBatch) -> bytes:
        items = self.fresh(batch)
        last = batch.last
        if items is batch.items and self._last is last is not None:
            return batch.frame(None, items, lambda items: _events(items, last.space_offset.hex()))
        return _events(items, self.offset.hex())

    def fresh(self, batch: EncodedBatch) -> list[Item]:
        """Return the items of a batch that were not given yet, and move behind the batch."""
        last, first = batch.last, batch.first
        if last is None or first is None:
            return _listed(batch.items, self._bounds)
        if last.origin.partitions == 1:
            seen = self._last
            if place_of(first) > place_of(seen) if seen is not None else self._is_before(first):
                self._last = last
                return batch.items if batch.gaps == 0 else _listed(batch.items, self._bounds)
        return self._merge(_listed(batch.items, self._bounds), last)

    def _is_before(self, entry: Entry) -> bool:
        return place_of(entry) >= Offset.decode(self._offset, self._space).position(0)

    def _merge(self, items: list[Item], last: Entry) -> list[Item]:
        """Return the new items of a batch. The connection may have seen the others in another order of partitions."""
        seen = Offset.decode(self.offset, self._space)

        def is_new(what: Entry | Gap) -> bool:
            return type(what) is not Entry or place_of(what) >= seen.position(what.origin.partition)

        items = [item for item in items if is_new(item.what)]
        if items:
            reached = Offset.decode(last.space_offset, self._space)
            if len(seen.positions) == len(reached.positions):
                positions = tuple(map(max, reached.positions, seen.positions))
                reached = reached._replace(positions=positions, timestamp=max(reached.timestamp, seen.timestamp))
            self._offset = reached.encode()
        return items

    def caught_up(self) -> bytes:
        offset = self.offset.hex()
        return event("caught-up", b'{"next":"%b"}' % offset.encode(), offset)


class SeveralCursor:
    """A cursor after the offsets of several spaces. Each entry tells its space."""

    segment = None

    def __init__(self, store: AsyncStore, offsets: Mapping[str, LexKey | None], bounds: Reading) -> None:
        self._store = store
        self._bounds = bounds
        self._cursors = {space: SpaceCursor(store, space, offset, bounds) for space, offset in offsets.items()}
        self._spaces = list(offsets)

    @property
    def text(self) -> str:
        """The composite cursor after the returned items."""
        return cursor_text({space: cursor.offset for space, cursor in self._cursors.items()})

    async def page(self) -> tuple[bytes, bool]:
        offsets = {space: cursor.offset for space, cursor in self._cursors.items()}
        items, is_end, places = await self._store.calls.call(self._read, self._store.sync, offsets)
        for space, place in places.items():
            self._cursors[space].move(place)
        for item in items:
            if type(item.what) is Entry:
                self._cursors[item.what.space].reached(item.what)
        return self._events(items), is_end

    def _read(self, store: Store, offsets: Mapping[str, LexKey]) -> tuple[list[Item], bool, dict[str, LexKey]]:
        since, gaps = self._bounds.min_timestamp, self._bounds.gaps
        items, is_end = _page(store.consume(offsets, min_timestamp=since, gaps=gaps))  # type: ignore[arg-type]
        if is_end:
            return items, True, {}
        more, places = places_past_gaps(store, offsets, [item.what for item in items], since)
        return items + [Item(gap, entry_line(gap)) for gap in more], False, places

    def _events(self, items: list[Item]) -> bytes:
        if not items:
            return b""
        told = [
            item
            if type(item.what) is Gap
            else Item(item.what, b'{"space":%b,%b' % (_text(item.what.space), item.data[1:]))
            for item in items
        ]
        return _events(told, self.text)

    def batch(self, at: int, batch: EncodedBatch) -> bytes:
        return self._events(self._cursors[self._spaces[at]].fresh(batch))

    def caught_up(self) -> bytes:
        text = self.text
        return event("caught-up", b'{"next":"%b"}' % text.encode(), text)


_text = lru_cache(4096)(msgspec.json.encode)
