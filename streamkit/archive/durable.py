"""Power cuts and local tables: a commit and its files are on the disk before the commit can be seen.

delta-rs syncs nothing. So it writes to a copy of the log beside the real one. Its files there are synced, and only then
linked into the table. At no moment does the table hold a file that a power cut could leave empty.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..decoders import json_decoder
from ..errors import PermanentError
from .delta_log import SIDECARS
from .errors import UNDECODABLE

__all__ = ["Stage", "Synced", "keep", "make_directories", "mirror", "misread"]

LOG = "_delta_log"
_HINT = "_last_checkpoint"
_NAME = re.compile(r"\d{20}\..+")
_STAGE = ".streamkit-"
_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|\\")
_ABOVE = 4
"""Directories up from a table's log that are made for archives: the table, the store, the root, and the directory above
it."""
_STALE = 3600.0


class _Checkpoint(msgspec.Struct):
    """The hint of Delta to the last checkpoint."""

    version: int


def sync(path: str) -> None:
    """Sync the content of a file, or the names in a directory, to stable storage."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def keep(path: str) -> None:
    """Sync a new file and its name to stable storage. Every user who may enter its directory may read it."""
    directory = os.path.dirname(path)
    with contextlib.suppress(OSError):
        os.chmod(path, os.stat(directory).st_mode & 0o666)
    sync(path)
    sync(directory)


def make_directories(path: str) -> None:
    """Make the directory and its parents durably. Each gets the permissions of its parent."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory)
            with contextlib.suppress(OSError):
                os.chmod(directory, os.stat(path).st_mode & 0o2777)
        with contextlib.suppress(PermissionError):  # a process that may create names in it may still not open it
            sync(os.path.dirname(directory))


def sync_directories(table: str) -> None:
    """Sync the names of the table's files, and of the directories that lead to them."""
    path = os.path.join(table, LOG)
    for _ in range(_ABOVE):
        sync(path)
        path = os.path.dirname(path)
    with contextlib.suppress(PermissionError):  # nothing that was made for the archive, if it is not ours to open
        sync(path)


def log_tail(table: str) -> list[str]:
    """The names in the log that the newest versions are read from: the last checkpoint and the later files."""
    log = os.path.join(table, LOG)
    first = 0
    with contextlib.suppress(OSError, RecursionError, *UNDECODABLE), open(os.path.join(log, _HINT), "rb") as hint:
        first = json_decoder(_Checkpoint).decode(hint.read()).version
    names = sorted(name for name in os.listdir(log) if _NAME.fullmatch(name))
    if not any(int(name[:20]) == first and "checkpoint" in name for name in names):
        first = 0
    return [name for name in names if int(name[:20]) >= first]


def misread(directory: str) -> bool:
    """True if delta-rs would look for the files of this local table in another directory.

    It decodes a path twice, so it takes "a%20b" for "a b". It also takes a backslash for a slash.
    """
    return _MISREAD.search(os.path.realpath(directory)) is not None


@contextlib.contextmanager
def mirror(table: str) -> Iterator[str]:
    """A directory that delta-rs reads rightly, with links to all files of `table`."""
    with _readable_directory() as path:
        for directory, _, names in os.walk(table):
            inside = os.path.join(path, os.path.relpath(directory, table))
            os.makedirs(inside, exist_ok=True)
            for name in names:
                os.symlink(os.path.join(directory, name), os.path.join(inside, name))
        yield path


def _readable_directory() -> tempfile.TemporaryDirectory[str]:
    """A temporary directory that delta-rs reads rightly. PermanentError if temporary directories are misread too."""
    if misread(tempfile.gettempdir()):
        raise PermanentError(
            "the path of the archive has a backslash, or % and two hex digits, and so has the directory for temporary "
            "files: delta-rs reads neither. Set TMPDIR to another directory, or keep the archive elsewhere"
        )
    return tempfile.TemporaryDirectory(prefix="streamkit-", ignore_cleanup_errors=True)


class Stage:
    """A copy of a table's log, to write one commit to: `with Stage(table) as stage`, then `stage.publish()`.

    The table's log directory is there. FileNotFoundError if the table was deleted.
    """

    def __init__(self, table: str) -> None:
        self._table = table
        self._log = os.path.join(table, LOG)
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Stage:
        self._sweep()
        path = self._written = tempfile.mkdtemp(prefix=_STAGE, dir=self._table)
        self._open.callback(shutil.rmtree, path, ignore_errors=True)
        self._staged = os.path.join(path, LOG)
        os.mkdir(self._staged)
        if misread(self._table):
            self._written = self._open.enter_context(_readable_directory())
            os.mkdir(os.path.join(self._written, LOG))
        apart = self._written != path
        parts = [SIDECARS] if os.path.isdir(os.path.join(self._log, SIDECARS)) else []
        for name in (*log_tail(self._table), *parts):
            target = os.path.join(os.path.abspath(self._log) if apart else os.path.join("..", "..", LOG), name)
            os.symlink(target, os.path.join(self._written, LOG, name))
        return self

    def __exit__(self, *_: Any) -> None:
        self._open.close()

    @property
    def url(self) -> str:
        """The URL of the directory to which delta-rs writes the commit."""
        return Path(self._written).as_uri()

    def _gather(self) -> None:
        """Copy the files that delta-rs wrote elsewhere into the table's directory."""
        written = os.path.join(self._written, LOG)
        for name in os.listdir(written) if written != self._staged else ():
            path = os.path.join(written, name)
            if not os.path.islink(path):
                shutil.copyfile(path, os.path.join(self._staged, name))

    def publish(self) -> bool:
        """Put the written files into the table, durably. False, and nothing is put, if the version is taken."""
        self._gather()
        new = sorted(name for name in os.listdir(self._staged) if not os.path.islink(os.path.join(self._staged, name)))
        os.chmod(self._staged, os.stat(self._log).st_mode & 0o2777)
        for name in new:
            keep(os.path.join(self._staged, name))
        for name in sorted(new, key=lambda name: (not name.endswith(".json"), name)):
            if name == _HINT:
                continue
            try:
                os.link(os.path.join(self._staged, name), os.path.join(self._log, name))
            except FileExistsError:
                if name.endswith(".json"):
                    return False
        sync_directories(self._table)
        if _HINT in new:
            os.replace(os.path.join(self._staged, _HINT), os.path.join(self._log, _HINT))
            sync(self._log)
        return True

    def _sweep(self) -> None:
        """Remove the leftovers of killed processes."""
        for path in self._stages():
            with contextlib.suppress(OSError):
                if time.time() - os.stat(path).st_mtime > _STALE:
                    shutil.rmtree(path, ignore_errors=True)

    def _stages(self) -> Iterator[str]:
        return (os.path.join(self._table, name) for name in os.listdir(self._table) if name.startswith(_STAGE))


class Synced:
    """The files of one table that this process has synced. A file never changes once it exists."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._done: set[tuple[str, int, int]] = set()

    def sync(self, files: Iterable[str]) -> None:
        """Sync `files`, the end of the log, and the directories to stable storage."""
        names = [*files, *(os.path.join(LOG, name) for name in log_tail(self._table))]
        for name in names:
            path = os.path.join(self._table, name)
            found = os.stat(path)
            file = (name, found.st_ino, found.st_mtime_ns)
            if file not in self._done:
                sync(path)
                self._done.add(file)
        hint = os.path.join(self._table, LOG, _HINT)
        if os.path.exists(hint):
            sync(hint)
        sync_directories(self._table)
