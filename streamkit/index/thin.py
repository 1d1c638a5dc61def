"""Frees the storage of entries removed from segments: their pieces leave the index, their frames the packs.

This merges all runs, so it is done only when there is enough to free.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from os import urandom

from msgspec.structs import replace

from ..log.commit import Committer
from ..log.floors import Control, Removal
from ..log.index_rows import decode_index_row, encode_index_row
from ..log.keys import DATA_END, DATA_START, SEGMENTS, SEQUENCE_BYTES, segment_name
from ..log.manifest import RunGone
from ..log.partition import Partition
from ..log.record_format import without_entries, without_frames
from ..log.request import Request
from ..log.rows import DataRow, Piece, SegmentRow
from ..log.segment_view import archived_before, row_of
from ..log.segments import indexed_segments
from ..log.visible import floor_of, size_of_floor
from .compaction import Expiry
from .cursor import Chunk
from .upkeep import bring_forward, encode, gone_up_to, merge_all_with, move_head, records_in, store_file

__all__ = ["expire", "expire_floor", "thin"]

_AT_ONCE = 5000
"""The most segments from which one transaction removes entries."""
_SHARE = 10
"""Retention by segment removes expired entries from storage once at least one entry in this many has expired."""
_SEGMENTS, _SEGMENTS_END = map(bytes, SEGMENTS.children())


class _Floors:
    """Rules of a merge, after those of every merge: rows are as the floors of segments say."""

    def __init__(self, expiry: Expiry, rows: dict[str, SegmentRow], seed: int) -> None:
        self._expiry = expiry
        self._rows = rows
        self._seed = seed
        self.dropped: list[tuple[int, int]] = []
        """(transaction, bytes) of each piece that was dropped."""

    def __call__(self, keys: list[bytes], values: list[bytes], oldest: bool) -> Chunk:
        keys, values = self._expiry(keys, values, oldest)
        low, high = bisect_left(keys, DATA_START), bisect_left(keys, DATA_END)
        kept_keys, kept_values = keys[:low], values[:low]
        for key, value in zip(keys[low:high], values[low:high], strict=True):
            row = self._rows.get(key[len(DATA_START) : -SEQUENCE_BYTES - 1].decode())
            if row is not None:
                pieces = decode_index_row(DataRow, key, value).pieces
                first = row.first_sequence
                left = [self._above(piece, first) for piece in pieces if piece.last_sequence >= first]
                self.dropped += [(one.number, one.length) for one in pieces if one.last_sequence < row.first_sequence]
                if not left:
                    continue
                if left != pieces:
                    value = encode_index_row(DataRow(left))
            kept_keys.append(key)
            kept_values.append(value)
        keys, values = kept_keys + keys[high:], kept_values + values[high:]
        for at in range(bisect_left(keys, _SEGMENTS), bisect_left(keys, _SEGMENTS_END)):
            row = self._rows.get(segment_name(keys[at]))
            stored = decode_index_row(SegmentRow, keys[at], values[at])
            if row is not None and row.first_sequence > stored.first_sequence:
                last = min(row.first_sequence - 1, stored.last_sequence)
                place = (row.first_timestamp, row.first_number, row.first_size) if not row.empty else (0, 0, row.size)
                reason = row.gaps[-1][1] if row.gaps else "trimmed"
                values[at] = encode_index_row(stored.without(Removal(keys[at].decode(), last, reason, *place)))
        return keys, values

    def _above(self, piece: Piece, first: int) -> Piece:
        """The piece without the entries before `first` in its copy of the frame: the packs lose them, too, and an
        erasure by metadata searches these."""
        if piece.frame is None or piece.first_sequence >= first:
            return piece
        frame = without_entries(piece.frame, self._seed, lambda sequence: "trimmed" if sequence < first else "")
        return piece if frame is None else replace(piece, frame=frame)


def thin(partition: Partition) -> None:
    """Remove entries below the floors of segments from index and packs, if that is due."""
    rows = _due(partition)
    if not rows:
        return
    head = partition.head
    thinned = head.thinned
    rules = _Floors(Expiry(gone_up_to(head), head.forgotten), rows, partition.seed)
    if not merge_all_with(partition, rules):
        return  # another process is at it
    _thin_packs(partition, rules, rows)
    head = partition.head
    if thinned > head.thin:
        move_head(partition, head, replace(head, thin=thinned), [])


def _due(partition: Partition) -> dict[str, SegmentRow]:
    """The segments that do not begin with their first entry any more, if one has been removed since the last time."""
    if partition.head.thinned <= partition.head.thin:
        return {}
    return {name: row for name, row in indexed_segments(partition) if row.first_sequence > 1}


def expire_floor(committer: Committer) -> None:
    """Write to the log which first transactions a retention has dropped, before the storage loses them.

    If the head is lost, only this tells them from damage. And a wider retention later does not bring them back."""
    partition = committer.partition
    floor = partition.ask(floor_of)
    if floor.position > partition.floor.position:
        floor = replace(floor, size=partition.ask(size_of_floor, floor))
        committer.commit(Request((), control=Control(floor=floor)))


def expire(committer: Committer, least: float = 1 / _SHARE) -> None:
    """Write to the log the entries that a retention by segment has dropped, if they are more than this share of all
    entries: the storage loses them, and a wider retention later does not bring them back."""
    partition = committer.partition
    retention = partition.retention
    if retention is None or retention.per != "segment" or retention.when_full == "reject":
        return
    if not (retention.max_entries or retention.max_bytes):
        return
    rows: dict[str, SegmentRow] = {}
    expired = entries = 0
    for name, stored in indexed_segments(partition):
        row = partition.ask(row_of, name)
        entries += stored.last_sequence
        if not row.empty and row.first_sequence > stored.first_sequence and row.gaps:
            rows[name] = row
            expired += row.first_sequence - stored.first_sequence
    if expired <= least * entries:
        return
    removals: list[Removal] = []
    for name, row in rows.items():
        last, reason = row.gaps[-1]
        size = row.first_size
        if row.first_number <= partition.head.archived:
            size = partition.ask(archived_before, name, row.first_sequence)
        removals.append(Removal(name, last, reason, row.first_timestamp, row.first_number, size))
    for at in range(0, len(removals), _AT_ONCE):
        committer.commit(Request((), control=Control(tuple(removals[at : at + _AT_ONCE]))))
    if removals:
        bring_forward(partition)  # where another process is faster, it is removed from storage the next time


def _thin_packs(partition: Partition, rules: _Floors, rows: dict[str, SegmentRow]) -> None:
    """Rewrite the packs that hold little else than dropped entries."""
    head = partition.head
    dead = dict.fromkeys((pack.id for pack in head.packs), 0)
    for number, length in rules.dropped:
        at = bisect_left(head.packs, number, key=attrgetter("last"))
        if at < len(head.packs):
            dead[head.packs[at].id] += length

    def gone(segment: str, sequence: int) -> str:
        row = rows.get(segment)
        return "trimmed" if row is not None and sequence < row.first_sequence else ""

    made: list[bytes] = []
    packs = list(head.packs)
    try:
        for at, pack in enumerate(packs):
            if dead[pack.id] * 2 < pack.length:
                continue
            records = records_in(partition, [pack])
            changed = ((number, without_frames(one, partition.seed, gone) or one) for number, one in records)
            encoded = encode(partition, pack.first, pack.last, changed)
            id = urandom(16)
            made.append(id)
            etag = store_file(partition, id, encoded.data)
            packs[at] = replace(pack, id=id, etag=etag, start=0, length=len(encoded.data), tail=encoded.table)
    except RunGone:
        partition.read_head()
    if made:
        move_head(partition, head, replace(head, packs=tuple(packs)), made)
