"""The head of a partition's log: a small file that every process maps, to see without a lock how far the log goes."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import uuid
import zlib
from functools import lru_cache
from typing import Final

from streamkit.errors import CorruptData, UnsupportedVersion

from .place import OpenFile, lock_file, map_file, moved

__all__ = ["DIRTY", "END", "SUSPECT", "SYNCED", "UNKNOWN", "Head", "boot_id", "seal"]

VERSION: Final = 1
_MAGIC: Final = b"SKlogHd\n"
_STATIC: Final = struct.Struct("<8sIHxxI")
_SIZE: Final = 4096
_WORDS: Final = 512
END, SYNCED, DIRTY, SUSPECT, BOOT = 0, 1, 2, 3, 4
"""Words: the published end and the known durable end (sealed); not 0 while a writer is between writing and publishing;
not 0 if syncing failed, so that what is not known to be durable must be written again; the boot id (two words)."""

_MIX: Final = 0x9E3779B97F4A7C15
UNKNOWN: Final = bytes(16)


@lru_cache
def boot_id() -> bytes:
    """16 bytes that change when the machine starts; UNKNOWN where the system does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return uuid.UUID(file.read().strip()).bytes
    except (OSError, ValueError):
        pass
    try:
        found = subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, timeout=5)
        return uuid.UUID(found.stdout.strip()).bytes
    except (OSError, ValueError, subprocess.SubprocessError):
        return UNKNOWN


def seal(position: int) -> int:
    """A position (48 bits) and 16 bits that check it, in one word that is stored at once."""
    return position << 16 | ((position + 1) * _MIX >> 48 & 0xFFFF)


class Head:
    """An open head file. Its lock is the partition's: whoever appends holds it."""

    def __init__(self, file: OpenFile, path: str, partition: bytes, *, readonly: bool = False) -> None:
        self.path = path
        self._file = file
        data = os.pread(file.fd, _SIZE, 0)
        if len(data) != _SIZE:
            raise CorruptData(f"{path} has {len(data)} bytes, not {_SIZE}: restore the store from a backup")
        magic, version, length, crc = _STATIC.unpack_from(data)
        if magic != _MAGIC or crc != zlib.crc32(data[_STATIC.size : _STATIC.size + length], version):
            raise CorruptData(f"{path} is damaged: restore the store from a backup")
        if version != VERSION:
            raise UnsupportedVersion(f"{path} has format version {version}, this release reads {VERSION}")
        if data[_STATIC.size : _STATIC.size + length] != partition:
            raise CorruptData(f"{path} belongs to another partition than {partition!r}")
        self.readonly = readonly
        self._map = map_file(path, _SIZE, readonly=readonly)
        self.words = memoryview(self._map)[_WORDS : _WORDS + 64].cast("Q")

    @staticmethod
    def blank(partition: bytes, boot: bytes) -> bytes:
        """The bytes of a new one."""
        static = _STATIC.pack(_MAGIC, VERSION, len(partition), zlib.crc32(partition, VERSION)) + partition
        words = struct.pack("=QQQQ", seal(0), seal(0), 0, 0) + boot
        return (static.ljust(_WORDS, b"\0") + words).ljust(_SIZE, b"\0")

    def position(self, word: int) -> int:
        """The position in `word`. CorruptData if it is not a sealed one."""
        position = word >> 16
        if seal(position) != word:
            raise CorruptData(f"{self.path} is damaged: restore the store from a backup")
        return position

    @property
    def boot(self) -> bytes:
        return struct.pack("=QQ", self.words[BOOT], self.words[BOOT + 1])

    def settle(self, end: int, boot: bytes) -> None:
        """Record, so that a power cut does not undo it, that the log up to `end` is durable in this boot."""
        words = self.words
        words[END] = words[SYNCED] = seal(end)
        words[DIRTY] = words[SUSPECT] = 0
        self._map.flush()
        words[BOOT], words[BOOT + 1] = struct.unpack("=QQ", boot)
        self._map.flush()

    def check(self) -> None:
        """StoreClosed if the log was moved away with its directory."""
        if not self._file.is_at(self.path):
            raise moved(os.path.dirname(self.path))

    def lock(self, timeout: float) -> None:
        lock_file(self._file.fd, timeout, self.path)

    def unlock(self) -> None:
        fcntl.flock(self._file.fd, fcntl.LOCK_UN)
