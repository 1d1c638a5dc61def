"""Delays by carrier and hour, from the flights of `streamkit demo`, with Spark: a table, and a plot.

STREAMKIT_URL=file:///tmp/flights STREAMKIT_STORE=… python examples/spark/delays.py delays.png
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import functions as F

from streamkit.spark import read_space, session


def main(plot: str | None) -> None:
    url, store = os.environ["STREAMKIT_URL"], os.environ["STREAMKIT_STORE"]
    spark = session("delays")
    flight = "carrier string, hour int, dep_delay int"
    delays = (
        read_space(spark, url, store, "*", columns=["space", "payload"])
        .select("space", F.from_json(F.col("payload").cast("string"), flight).alias("flight"))
        .where("flight.dep_delay is not null")
        .groupBy("flight.carrier", "flight.hour")
        .agg(F.count("*").alias("departures"), F.round(F.avg("flight.dep_delay"), 1).alias("delay"))
        .orderBy("carrier", "hour")
    )
    rows = delays.collect()
    for row in sorted(rows, key=lambda row: -row.departures)[:10]:
        print(f"{row.carrier} at {row.hour:02}: {row.departures:6,} departures, {row.delay:5} minutes late")
    if plot is not None:
        draw(rows, plot)
    spark.stop()


def draw(rows: list, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5))
    totals: dict[str, int] = {}
    for row in rows:
        totals[row.carrier] = totals.get(row.carrier, 0) + row.departures
    for carrier in sorted(totals, key=lambda name: -totals[name])[:6]:
        own = [row for row in rows if row.carrier == carrier and row.departures >= 30]
        axes.plot([row.hour for row in own], [row.delay for row in own], marker="o", label=carrier)
    axes.set(xlabel="scheduled hour", ylabel="minutes late, on average", title="Departures from New York, 2013")
    axes.set_xticks(range(5, 24, 2))
    axes.legend(title="carrier")
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(f"drawn: {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
