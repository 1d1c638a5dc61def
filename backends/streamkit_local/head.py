"""The head of a partition's log: a small file that every process maps, to see without a lock how far the log goes."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import sys
import weakref
from typing import Final

from streamkit.checksum import crc32
from streamkit.errors import StoreClosed, UnsupportedVersion

from .clock import boot_id
from .errors import damage

__all__ = [
    "BASE",
    "DELETED",
    "DIRTY",
    "END",
    "HEAD_SIZE",
    "HEAD_WORDS",
    "SUSPECT",
    "SYNCED",
    "Head",
    "identity_of",
    "release_inherited",
    "seal",
    "unseal",
]

HEAD_SIZE: Final = 4096
_MAGIC: Final = b"SKhead3\n"
_STATIC: Final = struct.Struct("<8s8sHxxI")
HEAD_WORDS: Final = 512
END, BASE, SYNCED, DIRTY, SUSPECT, INODE, BOOT, GENERATION = 0, 1, 2, 3, 4, 5, 6, 8
"""Words: the published end, the first position of the file that is written to, and the known durable end (sealed);
not 0 while a writer is between writing and publishing; not 0 if syncing failed, so that what is not known to be durable
must be written again; the number of this very file, and the boot id (two words): they tell a copy, and a new start;
the generation of that number, as a file that is removed leaves its number to another one; 0: not known."""
_WORDS: Final = 9
_GET_GENERATION: Final = 0x80007601 | struct.calcsize("l") << 16
"""FS_IOC_GETVERSION."""

DELETED: Final = int.from_bytes(b"deleted!", "little")
"""Is put in place of the end when the store is deleted. It is not sealed."""
_MIX: Final = 0x9E3779B97F4A7C15


def seal(position: int) -> int:
    """A position (48 bits) and 16 bits that check it, in one word that is stored at once."""
    return position << 16 | ((position + 1) * _MIX >> 48 & 0xFFFF)


def unseal(word: int) -> int:
    """The position in a word; -1 if it is not a sealed one."""
    position = word >> 16
    return position if seal(position) == word else -1


def _generation(fd: int) -> int:
    """Return a number that tells a file from an earlier one with the same inode; 0 where the file system has none."""
    try:
        return int.from_bytes(fcntl.ioctl(fd, _GET_GENERATION, bytes(8))[:4], sys.byteorder)
    except OSError:
        return 0


class Head:
    """An open head file. FileNotFoundError if there is none."""

    def __init__(self, path: str, partition: bytes, *, readonly: bool = False) -> None:
        self.path = path
        fd = os.open(path, os.O_RDONLY if readonly else os.O_RDWR)
        try:
            data = os.pread(fd, HEAD_SIZE, 0)
            if len(data) != HEAD_SIZE:
                raise damage(path, f"has {len(data)} bytes, not {HEAD_SIZE}")
            self._inode, self._generation = os.fstat(fd).st_ino, _generation(fd)
            # a map keeps a descriptor of its own
            self._map = mmap.mmap(fd, HEAD_SIZE, access=mmap.ACCESS_READ if readonly else mmap.ACCESS_WRITE)
        finally:
            os.close(fd)
        magic, identity, length, crc = _STATIC.unpack_from(data)
        name = data[_STATIC.size : _STATIC.size + length]
        if magic != _MAGIC or crc != crc32(name, crc32(identity)):
            raise damage(path, "is damaged")
        if name != partition:
            raise damage(path, f"belongs to another partition than {partition!r}")
        self.identity: bytes = identity
        self._view = memoryview(self._map)
        self._all = self._view.cast("Q")
        self.words = self._all[HEAD_WORDS // 8 : HEAD_WORDS // 8 + _WORDS]
        _heads.add(self)

    @staticmethod
    def blank(partition: bytes, identity: bytes, base: int, end: int) -> bytes:
        """The bytes of a new head, whose words are not final yet."""
        static = _STATIC.pack(_MAGIC, identity, len(partition), crc32(partition, crc32(identity))) + partition
        words = struct.pack("=3Q", seal(end), seal(base), seal(end))
        return (static.ljust(HEAD_WORDS, b"\0") + words).ljust(HEAD_SIZE, b"\0")

    def position(self, word: int) -> int:
        """The position in one of the words. CorruptData if it is not a sealed one, StoreClosed if it says so."""
        position = unseal(word)
        if position < 0:
            if word == DELETED:
                raise StoreClosed(
                    f"the store {os.path.dirname(self.path)} was deleted: open it again to start with an empty store"
                )
            swapped = (int.from_bytes(self.words[at].to_bytes(8, "little"), "big") for at in (END, BASE, SYNCED))
            if min(map(unseal, swapped)) >= 0:
                raise UnsupportedVersion(
                    f"{self.path} was written on a machine with another byte order: "
                    "export the store there, and import it here"
                )
            raise damage(self.path, "is damaged")
        return position

    @property
    def same_file(self) -> bool:
        """True if the head is no copy, made together with its store."""
        words, generation = self.words, self._generation
        return words[INODE] == self._inode and (words[GENERATION] == generation or not words[GENERATION] * generation)

    @property
    def settled(self) -> bool:
        """True if the words describe the present files: the machine was not started since, and the head is no copy."""
        words = self.words
        if words[END] == DELETED:
            return True
        return self.same_file and struct.pack("=QQ", words[BOOT], words[BOOT + 1]) == boot_id()

    def settle(self, base: int, end: int) -> None:
        """Record, so that a power cut does not undo it, that the log up to `end` is durable in this boot."""
        words = self.words
        words[BASE] = seal(base)
        words[END] = words[SYNCED] = seal(end)
        words[DIRTY] = words[SUSPECT] = 0
        words[INODE], words[GENERATION] = self._inode, self._generation
        self.flush()
        words[BOOT], words[BOOT + 1] = struct.unpack("=QQ", boot_id())
        self.flush()

    def flush(self) -> None:
        """Make the words durable."""
        self._map.flush()

    def release(self) -> None:
        """Close the map now. It must not be used after that."""
        for view in (self.words, self._all, self._view):
            with contextlib.suppress(BufferError):
                view.release()
        with contextlib.suppress(BufferError):
            self._map.close()


def identity_of(path: str, partition: bytes) -> bytes | None:
    """Read the identity of the partition's files from the head at `path`; None for a missing or damaged head."""
    try:
        with open(path, "rb") as file:
            data = file.read(HEAD_SIZE)
        magic, identity, length, crc = _STATIC.unpack_from(data)
    except (FileNotFoundError, struct.error):
        return None
    name = data[_STATIC.size : _STATIC.size + length]
    right = magic == _MAGIC and name == partition and crc == crc32(name, crc32(identity))
    return bytes(identity) if right else None


_heads: weakref.WeakSet[Head] = weakref.WeakSet()


def release_inherited() -> None:
    """Close the parent's maps, in a forked child."""
    for head in list(_heads):
        head.release()
