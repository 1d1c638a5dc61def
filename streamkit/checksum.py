"""CRC-32 with zlib's polynomial. Where isal has no build for a platform, zlib's own does the same more slowly.

`crc32_short` is for up to 512 bytes. It is the one of the two that this processor runs faster. On an AMD EPYC, isal's
takes less than half of the time. Some processors of Intel are faster with zlib's. With the compiled
twin, nothing that takes time uses it, and nothing is measured.
"""

from collections.abc import Callable
from time import perf_counter_ns
from zlib import crc32 as crc32_of_zlib

from .speed import twin

try:
    from isal.isal_zlib import crc32
except ImportError:
    crc32 = crc32_of_zlib

__all__ = ["crc32", "crc32_short"]


def _nanoseconds(checksum: Callable[[bytes, int], int]) -> int:
    data, begin = bytes(128), perf_counter_ns()
    for _ in range(32):
        checksum(data, 0)
    return perf_counter_ns() - begin


crc32_short = crc32
if twin is None:
    crc32_short = min(crc32, crc32_of_zlib, key=lambda checksum: min(_nanoseconds(checksum) for _ in range(3)))
