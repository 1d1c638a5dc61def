"""Types of a registry as rows: the upcasters that all readers share run in Spark too."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
import pytest

import streamkit
from streamkit import Record
from streamkit.types import Registry, Type

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from streamkit.spark import parse_type, read_space
from streamkit.spark.types import struct_of

pytestmark = pytest.mark.spark


class Line(msgspec.Struct):
    sku: str
    price: Decimal | None = None


class Placed(msgspec.Struct):
    items: list[str]
    count: int = 1


class Everything(msgspec.Struct):
    text: str
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    lines: list[Line]
    local: datetime | None = None
    day: date | None = None
    ratio: float = 1.0
    done: bool = False
    counts: dict[str, int] = {}
    state: Literal["new", "paid"] = "new"
    first: Line | None = None


class Other(msgspec.Struct):
    anything: Any


def test_a_class_has_a_schema_of_spark() -> None:
    registry: Registry[Any] = Registry([Everything, Other])
    assert struct_of(registry, Everything).simpleString() == (
        "struct<text:string,at:timestamp,lines:array<struct<sku:string,price:decimal(38,18)>>,local:string,day:date,"
        "ratio:double,done:boolean,counts:map<string,bigint>,state:string,first:struct<sku:string,price:decimal(38,18)>>"
    )
    assert [field.name for field in struct_of(registry, Everything) if not field.nullable] == ["text", "at", "lines"]
    with pytest.raises(ValueError, match=r"Other.anything has no type of Spark's: give parse_type a schema"):
        struct_of(registry, Other)


def test_one_definition_of_the_upcasters_serves_readers_and_spark(spark: Any, tmp_path: Path) -> None:
    def items_of(fields: dict[str, Any]) -> dict[str, Any]:
        return {"items": [fields["item"]], "count": fields.get("count", 1)}

    def doubled(fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "count": fields["count"] * 2}

    types: list[Any] = [Type(Placed, "placed", version=3, upcast={1: items_of, 2: doubled}), Everything]
    registry: Registry[Any] = Registry(types)
    url = tmp_path.as_uri()
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        store.produce("orders", "1", [Record(b'{"item":"tea","count":3}', {"event": "placed"})])
        store.produce(
            "orders", "2", [Record(b'{"items":["tea"],"count":3}', {"event": "placed", "event-version": "2"})]
        )
        typed = store.typed(registry)
        everything = Everything("x", datetime(2026, 1, 31, tzinfo=UTC), [Line("a", Decimal("1.5"))])
        typed.produce("orders", "3", [Placed(["tea"], 6), everything])
        store.produce("orders", "4", [Record(b'{"items":1}', {"event": "placed", "event-version": "3"})])
        read = list(typed.consume({"orders": None}, limit=3))
    frame = read_space(spark, url, store.id, "orders", columns=["segment", "payload", "metadata"])
    rows = parse_type(frame, registry, Placed).orderBy("segment").collect()
    assert [(row["items"], row["count"]) for row in rows[:3]] == [(each.value.items, each.value.count) for each in read]
    assert [(row.segment, row["items"], row.bad_payload) for row in rows[3:]] == [("4", None, b'{"items":1}')]
    [row] = parse_type(frame, registry, Everything).collect()
    assert (row.text, row.lines[0].price, row.ratio) == ("x", Decimal("1.5"), 1.0)
    older: Registry[Any] = Registry([Type(Placed, "placed", version=2, upcast={1: items_of})])
    assert parse_type(frame, older, Placed, unknown="skip").count() == 2
    with pytest.raises(Exception, match="later version than 2"):
        parse_type(frame, older, Placed).collect()
    with pytest.raises(ValueError, match="lacks the columns metadata"):
        parse_type(frame.drop("metadata"), registry, Placed)
