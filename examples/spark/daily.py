"""Departures and delays by day, from the Delta table that the rollup of docs/pipeline.md makes: a table, and a plot.

python examples/spark/daily.py /tmp/flights-daily daily.png
"""

from __future__ import annotations

import sys

import pyarrow
from deltalake import DeltaTable, QueryBuilder


def main(table: str, plot: str | None = None) -> None:
    # DataFusion reads without Python; a short program can end while threads of Arrow still call Python, and aborts.
    by_day = "SELECT date, sum(departures) AS departures, sum(delay) AS delay FROM days GROUP BY date"
    rows = pyarrow.table(QueryBuilder().register("days", DeltaTable(table)).execute(by_day).read_all()).to_pylist()
    days = {row["date"]: (row["departures"], row["delay"]) for row in rows}
    print(f"{sum(departures for departures, _ in days.values()):,} departures on {len(days)} days")
    for day, (departures, delay) in sorted(days.items(), key=lambda item: -item[1][1] / item[1][0])[:3]:
        print(f"{day}: {departures} departures, {delay / departures:.1f} minutes late")
    if plot is not None:
        draw(days, plot)


def draw(days: dict, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4))
    known = sorted(days)
    axes.bar(known, [days[day][1] / days[day][0] for day in known], width=1.0)
    axes.set(ylabel="minutes late, on average", title="Departures from New York by day")
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(f"drawn: {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
