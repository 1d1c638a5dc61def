"""The archive of `streamkit demo` without streamkit: the same question to DuckDB and to Polars.

pip install duckdb polars deltalake pyarrow; python examples/spark/engines.py /tmp/flights/archive/<store>/JFK
"""

from __future__ import annotations

import sys

import duckdb
import polars as pl
from deltalake import DeltaTable


def with_duckdb(path: str) -> list[tuple[str, int]]:
    with duckdb.connect() as engine:
        engine.register("entries", DeltaTable(path).to_pyarrow_dataset())
        return engine.sql(
            "SELECT decode(payload)->>'carrier' AS carrier, count(*) AS departures FROM entries "
            "GROUP BY ALL ORDER BY departures DESC"
        ).fetchall()


def with_polars(path: str) -> list[tuple[str, int]]:
    carrier = pl.col("payload").cast(pl.String).str.json_path_match("$.carrier").alias("carrier")
    found = pl.scan_delta(path).group_by(carrier).agg(pl.len().alias("departures"))
    return found.sort("departures", descending=True).collect().rows()


def main(path: str) -> None:
    one, other = with_duckdb(path), with_polars(path)
    assert dict(one) == dict(other)
    for carrier, departures in one[:5]:
        print(f"{carrier}: {departures:,} departures")


if __name__ == "__main__":
    main(sys.argv[1])
