"""Four questions about flights, as pandas, Spark, DuckDB and Polars answer them: rows of whole numbers and texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["QUESTIONS", "Rows", "by_duckdb", "by_pandas", "by_polars", "by_spark", "by_stream"]

Rows = list[tuple[Any, ...]]
QUESTIONS = ("aggregate", "hourly windows", "sessions", "join")
GAP = 1800
"""Seconds without a departure that end a session of an airport."""
_SQL = {
    "aggregate": """SELECT origin, count(*), CAST(sum(delay) AS BIGINT), max(distance), max(destination), max({at})
        FROM flights GROUP BY origin""",
    "hourly windows": """SELECT CAST(floor({at} / 3600) AS BIGINT) AS hour, count(*), CAST(sum(delay) AS BIGINT)
        FROM flights GROUP BY CAST(floor({at} / 3600) AS BIGINT)""",
    "sessions": """SELECT origin, min(moment), max(moment), count(*) FROM (
        SELECT origin, moment, sum(begins) OVER (PARTITION BY origin ORDER BY moment) AS session FROM (
            SELECT origin, moment, CASE WHEN moment - lag(moment) OVER (PARTITION BY origin ORDER BY moment) <= {gap}
                THEN 0 ELSE 1 END AS begins FROM (SELECT origin, {at} AS moment FROM flights)))
        GROUP BY origin, session""",
    "join": """SELECT state, count(*), CAST(sum(delay) AS BIGINT)
        FROM flights JOIN airports ON origin = iata GROUP BY state""",
}


def _sorted(rows: Any) -> Rows:
    return sorted(tuple(value if isinstance(value, str) else int(value) for value in row) for row in rows)


def by_pandas(data: Path, rows: int) -> dict[str, Rows]:
    """The answers from the file of the package itself."""
    import pandas as pd
    import pyarrow.parquet as pq

    flights = pq.read_table(data / "flights-3m.parquet").slice(0, rows).to_pandas()
    flights["at"] = flights["date"].astype("datetime64[s]").astype("int64")
    flights["hour"] = flights["at"] // 3600
    airports = pd.read_csv(data / "airports.csv", usecols=["iata", "state"], keep_default_na=False)
    whole = flights.groupby("origin").agg(
        n=("delay", "size"),
        delay=("delay", "sum"),
        distance=("distance", "max"),
        destination=("destination", "max"),
        at=("at", "max"),
    )
    times = flights.sort_values(["origin", "at"], kind="stable")
    times["session"] = (times.groupby("origin")["at"].diff().fillna(GAP + 1) > GAP).cumsum()
    sessions = (
        times.groupby(["session", "origin"])["at"].agg(["min", "max", "size"]).reset_index().drop(columns="session")
    )
    joined = flights.merge(airports, left_on="origin", right_on="iata")
    found = {
        "aggregate": whole.reset_index(),
        "hourly windows": flights.groupby("hour")["delay"].agg(["size", "sum"]).reset_index(),
        "sessions": sessions,
        "join": joined.groupby("state")["delay"].agg(["size", "sum"]).reset_index(),
    }
    return {question: _sorted(frame.itertuples(index=False)) for question, frame in found.items()}


def _query(flights: Any, data: Path, question: str) -> Any:
    spark = flights.sparkSession
    flights.createOrReplaceTempView("flights")
    airports = spark.read.option("header", "true").option("emptyValue", "").option("nullValue", "\u0000")
    airports.schema(
        "iata string, name string, city string, state string, country string, latitude double, longitude double"
    ).csv(str(data / "airports.csv")).createOrReplaceTempView("airports")
    return spark.sql(_SQL[question].format(at="unix_timestamp(date)", gap=GAP))


def by_spark(flights: Any, data: Path, question: str) -> Rows:
    return _sorted(_query(flights, data, question).collect())


def by_stream(flights: Any, data: Path, question: str, checkpoint: str) -> tuple[Rows, list[Any]]:
    """The answer of a stream that has read all there is, and its batches."""
    from pyspark.sql import functions as F

    if question == "sessions":
        # Times are whole minutes, so a second more joins those that are just a gap apart.
        window = F.session_window("date", f"{GAP + 1} seconds")
        sessions = flights.groupBy(window, "origin").agg(F.max("date").alias("last"), F.count("*"))
        query = sessions.select(
            "origin", F.unix_timestamp("session_window.start"), F.unix_timestamp("last"), "count(1)"
        )
    else:
        query = _query(flights, data, question)
    query = query.toDF(*(f"c{at}" for at in range(len(query.columns))))
    name = f"answer_{question.replace(' ', '_')}"
    writer = query.writeStream.format("memory").queryName(name).outputMode("complete")
    running = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    running.awaitTermination()
    rows = _sorted(flights.sparkSession.table(name).collect())
    return rows, [progress for progress in running.recentProgress if progress.numInputRows]


def by_duckdb(table: Path, data: Path, question: str) -> Rows:
    import duckdb
    from deltalake import DeltaTable

    files = [uri.removeprefix("file://") for uri in DeltaTable(str(table)).file_uris()]
    with duckdb.connect() as engine:
        engine.execute(f"CREATE VIEW airports AS SELECT * FROM read_csv('{data / 'airports.csv'}', all_varchar = true)")
        engine.execute(
            f"""CREATE VIEW flights AS SELECT CAST(flight.date AS TIMESTAMP) AS date, flight.* EXCLUDE (date) FROM (
                SELECT from_json(decode(payload), '{{"date": "VARCHAR", "delay": "INTEGER", "distance": "INTEGER",
                    "origin": "VARCHAR", "destination": "VARCHAR"}}') AS flight FROM read_parquet({files!r}))"""
        )
        return _sorted(engine.execute(_SQL[question].format(at="CAST(epoch(date) AS BIGINT)", gap=GAP)).fetchall())


def by_polars(table: Path, data: Path, question: str) -> Rows:
    import polars as pl

    kinds = {"date": pl.String, "delay": pl.Int32, "distance": pl.Int32, "origin": pl.String, "destination": pl.String}
    flights = pl.scan_delta(str(table)).select(pl.col("payload").cast(pl.String).str.json_decode(pl.Struct(kinds)))
    flights = flights.unnest("payload").with_columns(
        pl.col("date").str.to_datetime("%Y-%m-%dT%H:%M:%SZ").dt.epoch("s").alias("at")
    )
    n, delay = pl.len().alias("n"), pl.col("delay").cast(pl.Int64).sum()
    match question:
        case "aggregate":
            whole = (n, delay, pl.col("distance").max(), pl.col("destination").max(), pl.col("at").max())
            answer = flights.group_by("origin").agg(*whole)
        case "hourly windows":
            answer = flights.group_by((pl.col("at") // 3600).alias("hour")).agg(n, delay)
        case "sessions":
            begins = (pl.col("at").diff() > GAP).fill_null(True).over("origin")
            times = flights.sort("origin", "at").with_columns(begins.cum_sum().alias("session"))
            answer = times.group_by("origin", "session").agg(
                pl.col("at").min().alias("first"), pl.col("at").max().alias("last"), n
            )
            answer = answer.drop("session")
        case _:
            airports = pl.scan_csv(data / "airports.csv", infer_schema=False)
            joined = flights.join(airports, left_on="origin", right_on="iata")
            answer = joined.group_by("state").agg(n, delay)
    return _sorted(answer.collect().rows())
