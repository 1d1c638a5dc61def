"""A store's directory: made whole or not at all, marked with its format, and locked."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import secrets
import shutil
import struct
import time
import weakref
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from streamkit.errors import AccessDenied, CorruptData, PermanentError, StoreClosed, Unavailable, UnsupportedVersion
from streamkit.reentry import Mutex

from .faults import DENIED, system_fault

__all__ = [
    "DELETED",
    "GONE",
    "GROUP",
    "INDEXED",
    "LOGS",
    "PAGED",
    "PRIVATE",
    "OpenFile",
    "Place",
    "check_file_system",
    "close_inherited",
    "create_file",
    "create_place",
    "lock_file",
    "make_directories",
    "map_file",
    "moved",
    "sync_data",
    "sync_directory",
]

VERSION: Final = 1
_MARK: Final = b"streamkit local store\n"
_STATIC: Final = struct.Struct("<24sI")
_SIZE: Final = 4096
_WORDS: Final = 512
GONE, LOGS, INDEXED, PAGED = 0, 1, 2, 4
"""Words that all processes share: 0, or DELETED once the store is deleted; a number that grows with each log of a
partition that is made, and is odd while one is being made, or if its maker ended; the last transaction of the index
that may be read; not 0 once the pages of the index have checksums."""

PRIVATE: Final = 0o700
GROUP: Final = 0o2770
"""Permissions of a store's directory: its owner's alone; its group's too, which all that is made in it belongs to."""

DELETED: Final = int.from_bytes(b"deleted!", "little")
"""No bit that flips makes it out of 0."""

_REMOTE: Final = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "9p", "lustre", "beegfs", "gpfs"}


class OpenFile:
    """A file descriptor that is closed when its last user lets go of it, so that no reader finds another file there."""

    __slots__ = ("__weakref__", "_identity", "base", "fd", "room")

    def __init__(self, fd: int, base: int = 0) -> None:
        self.fd = fd
        self._identity: tuple[int, int] | None = None
        self.base = base
        self.room = 0
        """Bytes that the file system has given it already."""
        _files.add(self)

    def is_at(self, path: str) -> bool:
        """Whether `path` still leads to this file: its directory may have been moved, or replaced by another."""
        if self._identity is None:
            opened = os.fstat(self.fd)
            self._identity = opened.st_ino, opened.st_dev
        try:
            there = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return self._identity == (there.st_ino, there.st_dev)

    def close(self) -> None:
        """Close it now, for all who use it. Again is fine."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def __del__(self) -> None:
        self.close()


_files: weakref.WeakSet[OpenFile] = weakref.WeakSet()


def close_inherited() -> None:
    """In a forked child: close every file that the parent had open.

    A lock belongs to the open file, which the child shares: as long as one of them keeps it open, it is locked, also
    after the parent was killed. What refers to it in the child may live for ever, in the frames of threads that are
    not there any more.
    """
    for file in list(_files):
        file.close()


def map_file(path: str, size: int, *, readonly: bool = False) -> mmap.mmap:
    """The first bytes of a file, shared by all processes that map it.

    It is opened anew, since a map keeps a descriptor of its own: one that shares a lock would keep that.
    """
    fd = os.open(path, os.O_RDONLY if readonly else os.O_RDWR)
    try:
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ if readonly else mmap.ACCESS_WRITE)
    finally:
        os.close(fd)


def moved(path: str) -> StoreClosed:
    """The error for what is not at its path any more."""
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
                    f"another process holds the lock of {path} for more than {timeout:g} s: is it stopped?"
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
    full = getattr(fcntl, "F_FULLFSYNC", None)  # where fsync stops at the disk's own cache
    if full is not None:
        fcntl.fcntl(fd, full)
    else:
        os.fdatasync(fd)


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
    """Whatever the umask says. Some file systems have one mode for all files, which their mount gives."""
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


def _mounts() -> list[tuple[str, str]]:
    """Mount points and their types, where the system tells."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            lines = [line.split() for line in mounts]
    except OSError:
        return []
    return [(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line[1]), line[2]) for line in lines]


def check_file_system(path: str) -> None:
    """PermanentError if `path` is on a network file system, where it can be told: locks and maps do not hold there."""
    real, best, kind = os.path.realpath(path) + "/", "", ""
    for mount, name in _mounts():
        point = mount.rstrip("/") + "/"
        if real.startswith(point) and len(point) >= len(best):
            best, kind = point, name
    if kind in _REMOTE or kind.startswith("fuse."):
        raise PermanentError(
            f"{path} is on a network or user-space file system ({kind}), where several writers would damage a store: "
            "use a local disk, or an s3:// or azure:// store"
        )


def create_place(root: str, store: UUID, mode: int = PRIVATE) -> None:
    """Make the directory of a store that is not there; another process may do the same at the same time.

    All that is ever made in it has its permissions, `mode`. So has the directory of its archive, which is made
    beforehand, because what others write into that has the permissions that they choose.
    """
    path = os.path.join(root, str(store))
    try:
        make_directories(root, mode)
        check_file_system(root)
        make_directories(os.path.join(root, "archive", str(store)), mode)
        draft = os.path.join(root, f".new-{store}-{secrets.token_hex(4)}")
        try:
            for directory in (draft, os.path.join(draft, "log"), os.path.join(draft, "index")):
                make_directory(directory, mode)
            with open(create_file(os.path.join(draft, "format")), "wb") as file:
                file.write(_STATIC.pack(_MARK, VERSION).ljust(_SIZE, b"\0"))
                file.flush()
                os.fsync(file.fileno())
            sync_directory(draft)
            os.rename(draft, path)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            if not os.path.exists(os.path.join(path, "format")):
                raise
        sync_directory(root)
    except OSError as error:
        raise system_fault(error, path) from error


def _open_marker(path: str) -> tuple[int, bool]:
    """A descriptor, and whether it can be read only."""
    try:
        return os.open(path, os.O_RDWR), False
    except OSError as error:
        if error.errno not in DENIED:
            raise
    return os.open(path, os.O_RDONLY), True


class Place:
    """The open directory of one store: `words` are shared by all processes that have it open.

    `readonly`: this user may not write to it, so this process must not change anything in it.
    """

    def __init__(self, root: str, store: UUID) -> None:
        """FileNotFoundError if nothing is there."""
        self.path = os.path.join(root, str(store))
        marker = self._marker = os.path.join(self.path, "format")
        try:
            try:
                fd, self.readonly = _open_marker(marker)
            except FileNotFoundError:
                names = os.listdir(self.path)
                if names and "format" not in names:
                    raise CorruptData(
                        f"{marker} is missing: this is no store, or a damaged one; restore it from a backup"
                    ) from None
                # Nothing, or another process has made the store just now.
                fd, self.readonly = _open_marker(marker)
            self._file = OpenFile(fd)
            start = os.pread(fd, _SIZE, 0)
            if len(start) != _SIZE:
                raise CorruptData(f"{marker} has {len(start)} bytes, not {_SIZE}: restore the store from a backup")
            mark, version = _STATIC.unpack_from(start)
            if mark.rstrip(b"\0") != _MARK:
                raise CorruptData(f"{marker} does not start as a store's does: restore the store from a backup")
            if version != VERSION:
                raise UnsupportedVersion(
                    f"{self.path} has format version {version}, this release reads {VERSION}: update streamkit"
                )
            check_file_system(self.path)
            self._map = map_file(marker, _SIZE, readonly=self.readonly)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise system_fault(error, self.path) from error
        self.words = memoryview(self._map)[_WORDS : _WORDS + 64].cast("Q")
        self.mutex = Mutex()

    @property
    def gone(self) -> bool:
        """The store was deleted, by any process."""
        word = self.words[GONE]
        if word not in (0, DELETED):
            raise CorruptData(f"{self.path}/format is damaged: restore the store from a backup")
        return bool(word)

    def current(self) -> bool:
        """The store was not deleted, and what is at its path is still this one."""
        return not self.gone and self._file.is_at(self._marker)

    def check_writable(self) -> None:
        """AccessDenied if it is not."""
        if self.readonly:
            raise AccessDenied(
                f"{self.path} may be read by this user and not written: give this user write access to the store, and "
                "open it again"
            )

    def check(self) -> None:
        """StoreClosed if the store was deleted, or its directory was moved: what is at its path is not this one."""
        if self.gone:
            raise StoreClosed(f"the store {self.path} was deleted: open it again to start anew")
        if not self._file.is_at(self._marker):
            raise moved(self.path)

    @contextlib.contextmanager
    def locked(self, timeout: float) -> Iterator[None]:
        """Hold the store's lock, which guards the index and the making of logs. StoreClosed if it was deleted."""
        with self.mutex():
            lock_file(self._file.fd, timeout, self.path)
            try:
                self.check()
                yield
            finally:
                fcntl.flock(self._file.fd, fcntl.LOCK_UN)
