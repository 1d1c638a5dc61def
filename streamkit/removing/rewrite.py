"""Erasing from what is stored: records, packs and runs that hold erased entries are written anew without them.

Stopped anywhere, it is done again: what is written already is the same then. In the end the head says that it is done.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from os import urandom

from msgspec.structs import replace

from ..backend import Ambiguous, Conflict, Range, Scrubs
from ..errors import CorruptData, Unavailable, UnsupportedVersion
from ..index.run_format import decode_inline, encode_inline, renew_section
from ..index.sweep import sweep
from ..index.upkeep import bring_forward, encode, move_head, store_file, timestamp_of
from ..log.cleared_inbox import clear_inbox
from ..log.floors import Erasure
from ..log.index_rows import decode_index_row, encode_index_row
from ..log.keys import DATA, data_range, run_key
from ..log.manifest import Manifest, RunFile, RunGone
from ..log.pack_format import PackBuilder, read_table
from ..log.packs import PackFile, Packs, TableCache, in_pack
from ..log.partition import Partition
from ..log.ranges import read_ranges
from ..log.record_format import without_entries, without_frames
from ..log.rows import DataRow, Head, Piece

__all__ = ["Ranges", "clean_partition", "index_all"]

_TRIES = 1000
_TOGETHER = 64
"""Records that are read at once."""
_DATA_START, _DATA_END = map(bytes, DATA.children())


class Ranges:
    """The sequences of segments that are erased."""

    def __init__(self, erasures: Sequence[Erasure]) -> None:
        self.by_segment: dict[str, list[tuple[int, int]]] = {}
        for erasure in erasures:
            self.by_segment.setdefault(erasure.segment, []).append((erasure.first, erasure.last))
        for segment, ranges in self.by_segment.items():
            self.by_segment[segment] = _joined(ranges)
        self.spans = sorted((*data_range(segment, parts[0][0]), segment) for segment, parts in self.by_segment.items())
        """Of each segment from its first entry that is erased on: (first key, end) of its rows in the index, and its
        name. They do not overlap."""
        self._ends = [end for _, end, _ in self.spans]

    def spans_in(self, first_key: bytes, last_key: bytes) -> list[tuple[bytes, bytes, str]]:
        """Those of `spans` that some of the keys first_key..last_key may be in."""
        at = bisect_right(self._ends, first_key)
        return self.spans[at : bisect_right(self.spans, last_key, at, key=itemgetter(0))]

    def reason(self, segment: str, sequence: int) -> str:
        ranges = self.by_segment.get(segment, ())
        at = bisect_left(ranges, (sequence + 1, 0)) - 1 if ranges else -1
        return "erased" if at >= 0 and ranges[at][0] <= sequence <= ranges[at][1] else ""

    def holds(self, segment: str, first: int, last: int) -> bool:
        """Whether some of the sequences first..last are."""
        return any(low <= last and first <= high for low, high in self.by_segment.get(segment, ()))


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order and apart: two erasures at the same time may have said some of the same."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def index_all(partition: Partition) -> None:
    """Bring index and packs up to the end of the log."""
    for _ in range(_TRIES):
        partition.refresh()
        partition.read_head()
        if bring_forward(partition):
            return
    raise Unavailable(f"space {partition.space!r}: others bring its index forward all the time; try again later")


def clean_partition(partition: Partition, clean_archive: Callable[[Partition, Ranges], int]) -> tuple[int, int]:
    """Erase what the log says is erased from log, packs, index and archive: (rows, files) that were written anew.

    The caller holds the archiver's lease.
    """
    rows = files = 0
    for _ in range(_TRIES):
        index_all(partition)
        head = partition.head
        if not head.erasing:
            return rows, files
        ranges = Ranges(head.erasing)
        try:
            numbers = _numbers(partition, ranges)
            rows += _clean_log(partition, numbers, ranges)
            made: list[bytes] = []
            after = _clean_files(partition, head, numbers, ranges, made)
        except RunGone:
            partition.read_head()
            continue
        rows += len(made)
        if after != head and not move_head(partition, head, after, made):
            continue
        files += clean_archive(partition, ranges)
        sweep(partition)
        clear_inbox(partition, ranges.by_segment.keys())
        backend = partition.backend
        if isinstance(backend, Scrubs):
            backend.scrub(partition.key)
        for _ in range(_TRIES):
            partition.read_head()
            head = partition.head
            left = tuple(erasure for erasure in head.erasing if erasure.number > after.watermark)
            if left == head.erasing or move_head(
                partition, head, replace(head, erasing=left, erased=head.watermark), []
            ):
                break
        if isinstance(backend, Scrubs):
            backend.scrub(partition.key)
    raise Unavailable(f"space {partition.space!r}: the head is written to all the time; erase again later")


def _numbers(partition: Partition, ranges: Ranges) -> list[int]:
    """The transactions of the log that hold what is erased, as far as the index knows."""
    found: set[int] = set()
    for segment, parts in ranges.by_segment.items():
        for first, last in parts:
            found.update(piece.number for piece in _pieces(partition, segment, first, last))
    return sorted(found)


def _pieces(partition: Partition, segment: str, first: int, last: int) -> Iterator[Piece]:
    index = partition.index
    for key, data in index.scan(*data_range(segment, first), segment.encode()):
        for piece in decode_index_row(DataRow, key, data).pieces:
            if piece.first_sequence > last:
                return
            if piece.last_sequence >= first:
                yield piece


def _clean_log(partition: Partition, numbers: Sequence[int], ranges: Ranges) -> int:
    """Write the transactions anew that are rows of their own; how many."""
    backend, count = partition.backend, 0
    for at in range(0, len(numbers), _TOGETHER):
        keys = [partition.transaction_key(number) for number in numbers[at : at + _TOGETHER]]
        for key, value in zip(keys, backend.get(partition.key, keys), strict=True):
            if value is None:
                continue
            record = without_frames(value.data, partition.seed, ranges.reason)
            if record is None:
                continue
            try:
                backend.put(partition.key, key, record, value.etag)
            except (Conflict, Ambiguous):
                # Another one does the same, or it was removed; or nobody knows: then it is looked at again.
                again = backend.get(partition.key, [key])[0]
                if again is not None and without_frames(again.data, partition.seed, ranges.reason) is not None:
                    raise
            count += 1
    return count


def _clean_files(partition: Partition, head: Head, numbers: Sequence[int], ranges: Ranges, made: list[bytes]) -> Head:
    """`head` with files that hold nothing that is erased. A file has a run, or packed transactions, or both."""
    manifest, packed = head.manifest, partition.open_packs(head)
    inside = {pack.id: _within(numbers, pack) for pack in head.packs}
    bad = {pack.id for pack in head.packs if any(map(packed.holds, inside[pack.id]))}
    bad |= {file.id for file in manifest.files() if _may_hold(partition, file, ranges)}
    runs = {(file.id, file.start): file for file in manifest.files() if file.id in bad}
    new_runs = {place: _new_run(partition, file, ranges, made) for place, file in runs.items()}
    packs = tuple(
        _new_pack(partition, pack, inside[pack.id], ranges, made) if pack.id in bad else pack for pack in head.packs
    )
    inline, pack = manifest.inline, head.pack
    if inline:
        block = decode_inline(inline, partition.seed)
        keys, values = block.keys(0, block.rows), block.values(0, block.rows)
        inline = encode_inline(keys, _new_values(partition, ranges, keys, values), partition.seed)
    if pack:
        known = partition.open_packs(replace(head, packs=()))
        first = manifest.inline_first
        records = [(number, without_frames(one, partition.seed, ranges.reason) or one) for number, one in known.all()]
        pack = encode(partition, first, head.watermark, records).data

    def renewed(files: tuple[RunFile, ...]) -> tuple[RunFile, ...]:
        return tuple(new_runs.get((file.id, file.start), file) for file in files)

    after = replace(
        manifest,
        inline=inline,
        runs=tuple(replace(run, files=renewed(run.files)) for run in manifest.runs),
        merges=tuple(replace(merge, files=renewed(merge.files)) for merge in manifest.merges),
    )
    return replace(head, manifest=after, packs=packs, pack=pack)


def _within(numbers: Sequence[int], pack: PackFile) -> Sequence[int]:
    """Those of `numbers` that a pack covers."""
    return numbers[bisect_left(numbers, pack.first) : bisect_right(numbers, pack.last)]


def _may_hold(partition: Partition, file: RunFile, ranges: Ranges) -> bool:
    """Whether a run has rows of what is erased: it is asked alone."""
    manifest = Manifest(runs=(_alone(file),))
    index = partition.open_index(Head(partition.settings, manifest=manifest))
    for start, end, segment in ranges.spans_in(file.first_key, file.last_key):
        if next(iter(index.scan(start, end, segment.encode())), None) is not None:
            return True
    return False


def _alone(file: RunFile):  # type: ignore[no-untyped-def]
    from ..log.manifest import Run

    return Run(1, 1, 0, (file,))


def _new_run(partition: Partition, file: RunFile, ranges: Ranges, made: list[bytes]) -> RunFile:
    wanted = Range(run_key(file.id), file.start, file.length, file.etag or None)
    data = read_ranges(partition.backend, partition.key, [wanted])[0]
    id = urandom(16)
    spans = [(start, end) for start, end, _ in ranges.spans_in(file.first_key, file.last_key)]
    section, entry = renew_section(data, file, partition.seed, id, spans, partial(_new_values, partition, ranges))
    made.append(id)
    return entry.stored(store_file(partition, id, section))


def _new_values(partition: Partition, ranges: Ranges, keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
    """The values of rows, without the erased entries that they have copies of."""
    found = list(values)
    for start, end, segment in ranges.spans_in(keys[0], keys[-1]):
        for at in range(bisect_left(keys, start), bisect_left(keys, end)):
            pieces = decode_index_row(DataRow, keys[at], found[at]).pieces
            changed = [_new_piece(partition, segment, piece, ranges) for piece in pieces]
            if changed != pieces:
                found[at] = encode_index_row(DataRow(changed))
    return found


def _new_piece(partition: Partition, segment: str, piece: Piece, ranges: Ranges) -> Piece:
    if piece.frame is None or not ranges.holds(segment, piece.first_sequence, piece.last_sequence):
        return piece
    frame = without_entries(piece.frame, partition.seed, lambda sequence: ranges.reason(segment, sequence))
    return piece if frame is None else replace(piece, frame=frame)


def _new_pack(
    partition: Partition, pack: PackFile, numbers: Sequence[int], ranges: Ranges, made: list[bytes]
) -> PackFile:
    """A pack in which the transactions `numbers` are without what is erased; its other blocks are copied."""
    wanted = Range(run_key(pack.id), pack.start, pack.length, pack.etag or None)
    data = read_ranges(partition.backend, partition.key, [wanted])[0]
    builder = PackBuilder(pack.first, pack.last, partial(timestamp_of, partition), partition.seed)
    try:
        known = Packs(partition.backend, partition.key, partition.seed, (), data, TableCache())
        changed: dict[int, bytes] = {}
        for number, record in zip(numbers, known.get(numbers), strict=True):
            after = None if record is None else without_frames(record, partition.seed, ranges.reason)
            if after is not None:
                changed[number] = after
        builder.add_pack(read_table(data[-pack.tail :], partition.seed), data, changed=changed)
    except (CorruptData, UnsupportedVersion) as error:
        raise in_pack(pack, error) from error
    encoded = builder.finish()
    id = urandom(16)
    made.append(id)
    etag = store_file(partition, id, encoded.data)
    return PackFile(id, etag, 0, len(encoded.data), encoded.table, encoded.first, encoded.last, encoded.timestamp)
