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

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from .. import speed
from ..checksum import crc32, crc32_short
from ..compression import compress, decompress
from ..decoders import msgpack_decoder
from ..digest import blake2b
from ..errors import CorruptData, StreamkitError, UnsupportedVersion
from ..metadata import NO_METADATA, Metadata
from ..model import TRX, Entry, Origin
from .floors import REMOVED, Control, Removed
from .frame_room import MAGIC, encode_fitting

__all__ = [
    "ENDED",
    "NOBODY",
    "SMALL",
    "VOID",
    "Body",
    "FrameHead",
    "FrameReader",
    "FrameRef",
    "Header",
    "KeyUse",
    "compress_body",
    "decode_body",
    "decode_entries",
    "decode_frames",
    "decode_header",
    "decode_records",
    "decode_transaction",
    "encode_body",
    "encode_holes",
    "encode_transaction",
    "entry_reader",
    "frame_reader",
    "frames_with",
    "split_frames",
    "without_entries",
    "without_frames",
]

VERSION = 2
"""1: of a release without inbox. It would report entries that another process committed for it as never committed."""
ENDED = bytes(16)
"""The node of the transaction that ends a log; no process has it."""
NOBODY = b"-"
"""The lead if every process writes for itself again."""
VOID = -1
"""The frame of a posted request that no transaction holds."""
_MAGIC = b"SKTX"
_PREFIX = struct.Struct("<4sIBxxxIQ")
_PREFIX_REST = struct.Struct("<BxxxIQ")
_CRC = struct.Struct("<I")
_HEADER_AT = _PREFIX.size
_FRAME = struct.Struct("<IHBxII")
_FRAME_REST = struct.Struct("<HBxII")
_ZSTD = 1
_METADATA = 2
_HOLES = 4
"""Flag: payloads are gone, and a number is in their place. `raw` is how much of the body is used; the rest are
zeros."""
_APART = 32
"""Flag with _HOLES: the list of removed payloads comes first, and the remaining payloads stand together."""
_GONE = 8
"""All are, and the body is zeros."""
_BELOW = 16
"""Flag: the payloads were trimmed, not erased."""
_REASONS = {1: REMOVED["trimmed"], 3: REMOVED["erased"]}
_ROOM = 16
"""Bytes that a compressed body has to spare."""
_SHARE = 4
"""The number of entries for each further spare byte."""
SMALL = 512
"""Bytes of a body from which on it may be compressed."""
_SAMPLE = 4096
_MOST_PAYLOAD = 1 << 30
"""Bytes of payload that a transaction may have at most: the largest max_transaction_bytes."""
_MOST_METADATA = 256 << 10
"""Bytes of an entry's encoded metadata, and of the lengths beside it: 64 KiB of text, in the shortest words."""
_MOST_ENTRIES = 1 << 28
"""Entries of a transaction: more than any process could hold and write."""
_SHORT = 4096
_FEW = 512
"""Bytes. Below this limit `crc32_short` is faster."""
_TOGETHER = 256
"""Entries of small transactions that are handed out together."""


class FrameRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A frame, as the header lists it: `length` bytes from `start` of the record."""

    segment: str
    first_sequence: int
    count: int
    start: int
    length: int
    before: int = 0
    """Bytes of payload that the segment was given before the frame."""
    size: int = 0
    """Bytes of payload in the frame."""


class KeyUse(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An idempotency key that the transaction answers: digests of key and content, and the result for each segment."""

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
    answers: tuple[tuple[bytes, int], ...] = ()
    """Posted requests that are settled here, by id: the first frame of one that is in this transaction, VOID for one
    that is in none, ever."""
    lead: bytes = b""
    """The lead, which writes the next transaction and includes posted requests: this node, or the id of a request whose
    process leads. NOBODY: every process writes for itself. Empty: the lead stays."""
    waiting: int = 0
    """The number of processes that have posted recently."""
    size: int = 0
    """Bytes of payload in the partition before this transaction."""
    control: Control | None = None

    @property
    def count(self) -> int:
        return sum(frame.count for frame in self.frames)

    @property
    def after(self) -> int:
        """Bytes of payload in the partition after this transaction."""
        return self.size + sum([frame.size for frame in self.frames])

    @property
    def ended(self) -> bool:
        """True if the store was deleted. This transaction is empty, and none follows it."""
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
    """The encoded records of one segment. `digest` is of the bytes before they are compressed, if it was asked for,
    without the metadata that names a trace; `hashed` is the number of these bytes."""

    data: bytes | memoryview
    raw: int
    flags: int
    count: int
    digest: bytes = b""
    hashed: int = 0


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_headers = msgpack_decoder(Header)
_frame_heads = msgpack_decoder(FrameHead)
_Sequence = Annotated[int, msgspec.Meta(ge=0)]
_lone_heads = msgpack_decoder(tuple[int, int, bytes, bytes, int, int, str, _Sequence, Literal[1]])
"""The fields of a FrameHead, of a frame of one entry."""
_lone_payload = msgpack_decoder(tuple[tuple[bytes]])
_payloads = msgpack_decoder(tuple[list[bytes]])
_payloads_metadata = msgpack_decoder(tuple[list[bytes], list[dict[str, str] | None]])
_holes = msgpack_decoder(tuple[list[bytes | Literal[1, 3]], list[dict[str, str] | None] | None])
_apart = msgpack_decoder(tuple[int, bytes, list[bytes], list[dict[str, str] | None] | None])


_twin: Any = speed.twin and speed.twin.Records(Entry, TRX, Origin, FrameHead, Metadata, NO_METADATA)


_TRACE = frozenset(("traceparent", "tracestate"))
"""Metadata of W3C Trace Context."""


def encode_body(
    payloads: Sequence[bytes], metadata: Sequence[dict[str, str] | None] | None, *, digest: bool = False
) -> Body:
    """The records of one segment; compressed if a sample of them shrinks and all of them do."""
    parts: list[Any] = [payloads] if metadata is None else [payloads, metadata]
    data = _encoder.encode(parts)
    content = _content(data, payloads, metadata) if digest else b""
    return compress_body(data, 0 if metadata is None else _METADATA, len(payloads), content)


def compress_body(data: bytes, flags: int, count: int, content: bytes = b"") -> Body:
    """The body with the encoded records `data`. `content` is digested."""
    raw = len(data)
    digest = blake2b(content, digest_size=16).digest() if content else b""
    if raw >= SMALL and (raw <= 2 * _SAMPLE or len(compress(data[:_SAMPLE])) < _SAMPLE * 0.9):
        # Behind it is room to tell which entries are erased one day: those that are like others took none.
        packed = compress(data) + bytes(_ROOM + count // _SHARE)
        if len(packed) < raw * 0.95:
            return Body(packed, raw, flags | _ZSTD, count, digest, len(content))
    return Body(data, raw, flags, count, digest, len(content))


def _content(data: bytes, payloads: Sequence[bytes], metadata: Sequence[dict[str, str] | None] | None) -> bytes:
    """The bytes that make two writes the same. The trace that wrote a record is no part of them: a retry in another
    trace is a retry."""
    if metadata is None or not any(_TRACE & given.keys() for given in metadata if given):
        return data
    left = [(given and {name: given[name] for name in given if name not in _TRACE}) or None for given in metadata]
    return _encoder.encode([payloads, left] if any(left) else [payloads])


def encode_holes(payloads: Sequence[bytes], metadata: Sequence[dict[str, str] | None] | None) -> Body:
    """The body of copied entries. A removed entry is an instance of Removed."""
    if all(isinstance(payload, Removed) for payload in payloads):
        return Body(b"", 0, _GONE, len(payloads))
    left: list[Any] = [3 if isinstance(payload, Removed) else payload for payload in payloads]
    data = _encoder.encode([left, metadata])
    return Body(data, len(data), _HOLES, len(payloads))


def decode_body(body: Body) -> tuple[list[bytes], list[dict[str, str] | None] | None]:
    """Return (payloads, metadata). A ValueError if encode_body did not make `body`."""
    data: bytes | memoryview = body.data
    if body.flags & (_GONE | _HOLES):
        return _decode_holes(body)
    if body.flags & _ZSTD:
        if body.raw > _most_raw(body.count):
            raise ValueError(f"the body claims {body.raw} bytes; it has at most {_most_raw(body.count)}")
        data = decompress(data, body.raw)
    if len(data) != body.raw:
        raise ValueError(f"the body has {len(data)} bytes instead of {body.raw}")
    if body.flags & _METADATA:
        payloads, metadata = _payloads_metadata.decode(data)
        if len(metadata) != len(payloads):
            raise ValueError(f"the body has {len(metadata)} metadata for {len(payloads)} payloads")
    else:
        (payloads,), metadata = _payloads.decode(data), None
    if len(payloads) != body.count:
        raise ValueError(f"the body has {len(payloads)} payloads; its frame says {body.count}")
    return payloads, metadata


def _most_raw(count: int) -> int:
    """The most bytes that the bodies of `count` entries of one transaction have, decompressed."""
    return min(_MOST_PAYLOAD + count * _MOST_METADATA, (1 << 32) - 1)


def _decode_holes(body: Body) -> tuple[list[bytes], list[dict[str, str] | None] | None]:
    if body.flags & _GONE:
        if any(body.data):
            raise ValueError("the body is not empty, but its frame says that all of its entries are removed")
        if body.count > _MOST_ENTRIES:
            raise ValueError(f"its frame claims {body.count} entries; a transaction has at most {_MOST_ENTRIES}")
        return [_REASONS[1 if body.flags & _BELOW else 3]] * body.count, None
    data: bytes | memoryview = body.data[: body.raw]
    if body.flags & _ZSTD:
        data = decompress(MAGIC + data, _most_raw(body.count))
    if body.flags & _APART:
        return _decode_apart(data, body.count)
    found, metadata = _holes.decode(data)
    payloads = [payload if isinstance(payload, bytes) else _REASONS[payload] for payload in found]
    if len(payloads) != body.count or (metadata is not None and len(metadata) != len(payloads)):
        raise ValueError("the body has not as many payloads as the frame says")
    return payloads, metadata


def _decode_apart(data: bytes | memoryview, count: int) -> tuple[list[bytes], list[dict[str, str] | None] | None]:
    below, bits, left, told = _apart.decode(data)
    if len(bits) != (count + 7) // 8:
        raise ValueError(f"the body does not have the {count} entries of its frame")
    codes = [3 if bits[at >> 3] >> (at & 7) & 1 else int(at < below) for at in range(count)]
    if codes.count(0) != len(left) or (told is not None and len(told) != len(left)):
        raise ValueError(f"the body lacks payloads or metadata of the {count} entries of its frame")
    payloads, metadata = iter(left), iter(told or ())
    found = [_REASONS[code] if code else next(payloads) for code in codes]
    return found, None if told is None else [None if code else next(metadata) for code in codes]


def without_entries(frame: bytes | memoryview, seed: int, gone: Callable[[int], str]) -> bytes | None:
    """A frame of the same length. An entry is empty in it if `gone` of its sequence is "trimmed" or "erased", not "".

    None if these entries are empty already. CorruptData if a bit of the frame has changed, or if the other entries,
    compressed again, need more bytes than the frame has.
    """
    crc, head_bytes, flags, body_bytes, raw = _FRAME.unpack_from(frame)
    if len(frame) != _FRAME.size + head_bytes + body_bytes or crc32(frame[4:], seed) != crc:
        raise CorruptData("a frame of the transaction is damaged")
    head_data = bytes(frame[_FRAME.size : _FRAME.size + head_bytes])
    head = _frame_heads.decode(head_data)
    reasons = [gone(sequence) for sequence in range(head.first_sequence, head.first_sequence + head.count)]
    if not any(reasons) or flags & _GONE:
        return None
    try:
        payloads, metadata = decode_body(Body(frame[_FRAME.size + head_bytes :], raw, flags, head.count))
    except (ValueError, OverflowError, msgspec.MsgspecError) as error:
        where = f"segment {head.segment!r}, sequence {head.first_sequence}"
        raise CorruptData(f"{where}: the body of the frame cannot be decoded: {error}") from error
    if all(isinstance(payload, Removed) for payload, reason in zip(payloads, reasons, strict=True) if reason):
        return None
    codes: list[int] = []
    for payload, reason in zip(payloads, reasons, strict=True):
        code = (3 if reason == "erased" else 1) if reason else 0
        codes.append((3 if payload.reason == "erased" else 1) if isinstance(payload, Removed) else code)
    if all(codes):
        flags, raw, data = _GONE | (0 if 3 in codes else _BELOW), 0, b""
    else:
        left: list[Any] = [code or payload for code, payload in zip(codes, payloads, strict=True)]
        some = metadata and [None if code else data for code, data in zip(codes, metadata, strict=True)]
        flags, data = _HOLES, _encoder.encode([left, some])
        if len(data) > body_bytes:
            data, packed = encode_fitting(codes, payloads, metadata, body_bytes)
            flags = _HOLES | _APART | (_ZSTD if packed else 0)
        if len(data) > body_bytes:
            raise CorruptData(
                f"segment {head.segment!r}, sequence {head.first_sequence}: the entries that remain in its frame do "
                f"not fit its {body_bytes} bytes"
            )
        raw = len(data)
    front = _FRAME_REST.pack(head_bytes, flags, body_bytes, raw) + head_data
    body = data + bytes(body_bytes - len(data))
    return _CRC.pack(crc32(body, crc32(front, seed))) + front + body


def without_frames(record: bytes, seed: int, gone: Callable[[str, int], str]) -> bytes | None:
    """The record, in which an entry is empty if `gone` gives a reason for its (segment, sequence). Everything else
    stays at its place. None if these entries are empty already."""
    header = decode_header(record, seed)
    start = frames_start(record)
    changed: bytearray | None = None
    for ref in header.frames:
        segment, first = ref.segment, ref.first_sequence
        if not any(gone(segment, sequence) for sequence in range(first, first + ref.count)):
            continue
        frame = record[start + ref.start : start + ref.start + ref.length]
        try:
            emptied = without_entries(frame, seed, lambda sequence, segment=segment: gone(segment, sequence))  # type: ignore[misc]
        except CorruptData as error:
            raise CorruptData(f"transaction {header.number}: {error}") from error
        if emptied is not None:
            if changed is None:
                changed = bytearray(record)
            changed[start + ref.start : start + ref.start + ref.length] = emptied
    return None if changed is None else bytes(changed)


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
    answers: tuple[tuple[bytes, int], ...] = (),
    lead: bytes = b"",
    waiting: int = 0,
    seed: int = 0,
    sizes: Sequence[tuple[int, int]] = (),
    size: int = 0,
    control: Control | None = None,
    indexes: Sequence[int] = (),
) -> tuple[Header, bytes]:
    """The header and the record of `parts`, each (segment, first sequence, body). `seed` starts every checksum.

    `sizes`: of each part, bytes of payload that its segment was given before, and its own. `indexes`: of each part,
    entries of the transaction before it, if some are missing.
    """
    frames, lengths = _encode_frames(number, timestamp, id, node, position, parts, seed, indexes)
    refs: list[FrameRef] = []
    start = 0
    for at, (segment, first_sequence, body) in enumerate(parts):
        length = lengths[at]
        refs.append(FrameRef(segment, first_sequence, body.count, start, length, *(sizes[at] if sizes else ())))
        start += length
    header = Header(
        number,
        timestamp,
        id,
        node,
        position,
        tuple(refs),
        keys,
        fences or {},
        answers,
        lead,
        waiting,
        size,
        control,
    )
    return header, _encode_record(header, frames, start, seed)


def _encode_frames(
    number: int,
    timestamp: int,
    id: bytes,
    node: bytes,
    position: int,
    parts: Sequence[tuple[str, int, Body]],
    seed: int,
    indexes: Sequence[int],
) -> tuple[list[bytes | memoryview], list[int]]:
    """The frames of `parts` in pieces, and the bytes of each frame."""
    if _twin is not None and not indexes and len(parts) > 1:
        made: tuple[bytes, list[int]] | None = speed.twin.encode_frames(
            number, timestamp, id, node, position, list(parts), seed
        )
        if made is not None:
            return [made[0]], made[1]
    frames: list[bytes | memoryview] = []
    lengths: list[int] = []
    index = 0
    for at, (segment, first, body) in enumerate(parts):
        place = indexes[at] if indexes else index
        head = FrameHead(number, timestamp, id, node, position + index, place, segment, first, body.count)
        frame = _encode_frame(head, body, seed)
        frames += frame
        lengths.append(sum(map(len, frame)))
        index += body.count
    return frames, lengths


def _encode_frame(head: FrameHead, body: Body, seed: int) -> tuple[bytes, bytes, bytes | memoryview]:
    data, packed = body.data, _encoder.encode(head)
    front = _FRAME_REST.pack(len(packed), body.flags, len(data), body.raw) + packed
    return _CRC.pack(crc32(data, crc32(front, seed))), front, data


def _encode_record(header: Header, frames: Iterable[bytes | memoryview], length: int, seed: int) -> bytes:
    packed = _encoder.encode(header)
    rest = _PREFIX_REST.pack(VERSION, len(packed), _HEADER_AT + len(packed) + length) + packed
    return b"".join((_MAGIC, _CRC.pack(crc32(rest, seed)), rest, *frames))


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
    if not 1 <= version <= VERSION:
        raise UnsupportedVersion(
            f"the transaction record has format version {version}; this release reads {VERSION}. Upgrade streamkit."
        )
    if record_bytes != len(view) and (whole or record_bytes < len(view)):
        raise CorruptData(f"the transaction record has {len(view)} bytes instead of {record_bytes}")
    return view, end


def frames_start(record: bytes) -> int:
    """The start of a record's frames. FrameRef.start counts from here."""
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


def frames_with(record: bytes, seed: int, required: Sequence[bytes]) -> list[bytes]:
    """The frames of a record that may have all of these bytes in their metadata. The other frames are checked, too:
    CorruptData, or UnsupportedVersion."""
    opened, at = _open(record, seed)
    view, end, unpack, size = memoryview(opened), len(opened), _FRAME.unpack_from, _FRAME.size
    some = all(text in record for text in required)
    found = []
    while at < end:
        if end - at < size:
            raise CorruptData("a frame of the transaction record is cut short")
        crc, head_bytes, flags, body_bytes, raw = unpack(view, at)
        after = at + size + head_bytes + body_bytes
        if after > end or crc32(view[at + 4 : after], seed) != crc:
            raise CorruptData("a frame of the transaction is damaged")
        if flags & ~(_METADATA | _ZSTD):
            found.append(bytes(view[at:after]))  # partly gone
        elif flags & _METADATA and (some or flags & _ZSTD):
            body = view[at + size + head_bytes : after]
            try:
                count = _frame_heads.decode(view[at + size : at + size + head_bytes]).count
                data = decompress(body, min(raw, _most_raw(count))) if flags & _ZSTD else bytes(body)
            except (ValueError, msgspec.MsgspecError) as error:
                raise CorruptData("the body of a frame cannot be decoded") from error
            if all(text in data for text in required):
                found.append(bytes(view[at:after]))
        at = after
    return found


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
    """The content of a frame, without the entries before sequence `start`. CorruptData if a bit of it has changed."""
    after, found = _decode_at(space, partition, partitions, frame, 0, seed, start, incarnation)
    if after != len(frame):
        raise CorruptData("a frame of the transaction is damaged")
    return found


def decode_transaction(
    space: str, partition: int, partitions: int, record: bytes, seed: int, incarnation: bytes = b""
) -> list[Decoded]:
    """The content of all frames of a whole record. CorruptData, or UnsupportedVersion."""
    view, at = _open(record, seed)
    end = len(view)
    frames: list[Decoded] = []
    raw = count = 0
    while at < end:
        begin = at
        at, found = _decode_at(space, partition, partitions, view, at, seed, 0, incarnation)
        frames.append(found)
        if end > _SHORT:
            raw, count = raw + _FRAME.unpack_from(view, begin)[4], count + found[0].count
            if raw > _most_raw(count):
                raise CorruptData("the frames of the transaction record have more bytes than a transaction holds")
    return frames


def decode_records(
    space: str,
    partition: int,
    partitions: int,
    parts: Iterable[Iterable[tuple[int, bytes]]],
    seed: int,
    incarnation: bytes,
    with_location: Callable[[StreamkitError, int], StreamkitError],
) -> Iterator[tuple[int, list[Entry]]]:
    """Yield (last number, entries) of whole records, in parts, each (number, record): those of many small ones
    together. An empty transaction has none.

    CorruptData or UnsupportedVersion for one that is damaged, `with_location`, after all that is before it.
    """
    take: _Take[tuple[int, bytes]]
    if _twin is None:
        take = partial(_take_records, space, partition, partitions, seed, incarnation)
    else:
        take = _twin.reader(space, partition, partitions, seed, incarnation).take

    def decode(item: tuple[int, bytes]) -> Iterator[list[Entry]]:
        number, record = item
        frames = decode_transaction(space, partition, partitions, record, seed, incarnation)
        if not frames:
            yield []
        for head, _, found in frames:
            if head.number != number:
                raise CorruptData(f"a frame of transaction {head.number} is in its place")
            yield found

    return _together(parts, take, decode, with_location)


_Item = TypeVar("_Item", tuple[int, bytes], tuple[int, int, bytes])
_Take = Callable[[Iterator[_Item], list[Entry], int], _Item | None]
"""Appends the entries of the next items to the list while each holds one small entry, until there are so many. Returns
the first other item, which is taken from the iterator, or None."""


def _together(
    parts: Iterable[Iterable[_Item]],
    take: _Take[_Item],
    decode: Callable[[_Item], Iterator[list[Entry]]],
    with_location: Callable[[StreamkitError, int], StreamkitError],
) -> Iterator[tuple[int, list[Entry]]]:
    """Yield (last number, entries) of items, in parts. An item begins with its number. Small ones come together by
    `take`, and each other one by `decode`."""
    entries: list[Entry] = []
    try:
        for part in parts:
            left = iter(part)
            while (item := take(left, entries, _TOGETHER)) is not None or len(entries) >= _TOGETHER:
                if entries:
                    together, entries = entries, []
                    yield together[-1].trx.number, together
                if item is None:
                    continue
                number = item[0]
                try:
                    for found in decode(item):
                        yield number, found
                except (CorruptData, UnsupportedVersion) as error:
                    raise with_location(error, number) from error
    except StreamkitError:
        if entries:
            yield entries[-1].trx.number, entries
        raise
    if entries:
        yield entries[-1].trx.number, entries


def _take_records(
    space: str,
    partition: int,
    partitions: int,
    seed: int,
    incarnation: bytes,
    items: Iterator[tuple[int, bytes]],
    entries: list[Entry],
    most: int,
) -> tuple[int, bytes] | None:
    """The `_Take` of records. Readers of small transactions spend their time here, and in the `_Take` of frames: there
    is one look at each part."""
    prefix, frame, frame_bytes = _PREFIX.unpack_from, _FRAME.unpack_from, _FRAME.size
    decode_head, decode_payload, append = _lone_heads.decode, _lone_payload.decode, entries.append
    for item in islice(items, most - len(entries)):
        expected, data = item
        size = len(data)
        if size > _SHORT:
            return item
        try:
            magic, crc, version, header_bytes, record_bytes = prefix(data)
            at = _HEADER_AT + header_bytes
            if (
                magic != _MAGIC
                or not 1 <= version <= VERSION
                or record_bytes != size
                or crc32_short(data[8:at], seed) != crc
            ):
                return item
            crc, head_bytes, flags, body_bytes, raw = frame(data, at)
            begin = at + frame_bytes
            body = begin + head_bytes
            if flags or not raw == body_bytes == size - body:
                return item
            if (crc32_short if size < _FEW else crc32)(data[at + 4 :], seed) != crc:
                return item
            number, timestamp, id, node, position, index, name, first, _ = decode_head(data[begin:body])
            ((payload,),) = decode_payload(data[body:])
        except (struct.error, msgspec.MsgspecError, UnicodeDecodeError):
            return item
        if number != expected:
            return item
        origin = Origin(partition, partitions, position, index, first, "hot", 0, None, incarnation)
        append(Entry(space, name, first, timestamp, TRX(id, node, number), payload, NO_METADATA, origin))
    return None


def _take_frames(
    space: str,
    partition: int,
    partitions: int,
    seed: int,
    incarnation: bytes,
    segment: str,
    items: Iterator[tuple[int, int, bytes]],
    entries: list[Entry],
    most: int,
) -> tuple[int, int, bytes] | None:
    """The `_Take` of a segment's frames."""
    frame, begin = _FRAME.unpack_from, _FRAME.size
    decode_head, decode_payload, append = _lone_heads.decode, _lone_payload.decode, entries.append
    for item in islice(items, most - len(entries)):
        expected, sequence, data = item
        size = len(data)
        if size > _SHORT:
            return item
        try:
            crc, head_bytes, flags, body_bytes, raw = frame(data)
            body = begin + head_bytes
            if flags or not raw == body_bytes == size - body:
                return item
            if (crc32_short if size < _FEW else crc32)(data[4:], seed) != crc:
                return item
            number, timestamp, id, node, position, index, name, first, _ = decode_head(data[begin:body])
            ((payload,),) = decode_payload(data[body:])
        except (struct.error, msgspec.MsgspecError, UnicodeDecodeError):
            return item
        if number != expected or first != sequence or name != segment:
            return item
        origin = Origin(partition, partitions, position, index, first, "hot", 0, None, incarnation)
        append(Entry(space, segment, first, timestamp, TRX(id, node, number), payload, NO_METADATA, origin))
    return None


def decode_frames(
    space: str,
    partition: int,
    partitions: int,
    segment: str,
    frames: Iterable[tuple[int, int, bytes]],
    seed: int,
    incarnation: bytes,
    with_location: Callable[[StreamkitError, int], StreamkitError],
) -> Iterator[tuple[int, list[Entry]]]:
    """Yield (last number, entries) of a segment's `frames`, each (number, first sequence, frame): those of many small
    ones together.

    CorruptData for one that is damaged or of something else, `with_location`, after all that is before it.
    """
    take = frame_reader(space, partition, partitions, segment, seed, incarnation).take

    def decode(item: tuple[int, int, bytes]) -> Iterator[list[Entry]]:
        number, first, frame = item
        head, _, found = decode_entries(space, partition, partitions, frame, seed, 0, incarnation)
        if head.segment != segment or head.first_sequence != first or head.number != number:
            raise CorruptData(f"the index points at a frame of {head.segment!r} instead of {segment!r}")
        yield found

    return _together([frames], take, decode, with_location)


class FrameReader(NamedTuple):
    """A reader of one segment's frames."""

    take: _Take[tuple[int, int, bytes]]


def entry_reader(space: str, partition: int, partitions: int, seed: int, incarnation: bytes) -> Any:
    """The compiled reader of a partition, for `Index.entries`; None without the compiled codec."""
    return _twin and _twin.reader(space, partition, partitions, seed, incarnation)


def frame_reader(
    space: str, partition: int, partitions: int, segment: str, seed: int, incarnation: bytes
) -> FrameReader:
    """The compiled reader, or one with the same `take`."""
    if _twin is None:
        return FrameReader(partial(_take_frames, space, partition, partitions, seed, incarnation, segment))
    found: FrameReader = _twin.reader(space, partition, partitions, seed, incarnation, segment)
    return found


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
    if _twin is not None:
        decoded: tuple[int, Decoded] | None = _twin.decode_at(
            space, partition, partitions, view, at, seed, start, incarnation
        )
        if decoded is not None:
            return decoded
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
        where = f"segment {head.segment!r}, sequence {head.first_sequence}"
        raise CorruptData(f"{where}: the body of the frame cannot be decoded: {error}") from error
    first, segment, timestamp = head.first_sequence, head.segment, head.timestamp
    holes = flags & (_HOLES | _GONE) != 0
    origin = Origin(partition, partitions, head.position, head.index, first, "hot", 0, None, incarnation, False, holes)
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
