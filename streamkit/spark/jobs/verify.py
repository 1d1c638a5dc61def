"""Check stores as a whole: sequences dense, transactions whole, hot and cold without gap or overlap, checksums.

python -m streamkit.spark.jobs.verify --url s3://bucket/prefix --findings /tmp/findings
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...client import connect
from ...errors import StreamkitError
from ...log.partition import Partition
from ...log.visible import floor_of
from ...store import Store
from ...terminal import amount
from ..native import ReadPlan, frame_of, plan
from ..options import parse
from ..overtaken import planned_again
from ..plan import partitions_of
from ..session import register
from .command import arguments, existing, main, on_executors, say, start, targets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["find", "job"]

_SCHEMA = "store string, space string, place string, problem string"
_COLUMNS = ("store", "space", "partition", "number", "index", "position", "segment", "sequence", "trx_id")


def find(spark: SparkSession, url: str, work: Sequence[tuple[str, str]], archive: str | None = None) -> DataFrame:
    """The findings over (store, space) pairs: columns store, space, place, problem. None: all is well."""
    rows: list[tuple[str, str, str, str]] = []

    def log(store: str, space: str) -> Any:
        with connect(url, archive=archive) as client:
            report = existing(client, store, space).verify(space)
        return [(f"partition {one.partition}, row {one.key!r}", one.problem) for one in report.findings]

    for store, space, found, error in on_executors(spark, work, log, "checking logs and indexes"):
        rows += [(store, space, place, problem) for place, problem in found or ()]
        if error:
            rows.append((store, space, "log", error))
    say(f"checking the entries of both tiers: {amount(len(work), 'space')}")
    known = {(store, space) for store, space, *_ in rows}
    # A known damaged partition would end the query over all the others.
    frame, failed, thinned = _together(spark, url, [pair for pair in work if pair not in known], archive)
    whole = spark.createDataFrame(rows + failed, _SCHEMA)
    for part in _entries(frame, thinned):
        whole = whole.unionByName(part)
    return whole


def _together(
    spark: SparkSession, url: str, work: Sequence[tuple[str, str]], archive: str | None
) -> tuple[DataFrame, list[tuple[str, str, str, str]], list[str]]:
    """The spaces' entries in one frame, which costs less than several; the unreadable spaces; the spaces with
    removals."""
    whole, failed, thinned = ReadPlan([], [], {}, set()), [], []
    given = {"url": url, "columns": ",".join(_COLUMNS), **({"archive": archive} if archive else {})}
    register(spark)
    with connect(url, archive=archive) as client:
        for store, space in work:
            options = parse({**given, "store": store, "space": space})
            try:
                one = plan(client, options)
                if any(map(_is_thinned, partitions_of(client, options))):
                    thinned.append(f"{store}/{space}")
            except (StreamkitError, ValueError) as error:
                failed.append((store, space, "archive", f"{type(error).__name__}: {error}"))
            else:
                whole.spans.extend(one.spans)
                whole.cold.extend(one.cold)
                whole.tables.update(one.tables)
                whole.entries.update(one.entries)
    return frame_of(spark, {**given, "store": "*", "space": "*"}, whole), failed, thinned


def _is_thinned(found: tuple[Store, str, Partition]) -> bool:
    """True if entries of the partition were trimmed, erased or deleted, or have expired."""
    *_, partition = found
    return bool(
        partition.ask(floor_of).number > 1 or partition.thinned or partition.erasing or partition.head.erased
    ) or (partition.retention is not None)


def _entries(frame: DataFrame, thinned: Sequence[str]) -> list[DataFrame]:
    """Find doubled and missing entries. In a space with removed entries only doubled ones, because only the log can
    tell which are missing there."""
    from pyspark.sql import functions as F

    some = F.concat_ws("/", "store", "space").isin(*thinned)

    def findings(grouped: DataFrame, place: Any, problem: Any) -> DataFrame:
        return grouped.select("store", "space", place.alias("place"), problem.alias("problem"))

    def sparse(first: int) -> Any:
        whole = (F.col("least") == first) & (F.col("count") == F.col("most") - first + 1)
        return ~whole & (~some | (F.col("count") > F.col("most") - F.col("least") + 1))

    def spread(by: list[str], column: str) -> DataFrame:
        return frame.groupBy("store", "space", *by).agg(
            F.min(column).alias("least"),
            F.max(column).alias("most"),
            F.count("*").alias("count"),
            (F.min("trx_id") != F.max("trx_id")).alias("mixed"),
        )

    said = F.concat(
        F.lit("holds "), F.col("count"), F.lit(" entries from "), F.col("least"), F.lit(" to "), F.col("most")
    )
    segments = spread(["segment"], "sequence").where(sparse(1))
    transactions = spread(["partition", "number"], "index").where(sparse(0) | F.col("mixed"))
    positions = spread(["partition"], "position").where(sparse(0))
    return [
        findings(segments, F.concat(F.lit("segment "), F.col("segment")), said),
        findings(transactions, F.concat(F.lit("transaction "), F.col("partition"), F.lit("/"), F.col("number")), said),
        findings(positions, F.concat(F.lit("partition "), F.col("partition")), said),
    ]


def job(given: Sequence[str] | None = None) -> int:
    parser = arguments("verify", "Check logs, indexes and archives of any number of stores. Exit code 1: findings.")
    parser.add_argument("--findings", help="write the findings as Parquet to this path")
    options = parser.parse_args(given)
    spark = start("verify")
    work = targets(options)
    # Otherwise Spark keeps all shuffle partitions of a cached frame: 600 tasks for a space of ten entries.
    spark.conf.set("spark.sql.optimizer.canChangeCachedPlanOutputPartitioning", "true")

    def query() -> tuple[DataFrame, int]:
        found = find(spark, options.url, work, options.archive).cache()
        return found, found.count()

    found, count = planned_again(query)
    for row in found.limit(100).collect():
        say(f"  {row.store} {row.space!r} {row.place}: {row.problem}")
    if options.findings:
        found.write.mode("overwrite").parquet(options.findings)
    say(amount(count, "finding"))
    return 1 if count else 0


if __name__ == "__main__":
    main(job)
