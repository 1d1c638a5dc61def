"""Sorted rows as a Parquet file of the table: how they are encoded, and in what row groups."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from typing import TYPE_CHECKING, Any

from ..checksum import crc32
from .file_builder import Rows
from .snapshot import File
from .table import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PAYLOAD_BYTES", "check_digest", "sealed", "write_file"]

PAYLOAD_BYTES = "streamkit.payload_bytes"
"""In a file's metadata, of which Parquet has no checksum: how many bytes its payloads have, decoded, and the checksum
of that number. Compressed, they do not tell what they take."""
_GROUP = 16 << 20
"""Bytes of decoded rows in a row group, at most: one of them is decoded at once."""
_SAMPLE = 2048
"""Rows, from which it is judged how large the file will be."""
_DESCRIPTION = 1000
"""Bytes that a row group costs in the footer."""
_SMALLEST = 16 << 10
_DIGEST = re.compile(r"-([0-9a-f]{16})\.parquet$")
_PART = 8 << 20
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


def sealed(payload: int) -> str:
    """PAYLOAD_BYTES of a file."""
    return f"{payload} {crc32(b'%d' % payload):08x}"


def write_file(table: Table, rows: pa.Table | Rows) -> File:
    """Write `rows`, of one partition and sorted, durably, as a file of the table that no version has yet."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    group = _group(rows)
    payload = 0
    first, last = rows.slice(0, 1), rows.slice(rows.num_rows - 1, 1)
    partition = first["partition"][0].as_py()
    numbers = rows.numbers if isinstance(rows, Rows) else _ends(rows, "number")
    ends: dict[str, tuple[int, int]] = {}
    with table.mapped():
        # In memory first: its name says what is in it. Compressed it is a small part of the rows.
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, first.schema, **_OPTIONS) as file:
            for begin in range(0, rows.num_rows, group):
                part = rows.slice(begin, group)
                payload += pc.sum(pc.binary_length(part["payload"])).as_py() or 0
                file.write_table(_with_own_words(part))
                for name in ("position", "sequence", "timestamp"):
                    low, high = _ends(part, name)
                    least, most = ends.get(name, (low, high))
                    ends[name] = (min(least, low), max(most, high))
            file.add_key_value_metadata({PAYLOAD_BYTES: sealed(payload)})
        data = sink.getvalue()
        # The start of the name is spread, because object stores share their speed out by it.
        spread = crc32(f"{partition}/{numbers}".encode()) & 0xFF
        unique = f"{secrets.token_hex(6)}-{_digest(data).hexdigest()}"
        path = f"{spread:02x}-{partition}-{numbers[0]}-{numbers[1]}-{unique}.parquet"
        table.write(path, data)
    return File(
        path,
        data.size,
        rows.num_rows,
        partition,
        numbers,
        ends["position"],
        (first["segment"][0].as_py(), last["segment"][0].as_py()),
        ends["sequence"],
        (ends["timestamp"][0] // 1000, ends["timestamp"][1] // 1000),
    )


def digest_of(path: str) -> str | None:
    """The checksum of the whole file that is in its name; None if there is none."""
    found = _DIGEST.search(path)
    return found[1] if found else None


def check_digest(table: Table, file: File) -> str | None:
    """What is wrong with the length or the checksum of a file; None if nothing is. Gone if it is not there."""
    digest, size = _digest(), 0
    with table.reading(file.path), table.filesystem.open_input_stream(file.path) as source:
        while part := source.read(_PART):
            digest.update(part)
            size += len(part)
    if size != file.size:
        return f"it has {size} bytes, and the table's log says {file.size}"
    wanted = digest_of(file.path)
    if wanted not in (None, digest.hexdigest()):
        return "its checksum is not the one that its name says"
    return None


def _digest(data: Any = b"") -> Any:
    return hashlib.blake2b(data, digest_size=8)


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
    best = math.ceil(max(math.sqrt(_DESCRIPTION / 2 * rows.num_rows / each), _SMALLEST / each))
    most: int = _GROUP * sample.num_rows // max(1, sample.nbytes)
    return max(1, min(best, most))


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
