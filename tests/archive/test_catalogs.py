"""An archive's Delta table is registered in catalogs, under a name, with its columns and its place."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from runpy import run_path
from typing import Any
from uuid import uuid4

import pytest
from fix_s3 import S3Server

import streamkit
from streamkit import Record

pytest.importorskip("deltalake")

import boto3
from deltalake import DeltaTable

CATALOGS = Path(__file__).parents[2] / "infra" / "catalogs"
TYPES = {
    "partition": "int",
    "number": "bigint",
    "index": "bigint",
    "position": "bigint",
    "segment": "string",
    "sequence": "bigint",
    "timestamp": "timestamp",
    "trx_id": "string",
    "trx_node": "string",
    "payload": "binary",
    "metadata": "map<string,string>",
}
PLACE = "s3://bucket/archive/7d9f/orders"


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        store.produce("orders", "s", [Record(b"1", {"k": "v"})])
        store.archive("orders")
        return DeltaTable(store._archive("orders").table.url)


@pytest.mark.s3
def test_glue_has_the_table_with_its_columns_and_its_place(
    s3_server: S3Server, s3_credentials: None, table: DeltaTable
) -> None:
    register = run_path(str(CATALOGS / "glue.py"))["register"]
    glue = boto3.client("glue", "us-east-1", endpoint_url=s3_server.endpoint)
    for _ in range(2):  # the second time it is brought up to date
        register(glue, PLACE, "lake", "orders", table)
        found = glue.get_table(DatabaseName="lake", Name="orders")["Table"]
        assert {column["Name"]: column["Type"] for column in found["StorageDescriptor"]["Columns"]} == TYPES
        assert found["StorageDescriptor"]["Location"] == PLACE
        assert found["StorageDescriptor"]["SerdeInfo"]["Parameters"]["path"] == PLACE
        assert found["Parameters"]["spark.sql.sources.provider"] == "delta"
    with pytest.raises(SystemExit, match="choose another name"):
        register(glue, "s3://elsewhere/orders", "lake", "orders", table)


@contextmanager
def catalog_server(code: int, said: bytes, asked: list[tuple[str, str | None, Any]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, self.headers["Authorization"], body))
            self.send_response(code)
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_unity_catalog_is_asked_for_an_external_table(table: DeltaTable) -> None:
    script = run_path(str(CATALOGS / "unity.py"))
    body = script["description"](PLACE, "main.lake.orders", table)
    asked: list[tuple[str, str | None, Any]] = []
    with catalog_server(200, b"{}", asked) as host:
        script["register"](host, "secret", body)
    assert asked == [("/api/2.1/unity-catalog/tables", "Bearer secret", body)]
    columns = body.pop("columns")
    assert body == {
        "name": "orders",
        "catalog_name": "main",
        "schema_name": "lake",
        "table_type": "EXTERNAL",
        "data_source_format": "DELTA",
        "storage_location": PLACE,
    }
    assert {column["name"]: column["type_text"] for column in columns} == TYPES
    assert [column["position"] for column in columns] == list(range(len(TYPES)))
    names = {"INT", "LONG", "STRING", "TIMESTAMP", "BINARY", "MAP"}
    assert {column["type_name"] for column in columns} == names
    assert json.loads(columns[-1]["type_json"])["type"]["keyType"] == "string"


def test_the_answer_of_a_catalog_that_refuses_is_told(table: DeltaTable) -> None:
    script = run_path(str(CATALOGS / "unity.py"))
    body = script["description"](PLACE, "main.lake.orders", table)
    with (
        catalog_server(403, b'{"message":"no external location"}', []) as host,
        pytest.raises(SystemExit, match=r"403.*no external location") as refused,
    ):
        script["register"](host, "secret", body)
    assert "secret" not in str(refused.value)
