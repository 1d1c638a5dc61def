"""Reading an export into a store: exactly as it was, with numbers, ids, timestamps and offsets.

The whole file is checked before anything is written. A space exists once its first partition has a head. That head has
another key until the space is complete, so a half imported space reads as one that does not exist.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

import msgspec
from msgspec.structs import replace

from ..backend import ABSENT, NEXT, Backend
from ..decoders import json_decoder
from ..errors import CorruptData, PermanentError, SpaceExists, Unavailable, UnsupportedVersion
from ..log.floors import Changed, Retained
from ..log.keys import CATALOG, HEAD, IMPORT, partition_key, space_key, transaction_key, transaction_prefix
from ..log.partition import Partition
from ..log.rows import Head, Settings, decode_row, encode_row
from ..names import check_name
from ..removing.imports import remove_import
from ..retry import attempts, delete_rows, put_settled
from ..space import MOST_PARTITIONS, new_incarnation
from ..store import inner
from ..url import local_path
from . import lines as kinds
from .hidden import HIDDEN_HEAD, HiddenHead
from .lines import Digest, End, EntryLine, Export, Gap, Key, Line, Space, decode_line
from .parquet import is_parquet, read_parquet
from .partition_lines import partition_line
from .report import ImportReport
from .target_partition import TargetPartition

if TYPE_CHECKING:
    from ..store import Store

__all__ = ["import_store"]

_INSIDE = tuple(b'{"type":"%b"' % kind for kind in (b"entry", b"gap", b"key", b"partition"))


class _Marker(msgspec.Struct, frozen=True, omit_defaults=True):
    """The import of a space that was begun.

    It is changed by compare-and-set before the head is given to the space, and before the rows are removed. So of two
    processes one does its work, and the other stops.
    """

    sha256: str
    incarnation: str
    state: Literal["", "publishing", "abandoned"] = ""


def import_store(
    store: Store, path: str | PathLike[str], *, restart: bool = False, progress: Callable[[int], None] | None = None
) -> ImportReport:
    """Write the spaces of an export to a store that has none of these names.

    Entries keep their sequences, timestamps, transactions and metadata. Idempotency keys, retention, and trimmed and
    erased ranges are included, and offsets stay valid. The file is checked before anything is written. A space appears
    once all of it was written. The same call continues a stopped import, and leaves complete spaces as they are.
    `restart`: remove the rest of a stopped import of another file, and of one that was stopped while it removed its
    own rows. `progress(entries)` is called from time to time.
    CorruptData for a file that is damaged or cut short, UnsupportedVersion for a file of a later release, SpaceExists
    if the store has another space of this name.
    """
    with _lines_of(local_path(path)) as file:
        spaces, marks = _checked(file)
        importer = _Importer(store, marks, progress)
        for space in spaces:
            importer.check(space, restart)
        file.seek(0)
        return importer.run(file)


@contextmanager
def _lines_of(path: Path) -> Iterator[BinaryIO]:
    """The lines of an export: those of the file itself, or made from the rows of a Parquet file."""
    with path.open("rb") as file:
        if not is_parquet(file):
            yield file
            return
        with tempfile.TemporaryFile() as lines:
            read_parquet(file, lines)
            lines.seek(0)
            yield lines


def _checked(file: BinaryIO) -> tuple[list[Space], list[str]]:
    """The spaces of a file, and the digests of the lines before each of them and before the end. CorruptData unless
    every line is as it was written."""
    digest, spaces, names, marks = Digest(), list[Space](), list[str](), list[str]()
    end: End | None = None
    for number, data in enumerate(file, 1):
        if end is not None:
            raise CorruptData(f"line {number} of the export follows its end: export again, or fetch the whole file")
        if data.startswith(_INSIDE) and data.endswith(b"\n"):
            digest.add(data, entry=data.startswith(_INSIDE[0]))
            continue
        line = decode_line(data, number)
        if isinstance(line, Space | End):
            marks.append(digest.hex())
        digest.take(data, line)
        if isinstance(line, Export):
            names = line.spaces
        elif isinstance(line, Space):
            _check_space(line, number)
            spaces.append(line)
        elif isinstance(line, End):
            end = line
    if end is None:
        raise CorruptData(
            "the export has no end: it is cut short. Export again, or fetch the whole file (the file of an export that "
            "was stopped ends with .part; the same export continues it)"
        )
    if [space.space for space in spaces] != names:
        raise CorruptData("the export has other spaces than its first line says: export again")
    return spaces, marks


def _check_space(line: Space, number: int) -> None:
    try:
        check_name(line.space, "space")
        if len(bytes.fromhex(line.incarnation)) not in (0, 8):
            raise ValueError("the incarnation of a space has 8 bytes")
        if not 1 <= line.partitions <= MOST_PARTITIONS:
            raise ValueError(f"a space has 1 to {MOST_PARTITIONS} partitions, not {line.partitions}")
        _settings(line, line.incarnation)
        _changed(line)
        _retained(line)
    except (ValueError, TypeError) as error:
        raise CorruptData(f"line {number} of the export: {error}") from error


def _settings(line: Space, incarnation: str) -> Settings:
    window = float("inf") if line.idempotency_window is None else line.idempotency_window
    return Settings(line.partitions, line.durability, window, line.archive_grace, bytes.fromhex(incarnation))


def _changed(line: Space) -> Changed:
    fields: dict[str, Any] = {
        name: float("inf") if value == "forever" else value for name, value in line.changed.items()
    }
    return Changed(**fields)


def _retained(line: Space) -> Retained | None:
    return None if line.retention is None else Retained(**line.retention)


class _Importer:
    """One import. It holds the state of the space and the partition that the lines are in."""

    def __init__(self, store: Store, marks: list[str], progress: Callable[[int], None] | None) -> None:
        self._store = store
        self._open = inner(store)
        self._backend: Backend = self._open.backend
        self._marks = marks
        self._sha256 = marks[-1]
        self._progress = progress
        self._space: Space | None = None
        self._settings = Settings()
        self._partitions = 0
        """Partitions of the space that have begun."""
        self._target: TargetPartition | None = None
        self._is_present = False
        """True if the space exists: its lines are compared, not written."""
        self._entries = self._present = 0
        self._renewed: list[str] = []

    @property
    def _name(self) -> str:
        assert self._space is not None
        return self._space.space

    # -- before anything is written -----------------------------------------------------------------------------

    def check(self, space: Space, restart: bool) -> None:
        """Raise SpaceExists if the store has another space of this name."""
        name, key = space.space, bytes(partition_key(space.space, 0))
        head, marker = self._backend.get(key, [bytes(HEAD), IMPORT])
        if marker is not None:
            begun = _decode_marker(name, marker.data)
            if begun.sha256 == self._sha256 and begun.state != "abandoned":
                return
            if not restart and begun.sha256 == self._sha256:
                raise PermanentError(
                    f"an import of this file has failed, and has not removed its rows of space {name!r} yet: repeat "
                    "the import when that process has ended, with --restart (restart=True) if it was killed"
                )
            if not restart:
                raise PermanentError(
                    f"another import of space {name!r} was begun and not completed: repeat that one, or remove it with "
                    "--restart (restart=True)"
                )
            if head is None:
                remove_import(self._backend, name)
                return
        if head is not None:
            known = decode_row(Head, HEAD, head.data).settings
            if known.incarnation.hex() != space.incarnation or known.partitions != space.partitions:
                raise SpaceExists(
                    f"space {name!r} exists and is another one: an import goes to a store without it. Choose another "
                    "store, or delete the space first, if its data may go"
                )
        elif self._open.has_archive(name):
            raise PermanentError(f"the store {self._store.id} has an archive of space {name!r}: choose another store")

    # -- lines --------------------------------------------------------------------------------------------------

    def run(self, file: BinaryIO) -> ImportReport:
        """Write the lines. The file may change after its check, so the lines are compared with the checked ones before
        their space appears."""
        spaces = marks = 0
        digest = Digest()
        try:
            for number, data in enumerate(file, 1):
                line = decode_line(data, number)
                if isinstance(line, Space | End):
                    if self._marks[marks : marks + 1] != [digest.hex()]:
                        raise _edited(number)
                    marks += 1
                if isinstance(line, Space):
                    _check_space(line, number)
                digest.add(data, entry=False)
                spaces += self._take(line, number)
            if marks != len(self._marks):
                raise _edited(digest.lines + 1)
        except (CorruptData, UnsupportedVersion) as error:
            if not self._abandon():
                raise Unavailable(
                    f"space {self._name!r} was created, or was imported by another process, while it was imported; "
                    "import again"
                ) from error
            raise
        return ImportReport(spaces, self._entries, self._present, tuple(self._renewed))

    def _take(self, line: Line, number: int) -> bool:
        """Apply a line. True if it begins a space."""
        target = self._target
        match line:
            case EntryLine():
                self._entries += 1
                if self._is_present or (target is not None and line.trx.number <= target.present):
                    self._present += 1
                if target is not None:
                    target.add_entry(line, number)
                elif not self._is_present:
                    raise CorruptData(f"line {number} of the export is in no partition")
            case Gap() if target is not None:
                target.add_gap(line, number)
            case Key() if target is not None:
                target.add_key(line, number)
            case kinds.Partition():
                self._end_partition()
                self._begin_partition(line, number)
            case Space():
                self._end_space(number)
                self._begin_space(line)
                return True
            case End():
                self._end_space(number)
            case kinds.Checkpoint():
                if self._progress is not None:
                    self._progress(self._entries)
            case Gap() | Key() if not self._is_present:
                raise CorruptData(f"line {number} of the export is in no partition")
        return False

    # -- spaces -------------------------------------------------------------------------------------------------

    def _begin_space(self, line: Space) -> None:
        name, key = line.space, bytes(partition_key(line.space, 0))
        self._space, self._partitions = line, 0
        head, row = self._backend.get(key, [bytes(HEAD), IMPORT])
        if head is not None and row is not None:
            self._publish()  # it was stopped between its last two writes
        self._is_present = head is not None
        if self._is_present:
            return
        if row is None:
            incarnation = line.incarnation if self._is_free(line) else new_incarnation(self._backend, key).hex()
            data = msgspec.json.encode(_Marker(self._sha256, incarnation))
            self._put(key, IMPORT, data)
        else:
            begun = _decode_marker(name, row.data)
            if begun.state == "abandoned":
                raise _removed(name)
            incarnation = begun.incarnation
        if incarnation != line.incarnation:
            self._renewed.append(name)
        self._settings = _settings(line, incarnation)

    def _is_free(self, line: Space) -> bool:
        """True if the store never had this very space. The storage refuses old transactions of a deleted one."""
        prefix = transaction_prefix(bytes.fromhex(line.incarnation))
        for number in range(line.partitions):
            key, name = bytes(partition_key(line.space, number)), transaction_key(prefix, 0)
            if self._backend.limits.remote:
                end = transaction_key(prefix, 1 << 64)
                if next(self._backend.scan(key, name, end, limit=1, values=False), None) is not None:
                    return False
            else:
                if put_settled(self._backend, self._open.clock, key, name, b"", NEXT, "import again") is None:
                    return False
        return True

    def _remove_probes(self, settings: Settings) -> None:
        """Remove the rows of `_is_free`. They stay until the space is whole: then it finds the same, asked again."""
        name = transaction_key(transaction_prefix(settings.incarnation), 0)
        for number in range(0 if self._backend.limits.remote else settings.partitions):
            delete_rows(self._backend, bytes(partition_key(self._name, number)), [name])

    def _begin_partition(self, line: kinds.Partition, number: int) -> None:
        space = self._space
        if space is None or line.partition != self._partitions or line.partition >= space.partitions:
            raise CorruptData(f"line {number} of the export: partition {line.partition} is out of order")
        self._partitions += 1
        if self._is_present:
            self._compare(space, line)
            return
        context = self._open.context
        if not line.partition:
            key = bytes(partition_key(space.space, 0))
            context = msgspec.structs.replace(context, backend=cast(Backend, HiddenHead(self._backend, key)))
        partition = Partition(context, space.space, line.partition, self._settings)
        self._target = TargetPartition(partition, line, _retained(space), _changed(space))

    def _compare(self, space: Space, line: kinds.Partition) -> None:
        """Raise SpaceExists unless the existing partition ends where the line says."""
        known = self._open.look_up(space.space)[0]
        if known is None or partition_line(known.partitions[line.partition], None) != line:
            raise SpaceExists(
                f"space {space.space!r} exists and has changed since the export: an import goes to a store without it"
            )

    def _end_partition(self) -> None:
        if self._target is not None:
            self._target.finish()
            self._target = None

    def _end_space(self, number: int) -> None:
        self._end_partition()
        space = self._space
        if space is None:
            return
        if self._partitions != space.partitions:
            raise CorruptData(f"line {number} of the export: partitions of space {space.space!r} are missing before it")
        if not self._is_present:
            self._publish()
        self._space = None

    def _publish(self) -> None:
        """Give the space its head and its name."""
        name = self._name
        key = bytes(partition_key(name, 0))
        head, hidden = self._backend.get(key, [bytes(HEAD), HIDDEN_HEAD])
        if head is None:
            if hidden is None or not self._set_state("publishing"):
                raise _removed(name)
            self._remove_probes(decode_row(Head, HEAD, hidden.data).settings)
            self._put(key, bytes(HEAD), hidden.data)
            head = hidden
        settings = decode_row(Head, HEAD, head.data).settings
        self._put(bytes(CATALOG), bytes(space_key(name)), encode_row(space_key(name), settings))
        delete_rows(self._backend, key, [HIDDEN_HEAD, IMPORT])
        self._open.forget_space(name)

    def _put(self, partition: bytes, key: bytes, data: bytes) -> None:
        if put_settled(self._backend, self._open.clock, partition, key, data, ABSENT, "import again") is None:
            raise SpaceExists(
                f"space {self._name!r} was created, or is imported by another process, while it was imported: "
                "choose another store"
            )

    # -- leftovers ----------------------------------------------------------------------------------------------

    def _abandon(self) -> bool:
        """Remove the rows of a space that cannot be completed. False if the space exists by now: a writer has created
        it, or another process has completed the same import, so its rows are not ours to remove."""
        if self._space is None or self._is_present:
            return True
        name = self._name
        key, catalog = bytes(partition_key(name, 0)), bytes(space_key(name))
        head = self._backend.get(key, [bytes(HEAD)])[0]
        if head is not None or self._backend.get(bytes(CATALOG), [catalog])[0] is not None:
            return False
        if not self._set_state("abandoned"):
            return False
        remove_import(self._backend, name)
        return True

    def _set_state(self, state: Literal["publishing", "abandoned"]) -> bool:
        """Set the state of the import. False if it has the other state, or is gone."""
        key = bytes(partition_key(self._name, 0))
        for _ in attempts(self._open.clock):
            row = self._backend.get(key, [IMPORT])[0]
            if row is None:
                return False
            begun = _decode_marker(self._name, row.data)
            if begun.state:
                return begun.state == state
            data = msgspec.json.encode(replace(begun, state=state))
            if put_settled(self._backend, self._open.clock, key, IMPORT, data, row.etag, "import again") is not None:
                return True
        raise Unavailable(f"other processes change the import of space {self._name!r}; import again")


def _removed(space: str) -> Unavailable:
    return Unavailable(f"another process has removed the import of space {space!r}; import again")


def _edited(number: int) -> CorruptData:
    return CorruptData(
        f"line {number} of the export, or one before it, was changed while the file was imported: import again when "
        "nothing writes to the file"
    )


def _decode_marker(space: str, data: bytes) -> _Marker:
    try:
        return json_decoder(_Marker).decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"space {space!r}: the row of an import that was begun is damaged: {error}") from error
