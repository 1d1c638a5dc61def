"""An Iceberg table over the files of an archive's Delta table: metadata alone, no row is copied.

    pip install 'pyiceberg[sql-sqlite]'
    python export.py /var/lib/app/archive/7d9f…/orders lake.orders --catalog default

The catalog is one of pyiceberg's configuration. Each run makes the Iceberg table what the Delta table is now. Run it
after `archive` and after `compact`: files that a compaction has replaced are deleted later, by default after a week.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue

_BOUNDED = ("partition", "number", "position", "segment", "sequence", "timestamp")
_METRICS = {
    "write.metadata.metrics.default": "none",
    **{f"write.metadata.metrics.column.{name}": "full" for name in _BOUNDED},
}
"""The columns with their least and greatest values in the metadata. Those of payloads, metadata and added columns would
stay there after an erasure."""


def export(delta: str, catalog: Any, name: str) -> int:
    """Make the table `name` what the Delta table is now; the number of its files."""
    table = DeltaTable(delta)
    files = [uri if "://" in uri else f"file://{uri}" for uri in table.file_uris()]
    try:
        found = catalog.load_table(name)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        # Its files say of every column that it may be null.
        columns = [field.with_nullable(True) for field in pa.schema(table.schema().to_arrow())]
        found = catalog.create_table(name, schema=pa.schema(columns))
    with found.transaction() as change:
        change.set_properties(_METRICS)
        if found.current_snapshot() is not None:
            change.delete(AlwaysTrue())
        change.add_files(files, check_duplicate_files=False)
    return len(files)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Export an archive's Delta table as an Iceberg table.")
    parser.add_argument("delta", help="the path or URL of the Delta table")
    parser.add_argument("table", help="namespace.name")
    parser.add_argument("--catalog", default="default", help="a catalog of pyiceberg's configuration")
    options = parser.parse_args(given)
    print(f"{options.table}: {export(options.delta, load_catalog(options.catalog), options.table)} files")


if __name__ == "__main__":
    main()
