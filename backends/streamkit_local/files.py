"""Files and directories as the store makes them: with the permissions of where they are, so that they last."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from streamkit import speed
from streamkit.errors import StoreClosed, Unavailable

__all__ = [
    "GROUP",
    "PRIVATE",
    "OpenFile",
    "cached_file",
    "close_inherited",
    "create_file",
    "forget_files",
    "lock_file",
    "make_directories",
    "make_directory",
    "moved",
    "remove_directory",
    "remove_tree",
    "start_writing",
    "sync_data",
    "sync_directory",
    "unlink",
    "write_all",
]

PRIVATE: Final = 0o700
GROUP: Final = 0o2770
"""Permissions of a store's directory: its owner's alone; its group's too, which all that is made in it belongs to."""
_CACHED: Final = 128
"""The number of read-only files that the process keeps open, for all its stores."""
_TRIES: Final = 100
_FULL: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
"""The call that syncs a file, where fsync stops at the disk's own cache."""
_twin: Any = speed.twin


class OpenFile:
    """A file descriptor that is closed when its last user releases it, so that no reader finds another file under its
    number."""

    __slots__ = ("__weakref__", "_identity", "fd", "path", "place", "room", "table")

    def __init__(self, fd: int, path: str = "") -> None:
        self.fd = fd
        self.path = path
        self.room = 0
        """The position up to which the file was filled with zeros beforehand."""
        self.table: tuple[int, bytes] | None = None
        """The start of the value in a row's file, and the checksums of its blocks."""
        self._identity: tuple[int, int] | None = None
        self.place: tuple[int, int, int] | None = None
        """The file's directory, and the time of the directory's last change when the file was last seen in it."""
        _files.add(self)

    def is_at(self, directory: str, path: str) -> bool:
        """True if `path`, in `directory`, still leads to this file: either may have been moved, or replaced."""
        # To ask the file itself costs its next sync a commit of the file system's journal, as Linux then dates each
        # write exactly; and its directory tells by its own time whether a name in it has changed.
        if _twin is not None and self.place is not None and _twin.is_at(directory, *self.place):
            return True
        try:
            told = os.stat(directory)
            place = told.st_ino, told.st_dev, told.st_mtime_ns
            if place == self.place:
                return True
            there = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if self._identity is None:
            opened = os.fstat(self.fd)
            self._identity = opened.st_ino, opened.st_dev
        if self._identity != (there.st_ino, there.st_dev):
            return False
        self.place = place
        return True

    def close(self) -> None:
        """Close it now, for all its users. A second call does nothing."""
        fd, self.fd = getattr(self, "fd", -1), -1  # an interrupted thread did not complete it
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def __del__(self) -> None:
        self.close()


_files: weakref.WeakSet[OpenFile] = weakref.WeakSet()
_cached: OrderedDict[tuple[str, int, int], OpenFile] = OrderedDict()


def cached_file(directory: str, name: int, path_of: Callable[[str, int], str], owner: int = 0) -> OpenFile:
    """The file `path_of(directory, name)`, which is only read. FileNotFoundError if it is gone.

    `owner`: the name is not given to another file while this file is read. 0: it never is.
    """
    key = directory, name, owner
    file = _cached.get(key)
    if file is None:
        path = path_of(directory, name)
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            if not _cached:
                raise
            _cached.clear()  # there may be no descriptor left
            fd = os.open(path, os.O_RDONLY)
        file = _cached[key] = OpenFile(fd, path)
        with contextlib.suppress(KeyError):
            while len(_cached) > _CACHED:
                _cached.popitem(last=False)
    elif len(_cached) > _CACHED // 2:
        with contextlib.suppress(KeyError):
            _cached.move_to_end(key)
    return file


def forget_files(directory: str) -> None:
    """Close the cached files below a directory."""
    for key in list(_cached):
        if key[0].startswith(directory):
            _cached.pop(key, None)


def close_inherited() -> None:
    """Close every file that the parent had open, in a forked child.

    A lock belongs to the open file, which both processes share. It stays locked until both have closed it, also after
    the parent was killed. Frames of threads that did not survive the fork may keep references to it for ever.
    """
    _cached.clear()
    for file in list(_files):
        file.close()


def moved(path: str) -> StoreClosed:
    """The error for a file that is not at its path any more."""
    return StoreClosed(
        f"{path} was moved, replaced or deleted while it was open, and nothing was written: open the store again "
        "where it is now"
    )


def lock_file(fd: int, timeout: float, path: str) -> None:
    """Take the exclusive lock of an open file. Unavailable if another process keeps it for `timeout` seconds."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pass
    deadline, pause = time.monotonic() + timeout, 2e-5
    while True:
        time.sleep(pause)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pause = min(pause * 1.3, 5e-4)
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"another process has held the lock of {path} for more than {timeout:g} s: let it go on, or end it"
                ) from None


def sync_directory(path: str) -> None:
    """Make the names in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_data(fd: int) -> None:
    """Put a file's bytes on stable storage."""
    if _FULL is not None:
        fcntl.fcntl(fd, _FULL)
    else:
        os.fdatasync(fd)


def start_writing(fd: int, start: int, stop: int) -> None:
    """Ask the system to begin to write this part of a file to the disk, for the next sync to wait for less."""
    # Linux begins to write the pages that are not on the disk yet, and drops none of these from its cache.
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, start, stop - start, os.POSIX_FADV_DONTNEED)


def write_all(fd: int, data: bytes, at: int, written: int = 0) -> None:
    """Write `data` at an offset, to its end; `written` bytes of it are there already."""
    written = written or os.pwrite(fd, data, at)
    if written < len(data):
        rest = memoryview(data)
        while written < len(data):
            written += os.pwrite(fd, rest[written:], at + written)


def create_file(path: str, *, truncate: bool = False) -> int:
    """Open a file to read and write, made if it is not there, with the permissions of its directory."""
    flags = os.O_RDWR | (os.O_TRUNC if truncate else 0)
    mode = os.stat(os.path.dirname(path)).st_mode & 0o666
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return os.open(path, flags)
    _set_mode(fd, mode)
    return fd


def make_directory(path: str, mode: int = 0) -> None:
    """Make a directory with the permissions `mode`, 0: those of the directory that it is in."""
    mode = mode or os.stat(os.path.dirname(path)).st_mode & 0o2777
    os.mkdir(path, mode & 0o777)
    _set_mode(path, mode)


def _set_mode(file: int | str, mode: int) -> None:
    """Set the mode, with any umask. Some file systems have one mode for all files, which the mount sets."""
    if os.stat(file).st_mode & 0o7777 != mode:
        with contextlib.suppress(OSError):
            os.chmod(file, mode)


def make_directories(path: str, mode: int = 0) -> None:
    """Make a directory, and those above it that are missing, so that a power cut does not undo it."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        make_directories(parent, mode)
    try:
        make_directory(path, mode)
        sync_directory(parent)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def remove_tree(path: str, *, ignore_errors: bool = False) -> None:
    """shutil.rmtree, which loads the compressors of archives with it. Few processes remove directories."""
    from shutil import rmtree

    rmtree(path, ignore_errors=ignore_errors)


def remove_directory(path: str) -> None:
    """Remove a directory with all that is in it. Another process may do the same, or put something there meanwhile."""
    for _ in range(_TRIES):
        try:
            remove_tree(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise
        if not os.path.lexists(path):
            return
    raise Unavailable(f"{path} cannot be removed, as others write to it: try again")


def unlink(path: str) -> None:
    """Remove a file; one that is not there is fine."""
    for key, file in list(_cached.items()):
        if file.path == path:
            _cached.pop(key, None)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
