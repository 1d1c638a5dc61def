"""Erasing from storage: records, packs and runs that hold erased entries are rewritten without them.

A stopped erasure is repeated; it skips files that are clean already. At the end the head records that it is done.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import ne
from os import urandom

from msgspec.structs import replace

from ..backend import Ambiguous, Conflict, Range, Value
from ..errors import CorruptData, Unavailable, UnsupportedVersion
from ..index.head_change import scrub
from ..index.run_format import decode_inline, encode_inline, renew_section
from ..index.sweep import sweep
from ..index.upkeep import encode, index_all, move_head, store_file, timestamp_of
from ..log.erased import put_erasures
from ..log.inbox_cleanup import clear_inbox
from ..log.index_rows import decode_index_row, encode_index_row
from ..log.keys import run_key
from ..log.manifest import Manifest, Run, RunFile, RunGone
from ..log.pack_format import PackBuilder, read_table
from ..log.packs import PackFile, Packs, TableCache, in_pack
from ..log.partition import Partition
from ..log.ranges import read_ranges
from ..log.record_format import without_entries, without_frames
from ..log.rows import DataRow, Head, Piece
from ..retry import attempts
from .ranges import Ranges
from .report import Rewritten
from .stored import stored_in

__all__ = ["CleanCopies", "clean_partition", "clear_leftovers", "scrubbed"]

_TOGETHER = 64
"""Records that are read at once."""


CleanCopies = Callable[[Partition, Ranges], Rewritten]
"""Erases the ranges from the archive, from snapshots and from published views."""


def clean_partition(partition: Partition, clean_copies: CleanCopies) -> Rewritten:
    """Remove erased entries from log, packs, index and archive. The caller holds the archiver's lease."""
    done = Rewritten()
    for _ in attempts(partition.clock):
        index_all(partition)
        head = partition.head
        if not head.erasing:
            return done
        put_erasures(partition, head.erasing)
        ranges = Ranges(head.erasing)
        try:
            numbers = stored_in(partition, head, ranges)
            done = done.plus(Rewritten(records=_clean_log(partition, numbers, ranges)))
            made: list[bytes] = []
            after, changed = _clean_files(partition, head, numbers, ranges, made, frozenset())
        except RunGone:
            partition.read_head()
            continue
        if after != head and not move_head(partition, head, after, made):
            continue
        done = done.plus(changed).plus(clean_copies(partition, ranges))
        clear_inbox(partition, ranges.has_segment)
        done = done.plus(clear_leftovers(partition))
        if done.unfinished:
            return done
        for _ in attempts(partition.clock):
            partition.read_head()
            head = partition.head
            left = tuple(erasure for erasure in head.erasing if erasure.number > after.watermark)
            if left == head.erasing or move_head(
                partition, head, replace(head, erasing=left, erased=head.watermark), []
            ):
                break
        scrub(partition)
    raise Unavailable(f"space {partition.space!r}: other processes write the head all the time; erase again later")


def clear_leftovers(partition: Partition) -> Rewritten:
    """Remove unreferenced bytes: parts of files, files of stopped upkeeps, and deleted rows whose bytes are still on
    disk."""
    done = _drop_dead_parts(partition)
    for _ in attempts(partition.clock):
        if sweep(partition) is not None:
            break
    else:
        raise Unavailable(f"space {partition.space!r}: other processes write the head all the time; erase again later")
    return done.plus(scrubbed(partition))


def scrubbed(partition: Partition) -> Rewritten:
    """Remove the bytes of deleted rows, and name the place if some may be left."""
    unreached = scrub(partition)
    return Rewritten(unreached=(unreached,) if unreached else ())


def _drop_dead_parts(partition: Partition) -> Rewritten:
    for _ in attempts(partition.clock):
        partition.read_head()
        head = partition.head
        made: list[bytes] = []
        try:
            dead = _with_dead_parts(partition, head)
            if not dead:
                return Rewritten()
            after, changed = _clean_files(partition, head, (), Ranges(()), made, dead)
        except RunGone:
            continue
        if move_head(partition, head, after, made):
            return changed
    raise Unavailable(f"space {partition.space!r}: other processes write the head all the time; erase again later")


def _with_dead_parts(partition: Partition, head: Head) -> set[bytes]:
    """The files that the head names, with bytes in them that it does not name.

    An upkeep puts a run and a pack into one file. A later one merges either of them into another file, and the bytes
    stay for as long as the rest of the file is needed.
    """
    parts: dict[bytes, list[RunFile | PackFile]] = {}
    named: set[RunFile | PackFile] = {*head.manifest.files(), *head.packs}
    for part in named:
        parts.setdefault(part.id, []).append(part)
    ends = {id: max(part.start + part.length for part in those) for id, those in parts.items()}
    dead = {id for id, those in parts.items() if sum(part.length for part in those) < ends[id]}
    full = [id for id in parts if id not in dead]
    # The last byte that is named, and the one behind it if there is one.
    tails = [Range(run_key(id), ends[id] - 1, 2, parts[id][0].etag or None) for id in full]
    found = read_ranges(partition.backend, partition.key, tails) if tails else []
    return dead | {id for id, tail in zip(full, found, strict=True) if len(tail) > 1}


def _clean_log(partition: Partition, numbers: Sequence[int], ranges: Ranges) -> int:
    """Rewrite the transactions that are rows of their own, and return their count."""
    backend, count = partition.backend, 0
    for at in range(0, len(numbers), _TOGETHER):
        keys = [partition.transaction_key(number) for number in numbers[at : at + _TOGETHER]]
        for key, value in zip(keys, backend.get(partition.key, keys), strict=True):
            if value is not None and _rewrite_row(partition, key, value, ranges):
                count += 1
    return count


def _rewrite_row(partition: Partition, key: bytes, value: Value, ranges: Ranges) -> bool:
    """Rewrite a transaction's row without the erased entries. False if it held none."""
    backend, found = partition.backend, value
    for tried in attempts(partition.clock):
        record = without_frames(found.data, partition.seed, ranges.reason)
        if record is None:
            return tried > 0
        try:
            backend.put(partition.key, key, record, found.etag)
        except (Conflict, Ambiguous):
            # Another process does the same, or removed the row, or the answer was lost: the row itself tells.
            again = backend.get(partition.key, [key])[0]
            if again is None:
                return True
            found = again
        else:
            return True
    raise Unavailable(f"space {partition.space!r}: other processes write a row all the time; erase again later")


def _clean_files(
    partition: Partition,
    head: Head,
    numbers: Sequence[int],
    ranges: Ranges,
    made: list[bytes],
    dead: Collection[bytes],
) -> tuple[Head, Rewritten]:
    """`head` with files that hold nothing that is erased, and how many are new. A file has a run, or packed
    transactions, or both. The files `dead` are replaced in any case."""
    manifest, packed = head.manifest, partition.open_packs(head)
    inside = {pack.id: _within(numbers, pack) for pack in head.packs}
    bad = {*dead, *(pack.id for pack in head.packs if any(map(packed.holds, inside[pack.id])))}
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
        records = [
            (number, without_frames(record, partition.seed, ranges.reason) or record) for number, record in known.all()
        ]
        pack = encode(partition, first, head.watermark, records).data

    def renewed(files: tuple[RunFile, ...]) -> tuple[RunFile, ...]:
        return tuple(new_runs.get((file.id, file.start), file) for file in files)

    after = replace(
        manifest,
        inline=inline,
        runs=tuple(replace(run, files=renewed(run.files)) for run in manifest.runs),
        merges=tuple(replace(merge, files=renewed(merge.files)) for merge in manifest.merges),
    )
    changed = Rewritten(packs=sum(map(ne, packs, head.packs)), runs=len(new_runs))
    return replace(head, manifest=after, packs=packs, pack=pack), changed


def _within(numbers: Sequence[int], pack: PackFile) -> Sequence[int]:
    """The part of `numbers` that a pack covers."""
    return numbers[bisect_left(numbers, pack.first) : bisect_right(numbers, pack.last)]


def _may_hold(partition: Partition, file: RunFile, ranges: Ranges) -> bool:
    """True if this run alone has rows of erased entries."""
    manifest = Manifest(runs=(Run(1, 1, 0, (file,)),))
    index = partition.open_index(Head(partition.settings, manifest=manifest))
    for start, end, segment in ranges.spans_in(file.first_key, file.last_key):
        if next(iter(index.scan(start, end, segment.encode())), None) is not None:
            return True
    return False


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
    """A pack in which the transactions `numbers` have lost their erased entries; its other blocks are copied."""
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
