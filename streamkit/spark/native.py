"""The native path: the cold part by Spark's own Parquet reader, the tail of the log by the source, one snapshot."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit
from uuid import UUID

from ..archive.snapshot import is_own_name
from ..archive.table import File, Table
from ..client import Client
from ..errors import CorruptData
from ..store import inner
from ..warn import warn
from .filters import Predicate, may_hold, tests_of
from .options import COLUMNS, Options, parse
from .options import schema as ddl
from .plan import Span, TaskShare, pieces, spans
from .session import register
from .typed import parse_payloads

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["ReadPlan", "frame_of", "plan", "read_space"]

_OWN = ("store", "space", "tier")
_MANY_PATHS = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_setting = threading.Lock()
"""Held while a setting of Spark is changed for a moment."""
_FEW = 4
"""Files of one directory that are asked for by name: listing it takes as many requests."""


def read_space(
    spark: SparkSession,
    url: str,
    store: UUID | str | Sequence[UUID | str],
    space: str,
    *,
    schema: StructType | str | None = None,
    columns: Sequence[str] = (),
    tier: str = "all",
    since: str | int | datetime | bytes = "",
    until: str | int | datetime | bytes = "",
    segments: Sequence[str] | None = None,
    min_sequence: int = 0,
    max_sequence: int = 0,
    archive: str | None = None,
    rescue: str = "",
    filters: Sequence[Any] = (),
) -> DataFrame:
    """A space as a DataFrame. Archived entries are read at the speed of `spark.read.parquet`.

    `store`: a UUID, several, or "*" for all under the URL; `space` may be "*" too. `columns`: those to read, all if
    empty: store, space, partition, number, index, position, segment, sequence, timestamp, trx_id, trx_node, payload,
    metadata, tier. `since`, `until`: inclusive timestamps (ms, ISO 8601, datetime), or offsets: after and up to them. A
    datetime without a zone is read like those of Spark's collect() and toPandas(); text must name its zone. `segments`:
    their names; `min_sequence`, `max_sequence`: inclusive, 0 for no bound. `filters`: tests of segment, sequence,
    timestamp, number, partition and keys of metadata, as tuples ("metadata.type", "=", "paid"). A row passes all tests
    of the list, or, in a list of such lists, all tests of one of them. The DataFrame holds the entries that are
    committed at the call, each once. That stays so if it is evaluated several times, and while an archiver works. If
    Spark has no connector for the archive's storage, or no access to it, the source reads the archive too, and the
    logger `streamkit` says why.

    With `schema`, a StructType or DDL text, payloads are JSON documents, and their fields are columns in the place of
    `payload`. A payload that does not fit is kept in the column `bad_payload`; `rescue` names a column for fields that
    the schema lacks (see parse_payloads).
    """
    if rescue and schema is None:
        raise ValueError(f"rescue={rescue!r} is for fields that a schema lacks: give the schema too")
    if schema is not None:
        names = [name for name in (columns or COLUMNS) if name != "payload"]
        bounds = {"tier": tier, "since": since, "until": until, "segments": segments, "archive": archive}
        bounds |= {"min_sequence": min_sequence, "max_sequence": max_sequence, "filters": filters}
        frame = read_space(spark, url, store, space, columns=[*names, "payload"], **bounds)  # type: ignore[arg-type]
        return parse_payloads(frame, schema, rescue=rescue)
    ids = [store] if isinstance(store, str | UUID) else list(store)
    given = {
        "url": url,
        "store": ",".join(map(str, ids)),
        "space": space,
        "tier": tier,
        "columns": ",".join(columns),
        "from": _text(spark, since),
        "until": _text(spark, until),
        "minSequence": str(min_sequence),
        "maxSequence": str(max_sequence),
    }
    if segments is not None:
        given["segments"] = json.dumps(list(segments))
    if filters:
        given["filters"] = json.dumps(list(filters), default=lambda value: _text(spark, value))
    if archive is not None:
        given["archive"] = archive
    options = parse(given)
    register(spark)
    with options.client() as client:
        planned = plan(client, options)
    return frame_of(spark, given, planned)


class ReadPlan(NamedTuple):
    """The parts of a read."""

    spans: list[Span]
    cold: list[TaskShare]
    """Files of the archive."""
    tables: dict[str, Table]
    """The table of each of these files, by the file's path."""
    entries: set[tuple[UUID, str, int]]
    """Partitions whose archived part is also read by the reader of entries."""


def plan(client: Client, options: Options) -> ReadPlan:
    """Plan a read as of now. This asks the stores, and not Spark."""
    planned = spans(client, options)
    archived = any(span.archived for span in planned)
    found = pieces(client, options, planned) if archived else []
    cold = [piece for piece in found if piece.file is not None]
    entries = {piece.owner for piece in found if piece.file is None and not piece.tier}
    tables = {
        piece.file.path: inner(client.store(piece.store)).archive(piece.space).table for piece in cold if piece.file
    }
    return ReadPlan(planned, cold, tables, entries)


def frame_of(spark: SparkSession, given: dict[str, str], planned: ReadPlan) -> DataFrame:
    """The planned read as a frame; `given`: the options of the source."""
    options = parse(given)
    tests, tables = tests_of(options), planned.tables
    native = bool(tables) and _can_read(spark, *next(iter(tables.items())))
    parts = []
    rest = {options.tier: planned.spans}
    if native:
        cold = [piece for piece in planned.cold if may_hold(piece, tests)]
        parts = [_parquet(spark, tables, group, options, tests) for group in _groups(cold)]
        rest = {options.tier: [span for span in planned.spans if span.owner in planned.entries]}
        if options.tier != "cold":
            tails = [span for span in planned.spans if span.last > span.archived and span.owner not in planned.entries]
            rest["hot"] = rest.get("hot", []) + tails
    for tier, some in rest.items():
        if some:
            pinned = json.dumps([[str(span.store), *span[1:]] for span in some])
            parts.append(spark.read.format("streamkit").options(**{**given, "tier": tier, "snapshot": pinned}).load())
    if not parts:
        return spark.createDataFrame([], ddl(options.columns))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole


def _text(spark: SparkSession, bound: str | int | datetime | bytes) -> str:
    """A bound as the options have it; an offset may be one, or its hex text."""
    if isinstance(bound, bytes):
        return bound.hex()
    if not isinstance(bound, datetime):
        return str(bound)
    if bound.tzinfo is None:
        # As Spark gives them: toPandas() in the session's time zone, and collect() in that of this process.
        localized = getattr(bound, "tz_localize", None)
        zone = spark.conf.get("spark.sql.session.timeZone")
        bound = bound.astimezone(UTC) if localized is None else localized(zone)
    return bound.isoformat()


def _groups(cold: list[TaskShare]) -> list[list[TaskShare]]:
    """Pieces that one scan reads: the whole files of all spaces, each one that must be cut, and the parts of one file
    that is shared by partitions."""
    groups: dict[Any, list[TaskShare]] = {}
    whole = Counter(_place(piece) for piece in cold if _whole(piece))
    for piece in cold:
        key: Any = None
        if piece.file is not None and piece.file.shared and whole[_place(piece)] < piece.file.shared:
            key = _place(piece)
        elif not _whole(piece):
            key = piece
        elif piece.file is not None and "/" in piece.file.path:
            # Another engine has put it further down, and its path does not name its partition.
            key = (piece.store, piece.space)
        groups.setdefault(key, []).append(piece)
    return list(groups.values())


def _place(piece: TaskShare) -> tuple[Any, ...]:
    """The path of a piece's file. Pieces of several partitions may share a file."""
    return piece.store, piece.space, piece.file and piece.file.path


def _whole(piece: TaskShare) -> bool:
    """True if all rows of the partition in the file are wanted."""
    file = piece.file
    return file is not None and (piece.first, piece.last) == file.numbers and not piece.skip and not piece.stop


def _files(spark: SparkSession, tables: dict[str, Table], names: Sequence[str]) -> DataFrame:
    """The files as a frame. If there are many, their directories are listed: one request, not one for each file."""
    from pyspark.sql import functions as F

    stored = tuple(name for name in COLUMNS if name not in _OWN)
    # They are names: characters of shell patterns are part of them. No missing or damaged file is ignored, whatever the
    # session's settings are.
    given = {"__globPaths__": "false", "ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
    reader = spark.read.schema(ddl(stored)).options(**given)
    directories = {_hadoop(tables[name]) for name in names}
    if len(names) < _FEW * len(directories) or not all(map(is_own_name, names)):
        with _listing_here(spark, local=all(tables[name].directory is not None for name in names)):
            return reader.parquet(*(f"{_hadoop(tables[name])}/{name}" for name in names))
    frame = reader.option("recursiveFileLookup", "true").parquet(*directories)
    # The list belongs to the frame from here on; a missing file would be missing rows.
    listed = [_tail(path) for path in frame.inputFiles()]
    wanted = {_tail(f"{_hadoop(tables[name])}/{name}") for name in names}
    if missing := wanted.difference(listed):
        raise CorruptData(f"{len(missing)} files of the archive are missing, one is {min(missing)}: restore them")
    if len(listed) == len(wanted):
        return frame
    # Spark applies this to the list, before it opens a file.
    return frame.where(F.array_join(F.slice(F.split("_metadata.file_path", "/"), -3, 3), "/").isin(*wanted))


@contextmanager
def _listing_here(spark: SparkSession, *, local: bool) -> Iterator[None]:
    """Have Spark list local paths without a job, within the block.

    For many paths Spark starts a job with a task for each, which takes 10 ms of a processor. The number is a setting of
    the session, which is restored at the end.
    """
    if not local:
        yield
        return
    with _setting:
        before = spark.conf.get(_MANY_PATHS, None)
        spark.conf.set(_MANY_PATHS, str(1 << 30))
        try:
            yield
        finally:
            if before is None:
                spark.conf.unset(_MANY_PATHS)
            else:
                spark.conf.set(_MANY_PATHS, before)


def _tail(path: str) -> str:
    """A file's name, below the last parts of its directory: a store's, and a space's."""
    return "/".join(path.split("/")[-3:])


def _parquet(
    spark: SparkSession, tables: dict[str, Table], group: list[TaskShare], options: Options, tests: Sequence[Predicate]
) -> DataFrame:
    from pyspark.sql import functions as F

    files = [piece.file for piece in group if piece.file is not None]
    frame = _files(spark, tables, list(dict.fromkeys(file.path for file in files)))
    paths = [f"{_hadoop(tables[file.path])}/{file.path}" for file in files]
    if any(piece.erased for piece in group):
        frame = frame.where(F.col("payload").isNotNull())
    piece = group[0]
    if not all(map(_whole, group)) or len(group) < (piece.file.shared if piece.file else 0):
        # Each has its own partition.
        frame = frame.where(reduce(or_, (_cut(one, file) for one, file in zip(group, files, strict=True))))
    for test in tests:
        frame = frame.where(test.spark())
    fixed = {"store": F.lit(str(piece.store)), "space": F.lit(piece.space), "tier": F.lit("cold")}
    if len({(other.store, other.space) for other in group}) > 1:
        # One scan for all of them: a file's path names its partition.
        owners = [(_owner(path), other) for path, other in zip(paths, group, strict=True)]
        known = {owner: (str(other.store), other.space) for owner, other in owners}
        owner = F.element_at(F.split(F.col("_metadata.file_path"), "/"), -3)
        owner = F.concat(owner, F.lit("/"), F.element_at(F.split(F.col("_metadata.file_path"), "/"), -2))
        # One literal, which Spark decodes while it plans: each of many would be some calls of the JVM.
        place = F.element_at(F.from_json(F.lit(json.dumps(known)), "map<string,array<string>>"), owner)
        for at, name in enumerate(("store", "space")):
            fixed[name] = F.element_at(place, at + 1)
    return frame.select(*(fixed[name].alias(name) if name in fixed else F.col(name) for name in options.columns))


def _owner(path: str) -> str:
    """The last parts of a file's directory: a store's, and a space's in it."""
    return "/".join(path.split("/")[-3:-1])


def _cut(piece: TaskShare, file: File) -> Column:
    """A condition that holds for the rows of `file` that belong to the piece."""
    from pyspark.sql import functions as F

    number, index = F.col("number"), F.col("index")
    found = F.col("partition") == piece.partition
    if (piece.first, piece.last) != file.numbers:
        found &= number.between(piece.first, piece.last)
    if piece.skip:
        found &= (number != piece.first) | (index >= piece.skip)
    if piece.stop:
        found &= (number != piece.last) | (index < piece.stop)
    return found


def _hadoop(table: Table) -> str:
    """The table's directory, as Hadoop names it: it decodes nothing."""
    if table.directory is not None:
        return f"file://{table.directory}"
    scheme, _, rest = table.url.partition("://")
    rest = unquote(rest)
    host = urlsplit(table.options.get("azure_storage_endpoint", "")).hostname or ""
    if scheme == "az" and ".blob." in host:
        container, _, path = rest.partition("/")
        return f"abfss://{container}@{host.replace('.blob.', '.dfs.')}/{path}"
    return f"{'s3a' if scheme == 's3' else scheme}://{rest}"


def _can_read(spark: SparkSession, file: str, table: Table) -> bool:
    """True if Spark itself can read the file: it has a connector and access. Spark Connect does not tell."""
    path = f"{_hadoop(table)}/{file}"
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return table.directory is not None
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        configuration = spark._jsc.hadoopConfiguration()
        endpoint = table.options.get("AWS_ENDPOINT_URL")
        bucket = urlsplit(table.url).netloc
        configured = configuration.get(f"fs.s3a.bucket.{bucket}.endpoint") or configuration.get("fs.s3a.endpoint")
        if endpoint and _same_endpoint(endpoint) != _same_endpoint(configured or ""):
            return _not_native(path, f"spark.hadoop.fs.s3a.endpoint is {configured or 'not set'}, not {endpoint}")
        place = jvm.org.apache.hadoop.fs.Path(path)
        if not place.getFileSystem(configuration).exists(place):
            return _not_native(path, "Spark does not find the file")
    except Py4JJavaError as error:
        return _not_native(path, str(error.java_exception))
    return True


def _same_endpoint(endpoint: str) -> str:
    """A normal form in which two spellings of one endpoint are equal."""
    return endpoint.strip().rstrip("/").lower()


def _not_native(path: str, why: str) -> bool:
    warn("Spark's own reader cannot read %s, and the slower source reads the cold tier in its place: %s", path, why)
    return False
