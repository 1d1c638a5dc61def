"""The files that a partition's log is made of. Each is named by the logical position of its first byte."""

from __future__ import annotations

import contextlib
import os
import re
import weakref
from bisect import bisect_right
from typing import Final

from streamkit.errors import CorruptData

from .place import OpenFile, create_file

__all__ = ["LogFiles"]

_KEPT: Final = 192
"""So many files are kept open, shared by all logs of the process; three of each in any case."""
_NAME: Final = re.compile(r"[0-9a-f]{16}\.log")

_all: weakref.WeakSet[LogFiles] = weakref.WeakSet()


class LogFiles:
    """Files under one directory. Lists are replaced, never changed, so that readers need no lock.

    `seed` is what the checksums of the records in them start from.
    """

    def __init__(self, path: str, seed: int, *, readonly: bool = False) -> None:
        self.path = path
        self._flags = os.O_RDONLY if readonly else os.O_RDWR
        self.seed = seed
        self.bases: list[int] = []
        self._open: dict[int, OpenFile] = {}
        self.refresh()
        _all.add(self)

    def name(self, base: int) -> str:
        return os.path.join(self.path, f"{base:016x}.log")

    def refresh(self) -> None:
        """Look which files there are."""
        self.bases = sorted(int(name[:16], 16) for name in os.listdir(self.path) if _NAME.fullmatch(name))

    def holding(self, position: int) -> OpenFile | None:
        """The file that holds `position`, or would: the last one that starts at or before it."""
        bases = self.bases
        index = bisect_right(bases, position) - 1
        if index < 0:
            return None
        return self._open.get(bases[index]) or self.open(bases[index])

    def open(self, base: int, *, create: bool = False) -> OpenFile | None:
        """The file that starts at `base`; None if it is not there."""
        file = self._open.get(base)
        if file is not None:
            return file
        try:
            fd = create_file(self.name(base)) if create else os.open(self.name(base), self._flags)
        except FileNotFoundError:
            return None
        file = OpenFile(fd, base)
        most = max(_KEPT // len(_all), 3)
        kept = dict(list(self._open.items())[1 - most :])
        kept[base] = file
        self._open = kept
        if create and base not in self.bases:
            self.bases = sorted([*self.bases, base])
        return file

    def after(self, position: int) -> int:
        """Where the file after the one that holds `position` starts; far away if it is the last."""
        bases = self.bases
        index = bisect_right(bases, position)
        return bases[index] if index < len(bases) else 1 << 63

    def since(self, position: int) -> list[int]:
        """The bases of the file that holds `position` and of those after it."""
        return self.bases[max(bisect_right(self.bases, position) - 1, 0) :]

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes of the one file that holds `position`; fewer, or none, if it ends before."""
        file = self.holding(position)
        return os.pread(file.fd, length, position - file.base) if file is not None else b""

    def end(self, base: int) -> int:
        """The logical position after the last byte of a file."""
        file = self.open(base)
        return base + os.fstat(file.fd).st_size if file is not None else base

    def check(self, first: int, end: int) -> int:
        """The end of what is there without a gap. CorruptData if that is not all from `first` to `end`."""
        position = first
        for base in self.since(first):
            if base > position >= end:
                break
            if base > position:
                raise CorruptData(f"{self.path} lacks the file {position:016x}.log: restore the store from a backup")
            position = self.end(base)
        if position < end or (end and not self.bases):
            raise CorruptData(
                f"{self.path} ends at {position}, but {end} bytes were written: its last file was cut or is missing; "
                "restore the store from a backup"
            )
        return position

    def cut(self, end: int) -> None:
        """Remove what is after `end`."""
        for base in reversed(self.bases):
            if base > end:
                self.remove(base)
                continue
            file = self.open(base)
            if file is not None and os.fstat(file.fd).st_size > end - base:
                os.ftruncate(file.fd, end - base)
            break

    def remove(self, base: int) -> None:
        """Unlink a file; who reads it goes on reading it."""
        self._open = {kept: file for kept, file in self._open.items() if kept != base}
        self.bases = [kept for kept in self.bases if kept != base]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.name(base))
