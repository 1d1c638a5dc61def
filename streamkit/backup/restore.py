"""Restoring: a store as it was at a point, written into an empty one.

A space exists once its first partition has a head. So these heads are written last, and a half restored store reads
empty. A row names the restore that is under way: the same call continues it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from glob import escape
from os import PathLike
from uuid import UUID

import msgspec

from ..backend import ABSENT, ANY, NEXT, Backend, Expect
from ..clock import Clock
from ..decoders import json_decoder
from ..errors import CorruptData, PermanentError
from ..log.erased import earlier_rows
from ..log.floors import Erasure
from ..log.keys import (
    ARCHIVE,
    CATALOG,
    GRACE,
    HEAD,
    RESTORE,
    SPACES,
    partition_key,
    run_key,
    space_key,
    transaction_key,
    transaction_number,
    transaction_prefix,
)
from ..log.manifest import Manifest, RunFile
from ..log.packs import Packs, TableCache
from ..log.partition import seed_of
from ..log.rows import Head, Settings, decode_row, encode_row
from ..names import InternalName, internal_name
from ..retry import delete_rows, put_settled
from ..store import Store, inner
from .format import PartitionBackup
from .report import BackupPoint, BackupRestored
from .repository import Repository, open_repository

__all__ = ["restore_backup", "wait_for_tokens"]

_TOGETHER = 64
_CLEANED = internal_name("group"), internal_name("routes"), internal_name("snapshots")
"""The internal spaces whose texts and states are erased with the entries that they were made of."""
_LARGEST = 1 << 31
"""Bytes of the largest record in a chunk. The log's own packs hold none of more than 1 MiB."""


class _Marker(msgspec.Struct, frozen=True):
    """The restore that is under way."""

    backup_of: UUID
    point: int
    spaces: list[str] | None
    written: bool = False
    """All entries are restored; later erasures may still be missing."""


def restore_backup(
    store: Store,
    url: str | PathLike[str],
    point: int | None,
    spaces: Sequence[str] | None,
    backup_of: UUID | None,
    progress: Callable[[int, int], None] | None,
) -> BackupRestored:
    """Restore a point. See `Store.restore_backup`."""
    with open_repository(url, backup_of or store.id, progress) as repository:
        return _Restore(store, repository, repository.point(point), spaces).run()


class _Restore:
    def __init__(self, store: Store, repository: Repository, point: BackupPoint, spaces: Sequence[str] | None) -> None:
        self._store = store
        self._backend: Backend = inner(store).backend
        self._repository = repository
        self._point = point
        self._spaces = None if spaces is None else sorted(set(spaces))

    def run(self) -> BackupRestored:
        found: set[str] = set()
        for part in self._parts():
            found.add(part.space)
            if part.table is not None:
                inner(self._store).archive_root()  # PermanentError if there is no place for archives
        for space in self._spaces or ():
            if space not in found:
                names = ", ".join(repr(name) for name in sorted(found) if name >= " ")
                raise PermanentError(
                    f"point {self._point.number} of the backup has no space {space!r}; it has {names or 'none'}"
                )
        if not self._begin(found):
            self._write_all()
            self._check()
            self._put(*RESTORE, msgspec.json.encode(self._marker(written=True)), ANY)
        files, size = self._repository.files, self._repository.bytes
        erasures = self._erase_again(found)
        wait_for_tokens(inner(self._store).clock, self._point)
        delete_rows(self._backend, RESTORE[0], [RESTORE[1]])
        return BackupRestored(self._point, len(found), files, size, erasures)

    def _write_all(self) -> None:
        settings = Settings()
        for part in self._parts():
            settings = _settings(part, settings)
            self._write(part, settings)
        for part in self._parts():
            if part.partition == 0:
                self._put(partition_key(part.space, 0), bytes(HEAD), _head_row(part))
        for part in self._parts():
            if part.partition == 0:
                key = space_key(part.space)
                self._put(bytes(CATALOG), bytes(key), encode_row(key, _settings(part, settings)))

    def _parts(self) -> Iterator[PartitionBackup]:
        for part in self._repository.parts(self._point.number):
            if self._spaces is None or part.space in self._spaces:
                yield part

    # -- present state ------------------------------------------------------------------------------------------

    def _marker(self, *, written: bool = False) -> _Marker:
        return _Marker(self._repository.store, self._point.number, self._spaces, written)

    def _begin(self, spaces: set[str]) -> bool:
        """Record the restore. PermanentError if the store holds other data. True if an earlier call has written all."""
        value = self._backend.get(RESTORE[0], [RESTORE[1]])[0]
        if value is not None:
            try:
                begun = json_decoder(_Marker).decode(value.data)
            except msgspec.MsgspecError as error:
                raise CorruptData(
                    f"the record of a stopped restore into the store {self._store.id} cannot be read: "
                    "delete the store, and restore again"
                ) from error
            if msgspec.structs.replace(begun, written=False) != self._marker():
                raise PermanentError(
                    f"another restore into the store {self._store.id} was begun and not completed: repeat that "
                    "call, or delete the store"
                )
            return begun.written
        if self._spaces is None:
            there = next(self._backend.scan(bytes(CATALOG), *map(bytes, SPACES.children()), limit=1), None)
            if there is not None or self._has_archive():
                raise PermanentError(
                    f"the store {self._store.id} is not empty: a restore needs an empty store. "
                    "Choose another URL; or delete the store first, if its data may go"
                )
        else:
            keys = [bytes(space_key(space)) for space in sorted(spaces)]
            for space, row in zip(sorted(spaces), self._backend.get(bytes(CATALOG), keys), strict=True):
                if row is not None or inner(self._store).has_archive(_name(space)):
                    raise PermanentError(
                        f"the store {self._store.id} has a space {space!r} already: restore it into another "
                        "store, or delete that space first"
                    )
        self._put(*RESTORE, msgspec.json.encode(self._marker()))
        return False

    def _has_archive(self) -> bool:
        try:
            root = inner(self._store).archive_root()
        except PermanentError:
            return False
        from ..archive.location import ArchiveLocation

        try:
            return ArchiveLocation(*root).has(self._store.id)
        except ImportError:
            return False

    # -- one partition ------------------------------------------------------------------------------------------

    def _write(self, part: PartitionBackup, settings: Settings) -> None:
        """All of a partition except the head that makes its space be there."""
        key = bytes(partition_key(part.space, part.partition))
        if part.table is not None:
            from .copy_table import write_table

            write_table(self._store, self._repository, part.space, part.table)
        there = {row.key for row in self._backend.scan(key, b"\x00", b"\xff" * 300, values=False)}
        for id in part.files:
            name = run_key(bytes.fromhex(id))
            if name not in there:
                self._put(key, name, self._repository.file(part.space, part.partition, id))
        self._write_log(part, settings, there)
        for name, data in ((bytes(ARCHIVE), part.archive), (bytes(GRACE), part.grace)):
            if data is not None:
                self._put(key, name, data)
        erasures = [Erasure(*one) for one in part.erasures]
        for name, data in earlier_rows(settings.incarnation, erasures):
            self._put(key, name, data)
        if part.partition and part.head is not None:
            self._put(key, bytes(HEAD), _head_row(part))

    def _write_log(self, part: PartitionBackup, settings: Settings, there: set[bytes]) -> None:
        """The transactions that are rows of their own. No process has the store open: other rows are the end of a
        deleted log, or of a stopped restore."""
        key = bytes(partition_key(part.space, part.partition))
        prefix = transaction_prefix(settings.incarnation)
        start, end = transaction_key(prefix, 1), transaction_key(prefix, 1 << 64)
        held = {transaction_number(name) for name in there if start <= name < end}
        wanted: set[int] = set()
        seed = seed_of(settings, key)
        for chunk in part.chunks:
            data = self._repository.chunk(part.space, part.partition, chunk.id)
            for number, record in Packs(self._backend, key, seed, (), data, TableCache(), _LARGEST).all():
                wanted.add(number)
                name = transaction_key(prefix, number)
                if number in held:
                    value = self._backend.get(key, [name])[0]
                    if value is not None and value.data == record:
                        continue
                    delete_rows(self._backend, key, [name])
                self._put(key, name, record, NEXT, durable=number == chunk.last)
        others = [transaction_key(prefix, number) for number in sorted(held - wanted)]
        for at in range(0, len(others), _TOGETHER):
            delete_rows(self._backend, key, others[at : at + _TOGETHER])

    def _put(self, partition: bytes, key: bytes, data: bytes, expect: Expect = ABSENT, *, durable: bool = True) -> None:
        remedy = "restore again"
        if (
            put_settled(
                self._backend, inner(self._store).clock, bytes(partition), key, data, expect, remedy, durable=durable
            )
            is None
        ):
            raise PermanentError(
                f"the store {self._store.id} is used while it is restored: its row {key!r} was changed. "
                "Stop the processes that use it, delete the store, and restore again"
            )

    # -- afterwards ---------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise CorruptData unless each partition ends where the point says."""
        for part in self._parts():
            known = inner(self._store).look_up(_name(part.space))[0]
            end = known.partitions[part.partition].refresh() if known is not None else 0
            if end != part.end:
                raise CorruptData(
                    f"space {part.space!r}, partition {part.partition} ends at transaction {end} after the restore, "
                    f"not at {part.end}: the backup is damaged; delete the store and restore an earlier point"
                )

    def _erase_again(self, spaces: set[str]) -> int:
        """Repeat the erasures that later points know, and those made while the point was copied.

        Not those of states that an erasure in their space cleans: there they name records that other ones have
        replaced since. At this point these records are the state.
        """
        incarnations = {part.space: part.incarnation for part in self._parts() if part.partition == 0}
        erasures: set[tuple[str, str, int, int]] = set()
        done = {(part.space, *erasure) for part in self._parts() for erasure in part.erasures}
        for point in self._repository.points():
            if point.number >= self._point.number:
                for part in self._repository.parts(point.number):
                    if part.space in spaces and part.incarnation == incarnations[part.space]:
                        erasures.update((part.space, *erasure) for erasure in (*part.erasures, *part.later))
        again = sorted(one for one in erasures - done if not one[0].startswith(_CLEANED))
        for space, segment, first, last in again:
            self._store.erase(_name(space), escape(segment), first=first, last=last)
        return len(again)


def wait_for_tokens(clock: Clock, point: BackupPoint) -> None:
    """Wait until new leases have tokens after the point. A token is made of the present second, so that it is greater
    than those that the log remembers."""
    while clock.now() // 1000 <= point.timestamp // 1000:
        clock.sleep(0.05)


def _name(space: str) -> str:
    return InternalName(space) if space < " " else space


def _settings(part: PartitionBackup, settings: Settings) -> Settings:
    """A space's settings: its first partition knows them."""
    return decode_row(Head, HEAD, part.head).settings if part.partition == 0 and part.head is not None else settings


def _head_row(part: PartitionBackup) -> bytes:
    """The head without the etags of its files: they are others here."""
    assert part.head is not None
    head = decode_row(Head, HEAD, part.head)

    def plain(files: tuple[RunFile, ...]) -> tuple[RunFile, ...]:
        return tuple(msgspec.structs.replace(file, etag="") for file in files)

    replace = msgspec.structs.replace
    manifest: Manifest = replace(
        head.manifest,
        runs=tuple(replace(run, files=plain(run.files)) for run in head.manifest.runs),
        merges=tuple(replace(merge, files=plain(merge.files)) for merge in head.manifest.merges),
    )
    packs = tuple(replace(pack, etag="") for pack in head.packs)
    return encode_row(HEAD, replace(head, manifest=manifest, packs=packs))
