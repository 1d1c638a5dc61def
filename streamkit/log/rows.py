"""The rows beside the log: their values and how they are packed. Each carries a checksum over its key and its bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from ..checksum import crc32
from ..decoders import Decoders
from ..errors import CorruptData, UnsupportedVersion
from .floors import Changed, Erasure, Floor, Reason, Removal, Retained
from .manifest import Manifest
from .packs import PackFile
from .watermarks import Watermarks

__all__ = [
    "NOTHING",
    "ArchiveRow",
    "DataRow",
    "EntryPlace",
    "ErasedRow",
    "FenceRow",
    "GraceRow",
    "Head",
    "KeyRow",
    "Piece",
    "SegmentRow",
    "Settings",
    "decode_row",
    "encode_row",
]

VERSION = 4
"""The format of every row. 3: of a release without inbox, which is to stop here and not at the next transaction."""
_OLDEST = 3
"""The oldest format that a release has written."""
_MOST_GAPS = 8
_CRC = struct.Struct("<I")


class Settings(msgspec.Struct, frozen=True, array_like=True):
    """The settings that are chosen when a space is created."""

    partitions: int = 1
    durability: str = "committed"
    idempotency_window: float = 86_400.0
    """Seconds for which an idempotency key is remembered, at least. One that is found is honoured, however old."""
    archive_grace: float = 3600.0
    """Seconds for which transactions stay in the log after they were archived."""
    incarnation: bytes = b""
    """Drawn when the space is created. It distinguishes the space from another one of the same name."""


class Lead(msgspec.Struct, frozen=True, array_like=True):
    """The lead: the process that writes the next transaction of a contended partition, as the headers say."""

    name: bytes = b""
    """Empty if every process writes for itself."""
    waiting: int = 0
    """The number of processes that post, as the last lead has seen it."""
    named_by: int = 0
    """The transaction that named it."""
    timestamp: int = 0
    """The timestamp of that transaction."""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The state of a partition's index and log, and the files that hold them."""

    settings: Settings
    watermark: int = 0
    """The index holds everything up to this number."""
    timestamp: int = 0
    position: int = 0
    """Entries up to the watermark."""
    archived: int = 0
    """The cold tier holds everything up to this number."""
    manifest: Manifest = Manifest()
    packs: tuple[PackFile, ...] = ()
    """The packed part of the log, in order."""
    pack: bytes = b""
    """The newest pack, while it is small."""
    cleared: int = 0
    """Packed transactions up to this number have no row in the log any more."""
    packed: Watermarks = ()
    """(number, ms): transactions up to the number have been packed since then, by the service's clock."""
    released: int = 0
    """The number up to which only the archive holds the transactions."""
    purged: int = 0
    """The index has no rows of entries up to here."""
    seen: Watermarks = ()
    """(number, ms): the number was committed by then, by the service's clock. Now and then one."""
    forgotten: int = 0
    """Idempotency keys that were used up to here may be forgotten."""
    version: int = 0
    """One more with each head: of two, the greater one is the newer. No head is ever written again."""
    size: int = 0
    """Bytes of payload up to the watermark."""
    floor: Floor = Floor()
    """The transactions before it are gone for every reader."""
    trimmed: int = 0
    """Trimmed transactions up to this number are not in the log any more."""
    thinned: int = 0
    """The transaction that removed entries of segments last; 0 if none did."""
    retention: Retained | None = None
    erasing: tuple[Erasure, ...] = ()
    """Erasures whose entries no reader gets any more. Their bytes may still be stored."""
    erased: int = 0
    """The watermark when something was erased last: there may be entries without payloads; 0 if there are none."""
    thin: int = 0
    """Entries of segments that transactions up to this one removed have left the index, and packs that held little
    else."""
    lead: Lead = Lead()
    """The lead as of the watermark. A new process need not read a transaction for it."""
    changed: Changed = Changed()

    @property
    def idempotency_window(self) -> float:
        """Seconds for which keys are remembered by now, at least."""
        return self.changed.idempotency_window or self.settings.idempotency_window

    @property
    def archive_grace(self) -> float:
        """Seconds after which rows of the log are removed by now.

        Readers and writers rely on the grace that the space was created with, which is the same for all of them at any
        time: see `streamkit.log.freshness`.
        """
        return self.changed.archive_grace or self.settings.archive_grace


class SegmentRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    first_sequence: int
    first_timestamp: int
    last_sequence: int
    last_timestamp: int
    first_number: int = 0
    last_number: int = 0
    """The transactions of the first and the last entry; 0 where only the archive knows."""
    size: int = 0
    """Bytes of payload that it was given."""
    first_size: int = 0
    """Bytes of payload before its first entry."""
    gaps: tuple[tuple[int, Reason], ...] = ()
    """The gaps before its first entry: each (last sequence, reason)."""

    @property
    def empty(self) -> bool:
        """True if no entry is left, or none ever was. If all were removed, the first sequence is that of the next
        entry."""
        return self.last_sequence < self.first_sequence or not self.last_sequence

    def with_entries(self, number: int, timestamp: int, first: int, count: int, size: int) -> SegmentRow:
        """The status after transaction `number`, which has written `count` entries from `first` on. `size` is the
        segment's payload by then."""
        return SegmentRow(
            self.first_sequence or first,
            self.first_timestamp or timestamp,
            first + count - 1,
            timestamp,
            self.first_number or (0 if self.first_timestamp else number),
            number,
            size,
            self.first_size,
            self.gaps,
        )

    def with_pieces(self, pieces: Sequence[Piece]) -> SegmentRow:
        """The status after the pieces that follow it. Earlier ones, which it includes already, may precede them."""
        if not pieces or pieces[-1].last_sequence <= self.last_sequence:
            return self
        first = next(piece for piece in pieces if piece.last_sequence > self.last_sequence)
        last = pieces[-1]
        row = self.with_entries(first.number, first.timestamp, first.first_sequence, first.count, 0)
        return row.with_entries(last.number, last.timestamp, last.first_sequence, last.count, last.after)

    def without(self, removal: Removal) -> SegmentRow:
        """The status after a removal."""
        last = removal.last
        if last < self.first_sequence:
            return self
        gaps = _with_gap(self.gaps, last, removal.reason)
        if last >= self.last_sequence:
            return SegmentRow(last + 1, 0, last, self.last_timestamp, 0, self.last_number, self.size, self.size, gaps)
        return SegmentRow(
            last + 1,
            removal.timestamp,
            self.last_sequence,
            self.last_timestamp,
            removal.number,
            self.last_number,
            self.size,
            removal.size,
            gaps,
        )


NOTHING = SegmentRow(0, 0, 0, 0)
"""The status of a segment that was never written to."""


def _with_gap(gaps: Sequence[tuple[int, Reason]], last: int, reason: Reason) -> tuple[tuple[int, Reason], ...]:
    """`gaps`, each (last sequence, reason), in order, and one more that goes up to `last`."""
    kept = list(gaps)
    if kept and kept[-1][1] == reason:
        kept.pop()
    kept.append((last, reason))
    if len(kept) > _MOST_GAPS:
        # The two oldest gaps become one. Its reason is "trimmed", which stops a reader that asks for it.
        kept[:2] = [(kept[1][0], "trimmed")]
    return tuple(kept)


class EntryPlace(msgspec.Struct, frozen=True, gc=False):
    """The place of a frame, or of an entry in it."""

    sequence: int
    timestamp: int
    number: int
    before: int
    """Bytes of payload that the segment was given before the frame."""


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`count` entries of a segment from `first_sequence`: a frame, at `length` bytes from `start` of transaction
    `number`'s record. `frame` is a copy of it, where the index keeps one."""

    number: int
    timestamp: int
    first_sequence: int
    count: int
    start: int
    length: int
    frame: bytes | None = None
    before: int = 0
    """Bytes of payload that the segment was given before the frame."""
    size: int = 0
    """Bytes of payload in the frame."""

    @property
    def after(self) -> int:
        return self.before + self.size

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.count - 1


class DataRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pieces: list[Piece]


class ArchiveRow(msgspec.Struct, frozen=True, array_like=True):
    """The state of a partition's archived transactions. Only the holder of the archiver's lease writes it."""

    removed: int = 0
    """The log holds nothing up to this number any more, nor does the index."""
    since: Watermarks = ()
    """(number, ms): transactions up to the number have been in the archive since then, by the service's clock."""


class GraceRow(msgspec.Struct, frozen=True, array_like=True):
    """The state of archived transactions, in all partitions of one archiver's lease. Only its holder writes it."""

    incarnation: bytes = b""
    """The space's incarnation. For another one the row says nothing."""
    partitions: tuple[ArchiveRow, ...] = ()
    """The rows of the partitions, in partition order. They may know fewer removals than a partition's own row, never
    more."""


class ErasedRow(msgspec.Struct, frozen=True, array_like=True):
    """The erasures of one transaction."""

    erasures: tuple[Erasure, ...]


class KeyRow(msgspec.Struct, frozen=True, array_like=True):
    """An idempotency key's use."""

    number: int
    timestamp: int
    id: bytes
    node: bytes
    content: bytes
    segments: tuple[tuple[str, int], ...]
    count: int
    """Entries of the transaction."""


class FenceRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The highest token with which a lease has written."""

    token: int


_Row = TypeVar("_Row", Settings, Head, ArchiveRow, GraceRow, ErasedRow)
_encoder = msgspec.msgpack.Encoder()
_decoders = Decoders()


def encode_row(key: bytes, row: Settings | Head | ArchiveRow | GraceRow | ErasedRow) -> bytes:
    body = b"%c%b" % (VERSION, _encoder.encode(row))
    return _CRC.pack(crc32(body, crc32(key))) + body


def decode_row(kind: type[_Row], key: bytes, data: bytes) -> _Row:
    """The row of `kind` in `data`. CorruptData or UnsupportedVersion, naming the key."""
    body = data[4:]
    if len(body) < 2 or crc32(body, crc32(key)) != _CRC.unpack_from(data)[0]:
        raise CorruptData(f"the row {key!r} is damaged")
    if body[0] < _OLDEST:
        raise UnsupportedVersion(
            f"the row {key!r} has format version {body[0]}, of a release before the first one that was published; this "
            f"release reads {_OLDEST} to {VERSION}. Copy the data with the release that wrote it."
        )
    if body[0] > VERSION:
        raise UnsupportedVersion(
            f"the row {key!r} has format version {body[0]}; this release reads {VERSION}. Upgrade streamkit."
        )
    try:
        row: _Row = _decoders[kind].decode(memoryview(body)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptData(f"the row {key!r} is damaged") from error
    return row
