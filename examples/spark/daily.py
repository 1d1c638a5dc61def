"""Departures and delays by day, from the Delta table that the rollup of docs/pipeline.md makes: a table, and a plot.

python examples/spark/daily.py /tmp/flights-daily daily.png
"""

from __future__ import annotations

import sys

from deltalake import DeltaTable


def main(table: str, plot: str | None = None) -> None:
    # Without threads, as some of Arrow's may still run when a program as short as this one ends.
    rows = DeltaTable(table).to_pyarrow_dataset().to_table(use_threads=False).to_pylist()
    days: dict = {}
    for row in rows:
        departures, delay = days.get(row["date"], (0, 0.0))
        days[row["date"]] = departures + row["departures"], delay + row["delay"]
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
