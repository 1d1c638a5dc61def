"""Entries as Parquet files: frames of the log in, one file sorted by (segment, sequence) out."""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import UUID

from ..errors import CorruptData
from ..transactions import decode_body, decode_frame
from .table import File, Table, schema

if TYPE_CHECKING:
    import pyarrow as pa

    from ..partition import Partition

__all__ = ["Draft", "write_file"]

_GROUPS = 160
_SMALLEST_GROUP = 2048
_STATISTICS = ["number", "segment", "sequence", "timestamp"]


class Draft:
    """What the next file will hold: whole transactions, in commit order."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._segments: dict[str, int] = {}
        self._transactions: list[tuple[bytes, bytes]] = []
        self._frames: list[tuple[int, ...]] = []
        """(segment, sequence, count, number, position, index, timestamp, transaction) of each frame."""
        self._payloads: list[bytes] = []
        self._metadata: dict[int, dict[str, str]] = {}
        self.bytes = 0

    @property
    def rows(self) -> int:
        return len(self._payloads)

    def add(self, number: int, frames: Sequence[memoryview]) -> None:
        """A transaction's frames. CorruptData, without the place, if they are damaged."""
        for frame in frames:
            head, body = decode_frame(frame, self._partition.seed)
            if head.number != number:
                raise CorruptData(f"a frame of transaction {head.number} is in its place")
            try:
                payloads, metadata = decode_body(body)
            except Exception as error:  # zstd, msgspec and our own checks: whatever it is, the bytes are not ours
                raise CorruptData("the body of a frame cannot be decoded") from error
            names = (head.id, head.node)
            if not self._transactions or self._transactions[-1] != names:
                self._transactions.append(names)
            segment = self._segments.setdefault(head.segment, len(self._segments))
            if metadata is not None:
                base = len(self._payloads)
                self._metadata.update((base + at, data) for at, data in enumerate(metadata) if data)
            self._payloads += payloads
            self.bytes += sum(map(len, payloads))
            self._frames.append(
                (
                    segment,
                    head.first_sequence,
                    len(payloads),
                    number,
                    head.position,
                    head.index,
                    head.timestamp,
                    len(self._transactions) - 1,
                )
            )

    def table(self) -> pa.Table:
        """All of it, sorted by segment (code points) and sequence."""
        import numpy as np
        import pyarrow as pa

        frames = np.array(self._frames, dtype=np.int64).reshape(-1, 8)
        counts = frames[:, 2]
        starts = np.cumsum(counts) - counts
        within = np.arange(self.rows, dtype=np.int64) - np.repeat(starts, counts)
        names = sorted(self._segments)
        ranks = np.empty(len(names), dtype=np.int64)
        for rank, name in enumerate(names):
            ranks[self._segments[name]] = rank
        segment = np.repeat(ranks[frames[:, 0]], counts) if names else np.empty(0, dtype=np.int64)
        sequence = np.repeat(frames[:, 1], counts) + within
        order = np.lexsort((sequence, segment))

        def column(at: int, step: Any = 0) -> Any:
            return (np.repeat(frames[:, at], counts) + step)[order]

        def words(codes: Any, values: list[str]) -> pa.Array:
            return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(values, pa.string()))

        transaction = column(7)
        metadata: pa.Array = pa.nulls(self.rows, schema().field("metadata").type)
        if self._metadata:
            found = [self._metadata.get(at) for at in order.tolist()]
            metadata = pa.array([data and list(data.items()) for data in found], schema().field("metadata").type)
        payloads = pa.array(self._payloads, pa.binary())
        self._payloads = []
        return pa.table(
            {
                "partition": pa.array(np.full(len(order), self._partition.partition, dtype=np.int32)),
                "number": pa.array(column(3)),
                "index": pa.array(column(5, within)),
                "position": pa.array(column(4, within)),
                "segment": words(segment[order], names),
                "sequence": pa.array(sequence[order]),
                "timestamp": pa.array(column(6) * 1000).cast(pa.timestamp("us", "UTC")),
                "trx_id": words(transaction, [str(UUID(bytes=id)) for id, _ in self._transactions]),
                "trx_node": words(transaction, [str(UUID(bytes=node)) for _, node in self._transactions]),
                "payload": payloads.take(pa.array(order)),
                "metadata": metadata,
            }
        )


def write_file(table: Table, rows: pa.Table) -> File:
    """Write `rows`, of one partition and sorted, as a file of the table that no version has yet."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    def ends(name: str) -> tuple[Any, Any]:
        found = pc.min_max(rows[name])
        return found["min"].as_py(), found["max"].as_py()

    numbers = ends("number")
    partition = rows["partition"][0].as_py()
    # The start of the name is spread, because object stores share their speed out by it.
    spread = zlib.crc32(f"{partition}/{numbers}".encode()) & 0xFF
    path = f"{spread:02x}-{partition}-{numbers[0]}-{numbers[1]}-{secrets.token_hex(6)}.parquet"
    with table.mapped():
        if table.url.startswith("file://"):
            os.makedirs(unquote(table.url.removeprefix("file://")), exist_ok=True)
        with table.filesystem.open_output_stream(path) as sink:
            pq.write_table(
                rows,
                sink,
                compression="zstd",
                row_group_size=max(_SMALLEST_GROUP, -(-rows.num_rows // _GROUPS)),
                write_statistics=_STATISTICS,
                use_dictionary=["partition", "segment", "trx_id", "trx_node", "number", "timestamp"],
                store_schema=False,
                write_page_checksum=True,
            )
        size = table.filesystem.get_file_info(path).size
    segment = (rows["segment"][0].as_py(), rows["segment"][-1].as_py())
    return File(
        path,
        size,
        rows.num_rows,
        partition,
        numbers,
        ends("position"),
        segment,
        ends("sequence"),
        tuple(round(end.timestamp() * 1000) for end in ends("timestamp")),
    )
