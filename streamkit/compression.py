"""Zstandard, fast. It is loaded when it is first used."""

from __future__ import annotations

import struct
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from . import speed
from .importing import IMPORTING

__all__ = ["Compressor", "compress", "decompress", "decompress_pieces", "load_zstd"]

_LEVEL = 1
_QUICK = -1
_HARD = 0.4
"""The share of its bytes that data keeps if it hardly shrinks."""
_SHORT = 1 << 20
"""Making a compressor takes longer than compressing less than this. A kept compressor holds memory in proportion to its
input."""
_LARGE = 1 << 16
"""Bytes. Below this limit it costs less to decompress a frame than to ask for its size."""
_PIECE = 1 << 20
_WINDOW_LOG = 23
"""Log2 of the memory that a frame may need: 8 MiB. `compress` and published views need 512 KiB."""
_free = threading.Lock()
"""Held by the thread that uses a kept compressor. No thread waits for it, because a handler may interrupt its own
thread."""
_ONE_BLOCK = b"\x28\xb5\x2f\xfd\x60"
"""Begins a frame of 256 to 65,791 bytes, decompressed, without a checksum: magic, descriptor."""
_FRAME_HEAD = struct.Struct("<5sHBH")
"""Its head: the beginning, the size less 256, the three bytes before its first block."""
_BLOCK_AT = 7
_NO_BLOCK = b"\x07\x00\x00"
"""The head of a block of the type that no block has."""
_spare: deque[Any] = deque(maxlen=4)
"""Decompressors that begin a new frame."""
_twin = speed.twin
_zstd: Any = None
_kept: dict[int, Any] = {}


def load_zstd() -> Any:
    """The module: the standard library's, where it has one."""
    global _zstd, _kept
    if _zstd is None:
        with IMPORTING:
            if sys.version_info >= (3, 14):
                from compression import zstd
            else:
                from backports import zstd
        _kept = {level: zstd.ZstdCompressor(level) for level in (_LEVEL, _QUICK)}
        _zstd = zstd
    return _zstd


class Compressor:
    """Compresses parts that resemble each other; the same bytes for the same parts. State: the level for the next one.

    Data that hardly shrinks takes a third less time at the quick level, and as many bytes. Other data takes a tenth
    more bytes there.
    """

    __slots__ = ("_level",)

    def __init__(self) -> None:
        self._level = _LEVEL

    def compress(self, data: bytes) -> bytes:
        """One frame with all of `data`."""
        packed = compress(data, self._level)
        self._level = _QUICK if len(packed) > len(data) * _HARD else _LEVEL
        return packed


def compress(data: bytes, level: int = _LEVEL) -> bytes:
    """One frame with all of `data`; the same bytes for the same data."""
    zstd = _zstd or load_zstd()
    packed: bytes
    if len(data) <= _SHORT and _free.acquire(blocking=False):
        try:
            compressor = _kept[level]
            packed = compressor.compress(data, compressor.FLUSH_FRAME)
        finally:
            _free.release()
    else:
        packed = zstd.compress(data, level)
    return packed


def decompress(data: bytes | memoryview, most: int) -> bytes:
    """Decompress a frame of `compress`, up to `most` bytes. ValueError if `data` is damaged or not a frame.

    Nothing is decompressed if the frame says that it holds more.
    """
    if _twin is not None:
        content: bytes | None = _twin.decompress(data, most)
        if content is not None:
            return content
    zstd = _zstd or load_zstd()
    known = _decompress_block(zstd, data, most)
    if known is not None:
        return known
    try:
        if most >= _LARGE and (zstd.get_frame_info(data).decompressed_size or 0) > most:
            raise ValueError("it says that it is larger than it may be")
        found: bytes = zstd.ZstdDecompressor().decompress(data, max_length=most)
    except (zstd.ZstdError, EOFError) as error:
        raise ValueError("it cannot be decompressed") from error
    return found


def _decompress_block(zstd: Any, data: bytes | memoryview, most: int) -> bytes | None:
    """Decompress a frame of one block, up to 64 KiB. None for any other frame, and for a damaged one.

    Making a decompressor takes five times as long as this, because zstd asks the processor for its features. Python's
    decompressor is of no more use after a frame's last block, but after an error it begins a new frame. Here no block
    says that it is the last one, and an error follows on it. A block that holds more than the frame says is an error,
    too.
    """
    if len(data) < _FRAME_HEAD.size:
        return None
    begin, size, low, high = _FRAME_HEAD.unpack_from(data)
    size += 256
    end = _FRAME_HEAD.size + (high << 5 | low >> 3)
    if begin != _ONE_BLOCK or low & 7 != 0b101 or end > len(data) or size > most:  # the last block, compressed
        return None
    frame = bytearray(data[:end])
    frame[_BLOCK_AT] ^= 1
    try:
        decompressor = _spare.pop()
    except IndexError:
        decompressor = zstd.ZstdDecompressor()
    try:
        found: bytes = decompressor.decompress(frame, max_length=size)
    except (zstd.ZstdError, EOFError):
        return None
    try:
        decompressor.decompress(_NO_BLOCK)
    except zstd.ZstdError:
        _spare.append(decompressor)
    return found if len(found) == size else None


def decompress_pieces(chunks: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Decompress the frame in `chunks` to pieces of at most 1 MiB, so that memory does not depend on its size.

    ValueError if the frame is incomplete or damaged, or after the first `most` bytes if it holds more.
    """
    zstd = _zstd or load_zstd()
    parameter = zstd.DecompressionParameter.window_log_max
    decompressor = zstd.ZstdDecompressor(options={parameter: _WINDOW_LOG})
    total = 0
    try:
        for chunk in chunks:
            data = chunk
            while not decompressor.eof and (data or not decompressor.needs_input):
                piece = decompressor.decompress(data, max_length=_PIECE)
                data = b""
                total += len(piece)
                if total > most:
                    raise ValueError(f"it holds more than {most:,} bytes")
                yield piece
    except (zstd.ZstdError, EOFError) as error:
        raise ValueError("it cannot be decompressed") from error
    if not decompressor.eof:
        raise ValueError("it ends too early")
