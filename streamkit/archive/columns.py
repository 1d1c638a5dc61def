"""The table's columns, as streamkit means them, whatever types another engine's files hold them in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .schema import schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["as_ours", "with_words"]

_WORDS = ("segment", "trx_id", "trx_node")


def as_ours(rows: pa.Table, large: bool = True) -> pa.Table:
    """`rows` with the types of `schema()`: views, dictionaries, large strings, INT96 timestamps become these.

    `large`: payloads have offsets of 64 bits, so that any number of them fits in one array.
    """
    import pyarrow as pa

    ours = schema()
    for at, field in enumerate(rows.schema):
        if field.name not in ours.names:  # another engine's, of which views cannot be taken apart
            views = {pa.string_view(): pa.string(), pa.binary_view(): pa.large_binary()}
            kind = views.get(field.type, field.type)
        elif large and field.name == "payload":
            kind = pa.large_binary()
        else:
            kind = ours.field(field.name).type
        if field.type != kind:
            rows = rows.set_column(at, field.name, rows.column(at).cast(kind))
    return rows


def with_words(rows: pa.Table) -> pa.Table:
    """Segments and transaction ids as dictionaries, each of one chunk."""
    for at, field in enumerate(rows.schema):
        if field.name in _WORDS:
            rows = rows.set_column(at, field.name, rows.column(at).combine_chunks().dictionary_encode())
    return rows
