"""A space as columns in DuckDB, Polars and pandas: archived entries and new ones.

Needs `pip install 'streamkit-store[archive]' duckdb polars pandas`; missing packages are left out.
"""

import json
import tempfile
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import streamkit
from streamkit import Record

with tempfile.TemporaryDirectory() as path, streamkit.connect(Path(path).as_uri()) as client:
    store = client.store(uuid4())
    for at in range(1000):
        store.produce("flights", f"gate {at % 4}", [Record(json.dumps({"delay": at % 60}).encode())])
    store.archive("flights")
    store.produce("flights", "gate 0", [Record(b'{"delay": 600}')])  # not archived yet, and seen all the same

    reader = store.to_arrow("flights", columns=["segment", "payload", "tier"])
    print(sum(batch.num_rows for batch in reader), "entries, read a batch at a time")

    if find_spec("duckdb"):
        import duckdb

        entries = store.to_arrow("flights")
        print(
            duckdb.sql(
                "SELECT segment, count(*) AS n, max((decode(payload)::JSON->>'delay')::INT) AS worst "
                "FROM entries GROUP BY segment ORDER BY segment"
            )
        )
    if find_spec("polars"):
        import polars as pl

        frame = pl.from_arrow(store.to_arrow("flights", columns=["segment", "tier"]))
        print(frame.group_by("tier").len().sort("tier"))
    if find_spec("pandas"):
        pandas = store.to_arrow("flights", columns=["segment", "timestamp"]).read_pandas()
        print(pandas.groupby("segment")["timestamp"].max())
