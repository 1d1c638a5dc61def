"""The table's columns in streamkit's types, from the types of any other engine's files.

A file with other columns is a ValueError, which names the fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .schema import schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["as_ours", "check_columns", "check_rows", "with_words"]

_WORDS = ("segment", "trx_id", "trx_node")


def check_columns(found: pa.Schema, *, own: bool) -> None:
    """Raise ValueError if a file lacks a column. `own`: also if it is of another type than streamkit writes."""
    for field in schema():
        places = found.get_all_field_indices(field.name)
        if len(places) != 1:
            raise ValueError(f"it has {len(places) or 'no'} columns {field.name!r}")
        kind = found.field(places[0]).type
        if own and field.type not in (kind, getattr(kind, "value_type", kind)):
            raise ValueError(f"its column {field.name!r} is {kind} and not {field.type}")


def check_rows(rows: pa.Table) -> pa.Table:
    """`rows` of a file. ValueError if a value is null that must not be, or a dictionary does not have a row's word.

    Arrow reads codes of a dictionary as they are, and later takes words from behind its end.
    """
    import pyarrow.compute as pc

    ours = schema()
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if field.name not in ours.names or ours.field(field.name).nullable:
            continue
        if column.null_count:
            raise ValueError(f"its column {field.name!r} has {column.null_count} nulls")
        for chunk in column.chunks if field.name in _WORDS else ():
            if hasattr(chunk, "dictionary") and len(chunk):
                ends = pc.min_max(chunk.indices)
                if ends["min"].as_py() < 0 or ends["max"].as_py() >= len(chunk.dictionary):
                    raise ValueError(f"its column {field.name!r} has a code that its dictionary lacks")
    return rows


def as_ours(rows: pa.Table, large: bool = True) -> pa.Table:
    """`rows` with the types of `schema()`: views, dictionaries, large strings, INT96 timestamps become these.

    `large`: payloads have offsets of 64 bits, so that any number of them fits in one array.
    """
    import pyarrow as pa

    ours = schema()
    for at, field in enumerate(rows.schema):
        if field.name not in ours.names:  # from another engine; its views cannot be split
            views = {pa.string_view(): pa.string(), pa.binary_view(): pa.large_binary()}
            kind = views.get(field.type, field.type)
        elif large and field.name == "payload":
            kind = pa.large_binary()
        else:
            kind = ours.field(field.name).type
        if field.type != kind:
            rows = rows.set_column(at, field.name, rows.column(at).cast(kind))
    return check_rows(rows)


def with_words(rows: pa.Table) -> pa.Table:
    """Segments and transaction ids as dictionaries, each of one chunk."""
    for at, field in enumerate(rows.schema):
        if field.name in _WORDS:
            rows = rows.set_column(at, field.name, rows.column(at).combine_chunks().dictionary_encode())
    return rows
