"""A transaction of an import: the entries that are left of it, at the places that they had."""

from __future__ import annotations

from collections.abc import Iterable

from ..log.floors import REMOVED, Control, Removal, Removed
from ..log.partition import Partition
from ..log.record_format import KeyUse, encode_body, encode_holes, encode_transaction

__all__ = ["Frame", "ImportedTransaction"]


class Frame:
    """Consecutive entries of one segment; REMOVED for those that are gone."""

    def __init__(self, segment: str, first: int, index: int) -> None:
        self.segment = segment
        self.first = first
        self.index = index
        self.payloads: list[bytes] = []
        self.metadata: list[dict[str, str] | None] = []

    @property
    def next(self) -> int:
        return self.first + len(self.payloads)

    def add(self, payload: bytes, metadata: dict[str, str]) -> None:
        self.payloads.append(payload)
        self.metadata.append(metadata or None)

    def add_holes(self, count: int) -> None:
        self.payloads += [REMOVED["erased"]] * count
        self.metadata += [None] * count


class ImportedTransaction:
    """One transaction in the making. Holes are sequences that were erased."""

    def __init__(self, number: int, timestamp: int, id: bytes, node: bytes) -> None:
        self.number = number
        self.timestamp = timestamp
        self.id = id
        self.node = node
        self.used = 0
        """The index after its last entry."""
        self.frames: list[Frame] = []
        self.keys: list[KeyUse] = []
        self.removals: list[Removal] = []

    def add(self, segment: str, sequence: int, index: int, payload: bytes, metadata: dict[str, str], holes: int) -> int:
        """Add an entry, and before it as many of the `holes` as there is room for; how many have no room."""
        inside = min(holes, index - self.used)
        frame = self.frames[-1] if self.frames else None
        first = sequence - inside
        if (
            frame is None
            or frame.segment != segment
            or frame.next != first
            or frame.index + len(frame.payloads) != index - inside
        ):
            frame = Frame(segment, first, index - inside)
            self.frames.append(frame)
        frame.add_holes(inside)
        frame.add(payload, metadata)
        self.used = index + 1
        return holes - inside

    def append_holes(self, segment: str, first: int, count: int) -> None:
        """Add holes after everything else."""
        frame = Frame(segment, first, self.used)
        frame.add_holes(count)
        self.frames.append(frame)
        self.used += count

    def encode(self, partition: Partition) -> bytes:
        """The record, as the next one of a partition."""
        rows = partition.load_statuses(dict.fromkeys(frame.segment for frame in self.frames))
        given = {segment: row.size for segment, row in rows.items()}
        parts, sizes = [], []
        for frame in self.frames:
            metadata = frame.metadata if any(frame.metadata) else None
            encode = encode_holes if _has_holes(frame.payloads) else encode_body
            parts.append((frame.segment, frame.first, encode(frame.payloads, metadata)))
            size = sum(map(len, frame.payloads))
            sizes.append((given[frame.segment], size))
            given[frame.segment] += size
        _, record = encode_transaction(
            number=self.number,
            timestamp=self.timestamp,
            id=self.id,
            node=self.node,
            position=partition.position,
            parts=parts,
            keys=tuple(self.keys),
            seed=partition.seed,
            sizes=sizes,
            size=partition.size,
            control=Control(tuple(self.removals)) if self.removals else None,
            indexes=[frame.index for frame in self.frames],
        )
        return record


def _has_holes(payloads: Iterable[bytes]) -> bool:
    return any(isinstance(payload, Removed) for payload in payloads)
