"""Sorted rows as a Parquet file of the table: the encoding, and the row groups."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from ..checksum import crc32
from ..decoders import json_decoder
from .file_builder import Rows
from .snapshot import File
from .table import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PAYLOAD_BYTES", "check_digest", "parts_of", "sealed", "write_file", "write_shared"]

PAYLOAD_BYTES = "streamkit.payload_bytes"
"""Key in a file's metadata: the bytes of its decoded payloads, and a checksum of that number, because Parquet has none
for the metadata. Compressed sizes do not tell that number."""
_PARTS = "streamkit.parts"
"""Key in the metadata of a file of several partitions: the fields of `File` and the payload bytes of each partition,
after a checksum."""
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
    import pyarrow.parquet as pq

    with table.mapped():
        # In memory first, because the file's name has its digest. Compressed, it is a small part of the rows.
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, rows.slice(0, 1).schema, **_OPTIONS) as writer:
            file, payload, _ = _write_rows(writer, rows)
            writer.add_key_value_metadata({PAYLOAD_BYTES: sealed(payload)})
        data = sink.getvalue()
        # The start of the name is spread, because object stores share their speed out by it.
        spread = crc32(f"{file.partition}/{file.numbers}".encode()) & 0xFF
        unique = f"{secrets.token_hex(6)}-{_digest(data).hexdigest()}"
        path = f"{spread:02x}-{file.partition}-{file.numbers[0]}-{file.numbers[1]}-{unique}.parquet"
        table.write(path, data)
    return file._replace(path=path, size=data.size)


def write_shared(table: Table, parts: Iterable[pa.Table]) -> list[File]:
    """Write the rows of several partitions as one file, durably: each part those of one partition, sorted, in row
    groups of its own. The file, once for each partition."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink, written = pa.BufferOutputStream(), list[tuple[File, int]]()
    options = {**_OPTIONS, "write_statistics": ["partition", *_OPTIONS["write_statistics"]]}
    with table.mapped():
        writer = None
        groups = 0
        for rows in parts:
            if writer is None:
                writer = pq.ParquetWriter(sink, rows.schema, **options)
            file, payload, count = _write_rows(writer, rows.cast(writer.schema))
            written.append((file._replace(groups=(groups, groups + count)), payload))
            groups += count
        if writer is None:
            return []
        written = [(file._replace(shared=len(written)), payload) for file, payload in written]
        said = msgspec.json.encode(written)
        writer.add_key_value_metadata({_PARTS: f"{crc32(said):08x} {said.decode()}"})
        writer.close()
        data = sink.getvalue()
        unique = f"{secrets.token_hex(6)}-{_digest(data).hexdigest()}"
        path = f"{secrets.randbelow(256):02x}-all-{unique}.parquet"
        table.write(path, data)
    return [file._replace(path=path, size=data.size) for file, _ in written]


def parts_of(path: str, size: int, footer: Any) -> list[tuple[File, int]]:
    """A shared file that streamkit wrote, once for each partition, with the bytes of its payloads, by the file's own
    metadata. None of them if it does not say, or says something else than its row groups."""
    seal, _, said = (footer.metadata or {}).get(_PARTS.encode(), b"").partition(b" ")
    if seal != b"%08x" % crc32(said):
        return []
    found, groups = list[tuple[File, int]](), 0
    for file, payload in json_decoder(list[tuple[File, int]]).decode(said):
        begin, end = file.groups or (0, 0)
        rows = [footer.row_group(group).num_rows for group in range(begin, min(end, footer.num_row_groups))]
        if begin != groups or begin + len(rows) != end or sum(rows) != file.rows:
            return []
        found.append((file._replace(path=path, size=size), payload))
        groups = end
    return found if groups == footer.num_row_groups and all(file.shared == len(found) for file, _ in found) else []


def _write_rows(writer: Any, rows: pa.Table | Rows) -> tuple[File, int, int]:
    """Write rows of one partition as row groups: the file that they would be, without its name and size, the bytes of
    their payloads, and the number of row groups."""
    import pyarrow.compute as pc

    group = _group(rows)
    payload = count = 0
    first, last = rows.slice(0, 1), rows.slice(rows.num_rows - 1, 1)
    numbers = rows.numbers if isinstance(rows, Rows) else _ends(rows, "number")
    ends: dict[str, tuple[int, int]] = {}
    for begin in range(0, rows.num_rows, group):
        part = rows.slice(begin, group)
        payload += pc.sum(pc.binary_length(part["payload"])).as_py() or 0
        writer.write_table(_with_own_words(part))
        count += 1
        for name in ("position", "sequence", "timestamp"):
            low, high = _ends(part, name)
            least, most = ends.get(name, (low, high))
            ends[name] = (min(least, low), max(most, high))
    file = File(
        "",
        0,
        rows.num_rows,
        first["partition"][0].as_py(),
        numbers,
        ends["position"],
        (first["segment"][0].as_py(), last["segment"][0].as_py()),
        ends["sequence"],
        (ends["timestamp"][0] // 1000, ends["timestamp"][1] // 1000),
    )
    return file, payload, count


def digest_of(path: str) -> str | None:
    """The checksum of the whole file that is in its name; None if there is none."""
    found = _DIGEST.search(path)
    return found[1] if found else None


def check_digest(table: Table, file: File) -> str | None:
    """The fault in a file's length or checksum; None if there is none. Gone if the file does not exist."""
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
    """The number of rows in a row group that keeps one group and the descriptions of all groups small together."""
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
    """`rows` with dictionaries of their own words: else each row group would repeat that of the whole file."""
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
