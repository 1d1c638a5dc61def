"""Register an archive's Delta table as an external table of Unity Catalog, on Databricks or the open-source server.

    pip install deltalake
    export DATABRICKS_HOST=https://….cloud.databricks.com DATABRICKS_TOKEN=…
    python unity.py s3://bucket/prefix/archive/7d9f…/orders main.lake.orders

The place must lie in an external location of the catalog. On Databricks the metastore must allow external data access,
and the token's owner needs CREATE TABLE and EXTERNAL USE SCHEMA on the schema, CREATE EXTERNAL TABLE and EXTERNAL USE
LOCATION on the external location. A notebook can do the same by SQL: CREATE TABLE main.lake.orders USING DELTA LOCATION
's3://…'.
"""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

from deltalake import DeltaTable

SQL = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}
"""Types that SQL names otherwise than Delta."""
NAMES = {"integer": "INT"}
"""Types that the catalog names otherwise than Delta, in capitals."""


def columns(table: DeltaTable) -> Iterator[dict[str, Any]]:
    for position, field in enumerate(json.loads(table.schema().to_json())["fields"]):
        kind = field["type"]
        plain = kind if isinstance(kind, str) else kind["type"]
        yield {
            "name": field["name"],
            "type_text": sql_type(kind),
            "type_name": NAMES.get(plain, plain.upper()),
            "type_json": json.dumps(field),
            "position": position,
            "nullable": field["nullable"],
        }


def sql_type(kind: Any) -> str:
    if isinstance(kind, str):
        return SQL.get(kind, kind)
    if kind["type"] == "map":
        return f"map<{sql_type(kind['keyType'])},{sql_type(kind['valueType'])}>"
    if kind["type"] == "array":
        return f"array<{sql_type(kind['elementType'])}>"
    fields = (":".join((field["name"], sql_type(field["type"]))) for field in kind["fields"])
    return f"struct<{','.join(fields)}>"


def description(location: str, name: str, table: DeltaTable) -> dict[str, Any]:
    """The body of the request that makes the table `catalog.schema.name`."""
    catalog, schema, plain = name.split(".")
    return {
        "name": plain,
        "catalog_name": catalog,
        "schema_name": schema,
        "table_type": "EXTERNAL",
        "data_source_format": "DELTA",
        "storage_location": location,
        "columns": list(columns(table)),
    }


def register(host: str, token: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(
        f"{host.rstrip('/')}/api/2.1/unity-catalog/tables",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})},
    )
    try:
        urllib.request.urlopen(request).close()
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")[:500]
        raise SystemExit(f"the catalog refused the table, {error.code}: {said}") from None


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Register an archive's Delta table in Unity Catalog.")
    parser.add_argument("delta", help="the URL of the Delta table")
    parser.add_argument("table", help="catalog.schema.name")
    options = parser.parse_args(given)
    if options.table.count(".") != 2:
        parser.error("the table is named catalog.schema.name")
    host = os.environ.get("DATABRICKS_HOST")
    if not host:
        parser.error("set DATABRICKS_HOST, and DATABRICKS_TOKEN if the server asks for a token")
    body = description(options.delta, options.table, DeltaTable(options.delta))
    register(host, os.environ.get("DATABRICKS_TOKEN", ""), body)
    print(f"{options.table} is the Delta table at {options.delta}")


if __name__ == "__main__":
    main()
