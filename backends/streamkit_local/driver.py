"""`file:///path`: the stores under one directory."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import weakref
from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import UUID

from streamkit.backend import url_options
from streamkit.errors import PermanentError, StoreClosed

from .backend import LocalBackend
from .faults import system_fault
from .files import GROUP, PRIVATE, remove_directory, sync_directory
from .place import Place
from .store import mark_deleted

__all__ = ["LocalDriver", "connect"]

_MODES = {"private": PRIVATE, "group": GROUP}


def connect(url: str, *, timeout: float) -> LocalDriver:
    """The stores under the directory of a `file:///absolute/path` URL. ValueError if it is not one.

    What is made belongs to its user alone; with `?mode=group` to all users of the group too.
    `timeout`: seconds to wait for another process's lock; of several clients of a store in one process, the first
    one's counts.
    """
    if sys.platform == "win32":
        raise PermanentError("file:// stores need a POSIX system: use WSL, or an s3:// or azure:// store")
    parts = urlsplit(url)
    mode = url_options(url, ("mode",)).get("mode", "private")
    if mode not in _MODES:
        raise ValueError(f"mode={mode!r} in the store URL is neither of {', '.join(_MODES)}")
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ValueError(f"{url!r} is not file:///absolute/path: a relative path, or a host, has no place there")
    if parts.fragment:
        raise ValueError(f"{url!r} has a fragment: write # as %23 and ? as %3F")
    path = unquote(parts.path, errors="strict")
    if "\0" in path:
        raise ValueError("the path of a store URL cannot have a NUL character")
    return LocalDriver(os.path.normpath(path), timeout, _MODES[mode])


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
            try:
                place: Place | None = Place(self._root, store)
            except FileNotFoundError:
                place = None
            if place is not None:
                hidden = os.path.join(self._root, f".deleted-{store}-{secrets.token_hex(4)}")
                place.check_writable()
                with contextlib.suppress(FileNotFoundError):  # another process deletes it too
                    os.rename(path, hidden)
                    mark_deleted(hidden, self._timeout)
                sync_directory(self._root)
            shutil.rmtree(os.path.join(self._root, "archive", str(store)), ignore_errors=True)
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(self._root, "archive"))  # if that was the last one
            for name in os.listdir(self._root) if os.path.isdir(self._root) else ():
                if name.startswith((f".deleted-{store}-", f".new-{store}-")):
                    remove_directory(os.path.join(self._root, name))
        except OSError as error:
            raise system_fault(error, path) from error

    def archive_root(self) -> tuple[str, dict[str, str]]:
        return Path(self._root, "archive").as_uri(), {}

    def close(self) -> None:
        self._closed = True
        for backend in list(self._backends):
            backend.close()
