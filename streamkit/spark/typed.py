"""Payloads as columns: JSON documents against a schema, and those that are none kept beside it."""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["BAD", "is_bad", "parse_payloads", "struct"]

BAD = "bad_payload"
_PARSED, _DOCUMENT, _TEXT = "streamkit_parsed", "document", "bad"
_BLANK = " \t\r\n"
"""What may stand before a document."""


def parse_payloads(frame: DataFrame, schema: StructType | str) -> DataFrame:
    """A frame with the column `payload`, of a batch or of a stream, with the payload's fields as columns in its place.

    `schema`: of the JSON documents, as a StructType or DDL text ("item string, price double"). A field that a document
    lacks is null; fields that the schema lacks are left out. No row is lost: a payload that is no such document (no
    JSON object, or a value that does not fit its type) is kept whole in the last column, `bad_payload` (binary), which
    is null for all others, and the fields of its row are null. ValueError if a field has the name of another column.
    """
    from pyspark.sql import functions as F

    if "payload" not in frame.columns:
        raise ValueError(f"the frame has no column 'payload' to parse; it has {', '.join(frame.columns)}")
    names = struct(schema).fieldNames()
    kept = [name for name in frame.columns if name != "payload"]
    taken = {name.lower() for name in (*kept, BAD)}
    for name in names:
        if name.lower() in taken:
            raise ValueError(
                f"the schema has the field {name!r}, which is a column of the entries too: name the others that are "
                "needed in `columns`, or rename it before"
            )
    rows = frame.withColumn(_PARSED, _parsed(schema))
    rows = rows.withColumn(BAD, F.when(_bad(F.col(_PARSED)), F.col("payload")))
    good = F.col(BAD).isNull()
    columns = [F.when(good, F.col(_PARSED)[_DOCUMENT][name]).alias(name) for name in names]
    return rows.select(*(F.col(name) for name in kept), *columns, F.col(BAD))


def is_bad(schema: StructType | str) -> Column:
    """Whether the column `payload` is no JSON object of the schema."""
    return _bad(_parsed(schema))


def struct(schema: StructType | str) -> StructType:
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(found, StructType):
        raise ValueError(f"a schema is of the fields of a document, not {schema!r}")
    return found


def _parsed(schema: StructType | str) -> Column:
    """The document as a field of another one: Spark reads a document, and looks at nothing that follows on it.

    What follows on the payload's may be more fields, or elements: it stands where the one is wrong, and where the other
    is, before a field that must be reached.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import BooleanType, StringType, StructField, StructType

    fields = StructType([StructField(field.name, field.dataType) for field in struct(schema)])
    end = f"end-{token_hex(8)}"  # no payload knows it
    text = F.col("payload").cast("string")
    whole = F.concat(F.lit(f'{{"{_DOCUMENT}":'), text, F.lit(',"":['), text, F.lit(f'],"{end}":true}}'))
    kinds = {_DOCUMENT: fields, end: BooleanType(), _TEXT: StringType()}
    found = F.from_json(
        whole,
        StructType([StructField(name, kind) for name, kind in kinds.items()]),
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _TEXT},
    )
    return F.when(found[end], found)


def _bad(parsed: Column) -> Column:
    from pyspark.sql import functions as F

    text = F.col("payload").cast("string")
    # To Spark, what is empty or null is no corrupt record, and neither is text of another encoding, which it mends.
    none = parsed.isNull() | parsed[_TEXT].isNotNull() | ~F.is_valid_utf8(text)
    return none | ~F.ltrim(text, F.lit(_BLANK)).startswith("{")
