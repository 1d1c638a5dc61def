"""The transaction record: one value in the log, whole or absent.

    record  = magic "SKTX", crc32 of prefix and header, prefix, header, frame, frame, …
    prefix  = version u8, zero u8, zero u16, header bytes u32, record bytes u64
    header  = msgpack of Header
    frame   = crc32 of the rest, head bytes u16, flags u8, zero u8, body bytes u32, raw body bytes u32, head, body
    head    = msgpack of FrameHead
    body    = msgpack [payloads] or [payloads, metadata], in zstd where that shrinks it

A frame is the part of one segment. It says all about itself, so that it can be read alone by its byte range, or be
copied into the index. The magic, the version and the place of the checksum stay where they are in every version.
Integers are little endian.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ..checksum import crc32
from ..errors import CorruptData, StreamkitError, UnsupportedVersion
from ..metadata import NO_METADATA, Metadata
from ..model import TRX, Entry, Origin

__all__ = [
    "ENDED",
    "Body",
    "FrameHead",
    "FrameRef",
    "Header",
    "KeyUse",
    "decode_body",
    "decode_entries",
    "decode_header",
    "decode_records",
    "decode_transaction",
    "encode_body",
    "encode_transaction",
    "load_zstd",
    "split_frames",
]

VERSION = 1
ENDED = bytes(16)
"""The node of the transaction that ends a log; no process has it."""
_MAGIC = b"SKTX"
_PREFIX = struct.Struct("<4sIBxxxIQ")
_PREFIX_REST = struct.Struct("<BxxxIQ")
_CRC = struct.Struct("<I")
_HEADER_AT = _PREFIX.size
_FRAME = struct.Struct("<IHBxII")
_FRAME_REST = struct.Struct("<HBxII")
_ZSTD = 1
_METADATA = 2
_SMALL = 512
_SAMPLE = 4096
_MOST = 1 << 31
_SHORT = 4096
_TOGETHER = 256
"""Entries of small transactions that are handed out together."""


class FrameRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A frame, as the header lists it: `length` bytes from `start` of the record."""

    segment: str
    first_sequence: int
    count: int
    start: int
    length: int


class KeyUse(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An idempotency key that the transaction answers: digests of key and content, and what each segment got."""

    key: bytes
    content: bytes
    segments: tuple[tuple[str, int], ...]
    """(segment, its last sequence after the caller's part)"""


class Header(msgspec.Struct, frozen=True, array_like=True, gc=False):
    number: int
    timestamp: int
    id: bytes
    node: bytes
    position: int
    """Entries in the partition before this transaction."""
    frames: tuple[FrameRef, ...]
    keys: tuple[KeyUse, ...] = ()
    fences: dict[str, int] = {}

    @property
    def count(self) -> int:
        return sum(frame.count for frame in self.frames)

    @property
    def ended(self) -> bool:
        """Whether the store was deleted: nothing comes after this transaction, which is empty."""
        return self.node == ENDED

    @property
    def trx(self) -> TRX:
        return TRX(self.id, self.node, self.number)


class FrameHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    number: int
    timestamp: int
    id: bytes
    node: bytes
    position: int
    """Entries in the partition before the frame's first."""
    index: int
    """Entries in the transaction before the frame's first."""
    segment: str
    first_sequence: int
    count: int


class Body(msgspec.Struct, frozen=True, gc=False):
    """The encoded records of one segment. `digest` is of the bytes before they are compressed, if it was asked for."""

    data: bytes | memoryview
    raw: int
    flags: int
    count: int
    digest: bytes = b""


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_headers = msgspec.msgpack.Decoder(Header)
_frame_heads = msgspec.msgpack.Decoder(FrameHead)
_payloads = msgspec.msgpack.Decoder(tuple[list[bytes]])
_payloads_metadata = msgspec.msgpack.Decoder(tuple[list[bytes], list[dict[str, str] | None]])
_zstd: Any = None
_sampler: Any = None
"""Makes frames of samples that are thrown away. To make a compressor takes longer than to use it."""


def load_zstd() -> Any:
    global _zstd, _sampler
    if _zstd is None:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
        _sampler = zstd.ZstdCompressor(1)
        _zstd = zstd
    return _zstd


def encode_body(
    payloads: Sequence[bytes], metadata: Sequence[dict[str, str] | None] | None, *, digest: bool = False
) -> Body:
    """The records of one segment; compressed if a sample of them shrinks and all of them do."""
    parts: list[Any] = [payloads] if metadata is None else [payloads, metadata]
    data = _encoder.encode(parts)
    raw = len(data)
    flags = 0 if metadata is None else _METADATA
    content = hashlib.blake2b(data, digest_size=16).digest() if digest else b""
    if raw >= _SMALL:
        zstd = _zstd or load_zstd()
        if raw <= 2 * _SAMPLE or len(_sampler.compress(data[:_SAMPLE], _sampler.FLUSH_FRAME)) < _SAMPLE * 0.9:
            packed = zstd.compress(data, 1)
            if len(packed) < raw * 0.95:
                return Body(packed, raw, flags | _ZSTD, len(payloads), content)
    return Body(data, raw, flags, len(payloads), content)


def decode_body(body: Body) -> tuple[list[bytes], list[dict[str, str] | None] | None]:
    """(payloads, metadata). Raises ValueError of some kind if `body` is not what encode_body made."""
    data: bytes | memoryview = body.data
    if body.flags & _ZSTD:
        if body.raw > _MOST:
            raise ValueError("the body claims to be larger than any body is")
        zstd = _zstd or load_zstd()
        try:
            data = zstd.ZstdDecompressor().decompress(data, max_length=body.raw)
        except (zstd.ZstdError, EOFError) as error:
            raise ValueError("the body cannot be decompressed") from error
    if len(data) != body.raw:
        raise ValueError("the body has another length than it says")
    if body.flags & _METADATA:
        payloads, metadata = _payloads_metadata.decode(data)
        if len(metadata) != len(payloads):
            raise ValueError("the body has not as many metadata as payloads")
    else:
        (payloads,), metadata = _payloads.decode(data), None
    if len(payloads) != body.count:
        raise ValueError("the body has not as many payloads as the frame says")
    return payloads, metadata


def encode_transaction(
    *,
    number: int,
    timestamp: int,
    id: bytes,
    node: bytes,
    position: int,
    parts: Sequence[tuple[str, int, Body]],
    keys: tuple[KeyUse, ...] = (),
    fences: dict[str, int] | None = None,
    seed: int = 0,
) -> tuple[Header, bytes]:
    """The header and the record of `parts`, each (segment, first sequence, body). `seed` starts every checksum."""
    frames: list[bytes | memoryview] = []
    refs: list[FrameRef] = []
    start = index = 0
    for segment, first_sequence, body in parts:
        data, count = body.data, body.count
        head = _encoder.encode(
            FrameHead(number, timestamp, id, node, position + index, index, segment, first_sequence, count)
        )
        front = _FRAME_REST.pack(len(head), body.flags, len(data), body.raw) + head
        frames += (_CRC.pack(crc32(data, crc32(front, seed))), front, data)
        length = 4 + len(front) + len(data)
        refs.append(FrameRef(segment, first_sequence, count, start, length))
        start += length
        index += count
    header = Header(number, timestamp, id, node, position, tuple(refs), keys, fences or {})
    packed = _encoder.encode(header)
    rest = _PREFIX_REST.pack(VERSION, len(packed), _HEADER_AT + len(packed) + start) + packed
    return header, b"".join((_MAGIC, _CRC.pack(crc32(rest, seed)), rest, *frames))


def _open(record: bytes, seed: int, *, whole: bool = True) -> tuple[bytes | memoryview, int]:
    """The record, and where its frames begin, after checking everything before them."""
    # Slices of a short record are copied sooner than viewed.
    view = record if len(record) <= _SHORT else memoryview(record)
    if len(view) < _HEADER_AT:
        raise CorruptData(f"the transaction record is cut short ({len(view)} bytes)")
    magic, crc, version, header_bytes, record_bytes = _PREFIX.unpack_from(view)
    end = _HEADER_AT + header_bytes
    if magic != _MAGIC or crc32(view[8:end], seed) != crc:
        raise CorruptData("the header of the transaction record is damaged")
    if version != VERSION:
        raise UnsupportedVersion(
            f"the transaction record has format version {version}; this release reads {VERSION}. Upgrade streamkit."
        )
    if record_bytes != len(view) and (whole or record_bytes < len(view)):
        raise CorruptData(f"the transaction record has {len(view)} bytes instead of {record_bytes}")
    return view, end


def frames_start(record: bytes) -> int:
    """Where a record's frames begin: FrameRef.start counts from here."""
    return _HEADER_AT + int(_PREFIX.unpack_from(record)[3])


def decode_header(record: bytes, seed: int, *, whole: bool = True) -> Header:
    """The header of a whole record, or of the start of one. CorruptData, or UnsupportedVersion."""
    view, end = _open(record, seed, whole=whole)
    try:
        return _headers.decode(view[_HEADER_AT:end])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptData("the header of the transaction record is damaged") from error


def split_frames(record: bytes, seed: int) -> list[memoryview]:
    """The frames of a whole record, not yet checked; the record itself is."""
    opened, at = _open(record, seed)
    view = memoryview(opened)
    end = len(view)
    frames = []
    while at < end:
        if end - at < _FRAME.size:
            raise CorruptData("a frame of the transaction record is cut short")
        _, head_bytes, _, body_bytes, _ = _FRAME.unpack_from(view, at)
        after = at + _FRAME.size + head_bytes + body_bytes
        if after > end:
            raise CorruptData("a frame of the transaction record is damaged")
        frames.append(view[at:after])
        at = after
    return frames


Decoded = tuple[FrameHead, Origin, list[Entry]]
"""A frame's head, the origin that its entries share, and the entries."""


def decode_entries(
    space: str,
    partition: int,
    partitions: int,
    frame: bytes | memoryview,
    seed: int,
    start: int = 0,
    incarnation: bytes = b"",
) -> Decoded:
    """What is in a frame, without the entries before sequence `start`. CorruptData if a bit of it has changed."""
    after, found = _decode_at(space, partition, partitions, frame, 0, seed, start, incarnation)
    if after != len(frame):
        raise CorruptData("a frame of the transaction is damaged")
    return found


def decode_transaction(
    space: str, partition: int, partitions: int, record: bytes, seed: int, incarnation: bytes = b""
) -> list[Decoded]:
    """What is in all frames of a whole record. CorruptData, or UnsupportedVersion."""
    view, at = _open(record, seed)
    end = len(view)
    frames = []
    while at < end:
        at, found = _decode_at(space, partition, partitions, view, at, seed, 0, incarnation)
        frames.append(found)
    return frames


def decode_records(
    space: str,
    partition: int,
    partitions: int,
    records: Iterable[tuple[int, bytes]],
    seed: int,
    incarnation: bytes,
    located: Callable[[StreamkitError, int], StreamkitError],
) -> Iterator[tuple[int, list[Entry]]]:
    """(last number, entries) of whole `records`, each (number, record): those of many small ones together. An empty
    transaction has none.

    CorruptData or UnsupportedVersion for one that is damaged, `located`, after all that is before it.
    """
    prefix, frame = _PREFIX.unpack_from, _FRAME.unpack_from
    decode_head, decode_payloads = _frame_heads.decode, _payloads.decode
    head_at = _FRAME.size
    entries: list[Entry] = []
    last = 0
    try:
        for number, record in records:
            # Most of the time of many readers is spent on transactions of one entry, so for these there is one look
            # at each part, and whatever is not as it is with them is left to `decode_transaction`.
            size = len(record)
            if _HEADER_AT < size <= _SHORT:
                magic, crc, version, header_bytes, record_bytes = prefix(record)
                at = _HEADER_AT + header_bytes
                begin = at + head_at
                if (
                    record_bytes == size
                    and begin <= size
                    and magic == _MAGIC
                    and version == VERSION
                    and crc32(record[8:at], seed) == crc
                ):
                    crc, head_bytes, flags, body_bytes, raw = frame(record, at)
                    body = begin + head_bytes
                    if (
                        not flags
                        and raw == body_bytes
                        and body + body_bytes == size
                        and crc32(record[at + 4 :], seed) == crc
                    ):
                        try:
                            head = decode_head(record[begin:body])
                            (payloads,) = decode_payloads(record[body:])
                        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                            raise located(CorruptData("a frame of the transaction is damaged"), number) from error
                        if len(payloads) == 1 == head.count and head.number == number:
                            first = head.first_sequence
                            origin = Origin(
                                partition, partitions, head.position, head.index, first, "hot", 0, None, incarnation
                            )
                            trx = TRX(head.id, head.node, number)
                            entries.append(
                                Entry(space, head.segment, first, head.timestamp, trx, payloads[0], NO_METADATA, origin)
                            )
                            last = number
                            if len(entries) >= _TOGETHER:
                                yield last, entries
                                entries = []
                            continue
            try:
                frames = decode_transaction(space, partition, partitions, record, seed, incarnation)
            except (CorruptData, UnsupportedVersion) as error:
                raise located(error, number) from error
            if entries:
                yield last, entries
                entries = []
            if not frames:
                yield number, []
            for head, _, found in frames:
                if head.number != number:
                    raise located(CorruptData(f"a frame of transaction {head.number} is in its place"), number)
                yield number, found
    except StreamkitError:
        if entries:
            yield last, entries
        raise
    if entries:
        yield last, entries


def _decode_at(
    space: str,
    partition: int,
    partitions: int,
    view: bytes | memoryview,
    at: int,
    seed: int,
    start: int,
    incarnation: bytes,
) -> tuple[int, Decoded]:
    """The frame at `at` and where it ends. Readers of small transactions spend their time here, so it is one piece."""
    try:
        crc, head_bytes, flags, body_bytes, raw = _FRAME.unpack_from(view, at)
        body_at = at + _FRAME.size + head_bytes
        after = body_at + body_bytes
        if after > len(view) or crc32(view[at + 4 : after], seed) != crc:
            raise CorruptData("a frame of the transaction is damaged")
        head = _frame_heads.decode(view[at + _FRAME.size : body_at])
    except (struct.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptData("a frame of the transaction is damaged") from error
    data, metadata = view[body_at:after], None
    try:
        if flags == 0 and raw == body_bytes:
            (payloads,) = _payloads.decode(data)
            if len(payloads) != head.count:
                raise ValueError("the body has not as many payloads as the frame says")
        else:
            payloads, metadata = decode_body(Body(data, raw, flags, head.count))
    except (ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise CorruptData("the body of a frame cannot be decoded") from error
    first, segment, timestamp = head.first_sequence, head.segment, head.timestamp
    origin = Origin(partition, partitions, head.position, head.index, first, "hot", 0, None, incarnation)
    trx = TRX(head.id, head.node, head.number)
    if start > first:
        payloads = payloads[start - first :]
        metadata = metadata and metadata[start - first :]
        first = start
    if metadata is not None:
        entries = [
            Entry(space, segment, sequence, timestamp, trx, payload, Metadata(data) if data else NO_METADATA, origin)
            for sequence, (payload, data) in enumerate(zip(payloads, metadata, strict=True), first)
        ]
    elif len(payloads) == 1:
        entries = [Entry(space, segment, first, timestamp, trx, payloads[0], NO_METADATA, origin)]
    else:
        entries = [
            Entry(space, segment, sequence, timestamp, trx, payload, NO_METADATA, origin)
            for sequence, payload in enumerate(payloads, first)
        ]
    return after, (head, origin, entries)
