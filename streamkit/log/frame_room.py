"""Fitting the entries that an erasure leaves in a frame into the bytes that the frame has.

Usually the remaining entries need fewer bytes than all of them did. But some of a few bytes may be erased of many that
hardly shrink, and then it also depends on the blocks of zstd: each has codes of its own, for the bytes that it happens
to hold. So several divisions into blocks are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from ..compression import load_zstd

__all__ = ["MAGIC", "encode_fitting"]

MAGIC = b"\x28\xb5\x2f\xfd"
"""The first bytes of every frame of zstd. They are left out if room is short."""
_BLOCK = 128 << 10
"""The most bytes of a block of zstd."""
_APART = (32 << 10, 64 << 10, 16 << 10, 8 << 10)
"""Divisions into blocks that are tried: a block begins at a payload of this size, and after this many bytes."""
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def encode_fitting(
    codes: Sequence[int], payloads: Sequence[bytes], metadata: Sequence[dict[str, str] | None] | None, room: int
) -> tuple[bytes, bool]:
    """(the number of removed entries at the beginning, a bit for each erased entry, and the entries that are left:
    those with code 0; True if it is compressed). It is compressed as far as `room` needs, or as far as possible."""
    below = next((at for at, code in enumerate(codes) if not code), len(codes))
    bits = bytearray((len(codes) + 7) // 8)
    for at, code in enumerate(codes):
        bits[at >> 3] |= (code == 3) << (at & 7)
    left = [payload for payload, code in zip(payloads, codes, strict=True) if not code]
    told = metadata and [one for one, code in zip(metadata, codes, strict=True) if not code]
    data = _encode([below, bytes(bits), left, told])
    if len(data) <= room:
        return data, False
    end = len(data) - len(_encode(told))
    sizes = [0 if code else _size(payload) for payload, code in zip(payloads, codes, strict=True)]
    begin = end - sum(sizes)
    best = data
    for packed in _packings(data, begin, end, sizes, [_size(payload) for payload in payloads]):
        best = min(best, packed, key=len)
        if len(best) <= room:
            break
    return best, best is not data


def _size(payload: object) -> int:
    """The bytes of an encoded payload; of one that was removed before, 0."""
    if not isinstance(payload, bytes):
        return 0
    size = len(payload)
    return size + (2 if size < 1 << 8 else 3 if size < 1 << 16 else 5)


def _packings(data: bytes, begin: int, end: int, sizes: Sequence[int], before: Sequence[int]) -> Iterator[bytes]:
    """`data`, compressed in one way after the other. The payloads that are left are from `begin` to `end`. `sizes`:
    the bytes of each payload there, 0 of one that is gone; `before`: as they were."""
    yield _packed(data, 1)
    aligned = {begin, end, *_as_before(begin, sizes, before)}
    yield _packed(data, 1, aligned)
    for most in _APART:
        yield _packed(data, 1, {begin, end, *_by_payload(begin, sizes, most)})
    for level in (9, 19, 22):
        yield _packed(data, level)
    yield _packed(data, 13, aligned)
    for most in _APART:
        yield _packed(data, 13, {begin, end, *_by_payload(begin, sizes, most)})


def _packed(data: bytes, level: int, cuts: set[int] | None = None) -> bytes:
    """One frame without its magic. `cuts`: places where a block begins."""
    zstd = load_zstd()
    parameter = zstd.CompressionParameter
    options = {parameter.compression_level: level, parameter.content_size_flag: 0}
    if cuts is None:
        packed: bytes = zstd.compress(data, options=options)
        return packed.removeprefix(MAGIC)
    compressor = zstd.ZstdCompressor(options=options)
    parts, at = [], 0
    for cut in sorted(cuts):
        if at < cut < len(data):
            parts.append(compressor.compress(data[at:cut], compressor.FLUSH_BLOCK))
            at = cut
    parts.append(compressor.compress(data[at:], compressor.FLUSH_FRAME))
    return b"".join(parts).removeprefix(MAGIC)


def _as_before(begin: int, sizes: Sequence[int], before: Sequence[int]) -> Iterator[int]:
    """The places that began a block when all entries were there."""
    place, was, following = begin, 4, _BLOCK
    for size, old in zip(sizes, before, strict=True):
        while following <= was + old:
            yield place + (following - was if size else 0)
            following += _BLOCK
        place, was = place + size, was + old


def _by_payload(begin: int, sizes: Sequence[int], most: int) -> Iterator[int]:
    """Places between payloads, so that a large one shares no block with others."""
    last = begin
    for place, size in zip(accumulate(sizes, initial=begin), sizes, strict=False):
        if size >= most or place - last >= most:
            yield place
            last = place
