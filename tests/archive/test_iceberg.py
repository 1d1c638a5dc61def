"""The Iceberg table over an archive's files: pyiceberg and DuckDB read what the store's readers read."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record

pytest.importorskip("deltalake")

import duckdb

EXPORT = Path(__file__).parents[2] / "infra" / "iceberg" / "export.py"
COLUMNS = ("segment", "sequence", "payload")


@pytest.mark.filterwarnings("ignore")
def test_an_archive_is_read_as_an_iceberg_table_after_each_export(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")  # here: no other process of the tests needs it
    pytest.importorskip("sqlalchemy")
    from pyiceberg.catalog import load_catalog

    export = run_path(str(EXPORT))["export"]
    catalog = load_catalog("test", type="in-memory", warehouse=str(tmp_path / "warehouse"))
    with streamkit.connect((tmp_path / "stores").as_uri()) as client:
        store = client.store(uuid4())
        store.create_space("orders", 2)
        store.change_space("orders", trimmed_rows="remove")

        def write(count: int) -> None:
            for at in range(count):
                store.produce("orders", f"s{at % 3}", [Record(b"%d" % at, {"k": "v"} if at % 2 else None)] * 2)
            store.archive("orders")

        def check() -> None:
            assert export(store._archive("orders").table.url, catalog, "lake.orders") > 0
            rows = catalog.load_table("lake.orders").scan(selected_fields=COLUMNS).to_arrow()
            wanted = sorted((entry.segment, entry.sequence, entry.payload) for entry in store.consume_space("orders"))
            assert sorted(tuple(row.values()) for row in rows.to_pylist()) == wanted
            assert sorted(duckdb.from_arrow(rows).project(", ".join(COLUMNS)).fetchall()) == wanted

        write(12)
        check()
        write(6)
        check()
        store.compact("orders")
        check()
        store.trim("orders", "s1", keep_entries=3)
        store.maintain()
        check()
