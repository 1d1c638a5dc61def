"""Published views: whole databases beside the store's archives, for processes that have none yet.

    <archive>/<store>/_published/<view>/<version>-<digest>-<ms>-<entries>-<random>.sqlite.zst

One object each, never changed; the newest counts. They only save work: a published view that is damaged, missing, or of
another incarnation of a space is skipped, and the view is built from the log.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO
from urllib.parse import unquote

import msgspec

from ..compression import decompress_pieces, load_zstd
from ..errors import UNREADABLE, AccessDenied, MissingDependency, PermanentError, StreamkitError
from ..log.offsets import Offset
from ..store import Store, inner
from ..warn import warn
from .database import mapped, open_reader, read_state
from .files import sync_names, writing

__all__ = [
    "Outdated",
    "Published",
    "Snapshots",
    "default_path",
    "delete_published",
    "delete_published_of",
    "published_views",
    "sweep_published",
]

_CHUNK = 1 << 20
_SLICE = 1 << 16
_KEPT = 2
_LEAST = 64 << 20
_RATIO = 1000
"""A published view is refused if it unpacks to more than `_LEAST` bytes and `_RATIO` times its size: typical is 10."""
_REQUEST = 64 << 20
"""Bytes in one request to a storage service."""
_SUFFIX = ".sqlite.zst"
_PART = ".part"
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


class Outdated(Exception):
    """Entries were erased while a database that holds them was being published."""


class Published(msgspec.Struct, frozen=True, order=True):
    """A published database of a view. `timestamp` is in ms, by the publisher's clock."""

    timestamp: int
    entries: int
    name: str
    bytes: int


def _directory(store: Store, *parts: str) -> tuple[str, dict[str, str]]:
    from ..archive.location import ArchiveLocation

    location = ArchiveLocation(*inner(store).archive_root())
    return "/".join((location.store(store.id), *parts)), location.options


def default_path(store: Store, name: str) -> str:
    """Return the default path of a view's database: beside the store's archives if these are files, otherwise in a
    cache."""
    from ..archive.location import path_name

    with contextlib.suppress(PermanentError):
        url, _ = _directory(store, "_views")
        if url.startswith("file://"):
            return os.path.join(unquote(url.removeprefix("file://")), f"{path_name(name)}.sqlite")
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    try:
        os.makedirs(root, exist_ok=True)
        if not os.access(root, os.W_OK):
            raise PermissionError(root)
    except OSError:  # a function, which may write to its temporary directory alone
        import tempfile

        root = tempfile.gettempdir()
    return os.path.join(root, "streamkit", "views", str(store.id), f"{path_name(name)}.sqlite")


class Snapshots:
    """The published snapshots of one version of a view. PermanentError if the store has no place for archives."""

    def __init__(self, store: Store, name: str, key: str) -> None:
        from ..archive.location import path_name

        self._place = _place(*_directory(store, "_published", path_name(name)))
        self._key = key
        self._clock = inner(store).clock

    def all(self) -> list[Published]:
        """The oldest first."""
        found = []
        for name, size in self._place.names():
            parts = name.removesuffix(_SUFFIX).split("-")
            if name.endswith(_SUFFIX) and len(parts) == 5 and "-".join(parts[:2]) == self._key:
                found.append(Published(int(parts[2]), int(parts[3]), name, size))
        return sorted(found)

    def publish(self, db: sqlite3.Connection, entries: int, scratch: str, confirm: Callable[[], bool]) -> Published:
        """Put the database there as it is, by way of a file `scratch`; remove older ones but for the last.

        Outdated, and nothing is published, if `confirm()` is false when all is written and not visible yet.
        """
        before = self.all()
        now = max(self._clock.now(), before[-1].timestamp + 1 if before else 0)
        name = f"{self._key}-{now}-{entries}-{os.urandom(4).hex()}{_SUFFIX}"
        with writing(scratch), _copy(db, scratch) as file, writing(name):
            size = self._place.write(name, _confirmed(_compressed(file), confirm))
        for old in before[: 1 - _KEPT]:
            self._place.delete(old.name)
        return Published(now, entries, name, size)

    def fetch(self, path: str) -> Published | None:
        """The newest into `path`; None if there is none that is whole."""
        for snapshot in reversed(self.all()):
            part = f"{path}{_PART}"
            try:
                with open(part, "wb") as file:
                    for piece in decompress_pieces(self._place.read(snapshot.name), _LEAST + _RATIO * snapshot.bytes):
                        file.write(piece)
                os.replace(part, path)
            except (StreamkitError, OSError, ValueError) as error:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part)
                warn("the published view %s is passed over: %s", snapshot.name, error)
                continue
            return snapshot
        return None


def delete_published(store: Store, name: str | None = None) -> int:
    """Remove the published databases of one view, or of all views of the store, and return their count."""
    from ..archive.location import path_name

    return _removed(store, lambda place: place.clear(_SUFFIX), *([path_name(name)] if name is not None else []))


def delete_published_of(store: Store, space: str) -> int:
    """Remove the published databases with entries of a deleted space of this name, and return their count.

    All published databases are read for that. One that cannot be read is removed too.
    """
    known = inner(store).look_up(space)[0]
    incarnation = b"" if known is None else known.settings.incarnation

    def remove(place: _Files | _Objects) -> int:
        found = [(path, size) for path, size in place.paths() if path.endswith(_SUFFIX)]
        gone = [path for path, size in found if _may_hold(place, path, size, space, incarnation)]
        for path in gone:
            place.delete(path)
        return len(gone)

    return _removed(store, remove)


def _removed(store: Store, remove: Callable[[_Files | _Objects], int], *names: str) -> int:
    """The count of `remove`. AccessDenied for a file that this user may not list, read or remove."""
    try:
        with writing("the published views"):
            return remove(_place(*_directory(store, "_published", *names)))
    except AccessDenied:
        raise
    except PermanentError:  # there is nowhere that one could have published to
        return 0
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise AccessDenied(
            f"{error.filename} cannot be read or removed ({error.strerror}): give this user access to it"
        ) from error


def _may_hold(place: _Files | _Objects, path: str, size: int, space: str, incarnation: bytes) -> bool:
    """True if a published database holds entries of another incarnation of a space, or cannot be read."""
    import tempfile

    # The file has no name once there is anything in it: nothing is left if the process is killed.
    with tempfile.NamedTemporaryFile(suffix=".sqlite", delete=False) as file:
        try:
            with contextlib.closing(open_reader(file.name)) as db:
                os.unlink(file.name)
                file.writelines(decompress_pieces(place.read(path), _LEAST + _RATIO * size))
                file.flush()
                state = read_state(db, file.name)
            if state is None or space not in state.spaces:
                return state is None
            offset = state.spaces[space].offset
            return bool(offset) and Offset.decode(offset, space).incarnation != incarnation
        except FileNotFoundError:  # another process has removed it
            return False
        except (*UNREADABLE, ValueError, sqlite3.Error):
            return True


def sweep_published(store: Store) -> None:
    """Remove half-written published files of stopped processes, of all views of the store."""
    with contextlib.suppress(PermanentError, MissingDependency):
        url, options = _directory(store, "_published")
        if url.startswith("file://"):
            _place(url, options).sweep()


def published_views(store: Store) -> dict[str, int]:
    """Count the published databases of each view."""
    from ..archive.location import space_name

    try:
        paths = [path for path, _ in _place(*_directory(store, "_published")).paths()]
    except (PermanentError, MissingDependency):
        return {}
    counts: dict[str, int] = {}
    for path in paths:
        directory, _, name = path.rpartition("/")
        if name.endswith(_SUFFIX):
            view = space_name(directory) or directory
            counts[view] = counts.get(view, 0) + 1
    return counts


@contextmanager
def _copy(source: sqlite3.Connection, path: str) -> Iterator[BinaryIO]:
    """A consistent copy of a database. Its file has no name once there is anything in it.

    So nothing is left if the process is killed, and no other process has to tell whether the file is still in use.
    """
    with open(path, "xb+", buffering=0) as file:
        try:
            with mapped(path):
                target = sqlite3.connect(path, isolation_level=None)
        finally:
            os.unlink(path)
        try:
            with mapped(path):
                target.execute("pragma journal_mode = off")
                source.backup(target)
        finally:
            target.close()
        file.seek(0)
        yield file


def _compressed(file: BinaryIO) -> Iterator[bytes]:
    zstd = load_zstd()
    parameter = zstd.CompressionParameter
    options = {parameter.compression_level: 1, parameter.checksum_flag: 1}
    compressor = zstd.ZstdCompressor(options=options)
    head = file.read(_CHUNK)
    # SQLite's two version bytes: the copy is no database in WAL mode, which could not be opened to be read only.
    chunk = head[:18] + b"\1\1" + head[20:]
    while chunk:
        if packed := compressor.compress(chunk):
            yield packed
        chunk = file.read(_CHUNK)
    yield compressor.flush()


def _confirmed(chunks: Iterator[bytes], confirm: Callable[[], bool]) -> Iterator[bytes]:
    yield from chunks
    if not confirm():
        raise Outdated


def _place(url: str, options: dict[str, str]) -> _Files | _Objects:
    return _Files(unquote(url.removeprefix("file://"))) if url.startswith("file://") else _Objects(url, options)


class _Files:
    def __init__(self, directory: str) -> None:
        self._directory = directory

    def names(self) -> list[tuple[str, int]]:
        names: list[tuple[str, int]] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._directory) as found:
            for entry in found:
                with contextlib.suppress(FileNotFoundError):  # another process removes older ones
                    if entry.is_file():
                        names.append((entry.name, entry.stat().st_size))
        return names

    def write(self, name: str, chunks: Iterator[bytes]) -> int:
        os.makedirs(self._directory, exist_ok=True)
        self.sweep()
        path = os.path.join(self._directory, name)
        part = f"{path}{_PART}"
        try:
            with open(part, "wb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)  # `sweep` leaves it alone
                size = sum(map(file.write, chunks))
                file.flush()
                os.fsync(file.fileno())
                try:
                    os.replace(part, path)
                except FileNotFoundError:  # an erasure has removed it
                    raise Outdated from None
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
            raise
        return size

    def sweep(self) -> None:
        """Remove files that a process did not write to their end, unless it still does."""
        for directory, _, names in os.walk(self._directory):
            for name in names:
                if name.endswith(_PART):
                    with contextlib.suppress(OSError), open(os.path.join(directory, name), "rb") as file:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        os.unlink(file.name)

    def read(self, name: str) -> Iterator[bytes]:
        with open(os.path.join(self._directory, name), "rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._directory, name))

    def paths(self) -> list[tuple[str, int]]:
        """List all files below the directory, with their sizes."""
        found: list[tuple[str, int]] = []
        for directory, _, names in os.walk(self._directory, onerror=_raise):
            for name in names:
                path = os.path.join(directory, name)
                with contextlib.suppress(FileNotFoundError):
                    found.append((os.path.relpath(path, self._directory), os.path.getsize(path)))
        return found

    def clear(self, suffix: str) -> int:
        count = 0
        for directory, _, names in os.walk(self._directory, onerror=_raise):
            for name in names:
                if name.endswith((suffix, f"{suffix}{_PART}")):
                    with contextlib.suppress(FileNotFoundError):  # as another one does the same
                        os.unlink(os.path.join(directory, name))
                        count += name.endswith(suffix)
            sync_names(directory)  # they do not come back after a power cut
        return count


def _raise(error: OSError) -> None:
    """For `os.walk`, which passes over a directory that it cannot list."""
    if not isinstance(error, FileNotFoundError):
        raise error


class _Objects:
    """Objects, read and written by the library that keeps the archives."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        try:
            from ..archive.files import TableFiles

            self._files = TableFiles(url, options)
            self._system = self._files.filesystem
            self._sizes: dict[str, int] = {}
        except ImportError as error:
            raise MissingDependency(
                f"published views need {error.name}, which is not installed: pip install 'streamkit-store[archive]'"
            ) from error

    def _list(self, recursive: bool) -> list[Any]:
        import pyarrow.fs as fs

        with self._files.mapped():
            selector = fs.FileSelector("", allow_not_found=True, recursive=recursive)
            return [info for info in self._system.get_file_info(selector) if info.type == fs.FileType.File]

    def names(self) -> list[tuple[str, int]]:
        found = [(info.base_name, int(info.size or 0)) for info in self._list(False)]
        self._sizes = dict(found)
        return found

    def write(self, name: str, chunks: Iterator[bytes]) -> int:
        size = 0
        try:
            with (
                self._files.mapped(),
                self._system.open_output_stream(name, compression=None, buffer_size=2 * _SLICE) as stream,
            ):
                for chunk in chunks:
                    # Larger slices would bypass the buffer, and delta-rs refuses them.
                    for at in range(0, len(chunk), _SLICE):
                        stream.write(chunk[at : at + _SLICE])
                    size += len(chunk)
        except BaseException:
            self.delete(name)  # the stream was closed, and so there is an object
            raise
        return size

    def sweep(self) -> None:
        """A stopped process leaves nothing: an object exists only when it is complete."""

    def read(self, name: str) -> Iterator[bytes]:
        with self._files.mapped(), self._files.sized(self._sizes).open_input_file(name) as file:
            while chunk := file.read(_REQUEST):
                yield bytes(chunk)
                if len(chunk) < _REQUEST:
                    return

    def delete(self, name: str) -> None:
        with self._files.mapped(), contextlib.suppress(FileNotFoundError):
            self._system.delete_file(name)

    def paths(self) -> list[tuple[str, int]]:
        return [(info.path, int(info.size or 0)) for info in self._list(True)]

    def clear(self, suffix: str) -> int:
        found = [info.path for info in self._list(True) if info.path.endswith(suffix)]
        for path in found:
            self.delete(path)
        return len(found)
