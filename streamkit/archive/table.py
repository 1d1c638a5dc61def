"""A space's Delta table: its schema and its marks, the files that one version has, and commits to it.

An archiver's commit names the application transaction `streamkit/<partition>` with the last transaction number as its
version, and builds on exactly the table version that it has looked at. So two archivers cannot both add a range.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote
from uuid import UUID

from ..errors import CorruptData, MissingDependency, UnsupportedVersion
from .durable import Stage, Synced, keep, make_directories
from .errors import Damaged, mapped
from .place import Place

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

__all__ = ["File", "Gone", "Snapshot", "Table", "check_installed", "schema", "space_of"]

FORMAT = 1
_FORMAT = "streamkit.format"
_STORE = "streamkit.store"
_SPACE = "streamkit.space"
_PARTITIONS = "streamkit.partitions"
_CHECKED = "streamkit/checked"
"""The application transaction of the version up to which nobody else has changed rows."""
_READABLE = {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of Delta that a table may have: without a deletion vector none of them changes what a file holds."""
_MEASURED = 1024
"""Files whose extents are kept."""
_OWN_NAME = re.compile(r"[0-9a-f]{2}-\d+-\d+-\d+-[0-9a-f]{12}(-[0-9a-f]{16})?\.parquet")
_STATS = ("partition", "number", "position", "segment", "sequence", "timestamp")
_KINDS = {
    **dict.fromkeys(("partition", "number", "index", "position", "sequence"), ("integer", "long")),
    **dict.fromkeys(("segment", "trx_id", "trx_node"), ("string",)),
    "timestamp": ("timestamp",),
    "payload": ("binary",),
    "metadata": ("map",),
}
"""What Delta may call the type of each column."""


def check_installed() -> None:
    """MissingDependency without the extra."""
    for module in ("deltalake", "pyarrow"):
        if find_spec(module) is None:
            raise MissingDependency(f"the archive needs {module}: pip install 'streamkit-store[archive]'")


def schema() -> pa.Schema:
    """The table's columns."""
    import pyarrow as pa

    def field(name: str, kind: pa.DataType, nullable: bool = False) -> pa.Field:
        return pa.field(name, kind, nullable)

    return pa.schema(
        [
            field("partition", pa.int32()),
            field("number", pa.int64()),
            field("index", pa.int64()),
            field("position", pa.int64()),
            field("segment", pa.string()),
            field("sequence", pa.int64()),
            field("timestamp", pa.timestamp("us", "UTC")),
            field("trx_id", pa.string()),
            field("trx_node", pa.string()),
            field("payload", pa.binary()),
            field("metadata", pa.map_(pa.string(), pa.string()), nullable=True),
        ]
    )


class File(NamedTuple):
    """A Parquet file of one partition, and the least and greatest of its columns. Timestamps are in ms."""

    path: str
    size: int
    rows: int
    partition: int
    numbers: tuple[int, int]
    positions: tuple[int, int]
    segments: tuple[str, str]
    sequences: tuple[int, int]
    timestamps: tuple[int, int]
    shared: bool = False
    """Whether the file has rows of other partitions as well. Then it stands here once for each of them."""

    @property
    def ours(self) -> bool:
        """Whether streamkit wrote it: then its rows are sorted, and as many as fit in memory."""
        return _OWN_NAME.fullmatch(self.path) is not None

    def statistics(self) -> str:
        """As Delta keeps them."""
        ends = []
        for at in (0, 1):
            moment = self.timestamps[at]
            seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment // 1000))
            ends.append(
                {
                    "partition": self.partition,
                    "number": self.numbers[at],
                    "position": self.positions[at],
                    "segment": self.segments[at],
                    "sequence": self.sequences[at],
                    "timestamp": f"{seconds}.{moment % 1000:03d}Z",
                }
            )
        nulls = dict.fromkeys(ends[0], 0)
        return json.dumps({"numRecords": self.rows, "minValues": ends[0], "maxValues": ends[1], "nullCount": nulls})


class Gone(Damaged):
    """A file of a version is not there: others have compacted the table, or it is damaged."""


class Snapshot:
    """One version of the table: what is read from it is one consistent state."""

    def __init__(self, where: str, version: int, archived: dict[int, int], files: Sequence[File]) -> None:
        self.where = where
        self.version = version
        self.archived = archived
        """For each partition, the last transaction that is there."""
        self.paths = {file.path for file in files}
        self.files = sorted(files, key=lambda file: (file.partition, file.numbers, file.positions))
        self._clusters: dict[int, list[list[File]]] = {}
        for file in self.files:
            clusters = self._clusters.setdefault(file.partition, [])
            # Files that others have compacted may overlap; what overlaps is read together.
            if clusters and file.positions[0] <= max(other.positions[1] for other in clusters[-1]):
                clusters[-1].append(file)
            else:
                clusters.append([file])

    def clusters(self, partition: int) -> list[list[File]]:
        """The partition's files in the order of their numbers, those together that overlap. CorruptData for a hole."""
        clusters = self._clusters.get(partition, [])
        position = 0
        for cluster in clusters:
            first = min(file.positions[0] for file in cluster)
            last = max(file.positions[1] for file in cluster)
            if first != position or sum(file.rows for file in cluster) != last - first + 1:
                raise CorruptData(
                    f"{self.where}, version {self.version}: the files do not hold the entries {position} to {last} of "
                    f"partition {partition} once each; the table was changed by something else, restore a version"
                )
            position = last + 1
        return clusters


class Table:
    """The Delta table of one space."""

    def __init__(self, place: Place, store: UUID, space: str) -> None:
        check_installed()
        self.url = place.table(store, space)
        self.options = place.options
        self._store = store
        self._space = space
        self.directory = unquote(self.url.removeprefix("file://")) if self.url.startswith("file://") else None
        """Where the table is, if it is on this machine's file system."""
        self._synced = None if self.directory is None else Synced(self.directory)
        self._filesystem: Any = None
        self._measured: OrderedDict[str, tuple[File, ...]] = OrderedDict()
        self._checked = -1
        """The version up to which this process knows that nobody else has changed rows."""

    def __repr__(self) -> str:
        return f"<Table {self.url}>"

    # -- reading ------------------------------------------------------------------------------------------------

    def load(self, version: int | None = None) -> DeltaTable | None:
        """The table as it is, or at `version`; None if there is none. Errors if it is not ours."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        if self.directory is not None and not os.path.isdir(self.directory):
            return None  # delta-rs would make it
        with self.mapped():
            try:
                table = DeltaTable(self.url, version=version, storage_options=self.options)
            except TableNotFoundError:
                return None
            self._check(table)
            return table

    def _check(self, table: DeltaTable) -> None:
        marks = table.metadata().configuration
        found = marks.get(_FORMAT)
        if found is None:
            raise CorruptData(
                f"{self.url} is a Delta table that streamkit did not write (it has no property {_FORMAT}): "
                "move it away, or choose another place with connect(archive=…)"
            )
        if found != str(FORMAT):
            raise UnsupportedVersion(
                f"{self.url} has archive format {found!r}; this release reads {FORMAT}. Upgrade streamkit."
            )
        owner = (marks.get(_STORE), marks.get(_SPACE))
        if owner != (str(self._store), self._space):
            raise CorruptData(
                f"{self.url} is the archive of the store {owner[0]} and the space {owner[1]!r}, not of {self._store} "
                f"and {self._space!r}"
            )
        protocol = table.protocol()
        features = set(protocol.reader_features or ())
        unknown = sorted(features - _READABLE) or [f"reader version {protocol.min_reader_version}"]
        if features - _READABLE or protocol.min_reader_version not in (1, 3) or table.metadata().partition_columns:
            what = ", ".join(unknown) if not table.metadata().partition_columns else "partition columns"
            raise UnsupportedVersion(
                f"{self.url} was changed to a Delta protocol or a partitioning that streamkit does not read "
                f"({what}); restore an earlier version of the table"
            )
        kinds = {field.name: str(getattr(field.type, "type", "map")) for field in table.schema().fields}
        missing = [name for name in schema().names if name not in kinds]
        if missing:
            raise CorruptData(f"{self.url} lacks the columns {', '.join(missing)}: it was changed by something else")
        other = [f"{name} ({kinds[name]})" for name, wanted in _KINDS.items() if kinds[name] not in wanted]
        if other:
            raise CorruptData(
                f"{self.url} has columns of another type, {', '.join(other)}: it was changed by something else; "
                "restore an earlier version of the table"
            )
        if "deletionVectors" in features:
            self._check_deletion_vectors(table)

    def _check_deletion_vectors(self, table: DeltaTable) -> None:
        import pyarrow as pa

        from .history import blame

        if pa.table(table.deletion_vectors()).num_rows:
            raise CorruptData(
                f"{self.url}, version {table.version()}: rows are marked as deleted by deletion vectors, which "
                f"streamkit does not read; {blame(self, 0, table.version())}. If no row of streamkit was changed, "
                "REORG TABLE … APPLY (PURGE) writes the files without them"
            )

    def _check_history(self, table: DeltaTable, paths: set[str]) -> None:
        """CorruptData if something else than streamkit has changed rows, not only their place."""
        if all(_OWN_NAME.fullmatch(path) for path in paths):
            # Whole files are counted; nobody else has written any.
            return
        from .history import check

        version = table.version()
        since = max(self._checked, self._mark(table))
        if since < version:
            check(self, since + 1, version, paths)
            self._checked = version

    def _mark(self, table: DeltaTable) -> int:
        found = table.transaction_version(_CHECKED)
        return -1 if found is None else found

    def _blame(self, table: DeltaTable) -> str:
        from .history import blame

        return blame(self, max(self._checked, self._mark(table)) + 1, table.version())

    def snapshot(self, version: int | None = None) -> Snapshot | None:
        """What the table holds, now or at `version`; None if there is none. CorruptData if rows of it were changed."""
        table = self.load(version)
        return None if table is None else self._snapshot(table)

    def _snapshot(self, table: DeltaTable) -> Snapshot:
        with self.mapped():
            files = [file for row in _rows(table) for file in self._files(row)]
            self._check_history(table, {file.path for file in files})
            partitions = {file.partition for file in files} | set(range(self.partitions(table)))
            archived = {partition: self.archived(table, partition) for partition in sorted(partitions)}
        there = Counter[int]()
        for file in files:
            there[file.partition] += file.rows
        for partition in archived:
            known = table.transaction_version(_entries(partition))
            if known is not None and known != there[partition]:
                raise CorruptData(
                    f"{self.url}, version {table.version()}: partition {partition} has {there[partition]} entries "
                    f"instead of {known}; {self._blame(table)}"
                )
        return Snapshot(self.url, table.version(), archived, files)

    def _files(self, row: dict[str, Any]) -> Sequence[File]:
        """A file of the table, once for each partition that it has rows of."""
        path, size = self.path_of(row["path"]), row["size_bytes"]
        least, greatest, count = row.get("min") or {}, row.get("max") or {}, row.get("num_records")

        def ends(name: str) -> tuple[Any, Any]:
            return least.get(name), greatest.get(name)

        partition, until = ends("partition")
        if count is not None and partition == until and all(None not in ends(name) for name in _STATS):
            begin, end = ends("timestamp")
            moments = (_milliseconds(begin), _milliseconds(end))
            numbers, positions, segments, sequences = map(ends, ("number", "position", "segment", "sequence"))
            return [File(path, size, count, partition, numbers, positions, segments, sequences, moments)]
        known = self._measured.get(path)
        if known is None:
            from .extents import measure

            known = self._measured[path] = measure(self, path, size)
            if len(self._measured) > _MEASURED:
                self._measured.popitem(last=False)
        return known

    def path_of(self, path: str) -> str:
        """A file's path as the table's log has it, as one below the table. CorruptData for one that leads elsewhere."""
        found = plain = unquote(path)
        while (further := unquote(plain)) != plain:  # nobody else may read more into it
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

    def archived(self, table: DeltaTable | None, partition: int) -> int:
        """The last transaction of `partition` in `table`."""
        return 0 if table is None else table.transaction_version(f"streamkit/{partition}") or 0

    def entries(self, table: DeltaTable | None, partition: int) -> int:
        """The number of entries of `partition` in `table`."""
        return 0 if table is None else table.transaction_version(_entries(partition)) or 0

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

    def open(self, path: str, **options: Any) -> Any:
        """A Parquet file of the table. Gone if it is not there."""
        import pyarrow.parquet as pq

        with self.reading(path):
            source = self.filesystem.open_input_file(path)
            return pq.ParquetFile(source, page_checksum_verification=True, **options)

    @contextlib.contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """As `mapped`, with the file's name, and Gone if it is not there, or not any more."""
        with mapped(f"{self.url}/{path}", self.options):
            try:
                yield
            except FileNotFoundError:
                raise Gone(path) from None

    def columns(self, version: int) -> list[str]:
        """The table's columns, those that others have added too."""
        table = self.load(version)
        return schema().names if table is None else [field.name for field in table.schema().fields]

    def log_of(self, version: int) -> str | None:
        """The description of one version, a JSON object a line; None if it was cleaned up."""
        with self.mapped():
            try:
                with self.filesystem.open_input_stream(f"_delta_log/{version:020}.json") as source:
                    return bytes(source.read()).decode()
            except FileNotFoundError:
                return None

    # -- writing ------------------------------------------------------------------------------------------------

    def partitions(self, table: DeltaTable) -> int:
        """How many partitions the space has."""
        return int(table.metadata().configuration.get(_PARTITIONS) or 1)

    def create(self, partitions: int) -> DeltaTable:
        """The table, made if there is none, of a space with so many partitions; another process may do the same."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        found = self.load()
        if found is not None:
            return found

        def make(url: str) -> None:
            DeltaTable.create(
                url,
                schema=Schema.from_arrow(schema()),
                mode="error",
                description=f"streamkit: the archive of the space {self._space!r}",
                configuration={
                    _FORMAT: str(FORMAT),
                    _STORE: str(self._store),
                    _SPACE: self._space,
                    _PARTITIONS: str(partitions),
                    "delta.checkpointInterval": "50",
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
            found = self.load()
            if found is None:
                raise failed or CorruptData(f"{self.url} was made and is not there: was the store deleted?")
        return found

    def commit(self, table: DeltaTable, partition: int, files: Sequence[File], number: int, entries: int) -> bool:
        """Add `files`, which go up to transaction `number` and entry `entries`, to exactly the version of `table`.

        False if the table has moved on since and does not have them: look again.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import AddAction

        now = time.time_ns() // 1_000_000
        actions = [AddAction(file.path, file.size, {}, now, True, file.statistics()) for file in files]
        marks = [
            Transaction(f"streamkit/{partition}", number),
            Transaction(_entries(partition), entries),
            self._verified(table),
        ]
        failed: DeltaError | None = None
        with self.mapped():
            try:
                if self._append(table, list(actions), CommitProperties(max_commit_retries=0, app_transactions=marks)):
                    return True
            except DeltaError as error:
                failed = error
            after = self.load()
            if self.archived(after, partition) == number and self._has(after, files[0].path if files else None):
                return True
            if failed is not None:
                raise failed
            return False

    def _verified(self, table: DeltaTable) -> Any:
        """The mark that says that nobody has changed rows up to the version of `table`. CorruptData if one has."""
        from deltalake import Transaction

        try:
            self._snapshot(table)
        except Gone as error:
            raise CorruptData(
                f"{self.url}, version {table.version()}: the file {error} is missing; if others compact the table just "
                "now, archive again, else restore it"
            ) from None
        return Transaction(_CHECKED, table.version())

    def _has(self, table: DeltaTable | None, path: str | None) -> bool:
        if table is None or path is None:
            return table is not None
        return any(uri.endswith(path) for uri in table.file_uris())

    def replace(self, table: DeltaTable, old: Sequence[File], new: Sequence[File]) -> bool:
        """Put `new` files in the place of `old` ones that hold the same entries. False if the table has moved on."""
        from deltalake import CommitProperties
        from deltalake.transaction import AddAction, RemoveAction

        now = time.time_ns() // 1_000_000
        actions: list[Any] = [AddAction(file.path, file.size, {}, now, False, file.statistics()) for file in new]
        sizes = {file.path: file.size for file in old}
        actions += [RemoveAction(path, False, now, size, {}) for path, size in sizes.items()]
        marks = [self._verified(table)]
        with self.mapped():
            return self._append(table, actions, CommitProperties(max_commit_retries=0, app_transactions=marks))

    def _append(self, table: DeltaTable, actions: list[Any], properties: Any) -> bool:
        """Commit to exactly the version of `table`; False if the table has moved on."""
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError

        version = table.version()

        def append(url: str) -> None:
            onto = table if url == self.url else DeltaTable(url, version=version)
            onto.create_write_transaction(actions, "append", onto.schema(), commit_properties=properties)

        try:
            return self._write(append)
        except CommitFailedError:
            return False

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

    def sync(self, files: Iterable[str] = ()) -> None:
        """The table's newest version, and `files` of it, are on stable storage when this returns."""
        if self._synced is not None:
            with self.mapped():
                self._synced.sync(files)

    def prepare(self) -> None:
        """Where files can be written: makes the table's directory."""
        if self.directory is not None:
            make_directories(self.directory)

    def sync_file(self, path: str) -> None:
        """A file that was just written is on stable storage when this returns, also its name."""
        if self.directory is not None:
            keep(os.path.join(self.directory, path))

    def vacuum(self, retention_hours: int, full: bool) -> list[str]:
        """Delete the files that no version of so many hours needs; `full`: also those that no version names."""
        table = self.load()
        if table is None:
            return []
        with self.mapped():
            if self.directory is None:
                return table.vacuum(retention_hours, dry_run=False, enforce_retention_duration=False, full=full)
            # What takes their place may be another engine's, which syncs nothing.
            self.sync(self.path_of(row["path"]) for row in _rows(table))
            gone = table.vacuum(retention_hours, dry_run=True, enforce_retention_duration=False, full=full)
            for path in gone:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.directory, self.path_of(path)))
        return gone

    def mapped(self) -> AbstractContextManager[None]:
        """Foreign errors do not leave the archive."""
        return mapped(self.url, self.options)


def space_of(place: Place, url: str) -> str | None:
    """The space whose table is at `url`; None if there is no table of ours."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    with mapped(url, place.options):
        try:
            return DeltaTable(url, storage_options=place.options).metadata().configuration.get(_SPACE)
        except TableNotFoundError:
            return None


def _rows(table: DeltaTable) -> list[dict[str, Any]]:
    """The files of a version, as its log describes them."""
    import pyarrow as pa

    found: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    return found


def _entries(partition: int) -> str:
    return f"streamkit/{partition}/entries"


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
