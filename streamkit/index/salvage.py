"""Salvage: the facts that only the index knows, from the readable parts of a damaged index.

For transactions that have left the log, only the index knows their idempotency keys, the tokens of their leases, and
the removals from segments. Each block has its own checksum, so the blocks beside a damaged one are intact. Two rows
with one key tell by themselves which one is newer. So no head is needed, and an older row replaces an unreadable one.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from ..backend import Backend, Range
from ..errors import CorruptData
from ..log.index_rows import decode_index_row
from ..log.keys import ARCHIVE, FENCES, KEYS, RUNS, SEGMENTS, run_key, segment_name
from ..log.manifest import Manifest, RunFile, RunGone
from ..log.ranges import read_ranges
from ..log.rows import ArchiveRow, FenceRow, KeyRow, SegmentRow, decode_row
from .run_format import Block, decode_inline, salvage_section

__all__ = ["Salvage", "had_head"]

_ID = 16
_STEP = 1 << 10
_ALL = b"", b"\xff" * 301
_HEAD = "the head"
_SEGMENTS, _KEYS, _FENCES = (tuple(map(bytes, prefix.children())) for prefix in (SEGMENTS, KEYS, FENCES))

_MEANINGS = (
    (
        _SEGMENTS,
        "the removals from segments{}, and their sizes (trim or delete entries again if they are back; an empty "
        "segment begins again at sequence 1)",
    ),
    (_KEYS, "idempotency keys (a repeated write with such a key is committed again)"),
    (_FENCES, "the tokens of leases{} (an earlier holder of a lease may write again)"),
)


class _Lost(NamedTuple):
    """The rows with low <= key < high that were in `where`, which cannot be read."""

    where: str
    low: bytes
    high: bytes

    def names(self, span: tuple[bytes, ...]) -> str | None:
        """The range of names in `span` whose rows may be lost, as text; None if the lost range has no key in `span`."""
        start, end = span
        if self.low >= end or self.high <= start:
            return None
        low, high = (key[len(start) :].rstrip(b"\x00").decode(errors="replace") for key in (self.low, self.high))
        if self.low <= start or self.high >= end:
            return (f" from {low!r} on" if self.low > start else "") + (f" up to {high!r}" if self.high < end else "")
        return f" from {low!r} to {high!r}" if low != high else f" {low!r}"


class Salvage:
    """Rows of segments, idempotency keys and leases, of each the newest that was found."""

    def __init__(self, backend: Backend, partition: bytes, seed: int) -> None:
        self.segments: dict[str, SegmentRow] = {}
        self.keys: dict[bytes, KeyRow] = {}
        self.leases: dict[bytes, FenceRow] = {}
        self._backend = backend
        self._partition = partition
        self._seed = seed
        self._lost: list[_Lost] = []

    def add(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        for key, data in rows:
            try:
                if _SEGMENTS[0] <= key < _SEGMENTS[1]:
                    name, row = segment_name(key), decode_index_row(SegmentRow, key, data)
                    known = self.segments.get(name, row)
                    if (row.last_sequence, row.first_sequence) >= (known.last_sequence, known.first_sequence):
                        self.segments[name] = row
                elif _KEYS[0] <= key < _KEYS[1]:
                    use = decode_index_row(KeyRow, key, data)
                    if use.number >= self.keys.get(key, use).number:
                        self.keys[key] = use
                elif _FENCES[0] <= key < _FENCES[1]:
                    fence = decode_index_row(FenceRow, key, data)
                    if fence.token >= self.leases.get(key, fence).token:
                        self.leases[key] = fence
            except CorruptData:
                self._lost.append(_Lost(f"the row {key!r}", key, key + b"\x00"))

    def add_manifest(self, manifest: Manifest) -> None:
        """Add the readable rows of the runs that a head names."""
        if manifest.inline:
            try:
                self._add_block(decode_inline(manifest.inline, self._seed))
            except CorruptData:
                self._lost.append(_Lost(_HEAD, *_ALL))
        for file in manifest.files():
            blocks, lost = salvage_section(self._read(file), file, self._seed)
            for block in blocks:
                self._add_block(block)
            self._lost += [_Lost(f"the run {run_key(file.id)!r}", low, high) for low, high in lost]

    def add_all(self) -> None:
        """Add the readable rows of every run in storage, because the head is lost.

        A run is read up to its first damaged block.
        """
        self._lost.append(_Lost(_HEAD, *_ALL))
        for row in list(self._backend.scan(self._partition, *map(bytes, RUNS.children()), values=False)):
            try:
                value = self._backend.get(self._partition, [row.key])[0]
            except CorruptData:
                continue
            data = b"" if value is None else value.data
            unnamed = RunFile(row.key[-_ID:], "", 0, len(data), 0, *_ALL, 0)
            for block in salvage_section(data, unnamed, self._seed)[0]:
                self._add_block(block)

    def _add_block(self, block: Block) -> None:
        self.add(zip(block.keys(0, block.rows), block.values(0, block.rows), strict=True))

    def _read(self, file: RunFile) -> bytes:
        """A section, with zeros for the parts that the storage refuses as damaged; empty if it is missing."""

        def part(start: int, length: int) -> bytes:
            wanted = Range(run_key(file.id), file.start + start, length, file.etag or None)
            return read_ranges(self._backend, self._partition, [wanted])[0]

        try:
            return part(0, file.length)
        except RunGone:
            return b""
        except CorruptData:
            data = bytearray(file.length)
            for at in range(0, file.length, _STEP):
                with suppress(CorruptData):
                    data[at : at + _STEP] = part(at, min(_STEP, file.length - at))
            return bytes(data)

    def forgotten(self) -> str:
        """A text that names the unreadable places and the rows that may be lost with them; empty if nothing is lost."""
        told: list[str] = []
        places: dict[str, None] = {}
        for span, meaning in _MEANINGS:
            names = {one: names for one in self._lost if (names := one.names(span)) is not None}
            if names:
                told.append(meaning.format("" if "" in names.values() else ",".join(dict.fromkeys(names.values()))))
                places.update(dict.fromkeys(one.where for one in names))
        return f"{', '.join(places)} cannot be read, and forgotten may be " + "; ".join(told) if told else ""


def had_head(backend: Backend, partition: bytes, seed: int) -> bool:
    """True if a partition lost its head: there are files that a head names, or a note of entries that left the log."""
    note = backend.get(partition, [bytes(ARCHIVE)])[0]
    with suppress(CorruptData):
        if note is not None and decode_row(ArchiveRow, ARCHIVE, note.data).removed:
            return True
    return has_files(backend, partition, seed)


def has_files(backend: Backend, partition: bytes, seed: int) -> bool:
    """True if there are files of a partition's index with statuses of segments. It asks the storage."""
    found = Salvage(backend, partition, seed)
    found.add_all()
    return bool(found.segments)
