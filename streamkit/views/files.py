"""The files of a view: its builds, the link to the build that readers open, and the builder's lock.

    totals.sqlite                      → what readers open: a link to a build
    totals.sqlite.builds/
        2-5f1c77aa.lock                held by the builder of this version (flock)
        2-5f1c77aa.used                held shared by each open reader
        2-5f1c77aa.current             → the build that is read
        2-5f1c77aa.next                → the one that is built beside it
        2-5f1c77aa-3e91b0c2.sqlite     a build

The eight digits after the version are a digest of the spaces, and of the layout of a ready-made view's tables. A build
is never renamed, as SQLite finds its journal by its name; links are, and that is atomic. Each version, for the
same spaces, has its own, so that two that are deployed at once do not take turns in replacing each other.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..errors import Unavailable

__all__ = ["SCRATCH", "ViewFiles", "sync", "sync_names", "writing"]

SCRATCH = ".published"
"""The end of the name of a copy that a process publishes from."""
_OF_A_BUILD = {"", "-wal", "-shm", "-journal"}
_HALF_LINKED = re.compile(r"\.(current|next)\.[0-9a-f]{8}$")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_FILES = {errno.EMFILE, errno.ENFILE}


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn errors of a full or failing disk, or of too many open files, into Unavailable: nothing is lost, and the next
    call continues."""
    try:
        yield
    except OSError as error:
        if error.errno in _FILES:
            remedy = "raise `ulimit -n`, or close stores and views that are not needed"
            raise Unavailable(f"too many open files at {path}: {remedy}") from error
        if error.errno not in _FULL:
            raise
        raise Unavailable(f"{path} cannot be written ({error.strerror}): free some space, and call it again") from error


class ViewFiles:
    """The files of one version of one view. They are opened only to lock them."""

    def __init__(self, path: str, version: int, spaces: Sequence[str], layout: int = 0) -> None:
        self.path = os.path.abspath(path)
        self.directory = f"{self.path}.builds"
        names = "\0".join(sorted(spaces))
        content = f"{names}\0\0{layout}" if layout else names
        digest = hashlib.blake2b(content.encode(), digest_size=4).hexdigest()
        self.key = f"{version}-{digest}"
        self.version = version
        self._used: int | None = None

    def prepare(self) -> None:
        """Make the directory, and say that this version is in use."""
        if self._used is None:
            with writing(self.directory):
                os.makedirs(self.directory, exist_ok=True)
            fd = self._open("used")
            fcntl.flock(fd, fcntl.LOCK_SH)
            if self._used is None:
                self._used = fd
            else:  # another thread was faster
                os.close(fd)

    def close(self) -> None:
        if self._used is not None:
            os.close(self._used)
            self._used = None

    @contextmanager
    def building(self) -> Iterator[bool]:
        """True while no other process builds this version; False, at once, if one does."""
        self.prepare()
        fd = self._open("lock")
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(fd)

    def _open(self, what: str) -> int:
        path = os.path.join(self.directory, f"{self.key}.{what}")
        with writing(path):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def current(self) -> str | None:
        """The build of this version that is read."""
        return self._target(f"{self.key}.current")

    def next(self) -> str | None:
        """The build of this version that is being made beside the current one."""
        return self._target(f"{self.key}.next")

    def shown(self) -> str | None:
        """The build that readers of any version find."""
        try:
            return os.path.join(os.path.dirname(self.path), os.readlink(self.path))
        except OSError:
            return None

    def _target(self, name: str) -> str | None:
        try:
            return os.path.join(self.directory, os.readlink(os.path.join(self.directory, name)))
        except OSError:
            return None

    def new(self) -> str:
        """The path for another build, which is now the next one. A file may be put there first, or it is made."""
        path = self.beside()
        self._link(os.path.basename(path), os.path.join(self.directory, f"{self.key}.next"))
        return path

    def beside(self) -> str:
        """The path for another build, which nothing links to yet."""
        return os.path.join(self.directory, f"{self.key}-{os.urandom(4).hex()}.sqlite")

    def replace(self, build: str, other: str) -> None:
        """Have `other` read, built and shown where `build` was."""
        name = os.path.basename(other)
        links = {
            os.path.join(self.directory, f"{self.key}.current"): self.current(),
            os.path.join(self.directory, f"{self.key}.next"): self.next(),
        }
        for link, target in links.items():
            if target == build:
                self._link(name, link)
        if self.shown() == build:
            self._link(os.path.join(os.path.basename(self.directory), name), self.path)

    def show(self, build: str) -> None:
        """Have readers open `build`, unless a later version is open already."""
        name = os.path.basename(build)
        self._link(name, os.path.join(self.directory, f"{self.key}.current"))
        shown = self.shown()
        if shown is None or _version(shown) <= self.version:
            self._link(os.path.join(os.path.basename(self.directory), name), self.path)
        with contextlib.suppress(FileNotFoundError):
            if self.next() == build:
                os.unlink(os.path.join(self.directory, f"{self.key}.next"))

    def _link(self, target: str, path: str) -> None:
        temporary = f"{path}.{os.urandom(4).hex()}"
        with writing(path):
            os.symlink(target, temporary)
            os.replace(temporary, path)

    def sweep(self) -> None:
        """Remove unread builds of this version, and earlier versions that no process has open.

        The building process calls it, under the lock. A reader keeps its file while it has it open.
        """
        current, shown = self.current(), self.shown()
        if current is not None and shown != current and shown is not None and self._is_own(shown):
            # A process was stopped between the two links.
            self._link(os.path.join(os.path.basename(self.directory), os.path.basename(current)), self.path)
        kept = {current, self.next(), self.shown()}
        others: dict[str, list[str]] = {}
        for name in os.listdir(self.directory):
            key = "-".join(name.split(".")[0].split("-")[:2])
            others.setdefault(key, []).append(name)
        for name in others.pop(self.key, ()):
            build, is_build, rest = name.partition(".sqlite")
            if rest.endswith(SCRATCH):
                continue
            is_kept = os.path.join(self.directory, f"{build}.sqlite") in kept and rest in _OF_A_BUILD
            if (is_build and not is_kept) or _HALF_LINKED.search(name):
                self._remove([name])
        for key, names in others.items():
            if _version(key) > self.version or any(os.path.join(self.directory, name) in kept for name in names):
                continue
            if f"{key}.used" not in names:
                continue
            path = os.path.join(self.directory, f"{key}.used")
            with writing(path):
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._remove([name for name in names if not name.endswith((".used", ".lock"))])
            except BlockingIOError:
                continue
            finally:
                os.close(fd)

    def _is_own(self, build: str) -> bool:
        return os.path.basename(build).startswith(f"{self.key}-")

    def scratches(self) -> list[str]:
        """Names of the copies that processes publish from: of one that does so now, or that was stopped."""
        with contextlib.suppress(FileNotFoundError):
            return [name for name in os.listdir(self.directory) if name.endswith(SCRATCH)]
        return []

    def remove_scratches(self) -> None:
        """Remove scratch files. Only the process that holds the lease to publish this view calls it."""
        self._remove(self.scratches())

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.directory, name))

    def remove(self, build: str) -> None:
        """Remove a build that nothing links to. It does not come back after a power cut, because it may hold erased
        entries."""
        name = os.path.basename(build)
        sync_names(os.path.dirname(self.path))  # of the link to its successor
        self._remove([f"{name}{suffix}" for suffix in _OF_A_BUILD])
        sync_names(self.directory)

    def delete(self) -> None:
        """All of it, of all versions."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        with contextlib.suppress(FileNotFoundError):
            self._remove(os.listdir(self.directory))
            os.rmdir(self.directory)


def sync(path: str) -> None:
    """Sync the content of a file, or the names in a directory, to stable storage."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_names(directory: str) -> None:
    """Sync the names in a directory to stable storage, if the system and the directory's owner allow it."""
    with contextlib.suppress(OSError), writing(directory):
        sync(directory)


def _version(path: str) -> int:
    head = os.path.basename(path).partition("-")[0]
    return int(head) if head.isdecimal() else -1
