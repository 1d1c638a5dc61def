"""Register an archive's Delta table in the Glue Data Catalog, so that Athena, EMR and Glue jobs find it by name.

    pip install boto3 deltalake
    python glue.py s3://bucket/prefix/archive/7d9f…/orders lake.orders

Glue keeps the columns and the place of the table. Engines read the rest in the table's log, so one registration is
enough. Run it again if the table gets new columns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import boto3
from deltalake import DeltaTable

HIVE = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint", "timestamp_ntz": "timestamp"}
"""Types that Hive, and so Glue, names otherwise than Delta."""


def columns(table: DeltaTable) -> Iterator[dict[str, str]]:
    for field in json.loads(table.schema().to_json())["fields"]:
        yield {"Name": field["name"], "Type": hive_type(field["type"])}


def hive_type(kind: Any) -> str:
    if isinstance(kind, str):
        return HIVE.get(kind, kind)
    if kind["type"] == "map":
        return f"map<{hive_type(kind['keyType'])},{hive_type(kind['valueType'])}>"
    if kind["type"] == "array":
        return f"array<{hive_type(kind['elementType'])}>"
    fields = (":".join((field["name"], hive_type(field["type"]))) for field in kind["fields"])
    return f"struct<{','.join(fields)}>"


def register(glue: Any, location: str, database: str, name: str, table: DeltaTable) -> None:
    """Make the table `name` of the database one over `location`, or bring its columns up to date."""
    described = {
        "Name": name,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {"EXTERNAL": "TRUE", "classification": "delta", "spark.sql.sources.provider": "delta"},
        "PartitionKeys": [],
        "StorageDescriptor": {
            "Columns": list(columns(table)),
            "Location": location,
            "SerdeInfo": {"Parameters": {"serialization.format": "1", "path": location}},
        },
    }
    with contextlib.suppress(glue.exceptions.AlreadyExistsException):
        glue.create_database(DatabaseInput={"Name": database})
    try:
        glue.create_table(DatabaseName=database, TableInput=described)
    except glue.exceptions.AlreadyExistsException:
        found = glue.get_table(DatabaseName=database, Name=name)["Table"]["StorageDescriptor"]["Location"]
        if found.rstrip("/") != location.rstrip("/"):
            raise SystemExit(f"{database}.{name} is a table at {found}: choose another name, or drop it") from None
        glue.update_table(DatabaseName=database, TableInput=described)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Register an archive's Delta table in the Glue Data Catalog.")
    parser.add_argument("delta", help="the S3 URL of the Delta table")
    parser.add_argument("table", help="database.name")
    parser.add_argument("--region")
    options = parser.parse_args(given)
    database, _, name = options.table.rpartition(".")
    if not database:
        parser.error("the table is named database.name")
    register(boto3.client("glue", options.region), options.delta, database, name, DeltaTable(options.delta))
    print(f"{options.table} is the Delta table at {options.delta}")


if __name__ == "__main__":
    main()
