"""A space's Delta table: its marks and its versions, and commits to it.

An archiver's commit names the application transaction `streamkit/<partition>` for each partition. Its version is the
last transaction number. The commit builds on exactly the table version that the archiver has read. So two archivers
cannot both add a range.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from uuid import UUID

import msgspec

from ..decoders import convert, json_decoder
from ..errors import CorruptData, UnsupportedVersion
from ..log.rows import Settings
from ..space import MOST_PARTITIONS, settings_of
from .columns import check_columns
from .delta_actions import Number, Size
from .delta_log import AddedFile, LogState, advance, replay
from .durable import Stage, make_directories, mirror, misread
from .errors import UNDECODABLE, Damaged, mapped
from .files import TableFiles
from .location import ArchiveLocation
from .log_cleanup import LOG_RETENTION, clean_log
from .schema import DELTA_TYPES, check_installed, schema
from .snapshot import File, Gone, Snapshot, TrimmedMark, is_own_name

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["File", "Gone", "PartitionCommit", "Snapshot", "Table", "check_installed", "schema", "space_of"]

FORMAT = 1
_WITH_HOLES = 2
"""The format of a table that lost rows of trimmed entries: an earlier release would take it for a damaged one."""
_FORMAT = "streamkit.format"
_STORE = "streamkit.store"
_SPACE = "streamkit.space"
_PARTITIONS = "streamkit.partitions"
_SETTINGS = "streamkit.settings"
_INCARNATION = "streamkit.incarnation"
"""The property with the space's incarnation; tables of earlier releases lack it."""
_CHECKED = "streamkit/checked"
"""The application transaction of the version up to which no other engine has changed rows."""
_READABLE = {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of Delta that a table may have. Without a deletion vector, none of them changes the rows of a file."""
_INTERVAL = 10
"""Versions from one checkpoint of the log to the next: a new reader reads no more than these."""
_CLEANED = 100
"""Versions from one cleaning of the log to the next."""
_RECENT = 3600.0
"""Seconds for which the versions that follow on a known state are looked for by their names. Later the log may have
been cleaned of them: then the whole log is listed."""
_MEASURED = 1024
"""Files whose extents are kept."""


class _Kept(msgspec.Struct):
    """The settings of the space that the table knows, in the order of Settings."""

    durability: str = Settings().durability
    idempotency_window: float = Settings().idempotency_window
    archive_grace: float = Settings().archive_grace


class _Ends(msgspec.Struct, gc=False):
    """The least or the greatest values of a file."""

    partition: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    number: Number
    position: Number
    segment: str
    sequence: Number
    timestamp: str


class _Statistics(msgspec.Struct, rename={"rows": "numRecords", "least": "minValues", "most": "maxValues"}):
    rows: Size
    least: _Ends
    most: _Ends


_statistics = json_decoder(_Statistics)


class PartitionCommit(NamedTuple):
    """One partition's share of a commit."""

    partition: int
    files: Sequence[File]
    number: int
    """The partition's last transaction in the table after the commit."""
    entries: int
    """The partition's entries in the table after the commit."""


class Table(TableFiles):
    """The Delta table of one space. Safe to share between threads."""

    def __init__(self, location: ArchiveLocation, store: UUID, space: str) -> None:
        check_installed()
        super().__init__(location.table(store, space), location.options, location.writer(store, space))
        self.store = store
        self._location = location
        self._space = space
        self._lock = threading.RLock()
        self._measured: OrderedDict[str, tuple[File, ...]] = OrderedDict()
        self._checked = -1
        """The version up to which no other engine has changed rows, as far as this process knows."""
        self._state: LogState | None = None
        self._looked = 0.0
        """The time of the latest look, in seconds since the epoch."""
        self._snapshot: Snapshot | None = None
        self._delta: DeltaTable | None = None
        """The delta-rs table that makes commits."""

    def __repr__(self) -> str:
        return f"<Table {self.url}>"

    # -- reading ------------------------------------------------------------------------------------------------

    def open(self, path: str, **options: Any) -> Any:
        """A data file, as `open_parquet`. Damaged if it lacks a column of ours, or has one of another type."""
        found = self.open_parquet(path, **options)
        if options.get("metadata") is None:
            with self.reading(path):
                check_columns(found.schema_arrow, own=is_own_name(path))
        return found

    def state(self, *, following: bool = False) -> LogState | None:
        """The table as its log tells it; None if there is none. Errors if it is not ours.

        The known versions are not read again. `following`: only the versions that follow on it are looked for, by
        their names; without it the log is listed.
        """
        with self._lock:
            if self.directory is not None and not os.path.isdir(self.directory):
                self._state = None
                return None
            with self.mapped():
                before = self._state
                looked, self._looked = self._looked, time.time()
                following = following and abs(self._looked - looked) < _RECENT
                found = advance(self, before) if before is not None and following else replay(self, before=before)
                if found is not None and found is not before:
                    self._check(found)
                self._state = found
                return found

    def load(self, version: int | None = None, url: str | None = None) -> DeltaTable | None:
        """The table as delta-rs has it, now or at `version`; None if there is none. Errors if it is not ours.

        `url`: where a mirror of the table is, for delta-rs to read in its place.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        if self.directory is not None and not os.path.isdir(self.directory):
            return None  # delta-rs would make it
        with self.mapped():
            try:
                table = DeltaTable(url or self.url, version=version, storage_options=self.options)
            except TableNotFoundError:
                return None
            found = replay(self, table.version())
            if found is None:
                return None
            self._check(found)
            return table

    def _check(self, state: LogState) -> None:
        marks = state.configuration
        format = marks.get(_FORMAT)
        if format is None:
            raise CorruptData(
                f"{self.url} is a Delta table that streamkit did not write (it has no property {_FORMAT}): "
                "move it away, or choose another place with connect(archive=…)"
            )
        if format not in (str(FORMAT), str(_WITH_HOLES)):
            raise UnsupportedVersion(
                f"{self.url} has archive format {format!r}; this release reads {FORMAT} and {_WITH_HOLES}. "
                "Upgrade streamkit."
            )
        owner = (marks.get(_STORE), marks.get(_SPACE))
        if owner != (str(self.store), self._space):
            raise CorruptData(
                f"{self.url} is the archive of the store {owner[0]} and the space {owner[1]!r}, not of {self.store} "
                f"and {self._space!r}: choose another place with connect(archive=…)"
            )
        features = set(state.protocol.reader_features or ())
        version = state.protocol.min_reader_version
        partitioned = state.metadata.partition_columns
        if features - _READABLE or version not in (1, 3) or partitioned:
            unknown = ", ".join(sorted(features - _READABLE) or [f"reader version {version}"])
            what = "partition columns" if partitioned else unknown
            raise UnsupportedVersion(
                f"{self.url} was changed to a Delta protocol or a partitioning that streamkit does not read "
                f"({what}); restore an earlier version of the table"
            )
        kinds = state.types
        missing = [name for name in schema().names if name not in kinds]
        if missing:
            raise CorruptData(
                f"{self.url} lacks the columns {', '.join(missing)}: it was changed by something else; restore an "
                "earlier version of the table"
            )
        other = [f"{name} ({kinds[name]})" for name, wanted in DELTA_TYPES.items() if kinds[name] not in wanted]
        if other:
            raise CorruptData(
                f"{self.url} has columns of another type, {', '.join(other)}: it was changed by something else; "
                "restore an earlier version of the table"
            )
        if any(file.marked for file in state.added.values()):
            from .history import blame

            raise CorruptData(
                f"{self.url}, version {state.version}: rows are marked as deleted by deletion vectors, which "
                f"streamkit does not read; {blame(self, 0, state.version)}. If no row of streamkit was changed, "
                "REORG TABLE … APPLY (PURGE) writes the files without them"
            )

    def _check_history(self, state: LogState, paths: set[str]) -> None:
        """Raise CorruptData if something else than streamkit has changed rows, not only their place."""
        if all(map(is_own_name, paths)):
            # Whole files are counted, because no other engine has written any.
            return
        from .history import check

        since = max(self._checked, state.marks.get(_CHECKED, -1))
        if since < state.version:
            check(self, since + 1, state.version, paths)
            self._checked = state.version

    def _blame(self, state: LogState) -> str:
        from .history import blame

        return blame(self, max(self._checked, state.marks.get(_CHECKED, -1)) + 1, state.version)

    def forget(self) -> None:
        """Read the whole log again, when it is asked for next: it may have been replaced."""
        with self._lock:
            self._state = self._snapshot = self._delta = None

    def snapshot(self, version: int | None = None, *, following: bool = False) -> Snapshot | None:
        """The table's content, now or at `version`; None if there is no table. CorruptData if rows of it were changed.

        For `following` see `state`.
        """
        if version is not None:
            with self.mapped():
                old = replay(self, version)
            if old is None:
                return None
            self._check(old)
            return self.snapshot_of(old)
        state = self.state(following=following)
        return None if state is None else self.snapshot_of(state)

    def snapshot_of(self, state: LogState) -> Snapshot:
        with self._lock:
            known = self._snapshot
            if known is not None and known.state is state:
                return known
            with self.mapped():
                files = [file for added in state.added.values() for file in self._files(added)]
            partitions = {file.partition for file in files} | set(range(self.partitions(state)))
            archived = {partition: self.archived(state, partition) for partition in sorted(partitions)}
            with self.mapped():
                self._check_history(state, {file.path for file in files})
            rows = Counter[int]()
            for file in files:
                rows[file.partition] += file.rows
            for partition in archived:
                entries = state.marks.get(_entries(partition))
                if entries is not None and entries != rows[partition]:
                    raise CorruptData(
                        f"{self.url}, version {state.version}: partition {partition} has {rows[partition]} entries "
                        f"instead of {entries}; {self._blame(state)}"
                    )
            snapshot = Snapshot(self.url, archived, files, state)
            if state is self._state:
                self._snapshot = snapshot
            return snapshot

    def _files(self, added: AddedFile) -> Sequence[File]:
        """A file of the table, once for each partition that it has rows of."""
        path = self.path_of(added.path)
        described = _described(path, added)
        if described is not None:
            return [described]
        known = self._measured.get(path)
        if known is None:
            from .extents import measure

            known = self._measured[path] = measure(self, path, added.size)
            if len(self._measured) > _MEASURED:
                self._measured.popitem(last=False)
        return known

    def archived(self, state: LogState | None, partition: int) -> int:
        """The last transaction of `partition` in the table."""
        return 0 if state is None else state.marks.get(f"streamkit/{partition}", 0)

    def entries(self, state: LogState | None, partition: int) -> int:
        """The number of entries of `partition` in the table."""
        return 0 if state is None else state.marks.get(_entries(partition), 0)

    def partitions(self, state: LogState) -> int:
        """The number of the space's partitions."""
        found = state.configuration.get(_PARTITIONS) or "1"
        if not (found.isascii() and found.isdecimal() and len(found) < 5 and 1 <= int(found) <= MOST_PARTITIONS):
            raise Damaged(
                f"{self.url}: its property {_PARTITIONS} is no number from 1 to {MOST_PARTITIONS}, but {found[:60]!r}"
            )
        return int(found)

    def check_incarnation(self, state: LogState, settings: Settings) -> None:
        """Raise CorruptData if the table belongs to an earlier, deleted space of this name."""
        found = state.configuration.get(_INCARNATION)
        if found and settings.incarnation and found != settings.incarnation.hex():
            raise CorruptData(
                f"{self.url} is the archive of another space of the name {self._space!r}, which was deleted: an "
                "archiver that was stopped meanwhile has left it. Remove that directory, and archive again"
            )

    def settings(self, state: LogState) -> Settings:
        """The space's settings; of earlier releases' tables only how many partitions it has."""
        try:
            # msgspec reads no Infinity, which an idempotency window may be.
            found = convert(json.loads(state.configuration.get(_SETTINGS) or "{}"), _Kept)
            return settings_of(self.partitions(state), *msgspec.structs.astuple(found))
        except (*UNDECODABLE, RecursionError) as error:
            raise Damaged(f"{self.url}: its property {_SETTINGS} cannot be read: {error}") from error

    # -- writing ------------------------------------------------------------------------------------------------

    def create(self, settings: Settings) -> LogState:
        """The table, made if there is none, of a space with these settings; another process may do the same."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        state = self.state(following=True)
        if state is not None:
            return state

        def make(url: str) -> None:
            DeltaTable.create(
                url,
                schema=Schema.from_arrow(schema()),
                mode="error",
                description=f"streamkit: the archive of the space {self._space!r}",
                configuration={
                    _FORMAT: str(FORMAT),
                    _STORE: str(self.store),
                    _SPACE: self._space,
                    _PARTITIONS: str(settings.partitions),
                    **({_INCARNATION: settings.incarnation.hex()} if settings.incarnation else {}),
                    _SETTINGS: json.dumps({name: getattr(settings, name) for name in _Kept.__struct_fields__}),
                    "delta.checkpointInterval": str(_INTERVAL),
                    "delta.logRetentionDuration": LOG_RETENTION,
                },
                storage_options=self.options,
                raise_if_key_not_exists=False,
            )

        failed: DeltaError | None = None
        with self.mapped():
            try:
                self._write(make, create=True)
            except DeltaError as error:
                # Someone else was faster, or the answer was lost.
                failed = error
            state = self.state()
            if state is None:
                raise failed or CorruptData(f"{self.url} was made and is not there: was the store deleted?")
        return state

    def commit(self, state: LogState, parts: Sequence[PartitionCommit]) -> bool:
        """Add the files of `parts` to exactly the version of `state`, all or nothing.

        False if the table has moved on since and does not have them: look again.
        """
        from deltalake.exceptions import DeltaError

        files = [file for part in parts for file in part.files]
        marks = {f"streamkit/{part.partition}": part.number for part in parts}
        marks |= {_entries(part.partition): part.entries for part in parts}
        failed: DeltaError | None = None
        with self.mapped():
            try:
                if self._append(state, _actions((), files, changed=True), marks):
                    return True
            except DeltaError as error:
                failed = error
            after = self.state()
            there = {file.path for file in after.added.values()} if after is not None else set()
            reached = all(self.archived(after, part.partition) == part.number for part in parts)
            if reached and (not files or files[0].path in there):
                return True
            if failed is not None:
                raise failed
            return False

    def _verify(self, state: LogState) -> None:
        """Raise CorruptData if another engine has changed rows up to the version of `state`."""
        try:
            self.snapshot_of(state)
        except Gone as error:
            raise CorruptData(
                f"{self.url}, version {state.version}: the file {error} is missing; if others compact the table just "
                "now, archive again, else restore it"
            ) from None

    def replace(
        self, state: LogState, old: Sequence[File], new: Sequence[File], *, has_checkpoint: bool = False
    ) -> bool:
        """Put `new` files in the place of `old` ones that hold the same entries. False if the table has moved on.

        A shared file is named once for each partition in `new`, and once or more often in `old`. `has_checkpoint`: the
        new version is to have a checkpoint.
        """
        with self.mapped():
            return self._append(state, _actions(old, new, changed=False), {}, has_checkpoint=has_checkpoint)

    def discard(self, files: Iterable[File]) -> None:
        """Delete files of an abandoned commit. Files that the table names stay."""
        state = self.state()
        named = {self.path_of(added.path) for added in state.added.values()} if state is not None else set()
        paths = {file.path for file in files} - named
        for path in paths:
            with self.mapped(), contextlib.suppress(FileNotFoundError):
                self.filesystem.delete_file(path)
        self.keep_deletions(paths)

    def delete(self, settings: Settings) -> None:
        """Delete the table, if it is that of the space with these settings, and not of another one of this name."""
        self.forget()
        state = self.state()
        if state is not None and state.configuration.get(_INCARNATION) == settings.incarnation.hex():
            self._location.delete(self.store, self._space)

    def drop(self, state: LogState, old: Sequence[File], partition: int) -> bool:
        """Forget files whose transactions were trimmed. False if the table has a newer version."""
        left = self.entries(state, partition) - sum(file.rows for file in old)
        with self.mapped():
            return self._append(state, _actions(old, (), changed=True), {_entries(partition): left})

    def allow_holes(self, state: LogState) -> bool:
        """Give the table the format of one that may lack trimmed rows; False if it has moved on, or has it by now."""
        from deltalake.exceptions import CommitFailedError

        if state.configuration.get(_FORMAT) == str(_WITH_HOLES):
            return True

        def change(url: str) -> None:
            onto = self._at(url, state.version)
            onto.alter.set_table_properties({_FORMAT: str(_WITH_HOLES)}, raise_if_not_exists=False)

        with self.mapped(), contextlib.suppress(CommitFailedError):
            self._write(change)
        self._delta = None
        return False

    def thin(
        self,
        state: LogState,
        old: Sequence[File],
        new: Sequence[File],
        partition: int,
        trimmed: TrimmedMark,
    ) -> bool:
        """Put `new` files, which lack rows of trimmed entries, in the place of `old` ones. False if the table has moved
        on."""
        lost = sum(file.rows for file in old) - sum(file.rows for file in new)
        marks = {_entries(partition): self.entries(state, partition) - lost, **trimmed.named(partition)}
        with self.mapped():
            return self._append(state, _actions(old, new, changed=True), marks)

    def _append(
        self, state: LogState, actions: list[Any], marks: Mapping[str, int], *, has_checkpoint: bool = False
    ) -> bool:
        """Commit to exactly the version of `state`, with these application transactions and the mark that no other
        engine has changed rows so far. False if the table has moved on."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        self._verify(state)
        named = {_CHECKED: state.version, **marks}
        transactions = [Transaction(name, version) for name, version in named.items()]
        properties = CommitProperties(max_commit_retries=0, app_transactions=transactions)
        due = has_checkpoint or _lacks_checkpoint(state)

        def append(url: str) -> None:
            onto = self._at(url, state.version)
            onto.create_write_transaction(actions, "append", onto.schema(), commit_properties=properties)
            if due:
                # It was made with a longer interval.
                onto.update_incremental()
                onto.create_checkpoint()

        try:
            done = self._write(append)
        except CommitFailedError:
            self._delta = None
            return False
        if done and (state.version + 1) % _CLEANED == 0:
            clean_log(self, state)
        return done

    def _at(self, url: str, version: int) -> DeltaTable:
        """The table at exactly that version, for delta-rs to commit to. CommitFailedError if it has moved on."""
        from deltalake import DeltaTable

        if url != self.url:
            return DeltaTable(url, version=version)
        if self._delta is not None and self._delta.version() < version:
            self._delta.update_incremental()
        if self._delta is None or self._delta.version() != version:
            self._delta = DeltaTable(url, version=version, storage_options=self.options)
        return self._delta

    def _write(self, write: Callable[[str], None], create: bool = False) -> bool:
        """Let `write` commit to the table at the URL that it is given; False if the version is taken.

        On a local file system the commit is on stable storage before it can be seen. Elsewhere it is when it answers.
        """
        if self.directory is None:
            write(self.url)
            return True
        if create:
            make_directories(os.path.join(self.directory, "_delta_log"))
        with Stage(self.directory) as stage:
            write(stage.url)
            return stage.publish()

    def vacuum(self, retention_hours: int, full: bool) -> list[str]:
        """Delete the files that no version of so many hours needs; `full`: also those that no version names. Versions
        older than the log's retention go, too."""
        if (state := self.state()) is not None:
            clean_log(self, state)
        if self.directory is not None and misread(self.directory) and os.path.isdir(self.directory):
            with self.mapped(), mirror(self.directory) as path:
                return self._vacuum(self.load(url=Path(path).as_uri()), retention_hours, full)
        return self._vacuum(self.load(), retention_hours, full)

    def _vacuum(self, table: DeltaTable | None, retention_hours: int, full: bool) -> list[str]:
        if table is None:
            return []
        with self.mapped():
            if self.directory is None:
                return table.vacuum(retention_hours, dry_run=False, enforce_retention_duration=False, full=full)
            # Their replacements may be another engine's, which syncs nothing.
            now = self.state()
            self.sync(self.path_of(added.path) for added in (now.added.values() if now is not None else ()))
            gone = table.vacuum(retention_hours, dry_run=True, enforce_retention_duration=False, full=full)
            for path in gone:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.directory, self.path_of(path)))
        return gone


def _actions(old: Iterable[File], new: Iterable[File], *, changed: bool) -> list[Any]:
    """Delta's actions that put `new` files in the place of `old` ones; `changed`: they do not hold the same rows."""
    from deltalake.transaction import AddAction, RemoveAction

    now = time.time_ns() // 1_000_000
    parts: dict[str, list[File]] = {}
    for file in new:
        parts.setdefault(file.path, []).append(file)
    sizes = {file.path: file.size for file in old}
    return [
        *(
            AddAction(path, files[0].size, {}, now, changed, _encoded_statistics(files))
            for path, files in parts.items()
        ),
        *(RemoveAction(path, changed, now, size, {}) for path, size in sizes.items()),
    ]


def _encoded_statistics(parts: Sequence[File]) -> str:
    """Delta's statistics of one file that is given as one part per partition."""
    ends = []
    for at, choose in enumerate((min, max)):
        moment = choose(part.timestamps[at] for part in parts)
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment // 1000))
        ends.append(
            {
                "partition": choose(part.partition for part in parts),
                "number": choose(part.numbers[at] for part in parts),
                "position": choose(part.positions[at] for part in parts),
                "segment": choose(part.segments[at] for part in parts),
                "sequence": choose(part.sequences[at] for part in parts),
                "timestamp": f"{seconds}.{moment % 1000:03d}Z",
            }
        )
    rows, nulls = sum(part.rows for part in parts), dict.fromkeys(ends[0], 0)
    return json.dumps({"numRecords": rows, "minValues": ends[0], "maxValues": ends[1], "nullCount": nulls})


def _lacks_checkpoint(state: LogState) -> bool:
    """True if the version after `state` is due for a checkpoint that delta-rs would not write."""
    interval = state.configuration.get("delta.checkpointInterval")
    return interval != str(_INTERVAL) and (state.version + 2) % _INTERVAL == 0


def space_of(location: ArchiveLocation, url: str) -> str | None:
    """The space whose table is at `url`; None if there is no table of ours."""
    with mapped(url, location.options):
        found = replay(TableFiles(url, location.options))
        return None if found is None else found.configuration.get(_SPACE)


def _described(path: str, added: AddedFile) -> File | None:
    """A file by the statistics in the table's log; None if they do not tell all."""
    try:
        found = _statistics.decode(added.stats or "{}")
        least, most = found.least, found.most
        moments = (_milliseconds(least.timestamp), _milliseconds(most.timestamp))
    except (*UNDECODABLE, RecursionError):
        return None
    if least.partition != most.partition:
        return None
    return File(
        path,
        added.size,
        found.rows,
        least.partition,
        (least.number, most.number),
        (least.position, most.position),
        (least.segment, most.segment),
        (least.sequence, most.sequence),
        moments,
    )


def _entries(partition: int) -> str:
    return f"streamkit/{partition}/entries"


def _milliseconds(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
