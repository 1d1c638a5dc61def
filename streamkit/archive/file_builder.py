"""A file to be: transactions of the log in, rows sorted by (segment, sequence) out, a part at a time."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..errors import CorruptData
from ..log.floors import Removed
from ..log.record_format import decode_header, decode_transaction
from ..model import Entry
from .schema import schema

if TYPE_CHECKING:
    import pyarrow as pa

    from ..log.partition import Partition

__all__ = ["FileBuilder", "Rows"]

_FIELDS = 8
_SEGMENT, _SEQUENCE, _COUNT, _NUMBER, _POSITION, _INDEX, _TIMESTAMP, _TRANSACTION = range(_FIELDS)
_CHUNK_ROWS = 32_768
_CHUNK_BYTES = 8 << 20


class FileBuilder:
    """Whole transactions of one partition, in commit order. A frame is eight integers here, a payload its bytes."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._segments: dict[str, int] = {}
        self._nodes: dict[bytes, int] = {}
        self._transactions: list[tuple[bytes, int]] = []
        """(id, place of the node)"""
        self._frames = array("q")
        self._payloads: list[bytes | None] = []
        """Payloads that are not in `_chunks` yet."""
        self._loose = 0
        self._chunks: list[pa.Array] = []
        self._metadata: dict[int, Mapping[str, str]] = {}
        self.rows = 0
        self.bytes = 0
        """Bytes of payload."""

    def add(self, number: int, record: bytes, until: int) -> bool:
        """Take in transaction `number`; False, and not, if it is younger than `until` (ms).

        CorruptData or UnsupportedVersion, without the place, if it is damaged.
        """
        partition, segments, frames = self._partition, self._segments, self._frames
        transaction = len(self._transactions)
        settings = partition.settings
        entries: list[Entry] = []
        decoded = decode_transaction(partition.space, partition.partition, settings.partitions, record, partition.seed)
        # One without entries only uses a number, or keeps an idempotency key.
        made = decoded[0][0].timestamp if decoded else decode_header(record, partition.seed).timestamp
        if made > until:
            return False
        holes = False
        for head, origin, some in decoded:
            holes |= origin.holes
            if head.number != number:
                raise CorruptData(f"a frame of transaction {head.number} is in its place")
            if not some:
                continue
            entries += some
            segment = segments.setdefault(head.segment, len(segments))
            frames.extend(
                (
                    segment,
                    head.first_sequence,
                    head.count,
                    number,
                    head.position,
                    head.index,
                    head.timestamp,
                    transaction,
                )
            )
        if not entries:
            return True
        trx = entries[0].trx
        self._transactions.append((trx.raw_id, self._nodes.setdefault(trx.raw_node, len(self._nodes))))
        metadata = [entry.metadata for entry in entries]
        if any(metadata):
            self._metadata.update((self.rows + at, data) for at, data in enumerate(metadata) if data)
        payloads: list[bytes | None] = [entry.payload for entry in entries]
        if holes:  # an erased entry has a row without a payload
            payloads = [None if isinstance(payload, Removed) else payload for payload in payloads]
        size = sum([len(entry.payload) for entry in entries])
        self._payloads += payloads
        self._loose += size
        self.rows += len(payloads)
        self.bytes += size
        if len(self._payloads) >= _CHUNK_ROWS or self._loose >= _CHUNK_BYTES:
            self._pack()
        return True

    @property
    def frames(self) -> int:
        return len(self._frames) // _FIELDS

    def _pack(self) -> None:
        import pyarrow as pa

        # Offsets of 64 bits: one transaction may hold more than 2 GiB.
        self._chunks.append(pa.array(self._payloads, pa.large_binary()))
        self._payloads, self._loose = [], 0

    def sorted(self) -> Rows:
        """All of it by segment (code points) and sequence. The builder ends with that."""
        import numpy as np
        import pyarrow as pa

        self._pack()
        names = sorted(self._segments)
        ranks = np.empty(len(names), dtype=np.int64)
        ranks[[self._segments[name] for name in names]] = np.arange(len(names))
        self._segments.clear()
        frames = np.frombuffer(self._frames, dtype=np.int64).reshape(-1, _FIELDS)
        frames[:, _SEGMENT] = ranks[frames[:, _SEGMENT]]
        payloads = pa.concat_arrays(self._chunks)
        self._chunks.clear()
        ids = pa.array([str(UUID(bytes=id)) for id, _ in self._transactions])
        nodes = pa.array([str(UUID(bytes=node)) for node in self._nodes])
        node_of = np.array([node for _, node in self._transactions])
        words = {"segment": pa.array(names, pa.string()), "trx_id": ids, "trx_node": nodes}
        return Rows(self._partition.partition, frames, node_of, payloads, self._metadata, words)


class Rows:
    """Sorted rows. A part of them is made on demand, because columns need more memory than their source."""

    def __init__(
        self, partition: int, frames: Any, node_of: Any, payloads: pa.Array, metadata: Any, words: dict[str, pa.Array]
    ) -> None:
        import numpy as np

        self._partition = partition
        self._frames = frames
        self._node_of = node_of
        self._payloads = payloads
        self._metadata = metadata
        self._words = words
        counts = frames[:, _COUNT]
        # Frames of one segment do not overlap: sorting them sorts the rows.
        self._order = np.lexsort((frames[:, _SEQUENCE], frames[:, _SEGMENT]))
        self._starts = (np.cumsum(counts) - counts)[self._order]
        """The first row of each frame, in commit order."""
        self._ends = np.cumsum(counts[self._order])
        self.num_rows = len(payloads)
        self.numbers = (int(frames[:, _NUMBER].min()), int(frames[:, _NUMBER].max()))

    def slice(self, begin: int, length: int) -> pa.Table:
        """Rows begin to begin + length, as far as there are."""
        import numpy as np
        import pyarrow as pa

        end = min(begin + length, self.num_rows)
        first, last = np.searchsorted(self._ends, [begin, end - 1], "right").tolist()
        order, starts, ends = (part[first : last + 1] for part in (self._order, self._starts, self._ends))
        frames = self._frames[order]
        counts = frames[:, _COUNT]
        which = np.repeat(np.arange(len(order)), counts)
        within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        skipped = begin - int(ends[0] - counts[0])
        which, within = which[skipped:][: end - begin], within[skipped:][: end - begin]
        rows = starts[which] + within

        def column(at: int) -> Any:
            return frames[:, at][which]

        def words(name: str, codes: Any) -> pa.Array:
            return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), self._words[name])

        kind = schema().field("metadata").type
        metadata: pa.Array = pa.nulls(len(rows), kind)
        if self._metadata:
            found = [self._metadata.get(at) for at in rows.tolist()]
            metadata = pa.array([data and list(data.items()) for data in found], kind)
        transaction = column(_TRANSACTION)
        return pa.table(
            {
                "partition": pa.array(np.full(len(rows), self._partition, dtype=np.int32)),
                "number": pa.array(column(_NUMBER)),
                "index": pa.array(column(_INDEX) + within),
                "position": pa.array(column(_POSITION) + within),
                "segment": words("segment", column(_SEGMENT)),
                "sequence": pa.array(column(_SEQUENCE) + within),
                "timestamp": pa.array(column(_TIMESTAMP) * 1000).cast(pa.timestamp("us", "UTC")),
                "trx_id": words("trx_id", transaction),
                "trx_node": words("trx_node", self._node_of[transaction]),
                "payload": self._payloads.take(pa.array(rows)),
                "metadata": metadata,
            }
        )
