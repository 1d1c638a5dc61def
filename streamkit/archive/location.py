"""The location of a space's table: `<root>/<store>/<space>`. The space's name is encoded reversibly for paths."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote
from uuid import UUID

from ..errors import AccessDenied, PermanentError
from .durable import sync
from .errors import Damaged, Elsewhere, mapped, says_no_bucket

__all__ = ["ArchiveLocation", "path_name", "space_name"]

_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
_LONGEST = 180
_TRIES = 50
_PAUSE = 0.02
_MARKERS = ("format", "FORMAT")
"""The file that makes a directory a store, on a local disk and on S3."""
_ESCAPE = re.compile(r"~([0-9A-F]{2})")


def path_name(space: str) -> str:
    """`space` as one path component of ASCII: `~` and two hex digits for each other byte.

    Not `%`, which URLs are decoded by, and nothing hidden (a leading dot or underscore). A name that is too long for a
    file system is cut, and a hash says the rest; the table's properties hold the name.
    """
    text = "".join(chr(byte) if byte in _SAFE else f"~{byte:02X}" for byte in space.encode())
    if text[0] in "._":
        text = f"~{ord(text[0]):02X}{text[1:]}"
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST - 36].rstrip('~')}~~{hashlib.blake2b(space.encode(), digest_size=16).hexdigest()}"


def space_name(path: str) -> str | None:
    """The space of a path component; None for a long one, whose table knows it."""
    if "~~" in path:
        return None
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), path).encode("latin-1").decode()


class ArchiveLocation(NamedTuple):
    """A root for archives, as the URL of a directory, and deltalake's options to open it (credentials)."""

    root: str
    options: dict[str, str]
    put: Callable[[str, bytes], None] | None = None
    """Writes a small file at a path below the root with one request; None: delta-rs writes all."""

    def store(self, store: UUID) -> str:
        return f"{self.root.rstrip('/')}/{store}"

    def table(self, store: UUID, space: str) -> str:
        return f"{self.store(store)}/{path_name(space)}"

    def writer(self, store: UUID, space: str) -> Callable[[str, bytes], None] | None:
        """Return a function like `put`, for paths relative to a space's table."""
        put = self.put
        return None if put is None else lambda path, data: put(f"{store}/{path_name(space)}/{path}", data)

    def has(self, store: UUID, space: str | None = None) -> bool:
        """True if this location holds anything of the store's archives or, given `space`, of that space's archive."""
        url = self.store(store) if space is None else self.table(store, space)
        if self.root.startswith("file://"):
            try:
                return bool(os.listdir(unquote(url.removeprefix("file://"))))
            except FileNotFoundError:
                return False
        import pyarrow.fs as fs
        from deltalake.fs import DeltaStorageHandler

        with mapped(url, self.options):
            system = fs.PyFileSystem(DeltaStorageHandler(url, self.options))
            try:
                return bool(system.get_file_info(fs.FileSelector("", allow_not_found=True)))
            except OSError as error:
                if says_no_bucket(error):
                    return False  # a container is made when something is put into it
                raise

    def missing(self, store: UUID, space: str, archived: int) -> Damaged | Elsewhere:
        """The error to raise if transactions up to `archived` of a space are archived and there is no table."""
        url = self.table(store, space)
        what = f"transactions up to {archived} of the space {space!r} are archived, and there is no table at {url}"
        elsewhere = "connect(archive=URL), --archive URL or STREAMKIT_ARCHIVE"
        if not self.has(store):
            return Elsewhere(
                f"{what}, nor anything of this store's archives: say where they are kept, with {elsewhere}. If they "
                "were here, restore the table"
            )
        return Damaged(f"{what}: restore the table; or, if the archive is kept elsewhere, name it with {elsewhere}")

    def delete(self, store: UUID, space: str | None = None) -> None:
        """Remove the archives of a store, or of one of its spaces. None is fine. PermanentError if the directory of a
        store's archives is a store, too."""
        url = self.store(store) if space is None else self.table(store, space)
        if self.root.startswith("file://"):
            path = unquote(url.removeprefix("file://"))
            if space is None and any(os.path.exists(os.path.join(path, name)) for name in _MARKERS):
                raise self._in_a_store(url)
            for attempt in range(_TRIES):
                if not os.path.lexists(path):
                    with contextlib.suppress(FileNotFoundError, PermissionError):
                        sync(os.path.dirname(path))  # it does not come back after a power cut
                    return
                try:
                    shutil.rmtree(path)
                except FileNotFoundError:
                    continue  # another process removes it as well
                except OSError as error:
                    # An archiver that has not yet heard of the deletion may be writing to it.
                    if error.errno != errno.ENOTEMPTY or attempt == _TRIES - 1:
                        raise AccessDenied(f"the archive {path} cannot be removed: {error.strerror}") from error
                    time.sleep(_PAUSE)
            return
        import pyarrow.fs as fs
        from deltalake.fs import DeltaStorageHandler

        with mapped(url, self.options):
            files = fs.PyFileSystem(DeltaStorageHandler(url, self.options))
            infos = files.get_file_info(fs.FileSelector("", allow_not_found=True, recursive=True))
            if space is None and any(found.path in _MARKERS for found in infos):
                raise self._in_a_store(url)
            for found in infos:
                if found.type == fs.FileType.File:
                    files.delete_file(found.path)

    def _in_a_store(self, url: str) -> PermanentError:
        return PermanentError(
            f"the store was deleted, but not its archive: {url} is the directory of another store, too. Remove the "
            "directories of the tables (they have a _delta_log) from it, and keep archives outside of the stores"
        )

    def __repr__(self) -> str:
        return f"ArchiveLocation({self.root!r})"
