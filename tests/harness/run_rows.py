"""Index rows and runs for tests, as upkeep makes them from transactions, but without a log."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from itertools import count

from streamkit.backend import ABSENT, Backend
from streamkit.index.block_cache import BlockCache
from streamkit.index.run_format import SectionBuilder
from streamkit.index.runs import Runs
from streamkit.log.index_rows import encode_index_row
from streamkit.log.keys import data_key, idempotency_key, run_key, segment_key
from streamkit.log.manifest import Manifest, Run, RunFile
from streamkit.log.rows import DataRow, KeyRow, Piece, SegmentRow

PARTITION = b"a partition"
SEED = 7
_ids = count(1)

Rows = dict[bytes, bytes]


def new_id() -> bytes:
    return next(_ids).to_bytes(16)


def data_row(segment: str, number: int, first: int, count: int = 1, frame: int = 40) -> tuple[bytes, bytes]:
    """The row of one piece, which describes itself in its frame."""
    text = f"{segment} {number} {first}".encode().ljust(frame, b".")[:frame]
    piece = Piece(number, 1000 + number, first, count, 100, frame, text)
    return data_key(segment, first + count - 1), encode_index_row(DataRow([piece]))


def segment_row(segment: str, number: int, last: int) -> tuple[bytes, bytes]:
    return segment_key(segment), encode_index_row(SegmentRow(1, 1000, last, 1000 + number))


def key_row(digest: bytes, number: int) -> tuple[bytes, bytes]:
    row = KeyRow(number, 1000 + number, b"i" * 16, b"n" * 16, digest, (("s", 1),), 1)
    return idempotency_key(digest), encode_index_row(row)


def put_run(
    backend: Backend, rows: Mapping[bytes, bytes], first: int, last: int, *, files: int = 1, level: int = 0
) -> Run:
    """Write `rows` as a run of about so many files."""
    keys = sorted(rows)
    size = -(-len(keys) // files) or 1
    refs = []
    for at in range(0, len(keys), size):
        builder = SectionBuilder(new_id(), SEED)
        builder.add(keys[at : at + size], [rows[key] for key in keys[at : at + size]])
        refs.append(put_file(backend, *builder.finish()))
    return Run(first, last, level, tuple(refs))


def put_file(backend: Backend, data: bytes, file: RunFile) -> RunFile:
    return file.stored(backend.put(PARTITION, run_key(file.id), data, ABSENT))


def runs_of(backend: Backend, manifest: Manifest, cache: BlockCache | None = None) -> Runs:
    return Runs(backend, PARTITION, SEED, manifest, cache or BlockCache())


def many_rows(chance: random.Random, segments: int, numbers: Iterable[int], next_sequence: dict[str, int]) -> Rows:
    """Rows as upkeep makes them: one data row a transaction, the segment's row, a key now and then."""
    rows: Rows = {}
    for number in numbers:
        segment = f"segment-{chance.randrange(segments)}"
        first = next_sequence.get(segment, 1)
        next_sequence[segment] = first + 1
        rows.update([data_row(segment, number, first), segment_row(segment, number, first)])
        if number % 5 == 0:
            rows.update([key_row(number.to_bytes(16), number)])
    return rows
