"""A Bloom filter of the subjects of a section of rows: 64-bit words, one word per subject.

The subject of a segment's rows is the segment's name. The subject of an idempotency key's row is its digest. The hash
is 32 bits of a checksum, mixed. One part of it chooses the word; the rest chooses one of 4096 patterns of bits. With 12
bits per subject, about one in a hundred absent subjects passes.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Collection, Sequence
from functools import cache

from .. import speed
from ..checksum import crc32
from ..log.keys import DATA_END, DATA_START, KEYS, SEGMENTS

__all__ = [
    "BITS",
    "PREFIXES",
    "build_filter",
    "hash_each",
    "hash_of",
    "hashes_of",
    "mask_of",
    "read_filter",
    "subject_of",
]

_twin = speed.twin
BITS = 12
"""Bits of a filter for each subject."""
_MIX = 0x9E3779B1
_SPREAD = 0x9E3779B97F4A7C15
_KEYS, _KEYS_END = bytes(KEYS.children()[0]), bytes(KEYS.children()[1])
_SEGMENTS, _SEGMENTS_END = bytes(SEGMENTS.children()[0]), bytes(SEGMENTS.children()[1])
PREFIXES = DATA_START, _KEYS, _SEGMENTS
"""The beginnings of the keys of the rows that have subjects, for the compiled twin."""
_DATA_AT, _KEYS_AT, _SEGMENTS_AT = len(DATA_START), len(_KEYS), len(_SEGMENTS)
_SEQUENCE = 9
"""Bytes at the end of a data row's key: the separator and the sequence."""


def subject_of(key: bytes) -> bytes:
    if key.startswith(_SEGMENTS):
        return key[_SEGMENTS_AT:]
    if key.startswith(DATA_START):
        return key[_DATA_AT:-_SEQUENCE]
    if key.startswith(_KEYS):
        return key[_KEYS_AT:]
    return key


def hash_of(subject: bytes) -> int:
    return crc32(subject) * _MIX & 0xFFFFFFFF


def hashes_of(keys: Sequence[bytes]) -> set[int]:
    """The hashes of the subjects of `keys`, which are sorted."""
    return {*hash_each(keys)}


def hash_each(keys: Sequence[bytes]) -> list[int]:
    """The hash of the subject of each of `keys`, which are sorted."""
    hashes: list[int] = []
    at = 0
    for start, end, skip, cut in (
        (DATA_START, DATA_END, _DATA_AT, -_SEQUENCE),
        (_KEYS, _KEYS_END, _KEYS_AT, None),
        (_SEGMENTS, _SEGMENTS_END, _SEGMENTS_AT, None),
    ):
        low = bisect_left(keys, start, at)
        high = bisect_left(keys, end, low)
        hashes += [hash_of(key) for key in keys[at:low]]
        hashes += [crc32(key[skip:cut]) * _MIX & 0xFFFFFFFF for key in keys[low:high]]
        at = high
    hashes += [hash_of(key) for key in keys[at:]]
    return hashes


@cache
def _masks() -> list[int]:
    masks = []
    for pattern in range(4096):
        mixed = (pattern + 1) * _SPREAD & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 29) * _SPREAD & 0xFFFFFFFFFFFFFFFF
        masks.append(
            1 << (mixed >> 58)
            | 1 << (mixed >> 52 & 63)
            | 1 << (mixed >> 46 & 63)
            | 1 << (mixed >> 40 & 63)
            | 1 << (mixed >> 34 & 63)
        )
    return masks


def mask_of(hash: int) -> int:
    """The bits that stand for a subject in its word, which is number `hash % len(words)`."""
    return _masks()[hash >> 20]


def filter_of(hashes: array[int], *, once: bool) -> bytes:
    """The words of a filter. `once`: a hash that comes again is not counted again."""
    if _twin is not None:
        words: bytes | None = _twin.filter_words(hashes, once)
        if words is not None:
            return words
    return build_filter(set(hashes) if once else hashes)


def passing(keys: list[bytes], words: array[int]) -> list[bytes]:
    """The keys of sorted `keys` whose subjects may be in the filter with these words."""
    if _twin is not None:
        passed: list[bytes] | None = _twin.passing(keys, words, PREFIXES)
        if passed is not None:
            return passed
    masks, size = _masks(), len(words)
    return [
        key
        for key, hash in zip(keys, hash_each(keys), strict=True)
        if words[hash % size] & masks[hash >> 20] == masks[hash >> 20]
    ]


def build_filter(hashes: Collection[int]) -> bytes:
    masks = _masks()
    size = len(hashes) * BITS // 64 + 1
    words = array("Q", bytes(8 * size))
    for hash in hashes:
        words[hash % size] |= masks[hash >> 20]
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def read_filter(data: bytes) -> array[int]:
    """The words: a subject is not there unless `words[hash % len(words)] & mask == mask`."""
    words = array("Q")
    words.frombytes(data)
    if sys.byteorder == "big":
        words.byteswap()
    return words
