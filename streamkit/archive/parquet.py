"""Sorted rows as a Parquet file of the table: how they are encoded, and in what row groups."""

from __future__ import annotations

import math
import secrets
import zlib
from typing import TYPE_CHECKING, Any

from .draft import Rows
from .table import File, Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["write_file"]

_SAMPLE = 2048
"""Rows, from which it is judged how large the file will be."""
_DESCRIPTION = 1000
"""Bytes that a row group costs in the footer."""
_SMALLEST = 16 << 10
_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "write_statistics": ["number", "segment", "sequence", "timestamp"],
    "use_dictionary": ["partition", "number", "segment", "timestamp", "trx_id", "trx_node"],
    "column_encoding": {
        "index": "DELTA_BINARY_PACKED",
        "position": "DELTA_BINARY_PACKED",
        "sequence": "DELTA_BINARY_PACKED",
        # A document begins as its neighbours do.
        "payload": "DELTA_BYTE_ARRAY",
    },
    "store_schema": False,
    "write_page_checksum": True,
}


def write_file(table: Table, rows: pa.Table | Rows) -> File:
    """Write `rows`, of one partition and sorted, durably, as a file of the table that no version has yet."""
    import pyarrow.parquet as pq

    group = _group(rows)
    first, last = rows.slice(0, 1), rows.slice(rows.num_rows - 1, 1)
    partition = first["partition"][0].as_py()
    numbers = rows.numbers if isinstance(rows, Rows) else _ends(rows, "number")
    # The start of the name is spread, because object stores share their speed out by it.
    spread = zlib.crc32(f"{partition}/{numbers}".encode()) & 0xFF
    path = f"{spread:02x}-{partition}-{numbers[0]}-{numbers[1]}-{secrets.token_hex(6)}.parquet"
    ends: dict[str, tuple[int, int]] = {}
    with table.mapped():
        table.prepare()
        with (
            table.filesystem.open_output_stream(path) as sink,
            pq.ParquetWriter(sink, first.schema, **_OPTIONS) as file,
        ):
            for begin in range(0, rows.num_rows, group):
                part = rows.slice(begin, group)
                file.write_table(_with_own_words(part))
                for name in ("position", "sequence", "timestamp"):
                    low, high = _ends(part, name)
                    least, most = ends.get(name, (low, high))
                    ends[name] = (min(least, low), max(most, high))
        table.sync_file(path)
        size = table.filesystem.get_file_info(path).size
    return File(
        path,
        size,
        rows.num_rows,
        partition,
        numbers,
        ends["position"],
        (first["segment"][0].as_py(), last["segment"][0].as_py()),
        ends["sequence"],
        (ends["timestamp"][0] // 1000, ends["timestamp"][1] // 1000),
    )


def _ends(rows: pa.Table, name: str) -> tuple[int, int]:
    import pyarrow.compute as pc

    found = pc.min_max(rows[name].cast("int64"))
    return found["min"].as_py(), found["max"].as_py()


def _group(rows: pa.Table | Rows) -> int:
    """How many rows a row group has, so that one of them and the descriptions of all are little together."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sample = rows.slice(max(0, rows.num_rows - _SAMPLE) // 2, _SAMPLE)
    sink = pa.BufferOutputStream()
    pq.write_table(_with_own_words(sample), sink, **_OPTIONS)
    each: float = max(1.0, (sink.tell() - _DESCRIPTION) / sample.num_rows)
    # Descriptions are read once and kept, a group is read for each segment: so they weigh half.
    return math.ceil(max(math.sqrt(_DESCRIPTION / 2 * rows.num_rows / each), _SMALLEST / each))


def _with_own_words(rows: pa.Table) -> pa.Table:
    """`rows` with dictionaries of what is in them: else every row group would repeat that of the whole file."""
    import numpy as np
    import pyarrow as pa

    for at, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            whole = rows.column(at).unify_dictionaries().combine_chunks()
            used, codes = np.unique(whole.indices.to_numpy(), return_inverse=True)
            own = pa.DictionaryArray.from_arrays(
                pa.array(codes.astype(np.int32)), whole.dictionary.take(pa.array(used))
            )
            rows = rows.set_column(at, field, own)
    return rows
