"""Zstandard, fast. It is loaded when it is first used."""

from __future__ import annotations

import sys
import threading
from typing import Any

__all__ = ["grow", "load_zstd", "shrink"]

_LEVEL = 1
_SHORT = 1 << 20
"""To make a compressor takes longer than to use it on less; what it holds on to grows with what it is given."""
_free = threading.Lock()
"""Held by who uses the compressor that is kept. Nobody waits for it: a handler may interrupt its own thread."""
_zstd: Any = None
_kept: Any = None


def load_zstd() -> Any:
    """The module: the standard library's, where it has one."""
    global _zstd, _kept
    if _zstd is None:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
        _kept = zstd.ZstdCompressor(_LEVEL)
        _zstd = zstd
    return _zstd


def shrink(data: bytes) -> bytes:
    """One frame with all of `data`; the same bytes for the same data."""
    zstd = _zstd or load_zstd()
    packed: bytes
    if len(data) <= _SHORT and _free.acquire(blocking=False):
        try:
            packed = _kept.compress(data, _kept.FLUSH_FRAME)
        finally:
            _free.release()
    else:
        packed = zstd.compress(data, _LEVEL)
    return packed


def grow(data: bytes | memoryview, most: int) -> bytes:
    """What `shrink` was given, up to `most` bytes of it. ValueError if `data` is no frame, or damaged."""
    zstd = _zstd or load_zstd()
    try:
        found: bytes = zstd.ZstdDecompressor().decompress(data, max_length=most)
    except (zstd.ZstdError, EOFError) as error:
        raise ValueError("it cannot be decompressed") from error
    return found
