"""Writing an export: a file that grows beside its place, and goes there when it is whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from ..arguments import check_names_of
from ..errors import PermanentError, StreamkitError, no_space
from ..log.erased import erasures_of
from ..log.partition import Partition
from ..store import inner
from ..url import local_path
from . import lines as kinds
from .lines import Checkpoint, Digest, End, EntryLine, Export, Line, Space, decode_line, encode_line
from .parquet import check_parquet, write_parquet
from .partition_lines import PartitionLines, Reached, partition_line
from .report import ExportReport

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from ..store import Store

__all__ = ["export_store"]

Progress = Callable[[int], None]


def export_store(
    store: Store,
    path: str | PathLike[str],
    *,
    spaces: Iterable[str] | None = None,
    until: int | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write spaces of a store to a file: every entry with its sequence, timestamp, transaction and metadata.

    The file is NDJSON, or Parquet if its name ends with `.parquet`; MissingDependency for Parquet without pyarrow.

    `spaces`: all by default; internal spaces (the state of groups, queues and routes) are not exported. `until`: only
    transactions up to this time, in ms since the epoch. Writers may continue; each space is exported as of its
    beginning. The file is `path` with `.part` until it is complete; the same call continues it if the first call was
    stopped. `progress(entries)` is called from time to time. FileExistsError if `path` exists. PermanentError for a
    space that does not exist, if entries that a stopped export has written were removed since, or while another process
    exports to `path`.
    """
    if until is not None and (type(until) is not int or not 0 <= until < 1 << 63):
        raise ValueError(f"until is a time in ms since the epoch, not {until!r:.40}")
    names = tuple(store.get_spaces()) if spaces is None else check_names_of("spaces", spaces, "space")
    target = local_path(path)
    _check_absent(target)
    as_parquet = target.suffix == ".parquet"
    if as_parquet:
        check_parquet()
    part = target.with_name(target.name + (".part" if until is None else f".{until}.part"))
    writer = _Writer(store, list(dict.fromkeys(names)), until, progress)
    with _locked(part, target) as file:
        resumed = writer.run(file)
        file.flush()
        os.fsync(file.fileno())
        _check_absent(target)  # an export with another `until` may have been faster
        if as_parquet:
            write_parquet(part, target)
            part.unlink()
        else:
            part.replace(target)
    return ExportReport(len(writer.names), writer.digest.entries, resumed, target.stat().st_size, writer.sha256)


@contextmanager
def _locked(part: Path, target: Path) -> Iterator[BinaryIO]:
    """The unfinished file, locked while it is open: a process that ends, however it ends, leaves it to the next one."""
    with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        try:
            if fcntl is not None:
                _lock(file)
            # The last owner of the lock may have given the file its name, or removed it.
            if not os.path.samestat(os.fstat(file.fileno()), part.stat()):
                raise FileNotFoundError(part)
        except (BlockingIOError, FileNotFoundError) as error:
            raise PermanentError(f"another export writes {target}: wait for its end, or choose another name") from error
        yield file


def _lock(file: BinaryIO) -> None:
    """Lock a file, if its file system has locks. BlockingIOError if it is locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            raise


def _check_absent(target: Path) -> None:
    if target.exists():
        raise FileExistsError(f"{target} exists: remove it, or choose another name")


class _Writer:
    """One export. It knows the lines that were written, and appends the rest."""

    def __init__(self, store: Store, names: list[str], until: int | None, progress: Progress | None) -> None:
        self._store = store
        self.names = names
        self._until = until
        self._progress = progress
        self.digest = Digest()
        self.sha256 = ""
        self._space_line: Space | None = None
        self._partition_line: kinds.Partition | None = None
        self._reached = Reached()
        """The space and the partition that the last line of a stopped export is in, and the place in it."""
        self._written: list[tuple[Space, kinds.Partition]] = []
        """The partitions of the stopped export, also the one that its last line is in."""

    def run(self, file: BinaryIO) -> int:
        spaces = {name: self._partitions(name) for name in self.names}
        self._resume(file)
        for line, begun in self._written:
            _check_not_erased(spaces[line.space], line, begun)
        resumed = self.digest.entries
        if not self.digest.lines:
            self._put(file, Export(kinds.FORMAT, self.names))
        first = 0 if self._space_line is None else self.names.index(self._space_line.space)
        for name in self.names[first:]:
            self._space(file, name, spaces[name])
        self.sha256 = self.digest.hex()
        file.write(self.digest.mark(End))
        return resumed

    def _partitions(self, name: str) -> list[Partition]:
        known = inner(self._store).look_up(name)[0]
        if known is None:
            raise no_space(self._store.id, name)
        return known.partitions

    # -- going on -----------------------------------------------------------------------------------------------

    def _resume(self, file: BinaryIO) -> None:
        """Read the lines of a stopped export up to its last checkpoint, and cut off the rest."""
        keep = _last_checkpoint(file)
        file.truncate(keep)
        file.seek(0)
        for number, data in enumerate(file, 1):
            line = decode_line(data, number)
            if isinstance(line, Export) and line.spaces != self.names:
                raise PermanentError(
                    "the unfinished export at this path has other spaces: remove the .part file to start again"
                )
            if isinstance(line, Space):
                self._space_line, self._partition_line, self._reached = line, None, Reached()
            elif isinstance(line, kinds.Partition):
                self._partition_line, self._reached = line, Reached()
                if self._space_line is not None:
                    self._written.append((self._space_line, line))
            self._reached.take(line)
            self.digest.take(data, line)
        file.seek(keep)

    # -- writing ------------------------------------------------------------------------------------------------

    def _space(self, file: BinaryIO, name: str, partitions: list[Partition]) -> None:
        partitions[0].refresh()
        line, begun = _space_line(name, partitions[0]), self._space_line
        self._space_line = None
        if begun is None:
            self._put(file, line)
        elif begun != line:
            raise _changed(name)
        for partition in partitions:
            there, reached = self._partition_line, self._reached
            if there is not None and partition.partition < there.partition:
                continue
            self._partition_line, self._reached = None, Reached()
            if there is None:
                there = partition_line(partition, self._until)
                self._put(file, there)
            else:
                _check_unchanged(partition, there)
            for one in PartitionLines(partition, there, reached).lines():
                self._put(file, one)

    def _put(self, file: BinaryIO, line: Line) -> None:
        data = encode_line(line)
        file.write(data)
        self.digest.add(data, entry=isinstance(line, EntryLine))
        if self.digest.due:
            file.write(self.digest.mark(Checkpoint))
            file.flush()
            if self._progress is not None:
                self._progress(self.digest.entries)


def _last_checkpoint(file: BinaryIO) -> int:
    """Bytes up to the last checkpoint whose digest is right; 0 if there is none."""
    digest, at, keep = Digest(), 0, 0
    for data in file:
        at += len(data)
        if data.startswith(b'{"type":"checkpoint"') and data.endswith(b"\n"):
            line = decode_line(data, 0)
            if not isinstance(line, Checkpoint) or line.sha256 != digest.hex():
                break
            keep = at
        digest.add(data, entry=False)
    return keep


def _check_unchanged(partition: Partition, begun: kinds.Partition) -> None:
    """Raise PermanentError if entries of a partition were removed since `begun` was written."""
    try:
        line = partition_line(partition, None, begun.end)
    except StreamkitError as error:
        raise _changed(partition.space) from error
    if line != begun or _removed_since(partition, begun.end):
        raise _changed(partition.space)


def _check_not_erased(partitions: list[Partition], space: Space, begun: kinds.Partition) -> None:
    """Raise PermanentError if the space was deleted, or entries of a partition were erased, since `begun` was
    written."""
    partitions[0].refresh()
    partition = partitions[begun.partition]
    partition.refresh()
    if partitions[0].settings.incarnation.hex() != space.incarnation:
        raise _changed(space.space)
    if any(erasure.number > begun.end for erasure in (*partition.erasing, *erasures_of(partition))):
        raise _changed(space.space)


def _removed_since(partition: Partition, end: int) -> bool:
    """True if a transaction after `end` has removed entries, or may have."""
    number = end
    for number, record in partition.records(end + 1, partition.number):
        control = partition.decode_header(record, number).control
        if control is not None and (control.removals or control.erasures or control.floor):
            return True
    return number != partition.number


def _changed(space: str) -> PermanentError:
    return PermanentError(
        f"space {space!r} has changed since the export was stopped: entries were removed, or its settings changed. "
        "Remove the .part file to start again"
    )


def _space_line(name: str, partition: Partition) -> Space:
    settings = partition.settings
    window = settings.idempotency_window
    return Space(
        str(name),
        settings.partitions,
        settings.durability,  # type: ignore[arg-type]
        None if window == float("inf") else window,
        settings.archive_grace,
        settings.incarnation.hex(),
        _fields(partition.changed),
        None if partition.retention is None else _fields(partition.retention),
    )


def _fields(value: msgspec.Struct) -> dict[str, object]:
    """The fields of a struct that are not as by default."""
    given = ((name, getattr(value, name)) for name in value.__struct_fields__)
    return {name: "forever" if field == float("inf") else field for name, field in given if field not in (0, "")}
