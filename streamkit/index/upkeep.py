"""Upkeep: brings index and packs forward to the log, and merges them when they have become many.

It may run in several processes at the same time and may stop anywhere: files are immutable, the head names them, and it
is moved by compare-and-set. `sweep` removes the files of an upkeep that lost or was stopped.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from os import urandom
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from .. import speed
from ..backend import ABSENT, Etag, Range
from ..errors import CorruptData, Unavailable, UnsupportedVersion
from ..log.inbox_cleanup import clear_inbox
from ..log.index_rows import encode_index_row
from ..log.keys import DATA_START, data_key, fence_key, idempotency_key, run_key, segment_key
from ..log.manifest import Merge, Run, RunGone
from ..log.pack_format import EncodedPack, PackBuilder, encode_pack, read_table
from ..log.packs import PackFile, Packs, TableCache, in_pack
from ..log.partition import Partition
from ..log.ranges import read_ranges
from ..log.rows import DataRow, FenceRow, Head, KeyRow, Piece, SegmentRow
from ..log.watermarks import Watermarks, reached, with_watermark
from ..retry import attempts, delete_all, delete_rows, put_settled
from .compaction import Expiry, Rules
from .cursor import Chunk
from .head_change import put_head, remove_made
from .merge import FANOUT, after_inline, joined, merge_inline, merge_step, next_merge
from .run_format import SectionBuilder, decode_inline, encode_inline
from .runs import Runs
from .sweep import sweep

__all__ = [
    "bring_forward",
    "encode",
    "file_pack",
    "forgotten_up_to",
    "gone_up_to",
    "index_all",
    "index_rows",
    "merge_all_with",
    "merge_some",
    "move_head",
    "records_in",
    "store_file",
    "timestamp_of",
    "write_files",
]

_SLICE = 512
"""Segments whose rows are made at once: those of a long tail would need as much memory as the tail itself."""
_PIECES = 256
"""The most pieces in one data row."""
_PIECE_BYTES = 48
_ROW_BYTES = 8 << 10
"""A data row is filled up to about so many bytes."""
_SHRINKS = 8
"""Rows and records are never smaller than by so much when they are compressed: then they need not be tried."""
_CLEAR = 1000
"""Rows that are removed by one call."""
_PACK = 64 << 10
"""Bytes of a small pack."""
_WHOLE = 1.25
"""Runs are rewritten as one if together they have this many times the bytes of the largest one."""
_CACHED = 1 << 20
"""Runs with fewer bytes together are not rewritten: the cache keeps every block of them that is read often."""
_RUNS_A_STEP = 2
_MORE_STEPS = 3
"""An upkeep takes one more step of a merge for each 2 runs, and at most 3 more. It writes up to 8 MiB in each."""
_LARGE = 16 << 10
"""A record of at least so many bytes may stay out of a pack where a row itself costs nothing. The log then keeps it."""
_MOSTLY = 4
"""Such records stay out of a pack if they have more than this many times the bytes of the other records."""

_Name = TypeVar("_Name", str, bytes)
_twin: Any = speed.twin


class _Tail(msgspec.Struct, frozen=True):
    """The transactions that are to be indexed."""

    rows: Iterable[Chunk]
    first: int
    """The first transaction that is not indexed."""
    records: dict[int, bytes]


def index_all(partition: Partition, *, look: bool = True) -> None:
    """Bring index and packs up to the end of the log; without `look`, up to the end that is known."""
    for attempt in attempts(partition.clock):
        if look or attempt:
            partition.refresh()
            partition.read_head()
        if bring_forward(partition):
            return
    raise Unavailable(f"space {partition.space!r}: others bring its index forward all the time; try again later")


def bring_forward(partition: Partition) -> bool:
    """Index and pack every known transaction that is not indexed yet, and merge a bounded part of the due merges.

    If calls are network requests, it merges only if it has done nothing else, because no caller should wait for both.
    Call `merge_some` in between then. False if another process did the work meanwhile; that is enough.
    """
    work = partition.unindexed()
    head, etag, after = work.head, work.etag, work.after
    if work.first > after.watermark:
        return True
    tail = _Tail(index_rows(work.pieces, work.statuses, work.keys, work.fences), work.first, work.records)
    asked = work.asked
    del work  # a merge needs the room
    if etag is None:
        partition.check_space()  # no precondition tells this space from a later one of its name
    made: list[bytes] = []
    cleared = head.cleared
    try:
        if not partition.remote:
            cleared = clear_log(partition, head)
        after = _seen(partition, replace(after, cleared=cleared, packed=_marked(partition, head, cleared)))
        extended = _extended(partition, after, tail, made)
        del tail
        if not partition.remote:
            extended = _merged_in_steps(partition, extended, made)
        elif not (made or asked):
            extended = _merged(partition, extended, made)
    except RunGone as error:
        return _overtaken(partition, head, etag, made, error)
    return _move(partition, head, etag, extended, made)


def merge_some(partition: Partition, rules: Rules | None = None) -> bool:
    """Do a bounded step of a merge, if one is due. False if another process did it. `rules` replace the usual ones."""
    head, etag = partition.known_head()
    made: list[bytes] = []
    try:
        after = _merged(partition, head, made, rules)
    except RunGone as error:
        return _overtaken(partition, head, etag, made, error)
    return etag is None or after == head or _move(partition, head, etag, after, made)


def _overtaken(partition: Partition, head: Head, etag: Etag | None, made: Sequence[bytes], error: RunGone) -> bool:
    """Handle a missing file of the head with this etag: False if another process was faster; else the file is lost."""
    partition.read_head()
    if partition.known_head()[1] == etag:
        raise error
    remove_made(partition, head, made)
    return False


def maintain(partition: Partition) -> None:
    """Do all due work: index and pack the whole log, merge, and remove."""
    partition.read_head()
    _file_inline(partition)
    _merge_all(partition)
    trim_log(partition)
    purge(partition)
    _merge_whole(partition)
    head, etag = partition.known_head()
    if etag is None:
        return
    try:
        cleared = clear_log(partition, head)
    except RunGone as error:
        _overtaken(partition, head, etag, (), error)
    else:
        after = replace(head, cleared=cleared, packed=_marked(partition, head, cleared))
        if after != head:
            _move(partition, head, etag, after, ())
    sweep(partition)
    clear_inbox(partition)


def trim_log(partition: Partition) -> None:
    """Remove trimmed transactions, below the head's floor: packs at once, and rows of the log as soon as no writer can
    be late."""
    _drop_packs(partition)
    head, etag = partition.known_head()
    last = min(head.floor.number - 1, head.watermark)
    if partition.remote:
        last = min(last, _over(partition, head))
    if etag is None or last <= head.trimmed:
        return
    # Most rows of packed transactions were removed. All later rows exist.
    start, end = (partition.transaction_key(number) for number in (head.trimmed + 1, min(last, head.cleared) + 1))
    keys = [row.key for row in partition.backend.scan(partition.key, start, end, values=False)] if start < end else []
    keys += [partition.transaction_key(number) for number in range(max(head.trimmed, head.cleared) + 1, last + 1)]
    delete_all(partition.backend, partition.key, keys)
    head, etag = partition.known_head()
    if head.trimmed < last:
        _move(partition, head, etag, replace(head, trimmed=last, cleared=max(head.cleared, last)), ())


def _drop_packs(partition: Partition) -> None:
    """Forget the packs below the floor, and rewrite a pack that holds little else."""
    head, etag = partition.known_head()
    floor = head.floor.number
    first = next((at for at, file in enumerate(head.packs) if file.last >= floor), len(head.packs))
    packs, made = head.packs[first:], list[bytes]()
    try:
        if packs and packs[0].first < floor and floor - packs[0].first > packs[0].last - floor:
            packs = _packs_merged(partition, replace(head, packs=packs), packs[:1], made).packs
    except RunGone as error:
        _overtaken(partition, head, etag, made, error)
        return
    if packs != head.packs and etag is not None:
        _move(partition, head, etag, replace(head, packs=packs), made)


def _file_inline(partition: Partition) -> None:
    """Write the head's own pack to a file, if some of its transactions are to leave the log."""
    head, etag = partition.known_head()
    if etag is not None and head.pack and _over(partition, head) > _filed(head):
        file_pack(partition)


def file_pack(partition: Partition) -> bool:
    """Write the head's own pack to a file. False if another process has changed the head."""
    head, etag = partition.known_head()
    made: list[bytes] = []
    nothing = _Tail((), head.watermark + 1, {})
    if etag is None or not head.pack:
        return True
    return _move(partition, head, etag, _extended(partition, head, nothing, made, inline=False), made)


def _merge_all(partition: Partition) -> None:
    """Bring index and packs forward, and merge until nothing is due."""
    while True:
        bring_forward(partition)
        head, etag = partition.known_head()
        if etag is None or not _is_due(partition, head):
            return
        merge_some(partition)


def _merge_whole(partition: Partition) -> None:
    """Make one run of all, where runs are asked one after the other, if the largest has not nearly all rows."""
    sizes = [run.size for run in partition.known_head()[0].manifest.runs]
    if not partition.remote and sum(sizes) >= max(_CACHED, max(sizes, default=0) * _WHOLE):
        merge_all_with(partition)


def _is_due(partition: Partition, head: Head) -> bool:
    """True if packs or runs are due to be merged."""
    return bool(packs_to_merge(head.packs, partition.policy.merge) or _due_merge(partition, head))


def _due_merge(partition: Partition, head: Head) -> Merge | None:
    policy = partition.policy
    return next_merge(head.manifest, policy.fanout, policy.runs, policy.share)


def purge(partition: Partition) -> None:
    """Rewrite the index without the rows of removed transactions."""
    partition.read_head()
    head, etag = partition.known_head()
    gone = gone_up_to(head)
    if etag is None or head.purged >= gone:
        return
    if merge_all_with(partition, Expiry(gone, head.forgotten).__call__):
        head, etag = partition.known_head()
        if etag is not None:
            _move(partition, head, etag, replace(head, purged=gone), ())


def merge_all_with(partition: Partition, rules: Rules | None = None) -> bool:
    """Rewrite the whole index; `rules` replace the usual ones of a merge. False if another process did it."""
    head, etag = partition.known_head()
    manifest = head.manifest
    if etag is None:
        return False
    if manifest.inline and rules is not None:
        keys, values = merge_inline(decode_inline(manifest.inline, partition.seed), {}, rules)
        inline = encode_inline(keys, values, partition.seed)
        manifest = manifest.with_inline(inline, manifest.inline_first, manifest.inline_last)
    if manifest.runs:
        manifest = replace(manifest, merges=(Merge(manifest.runs[-1].first, manifest.runs[0].last),))
    if not _move(partition, head, etag, replace(head, manifest=manifest), ()):
        return False
    while True:
        head, etag = partition.known_head()
        if etag is None or not _is_due(partition, head):
            return etag is not None
        merge_some(partition, rules)


def _merged(partition: Partition, head: Head, made: list[bytes], rules: Rules | None = None) -> Head:
    """`head` after a step of a merge of runs or packs, if one is due. The index is that of the head before."""
    policy = partition.policy
    group = packs_to_merge(head.packs, policy.merge)
    if group:
        return _packs_merged(partition, head, group, made)
    merge = _due_merge(partition, head)
    if merge is not None:
        id = urandom(16)
        index = partition.open_index(head)
        assert isinstance(index, Runs)
        forgotten = forgotten_up_to(partition, head)
        own = rules or Expiry(gone_up_to(head), forgotten)
        step = merge_step(index, merge, policy.merge, id, partition.seed, own)
        etag = ""
        if step.data is not None:
            made.append(id)
            etag = store_file(partition, id, step.data)
        manifest = step.apply(head.manifest, etag)
        assert manifest is not None  # it is the step's own
        return replace(head, manifest=manifest, forgotten=forgotten)
    return head


def _merged_in_steps(partition: Partition, head: Head, made: list[bytes]) -> Head:
    """Merge as `_merged` does, in more steps if there are many runs, because every reader searches each run."""
    for _ in range(1 + min(len(head.manifest.runs) // _RUNS_A_STEP, _MORE_STEPS)):
        after = _merged(partition, head, made)
        if after is head:
            break
        head = after
    return head


def _packs_merged(partition: Partition, head: Head, group: Sequence[PackFile], made: list[bytes]) -> Head:
    floor, last = head.floor.number, group[-1].last
    first, at = max(group[0].first, floor), head.packs.index(group[0])
    pack = _joined(partition, first, last, group) if first <= last else None
    if pack is None or not pack.records:
        return replace(head, packs=(*head.packs[:at], *head.packs[at + len(group) :]))
    id = urandom(16)
    made.append(id)
    etag = store_file(partition, id, pack.data)
    merged = PackFile(id, etag, 0, len(pack.data), pack.table, first, last, pack.timestamp)
    return replace(head, packs=(*head.packs[:at], merged, *head.packs[at + len(group) :]))


def _joined(partition: Partition, first: int, last: int, group: Sequence[PackFile]) -> EncodedPack:
    """One pack with the transactions first..last that `group` holds."""
    builder = PackBuilder(first, last, partial(timestamp_of, partition), partition.seed)
    for file, data in zip(group, _read_packs(partition, group), strict=True):
        try:
            builder.add_pack(read_table(data[-file.tail :], partition.seed), data, first)
        except (CorruptData, UnsupportedVersion) as error:
            raise in_pack(file, error) from error
    return builder.finish()


def _read_packs(partition: Partition, packs: Sequence[PackFile]) -> list[bytes]:
    ranges = [Range(run_key(pack.id), pack.start, pack.length, pack.etag or None) for pack in packs]
    return read_ranges(partition.backend, partition.key, ranges)


def timestamp_of(partition: Partition, number: int, record: bytes) -> int:
    """The time at which a record was written, in ms."""
    return partition.decode_header(record, number).timestamp


def records_in(partition: Partition, packs: Sequence[PackFile]) -> Iterator[tuple[int, bytes]]:
    """Yield (number, record) of all that is in `packs`, which are read as a whole, in one call."""
    backend, key, seed = partition.backend, partition.key, partition.seed
    for file, data in zip(packs, _read_packs(partition, packs), strict=True):
        try:
            yield from Packs(backend, key, seed, (), data, TableCache()).all()
        except (CorruptData, UnsupportedVersion) as error:
            raise in_pack(file, error) from error


def packs_to_merge(packs: Sequence[PackFile], most: int) -> Sequence[PackFile]:
    """Neighbouring packs of one size that are to become one pack of at most `most` bytes. The number is that of
    runs."""
    after, size = len(packs), _PACK
    while size < most:
        begin, limit = after, min(size * FANOUT, most // 2)  # with one that is larger hardly another fits
        while begin and packs[begin - 1].length < limit:
            begin -= 1
        if after - begin >= FANOUT:
            group = packs[begin:after]
            while sum(pack.length for pack in group) > most:
                group = group[:-1]
            if len(group) > 1:
                return group
        size *= FANOUT
    return ()


def forgotten_up_to(partition: Partition, head: Head) -> int:
    """The last transaction whose idempotency keys are past their window, by the service's clock."""
    now = partition.freshness.now()
    if now is None:
        return head.forgotten
    return max(head.forgotten, reached(head.seen, now - head.idempotency_window - partition.freshness.margin))


def _move(partition: Partition, head: Head, etag: Etag | None, after: Head, made: Sequence[bytes]) -> bool:
    """Replace `head` by `after`. False if another process was faster: then the files that were `made` go."""
    if not put_head(partition, head, etag, after, made):
        return False
    partition.counters["upkeeps"] += 1
    return True


def move_head(partition: Partition, head: Head, after: Head, made: Sequence[bytes]) -> bool:
    """Replace the partition's `head` by `after`. False if the partition has another head by now; the files that were
    `made` are then removed."""
    known, etag = partition.known_head()
    if known is head and etag is not None:
        return _move(partition, head, etag, after, made)
    remove_made(partition, head, made)
    return False


def gone_up_to(head: Head) -> int:
    """The index needs no rows of entries up to this number."""
    return max(head.released, head.floor.number - 1)


def clear_log(partition: Partition, head: Head) -> int:
    """Remove from the log the rows of transactions that were packed before the grace. Returns the last one's number,
    which a later head is to name."""
    limit = _cleared(partition, head)
    packs = partition.open_packs(head)
    numbers = [number for number in range(head.cleared + 1, limit + 1) if packs.holds(number)]
    for at in range(0, len(numbers), _CLEAR):
        keys = [partition.transaction_key(number) for number in numbers[at : at + _CLEAR]]
        delete_rows(partition.backend, partition.key, keys)
    return limit


def _cleared(partition: Partition, head: Head) -> int:
    """The last transaction up to which the log may be cleared, by the service's clock."""
    # Transactions of the head's own pack stay in the log as well: a damaged head must not be the only copy.
    return max(head.cleared, min(_over(partition, head), _filed(head)))


def _over(partition: Partition, head: Head) -> int:
    """The last transaction up to which all have been packed for longer than the grace."""
    now = partition.freshness.now()
    return 0 if now is None else reached(head.packed, now - partition.removal_grace - partition.freshness.margin)


def _filed(head: Head) -> int:
    """The last transaction up to which packs are in files."""
    return head.packs[-1].last if head.packs else 0


def _marked(partition: Partition, head: Head, cleared: int) -> Watermarks:
    """The marks of the head after `head`: the grace of the transactions that `head` says are packed runs from now on.

    The next head's packs do not count yet: its writer may be stopped before it lands, and readers of `head` then look
    for those transactions in the log.
    """
    now, number = partition.freshness.now(), head.watermark
    if now is None or number <= max([cleared, *(number for number, _ in head.packed)]):
        return head.packed
    return with_watermark([mark for mark in head.packed if mark[0] > cleared], number, now, partition.removal_grace)


def _seen(partition: Partition, head: Head) -> Head:
    """The head to write, with a watermark: the time at which its idempotency keys existed."""
    now = partition.freshness.now()
    if now is None:
        return head
    window = head.idempotency_window
    if window == float("inf") or (head.seen and head.watermark == head.seen[-1][0]):
        return head
    return replace(head, seen=with_watermark(head.seen, head.watermark, now, window))


# -- rows -----------------------------------------------------------------------------------------------------------


def index_rows(
    tail: Mapping[str, Sequence[Piece]],
    statuses: Mapping[str, SegmentRow],
    keys: Mapping[bytes, KeyRow],
    fences: Mapping[str, int],
) -> Iterator[Chunk]:
    """The rows of the index for `tail`, in order. `statuses`: the segments' statuses after it."""
    # Names are in the order of their keys, and the kinds of rows are in that of theirs.
    for some in _slices(tail):
        yield _data_rows(some, tail)
    for leases in _slices(fences):
        yield [*map(fence_key, leases)], [encode_index_row(FenceRow(fences[name])) for name in leases]
    for digests in _slices(keys):
        yield [*map(idempotency_key, digests)], [encode_index_row(keys[digest]) for digest in digests]
    for some in _slices(statuses):
        yield [*map(segment_key, some)], [encode_index_row(statuses[segment]) for segment in some]


def _slices(names: Iterable[_Name]) -> Iterator[list[_Name]]:
    """Slices of the names, in order."""
    ordered = sorted(names)
    return (ordered[at : at + _SLICE] for at in range(0, len(ordered), _SLICE))


def _data_rows(segments: list[str], tail: Mapping[str, Sequence[Piece]]) -> Chunk:
    """The rows that hold the pieces of `segments`, each of up to about `_ROW_BYTES`."""
    if _twin is not None and isinstance(tail, dict):
        rows: Chunk | None = _twin.data_rows(segments, tail, Piece, DATA_START, (_PIECE_BYTES, _ROW_BYTES, _PIECES))
        if rows is not None:
            return rows
    keys, values = [], []
    for segment in segments:
        pieces = tail[segment]
        ends = list(accumulate([_PIECE_BYTES + len(piece.frame or b"") for piece in pieces]))
        at = before = 0
        while at < len(ends):
            after = min(max(bisect_right(ends, before + _ROW_BYTES, at), at + 1), at + _PIECES)
            part = [*pieces[at:after]]
            keys.append(data_key(segment, part[-1].last_sequence))
            values.append(encode_index_row(DataRow(part)))
            at, before = after, ends[after - 1]
    return keys, values


# -- files ----------------------------------------------------------------------------------------------------------


def _extended(partition: Partition, head: Head, tail: _Tail, made: list[bytes], *, inline: bool = True) -> Head:
    """`head` with the transactions of `tail`: in the head itself if they are small and `inline`, else in a file."""
    seed, manifest = partition.seed, head.manifest
    first = manifest.inline_first or tail.first
    records = tail.records
    inline_block = decode_inline(manifest.inline, seed) if manifest.inline else None
    rows = after_inline(inline_block, tail.rows, Expiry(gone_up_to(head)).__call__)
    if head.pack:
        packs = partition.open_packs(replace(head, packs=()))
        records = {**dict(packs.all()), **records}  # a large transaction is in no pack: there are holes
    if not partition.remote:
        records = _worth_packing(records)
    pack = _pack_of(partition, first, head, records)
    most = _SHRINKS * partition.policy.inline if inline else 0
    begun, left = _begin(rows, most - sum(map(len, records.values())))
    if left >= 0:
        small = encode_inline(*joined(begun), seed)
        if len(small) + len(pack.data) <= partition.policy.inline:
            return replace(head, manifest=manifest.with_inline(small, first, head.watermark), pack=pack.data)
    run, packed = write_files(partition, chain(begun, rows), pack, made)
    files = (*head.packs, packed) if pack.records else head.packs
    return replace(head, manifest=manifest.with_run(run), packs=files, pack=b"")


def _pack_of(partition: Partition, first: int, head: Head, records: Mapping[int, bytes]) -> EncodedPack:
    """A pack of the transactions from `first` on, without those below the floor. The builder's parts are gone then."""
    numbers = sorted(records)
    numbers = numbers[bisect_left(numbers, head.floor.number) :]
    builder = PackBuilder(first, head.watermark, partial(timestamp_of, partition), partition.seed)
    builder.add_all(numbers, [*map(records.__getitem__, numbers)])
    return builder.finish()


def _begin(rows: Iterator[Chunk], room: int) -> tuple[list[Chunk], int]:
    """The first `rows`, to the end or until they do not fit `room`; and the bytes of room that are left."""
    begun: list[Chunk] = []
    while room >= 0 and (chunk := next(rows, None)) is not None:
        begun.append(chunk)
        room -= sum(map(len, chunk[0])) + sum(map(len, chunk[1]))
    return begun, room


def _worth_packing(records: dict[int, bytes]) -> dict[int, bytes]:
    """The records worth packing where a row itself costs nothing.

    Large records stay in the log alone if they are most of the bytes.
    """
    if max(map(len, records.values()), default=0) < _LARGE:
        return records
    small = {number: record for number, record in records.items() if len(record) < _LARGE}
    size = sum(map(len, small.values()))
    return small if sum(map(len, records.values())) - size > _MOSTLY * size else records


def encode(partition: Partition, first: int, last: int, records: Iterable[tuple[int, bytes]]) -> EncodedPack:
    """A pack of those of the partition's transactions first..last that are in `records`."""
    return encode_pack(first, last, records, partial(timestamp_of, partition), partition.seed)


def write_files(
    partition: Partition, rows: Iterable[Chunk], pack: EncodedPack, made: list[bytes]
) -> tuple[Run, PackFile]:
    """One file with both: the rows, in order, and the packed records of the same transactions."""
    id = urandom(16)
    builder = SectionBuilder(id, partition.seed)
    for keys, values in rows:
        builder.add(keys, values)
    data, file = builder.finish(pack.data) if builder.rows else (pack.data, None)
    made.append(id)
    etag = store_file(partition, id, data)
    at = len(data) - len(pack.data)
    packed = PackFile(id, etag, at, len(pack.data), pack.table, pack.first, pack.last, pack.timestamp)
    return Run(pack.first, pack.last, 0, (file.stored(etag),) if file is not None else ()), packed


def store_file(partition: Partition, id: bytes, data: bytes) -> Etag:
    """Write a file. No other call writes its key, so it may be sent twice. A late copy changes neither row nor etag.

    The head that names it is put afterwards, and that put makes both durable.
    """
    key, backend = run_key(id), partition.backend
    etag = put_settled(backend, partition.clock, partition.key, key, data, ABSENT, "try again", durable=False)
    if etag is None:
        raise Unavailable(
            f"space {partition.space!r}: a file of its index was removed as soon as it was written; try again"
        )
    return etag
