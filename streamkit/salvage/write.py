"""Writing salvaged transactions to the new space, with the sequences that they had."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from ..errors import Unavailable
from ..log.floors import REMOVED, Control, Removal, Removed
from ..log.record_format import Header, encode_body, encode_holes
from ..log.request import Part, Request
from ..model import Entry
from ..store import inner
from .visible import Visible

if TYPE_CHECKING:
    from ..store import Store

__all__ = ["Writer"]

_HOLES = 100_000
"""Missing sequences that one transaction stands for."""
_TOGETHER = 1000
"""Segments whose beginning one transaction tells."""


class Writer:
    """Writes to one partition of the new space."""

    def __init__(self, target: Store, space: str, partition: int) -> None:
        known = inner(target).look_up(space)[0]
        if known is None:
            raise Unavailable(f"the new space {space!r} is not there: another process deletes it; salvage again")
        self._committer = known.committers[partition]
        self._window = known.settings.idempotency_window * 1000
        self._clock = known.partitions[partition].clock
        self._last: dict[str, int] = {}

    def write(self, parts: Sequence[Sequence[Entry]], header: Header | None, visible: Visible) -> None:
        """One transaction. Sequences that are missing before its entries are holes, as if they had been erased."""
        for entries in parts:
            self._reach(entries[0].segment, entries[0].sequence - 1, visible)
        request = Request([_part(entries) for entries in parts])
        if header is not None and len(header.keys) == 1:
            use = header.keys[0]
            whole = {segment for segment, _ in use.segments} == {entries[0].segment for entries in parts}
            if whole and header.timestamp >= self._clock.now() - self._window:
                request.key, request.content = use.key, use.content
        self._committer.commit(request)
        for entries in parts:
            self._last[entries[0].segment] = entries[-1].sequence

    def _reach(self, segment: str, last: int, visible: Visible) -> None:
        """Bring a segment to its sequence `last` without entries."""
        reached = self._last.get(segment, 0)
        if not reached:
            floor = last if visible.trimmed else min(last, visible.removed.get(segment, (0, ""))[0])
            if floor:
                reason = visible.removed.get(segment, (0, "trimmed"))[1] or "trimmed"
                self._remove([Removal(segment, floor, reason)])
                reached = floor
        while reached < last:
            count = min(last - reached, _HOLES)
            body = encode_holes([REMOVED["erased"]] * count, None)
            self._committer.commit(Request([Part(segment, body, 0, reached)]))
            reached += count

    def end(self, visible: Visible) -> None:
        """Segments go on after the last sequence that they had, also if it is lost or nothing is left of them."""
        gone = (
            Removal(segment, last, reason)
            for segment, (last, reason) in visible.removed.items()
            if self._last.get(segment, 0) < last
        )
        while some := list(islice(gone, _TOGETHER)):
            self._remove(some)
        for segment, last in visible.ends.items():
            self._reach(segment, last, visible)

    def _remove(self, removals: Iterable[Removal]) -> None:
        self._committer.commit(Request((), control=Control(tuple(removals))))


def _part(entries: Sequence[Entry]) -> Part:
    payloads = [entry.payload for entry in entries]
    metadata = [dict(entry.metadata) or None for entry in entries]
    encode = encode_holes if any(isinstance(payload, Removed) for payload in payloads) else encode_body
    body = encode(payloads, metadata if any(metadata) else None)
    size = sum(map(len, payloads))
    return Part(entries[0].segment, body, size, entries[0].sequence - 1)
