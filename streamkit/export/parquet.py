"""The Parquet form of an export: the lines of the NDJSON form as rows, with columns for the fields of entries.

A row is an entry, or another line, which stands in `line`. The rows have the order of the lines, so the NDJSON form
can be made again from them, byte for byte, and its digest checks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import UUID

from ..errors import CorruptData, MissingDependency
from .lines import EntryLine, Line, Partition, Space, Trx, decode_line, encode_line, encode_payload, payload_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["check_parquet", "is_parquet", "read_parquet", "write_parquet"]

_MAGIC = b"PAR1"
_ROWS = 20_000
_BYTES = 16 << 20
"""Rows, and bytes of lines, after which a row group ends."""


def is_parquet(file: BinaryIO) -> bool:
    """True if a file begins as a Parquet file does. The file is at its beginning afterwards."""
    found = file.read(len(_MAGIC)) == _MAGIC
    file.seek(0)
    return found


def check_parquet() -> None:
    """MissingDependency without the library for Parquet."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            "Parquet needs pyarrow: pip install 'streamkit-store[archive]', or choose a name that does not end with "
            ".parquet",
            name="pyarrow",
        ) from error


def _schema() -> pa.Schema:
    import pyarrow as pa

    columns: list[tuple[str, pa.DataType]] = [
        ("space", pa.string()),
        ("partition", pa.int32()),
        ("segment", pa.string()),
        ("sequence", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("index", pa.int64()),
        ("transaction_id", pa.string()),
        ("transaction_node", pa.string()),
        ("transaction_number", pa.int64()),
        ("metadata", pa.map_(pa.string(), pa.string())),
        ("payload", pa.binary()),
        ("line", pa.binary()),
    ]
    return pa.schema(columns)


def write_parquet(lines: Path, target: Path) -> None:
    """Write a whole export of lines as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema()
    part = lines.with_suffix(".rows.part")
    with (
        lines.open("rb") as file,
        pq.ParquetWriter(part, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for rows in _groups(file):
            writer.write_table(pa.Table.from_pylist(rows, schema))
    part.replace(target)


def _groups(file: BinaryIO) -> Iterator[list[dict[str, Any]]]:
    """The rows of a file of lines, some at a time."""
    rows: list[dict[str, Any]] = []
    size, space, partition = 0, "", 0
    for number, data in enumerate(file, 1):
        line: Line = decode_line(data, number)
        if isinstance(line, Space):
            space = line.space
        elif isinstance(line, Partition):
            partition = line.partition
        if isinstance(line, EntryLine):
            rows.append({"space": space, "partition": partition, **_columns(line, number)})
        else:
            rows.append({"line": data})
        size += len(data)
        if len(rows) >= _ROWS or size >= _BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _columns(line: EntryLine, number: int) -> dict[str, Any]:
    return {
        "segment": line.segment,
        "sequence": line.sequence,
        "timestamp": line.timestamp,
        "index": line.index,
        "transaction_id": str(line.trx.id),
        "transaction_node": str(line.trx.node),
        "transaction_number": line.trx.number,
        "metadata": list(line.metadata.items()),
        "payload": payload_of(line, number),
    }


def read_parquet(file: BinaryIO, lines: BinaryIO) -> None:
    """Write the lines of a Parquet file to `lines`. CorruptData if the file is damaged, cut short or no export."""
    check_parquet()
    lines.writelines(_lines(file))


def _lines(file: BinaryIO) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as rows:
            if not rows.schema_arrow.equals(_schema()):
                raise CorruptData("the Parquet file is no export of streamkit: it has other columns")
            # One row group at a time, so that memory does not grow with the file.
            for number in range(rows.num_row_groups):
                table = rows.read_row_group(number)
                at = table.schema.get_field_index("timestamp")
                table = table.set_column(at, "timestamp", table["timestamp"].cast(pa.int64()))
                yield from map(_line, table.to_pylist())
    except (pa.ArrowException, OSError, ValueError, TypeError, AttributeError) as error:
        raise CorruptData(
            f"the Parquet file is damaged or cut short: {error}. Export again, or fetch the whole file"
        ) from error


def _line(row: dict[str, Any]) -> bytes:
    if row["line"] is not None:
        return bytes(row["line"])
    trx = Trx(UUID(row["transaction_id"]), UUID(row["transaction_node"]), row["transaction_number"])
    encoding, payload = encode_payload(row["payload"])
    return encode_line(
        EntryLine(
            row["segment"],
            row["sequence"],
            row["timestamp"],
            row["index"],
            trx,
            dict(row["metadata"]),
            encoding,
            payload,
        )
    )
