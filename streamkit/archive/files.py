"""The files of a space's table, wherever it is kept: reading, writing, and when they are on stable storage."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import unquote

from ..backend import Ambiguous
from ..errors import CorruptData, TransientError
from .delta_log import DIRECTORY
from .durable import Synced, keep, make_directories, sync
from .errors import mapped
from .snapshot import Gone

__all__ = ["TableFiles"]

_SMALL = 8 << 20
"""Bytes of a file that one request writes; delta-rs sends larger ones in parts."""
_WRITTEN = 1 << 20
"""Bytes that are handed to a file system at a time."""


class TableFiles:
    """The directory of a table. Foreign errors do not leave it."""

    def __init__(self, url: str, options: Mapping[str, str], put: Callable[[str, bytes], None] | None = None) -> None:
        self.url = url
        self.options = dict(options)
        self._put = put
        self.directory = unquote(url.removeprefix("file://")) if url.startswith("file://") else None
        """The table's directory, if it is on this machine's file system."""
        self._synced = None if self.directory is None else Synced(self.directory)
        self._filesystem: Any = None

    @property
    def filesystem(self) -> Any:
        """A pyarrow file system of the table's directory."""
        if self._filesystem is None:
            import pyarrow.fs as fs
            from deltalake.fs import DeltaStorageHandler

            if self.directory is not None:
                self._filesystem = fs.SubTreeFileSystem(self.directory, fs.LocalFileSystem())
            else:
                with self.mapped():
                    self._filesystem = fs.PyFileSystem(DeltaStorageHandler(self.url, self.options))
        return self._filesystem

    def sized(self, sizes: Mapping[str, int]) -> Any:
        """The file system with known sizes: it makes one request less for each file in `sizes`."""
        import pyarrow.fs as fs
        from deltalake.fs import DeltaStorageHandler

        if self.directory is not None or not sizes:
            return self.filesystem
        with self.mapped():
            return fs.PyFileSystem(DeltaStorageHandler(self.url, self.options, dict(sizes)))

    def open_parquet(self, path: str, *, whole: bool = False, **options: Any) -> Any:
        """A Parquet file below the table. Gone if it is not there. `whole`: read all of it at once, in one request."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with self.reading(path):
            source = self.filesystem.open_input_file(path)
            if whole and self.directory is None:
                with source:
                    source = pa.BufferReader(source.read())
            try:
                return pq.ParquetFile(source, page_checksum_verification=True, **options)
            except KeyError as column:  # of those that are to be read as dictionaries
                raise ValueError(f"it has no column {column}") from None

    @contextlib.contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Map errors as `mapped` does, and name the file. Gone if the file does not exist, or no longer exists."""
        with mapped(f"{self.url}/{path}", self.options):
            try:
                yield
            except FileNotFoundError:
                raise Gone(path) from None

    def log_sizes(self) -> dict[str, int]:
        """The names in the table's log and how many bytes each has; none if there is no table."""
        import pyarrow.fs as fs

        with self.mapped():
            found = self.filesystem.get_file_info(fs.FileSelector(DIRECTORY, allow_not_found=True))
        return {info.base_name: int(info.size or 0) for info in found}

    def log_of(self, version: int) -> str | None:
        """The description of one version, a JSON object a line; None if it was cleaned up, or is not there yet."""
        return self.log_text(f"{version:020}.json")

    def log_text(self, name: str) -> str | None:
        with self.mapped():
            try:
                with self.filesystem.open_input_stream(f"{DIRECTORY}/{name}") as source:
                    return bytes(source.read()).decode()
            except FileNotFoundError:
                return None

    def path_of(self, path: str) -> str:
        """A file's path as the table's log has it, as one below the table. CorruptData for one that leads elsewhere."""
        found = plain = unquote(path)
        while (further := unquote(plain)) != plain:  # no other thread may read more into it
            plain = further
        parts = plain.replace("\\", "/").split("/")
        if not {"", ".", ".."}.isdisjoint(parts) or parts[0].endswith(":") or "\0" in plain:
            raise CorruptData(
                f"{self.url}: its log names the file {path!r}, which is not below the table: it was tampered with; "
                "restore an earlier version of the table"
            )
        if self.directory is not None:
            place = os.path.join(self.directory, found)
            if len(parts) > 1 or os.path.islink(place):
                inside, whole = os.path.realpath(self.directory), os.path.realpath(place)
                if os.path.commonpath([inside, whole]) != inside:
                    raise CorruptData(
                        f"{self.url}: its file {path!r} is a link that leads out of the table, to {whole}: it was "
                        "tampered with; put the file itself there"
                    )
        return found

    def sync(self, files: Iterable[str] = ()) -> None:
        """The table's newest version, and `files` of it, are on stable storage when this returns."""
        if self._synced is not None:
            with self.mapped():
                self._synced.sync(files)

    def keep_deletions(self, paths: Iterable[str]) -> None:
        """Files at `paths`, and those beside them, that were deleted do not come back after a power cut."""
        if self.directory is not None:
            for directory in {os.path.dirname(os.path.join(self.directory, path)) for path in paths}:
                with contextlib.suppress(FileNotFoundError):
                    sync(directory)

    def write(self, path: str, data: Any) -> None:
        """Write a new file from an Arrow buffer. It is on stable storage when this returns, also its name."""
        if self._put is not None and data.size <= _SMALL:
            try:
                self._put(path, data.to_pybytes())
                return
            except (TransientError, Ambiguous):
                pass  # delta-rs tries again, with the same bytes
        if self.directory is not None:
            make_directories(self.directory)
        # Through a buffer, as delta-rs takes bytes where the archive is remote, and not an Arrow buffer; in parts, as
        # reads that are larger than the buffer bypass it.
        with self.filesystem.open_output_stream(path, compression=None, buffer_size=2 * _WRITTEN) as target:
            for at in range(0, data.size, _WRITTEN):
                target.write(memoryview(data)[at : at + _WRITTEN])
        if self.directory is not None:
            keep(os.path.join(self.directory, path))

    def mapped(self) -> AbstractContextManager[None]:
        """Foreign errors do not leave the archive."""
        return mapped(self.url, self.options)
