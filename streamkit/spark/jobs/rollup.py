"""Roll entries up into a Delta table, each entry exactly once, however often the job is run or killed.

python -m streamkit.spark.jobs.rollup --url file:///var/lib/app --store ID --space EWR \\
    --output file:///var/lib/rollup \\
    --sql "SELECT date_trunc('hour', timestamp) AS hour, count(*) AS departures FROM entries GROUP BY ALL"

The SQL sees what came since the last run, as the view `entries`; its result is appended. So aggregates are partial:
whoever reads them sums up again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...archive.table import check_installed
from ...errors import CorruptData, PermanentError, Unavailable
from ..options import parse
from ..plan import Span, spans
from ..session import register
from .command import arguments, main, say, start, targets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["job", "roll_up"]


def roll_up(spark: SparkSession, options: dict[str, str], sql: str, output: str) -> int:
    """Append what `sql` makes of the new entries to the Delta table `output`; the number of rows.

    One commit holds the rows and how far they go: whole transactions. `options`: as of format("streamkit"). Unavailable
    if another rollup was faster; ValueError if the rows do not fit the table.
    """
    check_installed()
    from deltalake import CommitProperties, DeltaTable, write_deltalake
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

    register(spark)
    parsed = parse(options)
    if parsed.tier != "all":
        raise ValueError(f"a rollup reads both tiers: leave the option 'tier' out, it is {parsed.tier!r}")
    try:
        table: DeltaTable | None = DeltaTable(output)
    except TableNotFoundError:
        table = None
    with parsed.client() as client:
        planned = [_after(_whole(span), table, bool(parsed.last)) for span in spans(client, parsed)]
    new = [span for span in planned if span.first <= span.last]
    if not new:
        return 0
    frame = _read(spark, options, new)
    frame.createOrReplaceTempView("entries")
    rows = spark.sql(sql).toArrow()
    properties = CommitProperties(app_transactions=_marks_of(new), max_commit_retries=0)
    try:
        if table is None:
            # Without rows, so that the rows are only ever added to a version that has been looked at.
            with suppress(DeltaError):
                write_deltalake(output, rows.slice(0, 0), mode="error")
            table = DeltaTable(output)
        if any(_after(span, table, bool(parsed.last)) != span for span in new):
            raise Unavailable(f"{output}: another rollup was faster: run it again")
        _check_columns(output, rows, table)
        write_deltalake(table, rows, mode="append", commit_properties=properties)
    except CommitFailedError as error:
        raise Unavailable(f"{output}: {error}; another rollup may be running: run it again") from error
    except DeltaError as error:
        raise Unavailable(f"{output}: {error}") from error
    return int(rows.num_rows)


def _check_columns(output: str, rows: Any, table: Any) -> None:
    """ValueError if the rows are not of the table's columns: delta-rs would make 1 of 1.5."""
    from deltalake import Schema

    there, given = (
        {field.name: field.type for field in each.fields} for each in (table.schema(), Schema.from_arrow(rows.schema))
    )
    if there != given:
        told = [", ".join(f"{name} {kind}" for name, kind in columns.items()) for columns in (there, given)]
        raise ValueError(
            f"{output} has the columns {told[0]}, and the SQL gives {told[1]}: nothing was appended. Change the SQL "
            "(CAST, AS), or take another output"
        )


def _whole(span: Span) -> Span:
    """Without the part of a transaction that `until` ends in: the marks know whole ones."""
    return span._replace(last=span.last - 1, stop=0) if span.stop else span


def _mark(span: Span) -> str:
    return f"streamkit-rollup/{span.store}/{span.partition}/{span.space}"


def _marks_of(planned: Sequence[Span]) -> list[Any]:
    """How far the rows go, and of which incarnation of their space they are."""
    from deltalake import Transaction

    marks = [Transaction(_mark(span), span.last) for span in planned]
    return marks + [Transaction(f"{_mark(span)}/incarnation", _version(span)) for span in planned]


def _version(span: Span) -> int:
    """The incarnation as what Delta takes for a version: 63 bits."""
    return int(span.incarnation or "0", 16) >> 1


def _after(span: Span, table: Any, bounded: bool) -> Span:
    """What of it the output does not hold yet. `bounded`: the log may go on after it."""
    done = (table.transaction_version(_mark(span)) if table is not None else None) or 0
    if done:
        incarnation = table.transaction_version(f"{_mark(span)}/incarnation")
        if incarnation is not None and incarnation != _version(span):
            raise PermanentError(
                f"the output was made of another space {span.space!r} of the store {span.store}, which was deleted "
                "since: they do not belong together. Take another output"
            )
    if done > span.last and not bounded:
        raise CorruptData(
            f"the output holds transactions up to {done} of space {span.space!r}, and the store ends at {span.last}: "
            "they do not belong together"
        )
    return span if done < span.first else span._replace(first=done + 1, skip=0)


def _read(spark: SparkSession, options: dict[str, str], found: Sequence[Span]) -> DataFrame:
    pinned = json.dumps([[str(span.store), *span[1:]] for span in found])
    return spark.read.format("streamkit").options(**{**options, "snapshot": pinned}).load()


def job(given: Sequence[str] | None = None) -> int:
    parser = arguments("rollup", "Append what SQL makes of new entries to a Delta table, each entry exactly once.")
    parser.add_argument("--sql", required=True, help="over the view `entries`")
    parser.add_argument("--output", required=True, help="the Delta table, as a URL or path")
    options = parser.parse_args(given)
    work = targets(options)
    say(f"rolling up {len(work)} spaces into {options.output}")
    given_options = {"url": options.url, "store": options.store, "space": options.space}
    if options.archive:
        given_options["archive"] = options.archive
    rows = roll_up(start("rollup"), given_options, options.sql, options.output)
    say(f"{rows} rows appended")
    return 0


if __name__ == "__main__":
    main(job)
