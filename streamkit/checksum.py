"""CRC-32 with zlib's polynomial. Where isal has no build for a platform, zlib's own does the same more slowly.

`crc32_short` is zlib's own, which is called faster. It takes less time for up to 300 to 500 bytes.
"""

from zlib import crc32 as crc32_short

try:
    from isal.isal_zlib import crc32
except ImportError:
    crc32 = crc32_short

__all__ = ["crc32", "crc32_short"]
