"""The native path: the cold part by Spark's own Parquet reader, the tail of the log by the source, one snapshot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

from ..archive.table import File, Table
from ..store import inner
from .options import COLUMNS, Options, parse, schema
from .plan import Piece, pieces, spans
from .session import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_space"]

_OWN = ("store", "space", "tier")


def read_space(
    spark: SparkSession,
    url: str,
    store: UUID | str | Sequence[UUID | str],
    space: str,
    *,
    columns: Sequence[str] = (),
    tier: str = "all",
    since: str | int = "",
    until: str | int = "",
    archive: str | None = None,
) -> DataFrame:
    """A space as a DataFrame, at the speed of `spark.read.parquet` for what is archived.

    `store`: a UUID, several, or "*" for all under the URL; `space` may be "*" too. `columns`: those to read, all if
    empty: store, space, partition, number, index, position, segment, sequence, timestamp, trx_id, trx_node, payload,
    metadata, tier. `since`, `until`: inclusive timestamps (ms or ISO 8601), or offsets. What is committed when this is
    called is what the DataFrame holds, each entry once, however often it is evaluated and whatever the archiver does.
    Where Spark has no connector for the archive's storage, or is not let in, the source reads the cold part too.
    """
    ids = [store] if isinstance(store, str | UUID) else list(store)
    given = {
        "url": url,
        "store": ",".join(map(str, ids)),
        "space": space,
        "tier": tier,
        "columns": ",".join(columns),
        "from": str(since),
        "until": str(until),
    }
    if archive is not None:
        given["archive"] = archive
    options = parse(given)
    register(spark)
    with options.client() as client:
        found = spans(client, options)
        archived = any(span.archived for span in found)
        cold = [piece for piece in pieces(client, options, found) if piece.file is not None] if archived else []
        tables = {
            piece.file.path: inner(client.store(piece.store)).archive(piece.space).table for piece in cold if piece.file
        }
    native = bool(tables) and _can_read(spark, *next(iter(tables.items())))
    cold = cold if native else []
    rest = "hot" if native else options.tier
    parts = [_parquet(spark, tables, group, options) for group in _groups(cold)]
    if options.tier != "cold" or not native:
        tail = [span for span in found if span.last > span.archived or span.skip or not native]
        if tail or not parts:
            pinned = json.dumps([[str(span.store), *span[1:]] for span in tail])
            reader = spark.read.format("streamkit").options(**{**given, "tier": rest, "snapshot": pinned})
            parts.append(reader.load())
    if not parts:
        return spark.createDataFrame([], schema(options.columns))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole


def _groups(cold: list[Piece]) -> list[list[Piece]]:
    """Pieces that one scan reads: of one space, and either whole files or one that must be cut."""
    groups: dict[Any, list[Piece]] = {}
    for piece in cold:
        groups.setdefault((piece.store, piece.space, None if _whole(piece) else piece), []).append(piece)
    return list(groups.values())


def _whole(piece: Piece) -> bool:
    file = piece.file
    return (
        file is not None
        and not file.shared
        and (piece.first, piece.last) == file.numbers
        and file.timestamps[0] >= piece.min_timestamp
        and (not piece.max_timestamp or file.timestamps[1] <= piece.max_timestamp)
    )


def _parquet(spark: SparkSession, tables: dict[str, Table], group: list[Piece], options: Options) -> DataFrame:
    from pyspark.sql import functions as F

    files = [piece.file for piece in group if piece.file is not None]
    stored = tuple(name for name in COLUMNS if name not in _OWN)
    paths = [f"{_hadoop(tables[file.path])}/{file.path}" for file in files]
    frame = spark.read.schema(schema(stored)).parquet(*paths)
    piece = group[0]
    if not _whole(piece):
        frame = _cut(frame, piece, files[0])
    fixed = {"store": str(piece.store), "space": piece.space, "tier": "cold"}
    return frame.select(*(F.lit(fixed[name]).alias(name) if name in fixed else F.col(name) for name in options.columns))


def _cut(frame: DataFrame, piece: Piece, file: File) -> DataFrame:
    from pyspark.sql import functions as F

    if file.shared:
        frame = frame.where(F.col("partition") == piece.partition)
    if (piece.first, piece.last) != file.numbers:
        frame = frame.where(F.col("number").between(piece.first, piece.last))
    if piece.min_timestamp:
        frame = frame.where(F.col("timestamp") >= F.timestamp_millis(F.lit(piece.min_timestamp)))
    if piece.max_timestamp:
        frame = frame.where(F.col("timestamp") <= F.timestamp_millis(F.lit(piece.max_timestamp)))
    return frame


def _hadoop(table: Table) -> str:
    """The table's directory, as Hadoop names it."""
    scheme, _, rest = table.url.partition("://")
    host = urlsplit(table.options.get("azure_storage_endpoint", "")).hostname or ""
    if scheme == "az" and ".blob." in host:
        container, _, path = rest.partition("/")
        return f"abfss://{container}@{host.replace('.blob.', '.dfs.')}/{path}"
    return f"{'s3a' if scheme == 's3' else scheme}://{rest}"


def _can_read(spark: SparkSession, file: str, table: Table) -> bool:
    """Whether Spark itself reads the file: it has a connector, and is let in. Spark Connect does not tell."""
    path = f"{_hadoop(table)}/{file}"
    if path.startswith("file:"):
        return True
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return False
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        configuration = spark._jsc.hadoopConfiguration()
        endpoint = table.options.get("AWS_ENDPOINT_URL")
        if endpoint and configuration.get("fs.s3a.endpoint") != endpoint:
            return False
        place = jvm.org.apache.hadoop.fs.Path(path)
        return bool(place.getFileSystem(configuration).exists(place))
    except Py4JJavaError:
        return False
