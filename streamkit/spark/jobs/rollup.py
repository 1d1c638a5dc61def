"""Roll entries up into a Delta table, each entry exactly once, however often the job is run or killed.

python -m streamkit.spark.jobs.rollup --url file:///var/lib/app --store ID --space EWR \\
    --output file:///var/lib/rollup \\
    --sql "SELECT date_trunc('hour', timestamp) AS hour, count(*) AS departures FROM entries GROUP BY ALL"

The SQL sees what came since the last run, as the view `entries`; its result is appended. So aggregates are partial:
whoever reads them sums up again, or the rows are merged into those that are there: --merge-on hour --add departures.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from ...archive.table import check_installed
from ...errors import CorruptData, EntriesRemoved, PermanentError, Unavailable
from ..options import parse
from ..output import Layout, Output
from ..plan import Span, limited, spans, trimmed
from ..session import register
from ..typed import BAD, bad_payloads, parse_payloads, struct
from .command import arguments, main, say, start, targets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["RollupReport", "job", "roll_up"]

BATCH = 50_000_000
_naming = threading.Lock()
"""The view is the session's, and another thread may roll up something else in it."""


class RollupReport(NamedTuple):
    rows: int
    """Rows of the SQL's result, which the output was given."""
    bad: int
    """Entries whose payload is not of the schema, which were set aside."""
    batches: int
    """Commits to the output."""


def roll_up(
    spark: SparkSession,
    options: dict[str, str],
    sql: str,
    output: str,
    *,
    layout: Layout | None = None,
    schema: StructType | str | None = None,
    bad: str | None = None,
    batch_rows: int = BATCH,
) -> RollupReport:
    """Run `sql` over the new entries, and write its rows into the Delta table `output`.

    The view `entries` has the columns of format("streamkit"); `options` are the options of that format. With `schema`,
    the fields of JSON payloads replace the column `payload` (see parse_payloads). Entries that do not fit are
    appended unchanged to the Delta table `bad`. Without `bad` they raise ValueError, and nothing is written.

    A commit covers up to `batch_rows` entries, in whole transactions, and holds their rows and position. The rollup
    ends with the entries that were committed when it was called. Unavailable if another rollup was faster; ValueError
    if the rows do not fit the table; EntriesRemoved if entries behind the output's position were trimmed or expired.
    """
    check_installed()
    register(spark)
    parsed = parse(options)
    if parsed.tier != "all":
        raise ValueError(f"a rollup reads both tiers: leave the option 'tier' out, it is {parsed.tier!r}")
    if batch_rows < 1:
        raise ValueError(f"a batch has at least one row, not {batch_rows}")
    if bad is not None and schema is None:
        raise ValueError("`bad` needs `schema`, which decides whether an entry is bad: give both")
    target = Output(output, layout or Layout())
    aside = Output(bad, Layout()) if bad is not None else None
    report = RollupReport(0, 0, 0)
    with parsed.client() as client:
        held = target.load()
        # After this look the store may go on, and another rollup with it.
        whole = [_whole(span) for span in spans(client, parsed, named=False)]
        for span in whole:
            _after(span, held, bool(parsed.last))
            begin = _done(span, held) + 1
            gap = trimmed(client, span, begin) if begin > 1 and parsed.fail_on_loss else None
            if gap is not None:
                raise EntriesRemoved(
                    f"{gap} before they were rolled up: set the option failOnDataLoss to false (--go-on) to go on with "
                    "what is there, or take another output",
                    gap,
                )
        while True:
            table = target.load()
            planned = [_after(span, table, True) for span in whole]
            new = [span for span in planned if span.first <= span.last]
            if not new:
                return report
            new = limited(client, new, batch_rows)
            done = _batch(spark, options, new, sql, schema, target, aside)
            report = RollupReport(report.rows + done.rows, report.bad + done.bad, report.batches + 1)


def _batch(
    spark: SparkSession,
    options: dict[str, str],
    new: Sequence[Span],
    sql: str,
    schema: StructType | str | None,
    target: Output,
    aside: Output | None,
) -> RollupReport:
    """One commit, and before it the entries that are set aside, which know by themselves how far they go."""
    frame = _read(spark, options, new)
    kept = 0
    if schema is not None:
        typed = _typed(frame, schema)
        if aside is None:
            if count := typed.where(f"{BAD} IS NOT NULL").count():
                raise ValueError(
                    f"{count} payloads are not of the schema, and nothing was written: name a table for them with --bad"
                )
        else:
            kept = _set_aside(spark, options, new, schema, aside, target.url)
        frame = typed.where(f"{BAD} IS NULL").drop(BAD)
    with _naming:
        frame.createOrReplaceTempView("entries")
        rows = spark.sql(sql)
    return RollupReport(_write(target, rows, new), kept, 1)


def _typed(frame: DataFrame, schema: StructType | str) -> DataFrame:
    """With the payload's fields; one that is called as a column of the entries is taken in its place."""
    taken = {name.lower() for name in struct(schema).fieldNames()} - {"payload"}
    return parse_payloads(frame.select(*(name for name in frame.columns if name not in taken)), schema)


def _set_aside(
    spark: SparkSession, options: dict[str, str], new: Sequence[Span], schema: Any, aside: Output, output: str
) -> int:
    table = aside.load()
    # Several outputs may share one table of bad documents: it notes how far it goes for each.
    of = f"{blake2b(output.encode(), digest_size=8).hexdigest()}/"
    # Killed after this and before the rows were written, it comes again.
    planned = [_after(span, table, True, of) for span in new]
    rest = [span for span in planned if span.first <= span.last]
    if not rest:
        return 0
    return _write(aside, bad_payloads(_read(spark, options, rest), schema), rest, of)


def _write(target: Output, rows: DataFrame, new: Sequence[Span], of: str = "") -> int:
    """The rows, and how far they go. Unavailable if that is not where the table is."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    def check(table: Any) -> None:
        if any(_after(span, table, True, of) != span for span in new):
            raise Unavailable(f"{target.url}: another rollup was faster: run it again")

    try:
        return target.write(rows, _marks_of(new, of), check)
    except CommitFailedError as error:
        raise Unavailable(f"{target.url}: {error}; another rollup may be running: run it again") from error
    except DeltaError as error:
        raise Unavailable(f"{target.url}: {error}") from error


def _whole(span: Span) -> Span:
    """Without the part of a transaction that `until` ends in: the marks know whole ones."""
    return span._replace(last=span.last - 1, stop=0) if span.stop else span


def _mark(span: Span, of: str = "") -> str:
    """The space comes last: it may have any name."""
    return f"streamkit-rollup/{span.store}/{of}{span.partition}/{span.space}"


def _marks_of(planned: Sequence[Span], of: str) -> list[Any]:
    """The position that the rows reach, and the incarnation of their space."""
    from deltalake import Transaction

    marks = [Transaction(_mark(span, of), span.last) for span in planned]
    return marks + [Transaction(_mark(span, f"{of}incarnation/"), _version(span)) for span in planned]


def _version(span: Span) -> int:
    """The incarnation as what Delta takes for a version: 63 bits."""
    return int(span.incarnation or "0", 16) >> 1


def _after(span: Span, table: Any, bounded: bool, of: str = "") -> Span:
    """Return the part of a span that the output does not hold yet. `bounded`: the log may go on after it."""
    done = _done(span, table, of)
    if done:
        incarnation = table.transaction_version(_mark(span, f"{of}incarnation/"))
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


def _done(span: Span, table: Any, of: str = "") -> int:
    """The last transaction that the output holds."""
    return (table.transaction_version(_mark(span, of)) if table is not None else None) or 0


def _read(spark: SparkSession, options: dict[str, str], found: Sequence[Span]) -> DataFrame:
    pinned = json.dumps([[str(span.store), *span[1:]] for span in found])
    return spark.read.format("streamkit").options(**{**options, "snapshot": pinned}).load()


def job(given: Sequence[str] | None = None) -> int:
    parser = arguments("rollup", "Write what SQL makes of new entries to a Delta table, each entry exactly once.")
    parser.add_argument("--sql", required=True, help="over the view `entries`")
    parser.add_argument("--output", required=True, help="the Delta table, as a URL or path")
    parser.add_argument("--schema", help='of JSON payloads: "item string, price double"; its fields are columns then')
    parser.add_argument("--bad", help="the Delta table for entries whose payloads are not of the schema")
    parser.add_argument("--partition-by", default="", help="columns with files of their own, of a table that is new")
    parser.add_argument("--merge-on", default="", help="columns that tell a row: one that is there is replaced")
    parser.add_argument("--add", default="", help="columns that are added to those of the row that is there")
    parser.add_argument("--evolve", action="store_true", help="add columns to the table that the SQL gives anew")
    parser.add_argument("--batch-rows", type=int, default=BATCH, help="entries in a commit, about")
    parser.add_argument("--go-on", action="store_true", help="where entries were trimmed before they were rolled up")
    options = parser.parse_args(given)
    work = targets(options)
    say(f"rolling up {len(work)} spaces into {options.output}")
    given_options = {"url": options.url, "store": options.store, "space": options.space}
    if options.archive:
        given_options["archive"] = options.archive
    if options.go_on:
        given_options["failOnDataLoss"] = "false"
    layout = Layout(_names(options.partition_by), _names(options.merge_on), _names(options.add), options.evolve)
    report = roll_up(
        start("rollup"),
        given_options,
        options.sql,
        options.output,
        layout=layout,
        schema=options.schema,
        bad=options.bad,
        batch_rows=options.batch_rows,
    )
    verb = "merged" if layout.merge_on else "appended"
    say(f"{report.rows} rows {verb}" + (f", {report.bad} entries set aside in {options.bad}" * (report.bad > 0)))
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


if __name__ == "__main__":
    main(job)
