"""The entries of one type of a registry as rows, in all versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..eventsourcing.versions import EVENT, VERSION, Upcast
from ..types import Registry
from ..types.schemas import schema_of
from .typed import parse_payloads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["parse_type", "struct_of"]

_FORMATS = ("date-time", "date", "decimal")


def parse_type(
    frame: DataFrame,
    registry: Registry[Any],
    kind: type[Any],
    *,
    schema: StructType | str | None = None,
    unknown: Literal["raise", "skip"] = "raise",
    rescue: str = "",
) -> DataFrame:
    """The entries of one class of the registry, with its fields as columns in the place of `payload`.

    The frame has the columns `payload` and `metadata`, as `read_space` gives them. Payloads of earlier versions go
    through the upcasters, in Python's workers; those of the present version do not. Rows of other types are left out.
    A row of a later version ends the query with an error, or is left out ("skip"). `schema` takes the place of the one
    that is made from the class. A field that a payload lacks is null, also if the class has a default. Payloads that do
    not fit are kept: see `parse_payloads`.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType

    made = registry.type_of(kind)
    if made.codec != "json":
        raise ValueError(f"the type {made.name!r} is written as {made.codec}: Spark reads JSON")
    missing = {"payload", "metadata"} - set(frame.columns)
    if missing:
        raise ValueError(f"the frame lacks the columns {', '.join(sorted(missing))}: read the space with them")
    rows = frame.where(F.col("metadata")[EVENT] == made.name)
    version = F.coalesce(F.col("metadata")[VERSION], F.lit("1")).cast("int")
    if unknown == "skip":
        rows = rows.where(version <= made.version)
    payload = F.col("payload")
    if made.upcast:
        upcast = F.udf(_upcast(made.upcast, made.version), BinaryType(), useArrow=False)
        earlier = upcast(F.when(version < made.version, payload), version)
        payload = F.when(version < made.version, earlier).otherwise(payload)
    if unknown == "raise":
        text = f"an entry of the type {made.name!r} has a later version than {made.version}, which this program knows"
        payload = F.when(version > made.version, F.raise_error(F.lit(text))).otherwise(payload)
    fields = struct_of(registry, kind) if schema is None else schema
    return parse_payloads(rows.withColumn("payload", payload), fields, rescue=rescue)


def struct_of(registry: Registry[Any], kind: type[Any]) -> StructType:
    """The Spark schema of a class, from its JSON Schema. ValueError for a field that has no type of Spark's."""
    from pyspark.sql.types import StructType

    made = registry.type_of(kind)
    document = schema_of(made)
    found = _spark_type(document, document, made.name)
    if not isinstance(found, StructType):
        raise ValueError(f"the type {made.name!r} has no fields")
    return found


def _upcast(steps: Mapping[int, Upcast], latest: int) -> Callable[[bytes | None, int], bytes | None]:
    def upcast(payload: bytes | None, version: int) -> bytes | None:
        if payload is None:
            return None
        fields = msgspec.json.decode(payload)
        for number in range(version, latest):
            fields = steps[number](fields)
        return msgspec.json.encode(fields)

    return upcast


def _spark_type(schema: Any, document: Mapping[str, Any], path: str) -> DataType:
    from pyspark.sql.types import (
        ArrayType,
        BooleanType,
        DateType,
        DecimalType,
        DoubleType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    schema, _ = _without_null(schema, document)
    kind = schema.get("type")
    if kind == "array" and isinstance(schema.get("items"), dict):
        item, nullable = _without_null(schema["items"], document)
        return ArrayType(_spark_type(item, document, f"{path}[]"), nullable)
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        value, nullable = _without_null(schema["additionalProperties"], document)
        return MapType(StringType(), _spark_type(value, document, f"{path}.*"), nullable)
    if kind == "object" and schema.get("properties"):
        fields = []
        for name, field in schema["properties"].items():
            inner, nullable = _without_null(field, document)
            is_nullable = nullable or name not in schema.get("required", [])
            fields.append(StructField(name, _spark_type(inner, document, f"{path}.{name}"), is_nullable))
        return StructType(fields)
    if "enum" in schema and all(isinstance(value, str) for value in schema["enum"]):
        kind = "string"
    plain = {
        "date-time": TimestampType(),
        "date": DateType(),
        "decimal": DecimalType(38, 18),
        "integer": LongType(),
        "number": DoubleType(),
        "string": StringType(),
        "boolean": BooleanType(),
    }
    name = schema["format"] if schema.get("format") in _FORMATS else kind
    if not isinstance(name, str) or name not in plain:
        raise ValueError(f"{path} has no type of Spark's: give parse_type a schema")
    return plain[name]


def _without_null(schema: Any, document: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The schema behind references and `| None`, and True if there was a `| None`."""
    nullable = False
    while isinstance(schema, dict):
        if "$ref" in schema:
            schema = document.get("$defs", {}).get(schema["$ref"].rpartition("/")[2])
            continue
        others = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
        if len(others) != 1:
            return schema, nullable
        schema, nullable = others[0], True
    return {}, nullable
