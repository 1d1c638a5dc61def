"""The Iceberg table over an archive's files: pyiceberg and DuckDB read what the store's readers read."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from uuid import uuid4

import pytest

import streamkit
from harness.foreign_engines import optimize
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


@pytest.mark.filterwarnings("ignore")
def test_the_metadata_of_an_iceberg_table_has_no_values_of_entries(tmp_path: Path) -> None:
    """Another engine notes the least and the greatest payload in its files. An erasure reaches no copies of these."""
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")
    from pyiceberg.catalog import load_catalog

    export = run_path(str(EXPORT))["export"]
    catalog = load_catalog("test", type="in-memory", warehouse=str(tmp_path / "warehouse"))
    with streamkit.connect((tmp_path / "stores").as_uri()) as client:
        store = client.store(uuid4())
        for _ in range(2):
            store.produce("orders", "s", [Record(b"secret", {"subject": "secret"})])
            store.archive("orders")
        table = store._archive("orders").table
        optimize(Path(str(table.directory)))
        for _ in range(2):
            export(table.url, catalog, "lake.orders")
    found = catalog.load_table("lake.orders")
    files = [
        entry.data_file
        for snapshot in found.snapshots()
        for manifest in snapshot.manifests(found.io)
        for entry in manifest.fetch_manifest_entry(found.io, discard_deleted=False)
    ]
    bounds = [bound for file in files for each in (file.lower_bounds, file.upper_bounds) for bound in each.values()]
    assert b"s" in bounds, "the names of segments have bounds"
    assert not [bound for bound in bounds if b"secret" in bound]
