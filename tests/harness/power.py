"""Simulated power cuts: the synced files and names of a directory remain, and sometimes more."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Disk", "PowerCut"]

_CHANGES = ["fdatasync", "fsync", "link", "mkdir", "rename", "replace", "rmdir", "unlink"]


class PowerCut(BaseException):
    """The process ends here, and the machine with it."""


class Disk:
    """A watcher of syncs below `root`, which need not exist yet. Existing files count as synced."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.noted = root.with_name(root.name + ".cut")
        self.calls = 0
        """The number of calls so far that changed or synced something."""
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        """The names of each directory, with (inode, True for a directory)."""
        self._kept: list[int] = []
        """Open, so that no inode's number is given to another file."""
        self._sync_all(root.parent, {root.name})

    def _sync_all(self, directory: Path, only: set[str] | None = None) -> None:
        self._synced(os.open(directory, os.O_RDONLY), only)
        for path in directory.iterdir():
            if only is not None and path.name not in only:
                continue
            if path.is_dir():
                self._sync_all(path)
            else:
                self._synced(os.open(path, os.O_RDONLY))

    def _synced(self, fd: int, only: set[str] | None = None) -> None:
        self._kept.append(fd)
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(f"/proc/self/fd/{fd}") as entries:
                names = {entry.name: (entry.inode(), entry.is_dir()) for entry in entries if not entry.is_symlink()}
            self._names[found.st_ino] = {name: file for name, file in names.items() if only is None or name in only}
        else:
            self._contents[found.st_ino] = os.pread(fd, found.st_size, 0)

    @contextmanager
    def watch(self, before: Callable[[int], None] | None = None) -> Iterator[None]:
        """Follow the calls that are made here; `before(n)` is called before the nth."""
        with pytest.MonkeyPatch.context() as patch:
            for name in _CHANGES:
                patch.setattr(os, name, self._wrapped(name, getattr(os, name), before))
            yield

    def _wrapped(self, name: str, call: Any, before: Callable[[int], None] | None) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if before is not None:
                before(self.calls)
            result = call(*arguments, **options)
            if name in ("fdatasync", "fsync"):
                self._synced(os.open(f"/proc/self/fd/{arguments[0]}", os.O_RDONLY))  # it may be open for writing only
            return result

        return wrapped

    def keep(self, torn: bool) -> None:
        """Note the synced state, which would remain if the power was cut now.

        `torn`: also names that were not synced, without their contents, as a file system may leave them.
        """
        above, to = self.root.parent, self.noted
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir()
        there = dict(self._names[above.stat().st_ino])
        if torn and self.root.exists():
            there[self.root.name] = (self.root.stat().st_ino, True)
        if self.root.name in there:
            self._build(there[self.root.name][0], self.root, to, torn)

    def _build(self, directory: int, live: Path, to: Path, torn: bool) -> None:
        names = dict(self._names.get(directory, {}))
        if torn and live.is_dir():
            names |= {
                path.name: (path.stat().st_ino, path.is_dir()) for path in live.iterdir() if not path.is_symlink()
            }
        for name, (ino, is_directory) in names.items():
            if is_directory:
                (to / name).mkdir()
                self._build(ino, live / name, to / name, torn)
            else:
                (to / name).write_bytes(self._contents.get(ino, b""))

    def swap(self) -> None:
        """Restore the noted state."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.noted.rename(self.root)
        for fd in self._kept:
            os.close(fd)
        self._kept.clear()
