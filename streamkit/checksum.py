"""CRC-32 with zlib's polynomial. Where isal has no build for a platform, zlib's own does the same more slowly."""

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
