"""Rows of the table as the readers' batches: consecutive entries of one segment and one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..log.batches import Batch, Bounds
from ..log.floors import REMOVED
from ..metadata import NO_METADATA, Metadata
from ..model import NO_TRX, TRX, Entry, Origin

if TYPE_CHECKING:
    import pyarrow as pa

    from ..log.partition import Partition

__all__ = ["WORDS", "batches", "batches_backwards", "have_texts"]

WORDS = ["segment", "trx_id", "trx_node"]
"""Columns that are read as dictionaries."""
_ROWS = 8192
_BYTES = 8 << 20
"""Bytes of payload that are made into entries together, about."""


def batches(partition: Partition, rows: pa.Table, start: tuple[int, int], bounds: Bounds) -> Iterator[Batch]:
    """Rows in commit or in sequence order, as batches of consecutive entries of one segment and transaction."""
    import numpy as np
    import pyarrow as pa

    space, index, partitions = partition.space, partition.partition, partition.settings.partitions
    incarnation = partition.settings.incarnation
    number, at, position, sequence = (rows[name].to_numpy() for name in ("number", "index", "position", "sequence"))
    timestamp = rows["timestamp"].cast("int64").to_numpy() // 1000
    keep = (number > start[0]) | ((number == start[0]) & (at >= start[1]))
    keep &= timestamp >= bounds.min_timestamp
    if bounds.max_timestamp:
        keep &= timestamp <= bounds.max_timestamp
    if not keep.all():
        rows = rows.filter(pa.array(keep))
        number, at, position, sequence, timestamp = (
            column[keep] for column in (number, at, position, sequence, timestamp)
        )
    words = {name: rows[name].combine_chunks() for name in WORDS}
    words = {name: word.chunk(0) if hasattr(word, "chunks") else word for name, word in words.items()}
    codes = {name: word.indices.to_numpy() for name, word in words.items()}
    names, ids, nodes = (words[name].dictionary.to_pylist() for name in WORDS)
    raw_ids, raw_nodes = list(map(_raw, ids)), list(map(_raw, nodes))
    plain = rows["metadata"].null_count == rows.num_rows
    erased = rows["payload"].null_count > 0
    breaks = (np.diff(number) != 0) | (np.diff(at) != 1) | (np.diff(sequence) != 1) | (np.diff(codes["segment"]) != 0)
    cuts = np.flatnonzero(breaks) + 1
    trx, trx_code = NO_TRX, -1
    step = max(1, min(_ROWS, _BYTES * rows.num_rows // max(1, rows["payload"].nbytes)))
    for begin in range(0, rows.num_rows, step):
        end = min(begin + step, rows.num_rows)
        payloads = rows["payload"].slice(begin, end - begin).to_pylist()
        metadata = None if plain else rows["metadata"].slice(begin, end - begin).to_pylist()
        inner = cuts[np.searchsorted(cuts, begin, "right") : np.searchsorted(cuts, end, "left")]
        starts = np.concatenate(([begin], inner))
        fields = zip(
            (starts - begin).tolist(),
            [*(inner - begin).tolist(), end - begin],
            number[starts].tolist(),
            at[starts].tolist(),
            position[starts].tolist(),
            sequence[starts].tolist(),
            timestamp[starts].tolist(),
            codes["segment"][starts].tolist(),
            codes["trx_id"][starts].tolist(),
            codes["trx_node"][starts].tolist(),
            strict=True,
        )
        # Readers of small transactions spend their time here.
        for here, stop, trx_number, trx_index, place, first, moment, segment_code, id_code, node_code in fields:
            if id_code != trx_code:
                trx, trx_code = TRX(raw_ids[id_code], raw_nodes[node_code], trx_number), id_code
            segment = names[segment_code]
            origin = Origin(index, partitions, place, trx_index, first, "cold", 0, None, incarnation)
            if erased and None in payloads[here:stop]:
                origin = replace(origin, holes=True)
                gone = REMOVED["erased"]
                entries = [
                    Entry(
                        space,
                        segment,
                        number_,
                        moment,
                        trx,
                        gone if payload is None else payload,
                        Metadata((metadata and metadata[here + number_ - first]) or ()),
                        origin,
                    )
                    for number_, payload in enumerate(payloads[here:stop], first)
                ]
            elif metadata is None:
                entries = [
                    Entry(space, segment, number_, moment, trx, payload, NO_METADATA, origin)
                    for number_, payload in enumerate(payloads[here:stop], first)
                ]
            else:
                entries = [
                    Entry(space, segment, number_, moment, trx, payload, Metadata(data or ()), origin)
                    for number_, (payload, data) in enumerate(
                        zip(payloads[here:stop], metadata[here:stop], strict=True), first
                    )
                ]
            yield Batch(moment, trx_number, origin, entries)


def _raw(id: str) -> bytes:
    """The 16 bytes of a UUID. ValueError if it is none."""
    raw = bytes.fromhex(id.replace("-", ""))
    if len(raw) != 16:
        raise ValueError(f"{id[:60]!r} is no UUID")
    return raw


def have_texts(metadata: pa.ChunkedArray, texts: Sequence[str]) -> Any:
    """A mask of the rows whose metadata has all of `texts`, as names or as values."""
    import numpy as np
    import pyarrow.compute as pc

    kept = [np.zeros(0, bool)]
    for chunk in metadata.chunks:
        bounds = chunk.offsets.to_numpy()
        keep = chunk.is_valid().to_numpy(zero_copy_only=False)
        for text in texts:
            there = pc.or_kleene(pc.equal(chunk.keys, text), pc.equal(chunk.items, text)).fill_null(False)
            before = np.concatenate(([0], np.cumsum(there.to_numpy(zero_copy_only=False))))
            keep = keep & (before[bounds[1:]] > before[bounds[:-1]])
        kept.append(keep)
    return np.concatenate(kept)


def batches_backwards(partition: Partition, rows: pa.Table, start: tuple[int, int]) -> Iterator[Batch]:
    """The batches of `rows`, the last first. Few are made at a time."""
    for begin in reversed(range(0, rows.num_rows, _ROWS)):
        part = rows.slice(begin, _ROWS)
        for name in WORDS:
            # Only the words of these rows: a file may have a million.
            words = part[name].cast(rows.schema.field(name).type.value_type).dictionary_encode()
            part = part.set_column(part.schema.get_field_index(name), name, words)
        yield from reversed(list(batches(partition, part, start, Bounds())))
