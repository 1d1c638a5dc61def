"""A store's directory: made whole or not at all, and marked with its format."""

from __future__ import annotations

import os
import re
from typing import Final
from uuid import UUID

from streamkit.errors import AccessDenied, PermanentError, StoreClosed, Unavailable, UnsupportedVersion

from .errors import DENIED, damage, system_fault
from .files import PRIVATE, create_file, make_directories, make_directory, moved, remove_tree, sync_directory

__all__ = ["StoreDirectory", "check_apart", "check_file_system", "create_place"]

VERSION: Final = 3
_MARK: Final = b"streamkit local store\n"
_SIZE: Final = 64
_VERSION_AT: Final = 24
_TRIES: Final = 20

_REMOTE: Final = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "9p", "lustre", "beegfs", "gpfs"}


def _mounts() -> list[tuple[str, str]]:
    """Mount points and their types, where the system tells."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            lines = [line.split() for line in mounts]
    except OSError:
        return []
    return [(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line[1]), line[2]) for line in lines]


def check_file_system(path: str) -> None:
    """Raise PermanentError if `path` is on a network file system, as far as the system tells: locks and maps are not
    reliable there."""
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


def _blank() -> bytes:
    return (_MARK.ljust(_VERSION_AT, b"\0") + VERSION.to_bytes(4, "little")).ljust(_SIZE, b"\0")


def check_apart(root: str, store: UUID) -> None:
    """Raise PermanentError if the archive of this store is in the directory of another one, or the reverse: the
    deletion of one of the stores would remove the other."""
    above, name = os.path.split(root)
    for other in [os.path.join(root, "archive"), *([above] if name == "archive" else [])]:
        if os.path.exists(os.path.join(other, str(store), "format")):
            raise PermanentError(
                f"{root} and {other} have a store {store} each, and the archive of one of them is in the directory of "
                "the other: nothing was made or removed; use another directory or another UUID for one of the two"
            )


def create_place(root: str, store: UUID, mode: int = PRIVATE) -> None:
    """Make the directory of a store that is not there; another process may do the same at the same time.

    Everything in it gets its permissions, `mode`. The directory of its archive gets them too, and is made now, because
    other programs choose the permissions of their files in it.
    """
    path = os.path.join(root, str(store))
    for _ in range(_TRIES):
        try:
            _create(root, store, path, mode)
            return
        except FileNotFoundError:
            continue  # another process deletes the store, and has removed the new files
        except OSError as error:
            raise system_fault(error, path) from error
    raise Unavailable(f"{path} is deleted by others while it is being made: try again")


def _create(root: str, store: UUID, path: str, mode: int) -> None:
    make_directories(root, mode)
    check_file_system(root)
    if os.path.exists(os.path.join(root, "format")):
        raise PermanentError(
            f"{root} is the directory of a store: connect to the directory above it, or to another one"
        )
    check_apart(root, store)
    make_directories(os.path.join(root, "archive", str(store)), mode)
    draft = os.path.join(root, f".new-{store}-{os.urandom(4).hex()}")
    try:
        make_directory(draft, mode)
        with open(create_file(os.path.join(draft, "format")), "wb") as file:
            file.write(_blank())
            file.flush()
            os.fsync(file.fileno())
        sync_directory(draft)
        os.rename(draft, path)
    except OSError:
        remove_tree(draft, ignore_errors=True)
        if not os.path.exists(os.path.join(path, "format")):
            raise
    sync_directory(root)


class StoreDirectory:
    """The directory of one store. No file of it is kept open.

    `readonly`: this user may not write to it, so this process must not change anything in it.
    """

    def __init__(self, root: str, store: UUID) -> None:
        """FileNotFoundError if there is nothing at the path."""
        self.path = os.path.join(root, str(store))
        self._marker = os.path.join(self.path, "format")
        self.readonly = False
        try:
            self._open()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise system_fault(error, self.path) from error

    def _open(self) -> None:
        marker = self._marker
        try:
            fd = self._open_marker()
        except FileNotFoundError:
            names = os.listdir(self.path)
            if names and "format" not in names:
                raise damage(marker, "is missing: this is no store, or a damaged one") from None
            fd = self._open_marker()  # nothing, or another process has made the store just now
        try:
            start, found = os.pread(fd, 4096, 0), os.fstat(fd)
        finally:
            os.close(fd)
        # A marker is never written again: by these a store that was made later is told from this one.
        self._identity = found.st_ino, found.st_dev, found.st_mtime_ns
        if not start.startswith(_MARK):
            raise damage(marker, "does not start as a store's does")
        version = int.from_bytes(start[_VERSION_AT : _VERSION_AT + 4], "little")
        if version < VERSION:
            raise UnsupportedVersion(
                f"{self.path} has format version {version}, from before streamkit's first release, and this one reads "
                f"{VERSION}: read it with the version that wrote it, and write a new store"
            )
        if version > VERSION:
            raise UnsupportedVersion(
                f"{self.path} has format version {version}, this release reads {VERSION}: update streamkit"
            )
        if start != _blank():
            raise damage(marker, "is damaged")
        check_file_system(self.path)

    def _open_marker(self) -> int:
        try:
            return os.open(self._marker, os.O_RDWR)
        except OSError as error:
            if error.errno not in DENIED:
                raise
        self.readonly = True
        return os.open(self._marker, os.O_RDONLY)

    def current(self) -> bool:
        """True if the path still leads to this directory."""
        try:
            there = os.stat(self._marker)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise system_fault(error, self._marker) from error
        return (there.st_ino, there.st_dev, there.st_mtime_ns) == self._identity

    def check_writable(self) -> None:
        """Raise AccessDenied if it is not."""
        if self.readonly:
            raise AccessDenied(
                f"{self.path} may be read by this user and not written: give this user write access to the store, and "
                "open it again"
            )

    def check(self) -> None:
        """Raise StoreClosed if the store was deleted, or its directory was moved, so that its path leads to another
        store."""
        if not self.current():
            raise moved(self.path)

    def closed(self) -> StoreClosed:
        """The error for a store that was deleted."""
        return StoreClosed(f"the store {self.path} was deleted: open it again to start with an empty store")
