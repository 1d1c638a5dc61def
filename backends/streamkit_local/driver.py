"""`file:///path`: the stores under one directory."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Collection, Iterator, Sequence
from uuid import UUID

from streamkit.backend import split_url, unescape, url_options
from streamkit.errors import PermanentError, StoreClosed

from .backend import LocalBackend
from .errors import system_fault
from .files import GROUP, PRIVATE, remove_directory, remove_tree, sync_directory
from .place import StoreDirectory, check_apart
from .store import mark_deleted

__all__ = ["LocalDriver", "archive_place", "connect"]

_MODES = {"private": PRIVATE, "group": GROUP}


def connect(url: str, *, timeout: float) -> LocalDriver:
    """The stores under the directory of a `file:///absolute/path` URL. ValueError for another URL. New files belong to
    their user alone; with `?mode=group` to all users of the group too. `timeout`: seconds to wait for another process's
    lock; if a process has several clients of a store, the first one's counts.
    """
    if sys.platform == "win32":
        raise PermanentError("file:// stores need a POSIX system: use WSL, or an s3:// or azure:// store")
    path, options = _path_of(url, ("mode",))
    mode = options.get("mode", "private")
    if mode not in _MODES:
        raise ValueError(f"the option 'mode' of a file:// URL is one of {', '.join(_MODES)}; the URL has another value")
    return LocalDriver(path, timeout, _MODES[mode])


def archive_place(url: str) -> tuple[str, dict[str, str]]:
    """Return the place of archives at a file:// URL of their own, in the form of `archive_root`. Raises ValueError for
    another URL."""
    from pathlib import Path

    return Path(_path_of(url, ())[0]).as_uri(), {}


def _path_of(url: str, known: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The absolute path that a file:// URL names, and its options. ValueError for another URL."""
    parts = split_url(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ValueError("expected file:///absolute/path: a host, or a relative path, has no place in a file:// URL")
    options = url_options(url, known)
    if parts.fragment:
        raise ValueError("a file:// URL has no fragment: write # as %23 and ? as %3F")
    path = unescape(parts.path)
    if any(character < " " or character == "\x7f" for character in path):
        raise ValueError("the path of a file:// URL has no control characters: an archive cannot be kept there")
    return os.path.normpath(path), options


class LocalDriver:
    """Opens stores under `root`; each is a directory named by its UUID."""

    def __init__(self, root: str, timeout: float, mode: int = PRIVATE) -> None:
        self._root = root
        self._mode = mode
        self._timeout = timeout
        self._closed = False
        self._backends: weakref.WeakSet[LocalBackend] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"<LocalDriver {self._root}>"

    def _check(self) -> None:
        if self._closed:
            raise StoreClosed(f"the client of {self._root} was closed: connect again")

    def stores(self) -> Iterator[UUID]:
        self._check()
        try:
            names = os.listdir(self._root)
        except FileNotFoundError:
            return iter(())
        except OSError as error:
            raise system_fault(error, self._root) from error
        found = []
        for name in names:
            try:
                store = UUID(name)
            except ValueError:
                continue
            if str(store) == name and os.path.exists(os.path.join(self._root, name, "format")):
                found.append(store)
        return iter(found)

    def open(self, store: UUID) -> LocalBackend:
        self._check()
        backend = LocalBackend(self._root, store, self._timeout, self._mode)
        self._backends.add(backend)
        return backend

    def delete(self, store: UUID, keep: Collection[tuple[bytes, bytes]] = ()) -> None:
        self._check()
        path = os.path.join(self._root, str(store))
        try:
            check_apart(self._root, store)
            try:
                place: StoreDirectory | None = StoreDirectory(self._root, store)
            except FileNotFoundError:
                place = None
            if place is not None:
                hidden = os.path.join(self._root, f".deleted-{store}-{os.urandom(4).hex()}")
                place.check_writable()
                with contextlib.suppress(FileNotFoundError):  # another process deletes it too
                    os.rename(path, hidden)
                    mark_deleted(hidden, self._timeout)
                sync_directory(self._root)
            archives = os.path.join(self._root, "archive")
            remove_tree(os.path.join(archives, str(store)), ignore_errors=True)
            with contextlib.suppress(OSError):
                sync_directory(archives)  # it does not come back after a power cut
                os.rmdir(archives)  # if that was the last one
            if os.path.isdir(self._root):
                for name in os.listdir(self._root):
                    if name.startswith((f".deleted-{store}-", f".new-{store}-")):
                        remove_directory(os.path.join(self._root, name))
                sync_directory(self._root)
        except OSError as error:
            raise system_fault(error, path) from error

    def archive_root(self) -> tuple[str, dict[str, str]]:
        from pathlib import Path

        return Path(self._root, "archive").as_uri(), {}

    def close(self) -> None:
        self._closed = True
        for backend in list(self._backends):
            backend.close()
