"""The checksum of every page of the index, in a file beside it that all processes map.

    "SKpages\\n" · version u32 · 0 u32 · transaction u64 · 40 bytes of 0 · for each page its checksum u32, 0: none yet

`durable` is the index transaction up to which this file is on stable storage.
"""

from __future__ import annotations

import os
import struct
from typing import Final

from streamkit.errors import CorruptData, UnsupportedVersion

from .place import create_file, map_file

__all__ = ["Sums"]

VERSION: Final = 1
_MAGIC: Final = b"SKpages\n"
_STATIC: Final = struct.Struct("<8sI")
_START: Final = 64
_DURABLE: Final = 2
_STEP: Final = 1024


class Sums:
    """`table[page]` is a page's checksum; it is replaced when it has to grow. Writers hold the store's lock."""

    def __init__(self, path: str, *, readonly: bool = False) -> None:
        """FileNotFoundError if it is not there."""
        self.path = path
        self._readonly = readonly
        self._view()
        magic, version = _STATIC.unpack_from(self._map)
        if magic != _MAGIC:
            raise CorruptData(f"{path} is damaged: restore the store from a backup")
        if version != VERSION:
            raise UnsupportedVersion(f"{path} has format version {version}, this release reads {VERSION}")

    @staticmethod
    def create(path: str) -> Sums:
        """An empty one. Who has mapped one that is there already goes on with that."""
        if os.path.exists(path):
            os.unlink(path)
        fd = create_file(path)
        try:
            os.write(fd, _STATIC.pack(_MAGIC, VERSION).ljust(_START, b"\0"))
        finally:
            os.close(fd)
        return Sums(path)

    def _view(self) -> None:
        size = os.stat(self.path).st_size
        if size < _START:
            raise CorruptData(f"{self.path} is cut short: restore the store from a backup")
        self._map = map_file(self.path, size, readonly=self._readonly)
        view = memoryview(self._map)
        self._words = view[:_START].cast("Q")
        self.table = view[_START : size & ~3].cast("I")

    def refresh(self) -> None:
        """See how long others have made it."""
        if self._map.size() > len(self._map):
            self._view()

    def reserve(self, pages: int) -> None:
        """Have room for the checksums of so many pages, on the disk too: to touch what is not ends a process."""
        if len(self.table) >= pages:
            return
        size = _START + 4 * (max(pages, len(self.table) * 2) + _STEP - 1 & -_STEP)
        fd = os.open(self.path, os.O_RDWR)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, size)
            else:
                os.ftruncate(fd, size)
        finally:
            os.close(fd)
        self._view()

    @property
    def durable(self) -> int:
        return self._words[_DURABLE]

    def settle(self, transaction: int) -> None:
        """Put all on stable storage, then note that it is, up to `transaction`."""
        self._map.flush()
        self._words[_DURABLE] = transaction
