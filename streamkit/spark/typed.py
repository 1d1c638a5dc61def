"""Payloads as columns: JSON documents against a schema. A payload that does not fit is kept beside them, whole."""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING

from .fitting import fits, fitted, readable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["BAD", "bad_payloads", "parse_payloads", "struct"]

BAD = "bad_payload"
_PARSED, _DOCUMENT = "streamkit_parsed", "streamkit_document"
_BLANK = " \t\r\n"
"""The characters allowed around a document."""


def parse_payloads(frame: DataFrame, schema: StructType | str, *, rescue: str = "") -> DataFrame:
    """A frame with the column `payload`, of a batch or of a stream, with the payload's fields as columns in its place.

    `schema`: that of the JSON documents, a StructType or DDL text ("item string NOT NULL, price decimal(9,2)"). A field
    that a document lacks is null; a NOT NULL field must be there. Fields that the schema lacks are left out. `rescue`:
    the name of a further column that keeps these fields as a JSON object. It is null if there are none. It takes a
    second pass over the payload.

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
    once = _with_document(frame, fields)
    found = F.col(_DOCUMENT)
    columns = [fitted(found[field.name], field.dataType).alias(field.name) for field in fields]
    if rescue:
        columns.append(F.when(found.isNotNull(), _rescued(fields)).alias(rescue))
    bad = F.when(found.isNull(), F.col("payload")).alias(BAD)
    return once.select(*(F.col(name) for name in kept), *columns, bad)


def bad_payloads(frame: DataFrame, schema: StructType | str) -> DataFrame:
    """The rows whose payload does not fit the schema, with the columns of the frame."""
    from pyspark.sql import functions as F

    return _with_document(frame, struct(schema)).where(F.col(_DOCUMENT).isNull()).drop(_DOCUMENT)


def _with_document(frame: DataFrame, fields: StructType) -> DataFrame:
    """The frame with the payload's document as a further column, null if the payload does not fit.

    Each step is a generator of one row. Spark evaluates a generator once for each row, in compiled code. Without a
    generator, each column and each filter of a query would parse the payload again; a lambda would be interpreted.
    """
    from pyspark.sql import functions as F

    document = _Document(fields)
    parsed = F.inline(F.array(F.struct(document.parsed().alias(_PARSED))))
    fitting = F.when(document.is_good(F.col(_PARSED)), F.col(_PARSED)).alias(_DOCUMENT)
    return frame.select("*", parsed).select("*", F.inline(F.array(F.struct(fitting)))).drop(_PARSED)


def struct(schema: StructType | str) -> StructType:
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(found, StructType):
        raise ValueError(f"a schema must be a StructType or the DDL text of a struct's fields, not {schema!r}")
    return found


class _Document:
    """A payload with a mark as the last field of its object.

    Spark reads a document and looks at nothing behind it. Here the mark takes the place of the payload's last brace. It
    is a field of the document only if that brace closes the document: nothing follows it. No payload knows the mark's
    name. A document around the payload would show the same, but Spark takes longer for nested objects.
    """

    def __init__(self, fields: StructType) -> None:
        self._fields = fields
        token = token_hex(6)
        self._mark, self._text = f"mark-{token}", f"text-{token}"

    def parsed(self) -> Column:
        from pyspark.sql import functions as F
        from pyspark.sql.types import BooleanType, StringType, StructField, StructType

        whole = _trimmed().cast("binary")
        # A binary is cut by its bytes; to cut a string Spark counts its characters.
        opened = F.substring(whole, F.lit(1), F.octet_length(whole) - 1).cast("string")
        marked = F.concat(opened, F.lit(f',"{self._mark}":true}}'))
        mine = [StructField(self._mark, BooleanType()), StructField(self._text, StringType())]
        kinds = StructType([*readable(self._fields).fields, *mine])
        return F.from_json(marked, kinds, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": self._text})

    def is_good(self, parsed: Column) -> Column:
        """True or false, never null."""
        from pyspark.sql import functions as F

        text = F.col("payload").cast("string")
        # Spark mends text of another encoding.
        good = parsed[self._text].isNull() & parsed[self._mark] & _trimmed().endswith("}") & F.is_valid_utf8(text)
        # The mark's comma makes an object without fields a corrupt one, whose fields are null, as they should be.
        good = good | (parsed[self._text].isNotNull() & (F.translate(text, _BLANK, "") == "{}"))
        for fit in fits(parsed, self._fields):
            good = good & fit
        return F.coalesce(good, F.lit(False))


def _trimmed() -> Column:
    """The payload's text, without the blanks that may stand behind a document."""
    from pyspark.sql import functions as F

    text = F.col("payload").cast("string")
    # To trim, Spark looks at each character of the text. Most payloads have no blank there.
    return F.when(text.endswith("}"), text).otherwise(F.expr(f"trim(TRAILING '{_BLANK}' FROM string(payload))"))


def _rescued(fields: StructType) -> Column:
    """The fields of a payload that the schema lacks, as the text of a JSON object; null if it lacks none."""
    from pyspark.sql import functions as F

    names = F.array(*(F.lit(name) for name in fields.fieldNames()))
    whole = F.from_json(F.col("payload").cast("string"), "map<string,variant>")
    rest = F.map_filter(whole, lambda name, _: ~F.array_contains(names, name))
    return F.when(F.size(rest) > 0, F.to_json(rest))
