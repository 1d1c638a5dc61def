"""Payloads as columns: JSON documents against a schema. A payload that does not fit is kept beside them, whole."""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING

from .fitting import fits, fitted, readable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["BAD", "is_bad", "parse_payloads", "struct"]

BAD = "bad_payload"
_DOCUMENT, _TEXT = "streamkit_document", "bad"
_BLANK = " \t\r\n"
"""What may stand before a document."""


def parse_payloads(frame: DataFrame, schema: StructType | str, *, rescue: str = "") -> DataFrame:
    """A frame with the column `payload`, of a batch or of a stream, with the payload's fields as columns in its place.

    `schema`: of the JSON documents, as a StructType or DDL text ("item string NOT NULL, price decimal(9,2)"). A field
    that a document lacks is null; one that is NOT NULL must be there. Fields that the schema lacks are left out; with
    `rescue`, the name of a further column, those of the document itself are a JSON object in that column, null if there
    are none, which takes a second pass over the payload.

    No row is lost. A payload does not fit if it is no JSON object, lacks a required field, or has a value that its type
    cannot hold without loss: another type, more digits than a decimal has, a time of day in a date. It is whole in the
    last column, `bad_payload` (binary), which is null for all others, and the fields of its row are null. ValueError if
    a field has the name of another column.
    """
    from pyspark.sql import functions as F

    if "payload" not in frame.columns:
        raise ValueError(f"the frame has no column 'payload' to parse; it has {', '.join(frame.columns)}")
    fields = struct(schema)
    kept = [name for name in frame.columns if name != "payload"]
    names = [*fields.fieldNames(), *filter(None, [rescue])]
    taken = {name.lower() for name in (*kept, BAD)}
    for name in names:
        if name.lower() in taken:
            raise ValueError(
                f"the schema has the field {name!r}, which is a column of the entries too: name the others that are "
                "needed in `columns`, or rename it before"
            )
        taken.add(name.lower())
    document = _Document(fields)

    def fitting(parsed: Column) -> Column:
        return F.struct(F.when(document.is_good(parsed), document.of(parsed)).alias(_DOCUMENT))

    # A generator makes it once for each row. As an expression, each column and each filter on one would parse it again.
    once = frame.select("*", F.inline(F.transform(F.array(document.parsed()), fitting)))
    found = F.col(_DOCUMENT)
    columns = [fitted(found[field.name], field.dataType).alias(field.name) for field in fields]
    if rescue:
        columns.append(F.when(found.isNotNull(), _rescued(fields)).alias(rescue))
    bad = F.when(found.isNull(), F.col("payload")).alias(BAD)
    return once.select(*(F.col(name) for name in kept), *columns, bad)


def is_bad(schema: StructType | str) -> Column:
    """Whether the column `payload` does not fit the schema."""
    from pyspark.sql import functions as F

    document = _Document(struct(schema))
    return F.exists(F.array(document.parsed()), lambda parsed: ~document.is_good(parsed))


def struct(schema: StructType | str) -> StructType:
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(found, StructType):
        raise ValueError(f"a schema is of the fields of a document, not {schema!r}")
    return found


class _Document:
    """A payload as the first of two elements of an array, in an object.

    Spark reads a document and looks at nothing that follows on it. A payload that goes on behind its document makes the
    array shorter or longer, or what follows no JSON. The array and its second element have a name that no payload
    knows, so that none can make another array in its place.
    """

    def __init__(self, fields: StructType) -> None:
        self._fields = fields
        self._end = f"end-{token_hex(8)}"

    def parsed(self) -> Column:
        from pyspark.sql import functions as F
        from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

        text = F.col("payload").cast("string")
        whole = F.concat(F.lit(f'{{"{self._end}":['), text, F.lit(f',{{"{self._end}":true}}]}}'))
        element = StructType([*readable(self._fields).fields, StructField(self._end, BooleanType())])
        kinds = [StructField(self._end, ArrayType(element)), StructField(_TEXT, StringType())]
        return F.from_json(whole, StructType(kinds), {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _TEXT})

    def of(self, parsed: Column) -> Column:
        return self._elements(parsed)[0]

    def is_good(self, parsed: Column) -> Column:
        """True or false, never null."""
        from pyspark.sql import functions as F

        text = F.col("payload").cast("string")
        elements = self._elements(parsed)
        # To Spark, an empty payload and null are no corrupt records, and neither is text of another encoding, which it
        # mends.
        good = parsed[_TEXT].isNull() & (F.size(elements) == 2) & elements[0].isNotNull() & elements[1][self._end]
        good = good & F.ltrim(text, F.lit(_BLANK)).startswith("{") & F.is_valid_utf8(text)
        for fit in fits(elements[0], self._fields):
            good = good & fit
        return F.coalesce(good, F.lit(False))

    def _elements(self, parsed: Column) -> Column:
        return parsed[self._end]


def _rescued(fields: StructType) -> Column:
    """The fields of a payload that the schema lacks, as the text of a JSON object; null if it lacks none."""
    from pyspark.sql import functions as F

    names = F.array(*(F.lit(name) for name in fields.fieldNames()))
    whole = F.from_json(F.col("payload").cast("string"), "map<string,variant>")
    rest = F.map_filter(whole, lambda name, _: ~F.array_contains(names, name))
    return F.when(F.size(rest) > 0, F.to_json(rest))
