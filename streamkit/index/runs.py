"""The index of one partition as of one manifest: looking rows up, and walking through them in order.

A row's newest version is in the inline run or in the newest run that has its key. All runs are asked at once: one call
to the backend for the tails that are not cached, one for the blocks that filters and sparse indexes leave.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from .. import speed
from ..backend import Backend, OpenedRow, OpensRows, Range
from ..errors import CorruptData
from ..log.damaged_file import in_index
from ..log.keys import DATA_END, DATA_START, SEGMENTS, SEQUENCE_BYTES, data_range, run_key, segment_key
from ..log.manifest import Manifest, Run, RunFile
from ..log.ranges import read_ranges
from .block_cache import BlockCache
from .cursor import Chunk, Cursor, Place, merge_cursors, merge_with_stored
from .run_format import Block, RunTail, Stored, decode_block, decode_inline, decode_tail
from .subject_filter import PREFIXES, hash_of, mask_of, passing, subject_of

__all__ = ["Runs", "Starved"]

_FIRST_AHEAD = 16 << 10
_FIRST_AHEAD_REMOTE = 64 << 10
_ROUND = 4 << 20
"""About the most bytes that one call to the backend brings."""
_TOGETHER = 1024
"""Keys that are looked up at once."""
_NEAR = 8
"""Blocks of a run that are read one by one, without looking ahead."""
_FEW = 8
"""Statuses that are looked for in two places at once."""
_STATUSES, _STATUSES_END = SEGMENTS.children()
_JOINED = 1 << 20
"""The most bytes of neighbouring blocks that are one range."""
_MANY = 32
"""The number of keys that are looked for together on a disk, one run after the other."""
_ID = 16
"""Bytes of a file's id."""
_END = b"\xff" * 301
"""A key after every other key."""
_SPAN = 256 << 10
"""About the bytes of blocks that are held at once for many keys."""
_last_key = attrgetter("last_key")
_twin: Any = speed.twin


class _Part(NamedTuple):
    """The files of a run, or those that a merge has finished. They have the data rows of the segments whose first key
    is at least `low` and before `high`."""

    files: Sequence[RunFile]
    last_keys: Sequence[bytes]
    low: bytes
    high: bytes


class Starved(Exception):
    """The bytes that were read ahead are used up, and no further request may be made."""


class Runs:
    """Immutable, and cheap to make: nothing is read until it is asked for. Safe to share between threads.

    Every call raises RunGone if a run was replaced meanwhile (read the head again and start over), and CorruptData
    naming the run, or UnsupportedVersion.
    """

    def __init__(self, backend: Backend, partition: bytes, seed: int, manifest: Manifest, cache: BlockCache) -> None:
        self.manifest = manifest
        self._backend = backend
        self.partition = partition
        self._seed = seed
        self._cache = cache
        self.remote = backend.limits.remote
        self._held: dict[bytes, tuple[int, bytes]] = {}
        """Sections that were read as a whole, by their row's key, and where in the row they begin."""
        self._sealed = False
        """Nothing more is to be asked for."""
        self._inline: Block | None = None
        self._opened: Any = None
        """The compiled directory of the runs; False if there is none."""
        self._known_parts: list[_Part] = []
        self._rows_open: dict[bytes, OpenedRow] = {}
        """The open rows of files, by their ids."""
        self._opens = True
        """False if the backend opens no rows."""

    def __repr__(self) -> str:
        return f"<Runs {len(self.manifest.runs)} runs, {len(self.manifest.inline)} bytes inline>"

    @property
    def inline(self) -> Block | None:
        """The rows of the inline run."""
        if self._inline is None and self.manifest.inline:
            self._inline = decode_inline(self.manifest.inline, self._seed)
        return self._inline

    @property
    def _parts(self) -> list[_Part]:
        """The files in which a segment's data rows are looked for, the newest first."""
        if not self._known_parts:
            self._known_parts = _parts_of(self.manifest)
        return self._known_parts

    def has_files(self) -> bool:
        """See `Index.has_files`."""
        from .salvage import has_files

        return has_files(self._backend, self.partition, self._seed)

    def needed(self, segments: Sequence[str], load: bool = False) -> dict[bytes, Range]:
        """The ranges to read before the statuses of `segments` are looked up, by file id.

        With `load`: also the ranges to read before their data rows are looked up.
        """
        files: list[RunFile | None] = []
        for segment in segments:
            key = segment_key(segment)
            if not self._look_up(key, False)[0]:
                files += [_file_of(run.files, key) for run in self.manifest.runs]
            if load:
                start, end = data_range(segment, 1)
                files += [_first_in(run, start, end) for run in self.manifest.runs]
        return {
            file.id: _tail_range(file)
            for file in files
            if file is not None and self._cache.tail((self.partition, file.id, -1)) is None
        }

    @in_index
    def receive(self, id: bytes, data: bytes) -> None:
        """Take in the bytes of a range that `needed` has named."""
        for file in self.manifest.files():
            if file.id == id and len(data) == file.tail:
                self._cache.put_tail((self.partition, id, -1), decode_tail(data, file, self._seed))

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The newest row of each key, None where there is none."""
        if len(keys) >= _MANY and not self.remote:
            found = self._get_many(keys)
            return [found.get(key) for key in keys]
        values: list[bytes | None] = []
        pending: list[tuple[int, bytes]] = []
        reading = not self.remote
        for at, key in enumerate(keys):
            done, value = self._look_up(key, reading)
            values.append(value)
            if not done:
                pending.append((at, key))
        for low in range(0, len(pending), _TOGETHER):
            self._get_pending(pending[low : low + _TOGETHER], values)
        return values

    def _look_up(self, key: bytes, reading: bool) -> tuple[bool, bytes | None]:
        """Return (True, the row or None), or (False, None) if something must be read first. Most lookups end here.

        `reading`: it is read as the search comes to it, the newest run first; where a call is no request.
        """
        inline = self.inline
        if inline is not None:
            value = inline.get(key)
            if value is not None:
                return True, value
        hash = hash_of(subject_of(key))
        mask = mask_of(hash)
        cache, partition = self._cache, self.partition
        cached_tail, cached_block = cache.tail, cache.block
        for run in self.manifest.runs:
            files = run.files
            file = files[0]
            if len(files) > 1:
                at = bisect_left(files, key, key=_last_key)
                if at == len(files):
                    continue
                file = files[at]
            if not file.first_key <= key <= file.last_key:
                continue
            id = file.id
            tail = cached_tail((partition, id, -1))
            if tail is None:
                if not reading:
                    return False, None
                tail = self._tails((file,))[id]
            tail.used = True
            words = tail.words
            if words[hash % len(words)] & mask != mask:
                continue
            number = tail.block_of(key)
            block = cached_block((partition, id, number))
            if block is None:
                if not reading:
                    return False, None
                block = self._read_block(file, tail, number)
            block.used = True
            value = block.get(key)
            if value is not None:
                return True, value
        return True, None

    def _get_many(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The newest row of each key that has one: run by run, the newest first, and in the order of the keys, so that
        each block is decoded once."""
        left = sorted(set(keys))
        inline = self.inline
        values: dict[bytes, bytes] = {}
        if inline is not None:
            values.update((key, value) for key in left if (value := inline.get(key)) is not None)
            left = [key for key in left if key not in values]
        for run in self.manifest.runs:
            count = len(values)
            low = 0
            for file in run.files[bisect_left(run.files, left[0], key=_last_key) :] if left else ():
                low = bisect_left(left, file.first_key, low)
                high = bisect_right(left, file.last_key, low)
                if low < high:
                    self._find_in_file(file, left[low:high], values)
                low = high
            if len(values) > count:
                left = [key for key in left if key not in values]
        return values

    def _find_in_file(self, file: RunFile, wanted: list[bytes], found: dict[bytes, bytes]) -> None:
        """Add the rows of a file that are `wanted`, whose keys ascend."""
        tail = self._tails((file,))[file.id]
        keys = passing(wanted, tail.words)
        at = 0
        while at < len(keys):
            # The blocks of some keys, in one call.
            places: dict[int, list[bytes]] = {}
            room = 0
            while at < len(keys) and room < _SPAN:
                number = tail.block_of(keys[at])
                if number not in places:
                    places[number] = []
                    room += tail.offsets[number + 1] - tail.offsets[number]
                places[number].append(keys[at])
                at += 1
            blocks = self._blocks(Place(file, tail, number) for number in places)
            for number, some in places.items():
                block = blocks[file.id, number]
                for key in some:
                    value = block.get(key)
                    if value is not None:
                        found[key] = value

    def _get_pending(self, pending: Sequence[tuple[int, bytes]], values: list[bytes | None]) -> None:
        candidates = [
            (at, key, [file for run in self.manifest.runs if (file := _file_of(run.files, key)) is not None])
            for at, key in pending
        ]
        tails = self._tails(file for _, _, files in candidates for file in files)
        wanted: list[tuple[int, bytes, list[Place]]] = []
        size = 0
        for at, key, files in candidates:
            hash = hash_of(subject_of(key))
            mask = mask_of(hash)
            places = []
            for file in files:
                tail = tails[file.id]
                if tail.may_hold(hash, mask):
                    block = tail.block_of(key)
                    places.append(Place(file, tail, block))
                    size += tail.offsets[block + 1] - tail.offsets[block]
            if places:
                wanted.append((at, key, places))
            if size > _ROUND:
                self._find(wanted, values)
                wanted, size = [], 0
        if wanted:
            self._find(wanted, values)

    def _find(self, wanted: Sequence[tuple[int, bytes, list[Place]]], values: list[bytes | None]) -> None:
        """Search the places of each key for its row, newest first, on backends whose calls are requests."""
        # One after the other costs more than some that turn out idle. But a segment's status is in the newest place,
        # unless the filter errs, or in the next one.
        step = most = max(len(places) for _, _, places in wanted)
        if all(_STATUSES <= key < _STATUSES_END for _, key, _ in wanted):
            step = 2 if len(wanted) <= _FEW else 1
        depth = 0
        while wanted:
            blocks = self._blocks(place for _, _, places in wanted for place in places[depth : depth + step])
            left = []
            for at, key, places in wanted:
                for file, _, block in places[depth : depth + step]:
                    value = blocks[file.id, block].get(key)
                    if value is not None:
                        values[at] = value
                        break
                else:
                    if depth + step < len(places):
                        left.append((at, key, places))
            wanted = left
            depth += step
            step = most

    def scan(self, start: bytes, end: bytes, subject: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The newest row of each key in start <= key < end, in key order, lazily.

        `subject`, if all of these rows are of one subject, skips files that hold nothing of it.
        """
        if subject is not None and not self.remote:
            rows = self._near(start, end, subject)
            if rows is not None:
                return rows
        return self._rows(self._cursors(start, end, subject))

    def _near(self, start: bytes, end: bytes, subject: bytes) -> Iterator[tuple[bytes, bytes]] | None:
        """The rows of a subject that are in few blocks of each run, all at once; None if they are in more.

        Where a call is no request, this takes less time than cursors do.
        """
        near = self._blocks_near(start, end, hash_of(subject))
        if near is None:
            return None
        blocks = near[0]
        if self.inline is not None:
            blocks.append(self.inline)
        newest: dict[bytes, bytes] = {}
        for block in blocks:
            newest.update(block.between(start, end))
        return iter(sorted(newest.items()))

    @in_index
    def _blocks_near(
        self, start: bytes, end: bytes, hash: int, *, lead: bool = True
    ) -> tuple[list[Block], int, int] | None:
        """Return (blocks, part, count): the blocks that may have rows of a subject with start <= key < end, from the
        oldest part to the newest; the number of the newest of `_parts` that has some, and how many of the last blocks
        are its. None if a part has them in many blocks.

        Without `lead`: a block that is not cached is left out if the next one begins with a row of the subject, which
        is most likely the only one.
        """
        blocks: list[Any] = []
        absent: list[tuple[int, RunFile, RunTail, int]] = []
        cache, partition, parts, mask = self._cache, self.partition, self._parts, mask_of(hash)
        cached_tail, cached_block = cache.tail, cache.block
        newest = part = len(parts)
        count = 0
        for files, last_keys, low, high in reversed(parts):
            part -= 1
            if not low <= start < high:
                continue
            at = bisect_left(last_keys, start)
            if at == len(files):
                continue
            file = files[at]
            if file.first_key >= end:
                continue
            if last_keys[at] < end and at + 1 < len(files) and files[at + 1].first_key < end:
                return None
            id = file.id
            tail = cached_tail((partition, id, -1)) or self._tail(file)
            tail.used = True
            words = tail.words
            if words[hash % len(words)] & mask != mask:
                continue
            first = tail.block_of(start)
            stop = first + 1
            while stop < tail.blocks and tail.first(stop) < end:
                stop += 1
                if stop - first > _NEAR:
                    return None
            newest, count = part, len(blocks)
            for number in range(first, stop):
                block = cached_block((partition, id, number))
                if block is not None:
                    block.used = True
                elif lead or number > first or stop == first + 1 or not tail.single:
                    absent.append((len(blocks), file, tail, number))
                else:
                    continue
                blocks.append(block)
        missing = []
        for item in absent:
            at, file, tail, number = item
            block = blocks[at] = self._glance(file, tail, number)
            if block is None:
                missing.append(item)
            elif cache.was_read(key := (partition, file.id, number)):
                cache.put_block(key, block)
        if missing:
            some = self._read([_block_range(file, tail, number) for _, file, tail, number in missing])
            for (at, file, tail, number), data in zip(missing, some, strict=True):
                blocks[at] = self._kept(file, tail, number, data)
        return blocks, newest, len(blocks) - count

    def _glance(self, file: RunFile, tail: RunTail, number: int) -> Block | None:
        """A block, read from its open file. None if the backend has to read it, or to raise an error."""
        row = self._rows_open.get(file.id) or self._open_row(file)
        if row is None:
            return None
        start = tail.offsets[number]
        data = row.part(file.start + start, tail.offsets[number + 1] - start)
        try:
            return decode_block(data, file, start, self._seed)
        except CorruptData:
            self._rows_open.pop(file.id, None)
            return None

    def _open_row(self, file: RunFile) -> OpenedRow | None:
        backend = self._backend
        if not self._opens or not isinstance(backend, OpensRows):
            self._opens = False
            return None
        row = backend.open_row(self.partition, run_key(file.id))
        if row is not None:
            self._rows_open[file.id] = row
        return row

    def blocks_of(self, segment: str, start: bytes, end: bytes) -> tuple[list[Block], int] | None:
        """The blocks with a segment's data rows, start <= key < end, in order, and how many of the last ones are of the
        newest run that may have the segment's status. None if there are many blocks, or if calls are requests.

        A run with a segment's status has its newest data rows too. So a reader that finds no row in those last blocks
        looks at the status: the filter erred, or the row is lost.
        """
        if self.remote:
            return None
        hash = hash_of(segment.encode())
        near = self._blocks_near(start, end, hash, lead=False)
        if near is None:
            return None
        blocks, newest, count = near
        key = segment_key(segment)
        inline = self.inline
        if inline is not None and (inline.between(start, end) or inline.get(key) is not None):
            blocks.append(inline)
            count = 1
        else:
            for files, *_ in self._parts[:newest]:
                # Its data rows are in another file than its status, and the filter of that file has nothing of the
                # segment.
                file = _file_of(files, key) if len(files) > 1 else None
                if file is not None and self._tail(file).may_hold(hash, mask_of(hash)):
                    count = 0
                    break
        if _twin is None and {Block}.union(map(type, blocks)) != {Block}:
            return None  # the compiled codec has decoded one before
        return blocks, count

    @in_index
    def last(self, segment: str, start: bytes, end: bytes) -> bytes | None:
        """The value of the last data row of a segment, start <= key < end, if it is sure without the status.

        None if there is none, or if the newest run that may have the segment's status does not have that one data row:
        see `blocks_of`. None if calls are requests.
        """
        if self.remote:
            return None
        key, inline = segment_key(segment), self.inline
        if inline is not None:
            value = _only_between(inline, start, end)
            if value is not None or inline.seek(end) > inline.seek(start) or inline.get(key) is not None:
                return value
        hash = hash_of(segment.encode())
        mask = mask_of(hash)
        for files, _, low, high in self._parts:
            at = _first_at(files, start, end) if low <= start < high else -1
            if at >= 0:
                while at + 1 < len(files) and files[at + 1].first_key < end:
                    at += 1
                file = files[at]
                tail = self._tail(file)
                if tail.may_hold(hash, mask):
                    return _only_between(self._block(file, tail, tail.last_block(end)), start, end)
            if (
                len(files) > 1
                and (other := _file_of(files, key)) is not None
                and self._tail(other).may_hold(hash, mask)
            ):
                return None
        return None

    def entries(
        self, reader: Any, segment: str, first: int, last: int, entries: list[Any], most: int
    ) -> tuple[int, bool, int] | None:
        """The compiled codec's short way: see `Index.entries`."""
        directory = self._directory
        return directory.entries(reader, segment, first, last, entries, most) if directory and reader else None

    def last_entry(self, reader: Any, segment: str, most: int) -> Any:
        """The compiled codec's short way: see `Index.last_entry`."""
        directory = self._opened if self._opened is not None else self._directory
        return directory.last_entry(reader, segment, most) if directory and reader else None

    @property
    def _directory(self) -> Any:
        """The compiled directory of the runs, where the backend opens their rows; else False."""
        if _twin is None:
            return False
        if self._opened is None:
            self._opened = self._open_directory()
        return self._opened

    def _open_directory(self) -> Any:
        backend, cache, inline = self._backend, self._cache, self.inline
        if not isinstance(backend, OpensRows) or type(cache.blocks) is not _twin.Recent:
            return False
        if inline is not None and type(inline) is not _twin.Block:
            return False
        runs = [
            [
                (max(file.first_key, low), min(file.last_key, high), file.id, run_key(file.id), file.start)
                for file in files
                if file.first_key < high and file.last_key >= low
            ]
            for files, _, low, high in self._parts
        ]
        if any(len(id) != _ID for files in runs for _, _, id, _, _ in files):
            return False
        open_row = partial(_compiled_row, backend, self.partition)
        prefixes = PREFIXES[0], PREFIXES[2]
        return _twin.Directory(cache.blocks, cache.tails, self.partition, self._seed, open_row, runs, inline, prefixes)

    def chunks(
        self, start: bytes, end: bytes, runs: Sequence[Run], ahead: Sequence[int], *, stored: bool = False
    ) -> Iterator[Chunk | Stored]:
        """Scan many rows at once, of `runs` alone (newest first), without the inline run.

        With `stored`, blocks that are full of rows of one segment come as they are, where nothing is to be merged.
        `ahead` is how many bytes are read of each run at once. The cache is left alone. Where each reading is a
        request, there is one: then Starved.
        """
        cursors = []
        for run, bytes_ahead in zip(reversed(runs), reversed(ahead), strict=True):
            at = _first_at(run.files, start, end)
            if at >= 0:
                cursors.append(Cursor(run.files, at, start, end, self._seed, None, 0, bytes_ahead, False))
        merged = merge_with_stored(cursors, self._refill) if stored else merge_cursors(cursors, self._refill)
        for chunk in merged:
            self._sealed = self.remote
            yield chunk

    def hold(self, files: Sequence[RunFile], others: Sequence[RunFile]) -> None:
        """Read `files` as a whole and the tails of `others`, in one call, for `chunks`."""
        ranges = [Range(run_key(file.id), file.start, file.length, file.etag or None) for file in files]
        others = [file for file in others if self._cache.tail((self.partition, file.id, -1)) is None]
        parts = self._read([*ranges, *map(_tail_range, others)])
        self._held = {part.key: (part.start, data) for part, data in zip(ranges, parts[: len(files)], strict=True)}
        for file, data in zip(others, parts[len(files) :], strict=True):
            self.receive(file.id, data)

    def _rows(self, cursors: Sequence[Cursor]) -> Iterator[tuple[bytes, bytes]]:
        for keys, values in merge_cursors(cursors, self._refill):
            yield from zip(keys, values, strict=True)

    def _cursors(self, start: bytes, end: bytes, subject: bytes | None) -> list[Cursor]:
        """One for each run that may have rows in the range, oldest first; the inline one last."""
        ahead = _FIRST_AHEAD_REMOTE if self.remote else _FIRST_AHEAD
        hash, mask = None, 0
        if subject is not None:
            hash = hash_of(subject)
            mask = mask_of(hash)
        cached_tail, partition, seed = self._cache.tail, self.partition, self._seed
        cursors = []
        for run in reversed(self.manifest.runs):
            files = run.files
            at = _first_at(files, start, end)
            if at < 0:
                continue
            file = files[at]
            if hash is not None and file.last_key >= end:
                # Usually this run has no row of the subject, and the filter shows it at once.
                tail = cached_tail((partition, file.id, -1))
                if tail is not None:
                    words = tail.words
                    if words[hash % len(words)] & mask != mask:
                        tail.used = True
                        continue
            cursors.append(Cursor(files, at, start, end, seed, hash, mask, ahead, True))
        if self.inline is not None and (rows := self.inline.between(start, end)):
            cursor = Cursor((), 0, start, end, seed, hash, mask, ahead, True)
            cursor.keys, cursor.values = [key for key, _ in rows], [value for _, value in rows]
            cursors.append(cursor)
        return cursors

    def _tail(self, file: RunFile) -> RunTail:
        """The tail of a file, from the cache or from the file."""
        tail = self._cache.tail((self.partition, file.id, -1))
        if tail is None:
            tail = self._tails((file,))[file.id]
        tail.used = True
        return tail

    @in_index
    def _tails(self, files: Iterable[RunFile]) -> dict[bytes, RunTail]:
        """The tails of `files` by id, in one call for those that are not cached."""
        cache, partition = self._cache, self.partition
        tails: dict[bytes, RunTail] = {}
        missing: dict[bytes, RunFile] = {}
        for file in files:
            if file.id not in tails and file.id not in missing:
                tail = cache.tail((partition, file.id, -1))
                if tail is None:
                    missing[file.id] = file
                else:
                    tail.used = True
                    tails[file.id] = tail
        if missing:
            ranges = [_tail_range(file) for file in missing.values()]
            for (id, file), data in zip(missing.items(), self._read(ranges), strict=True):
                tails[id] = tail = decode_tail(data, file, self._seed)
                cache.put_tail((partition, id, -1), tail)
        return tails

    @in_index
    def _blocks(self, places: Iterable[Place]) -> dict[tuple[bytes, int], Block]:
        """Blocks by (file id, number), in one call for those that are not cached."""
        cache, partition = self._cache, self.partition
        blocks: dict[tuple[bytes, int], Block] = {}
        missing: dict[tuple[bytes, int], Place] = {}
        for place in places:
            at = (place.file.id, place.block)
            if at not in blocks and at not in missing:
                block = cache.block((partition, *at))
                if block is None:
                    missing[at] = place
                else:
                    block.used = True
                    blocks[at] = block
        if missing:
            for at, body in self._bodies(missing).items():
                blocks[at] = self._kept(*missing[at], body)
        return blocks

    def _block(self, file: RunFile, tail: RunTail, number: int) -> Block:
        """A block, from the cache or from its file."""
        block = self._cache.block((self.partition, file.id, number))
        if block is None:
            block = self._read_block(file, tail, number)
        block.used = True
        return block

    @in_index
    def _read_block(self, file: RunFile, tail: RunTail, number: int) -> Block:
        """Read one that is not cached."""
        part = _block_range(file, tail, number)
        data = None if self._held else self._backend.read(self.partition, (part,))[0]
        if data is None or len(data) != part.length:
            (data,) = self._read([part])
        return self._kept(file, tail, number, data)

    def _kept(self, file: RunFile, tail: RunTail, number: int, body: bytes) -> Block:
        """The decoded block; it is put into the cache."""
        block = decode_block(body, file, tail.offsets[number], self._seed)
        self._cache.put_block((self.partition, file.id, number), block)
        return block

    def _bodies(self, places: Mapping[tuple[bytes, int], Place]) -> dict[tuple[bytes, int], bytes]:
        """The bytes of blocks, in one call. Neighbours are one range."""
        spans: list[tuple[RunFile, RunTail, int, int]] = []
        for at in sorted(places):
            file, tail, number = places[at]
            if spans:
                last, _, low, high = spans[-1]
                if last.id == file.id and high == number and tail.offsets[number + 1] - tail.offsets[low] <= _JOINED:
                    spans[-1] = (file, tail, low, number + 1)
                    continue
            spans.append((file, tail, number, number + 1))
        ranges = [
            Range(
                run_key(file.id),
                file.start + tail.offsets[low],
                tail.offsets[high] - tail.offsets[low],
                file.etag or None,
            )
            for file, tail, low, high in spans
        ]
        bodies: dict[tuple[bytes, int], bytes] = {}
        for (file, tail, low, high), data in zip(spans, self._read(ranges), strict=True):
            if high - low == 1:
                bodies[file.id, low] = data
                continue
            offsets = tail.offsets
            base = offsets[low]
            for number in range(low, high):
                bodies[file.id, number] = data[offsets[number] - base : offsets[number + 1] - base]
        return bodies

    @in_index
    def _read(self, ranges: Sequence[Range]) -> list[bytes]:
        held = self._held
        absent = [part for part in ranges if part.key not in held] if held else ranges
        if absent and self._sealed:
            raise Starved
        parts = read_ranges(self._backend, self.partition, absent) if absent else []
        if held:
            asked = iter(parts)
            parts = [_cut(held[part.key], part) if part.key in held else next(asked) for part in ranges]
        for wanted, data in zip(ranges, parts, strict=True):
            if len(data) != wanted.length:
                raise CorruptData(
                    f"the run {wanted.key!r} is cut short: "
                    f"{len(data)} instead of {wanted.length} bytes from byte {wanted.start}"
                )
        return parts

    @in_index
    def _refill(self, cursors: Sequence[Cursor]) -> None:
        """Read on for `cursors`."""
        waiting = list(cursors)
        while waiting:
            tails = self._tails(cursor.file for cursor in waiting if cursor.file is not None)
            waiting = [cursor for cursor in waiting if cursor.settle(tails)]
        kept: list[Place] = []
        passing: dict[tuple[bytes, int], Place] = {}
        steps = []
        for cursor in cursors:
            wanted = cursor.wanted()
            if wanted:
                steps.append((cursor, wanted))
                if cursor.is_cached(wanted):
                    kept += wanted
                else:
                    passing.update(((place.file.id, place.block), place) for place in wanted)
        bodies: dict[tuple[bytes, int], Block | bytes] = {}
        if passing:
            bodies.update(self._bodies(passing))
        if kept:
            bodies.update(self._blocks(kept))
        for cursor, wanted in steps:
            cursor.give(wanted, bodies)


def _compiled_row(backend: OpensRows, partition: bytes, key: bytes) -> object | None:
    """A row, opened for the compiled codec."""
    row = backend.open_row(partition, key)
    return None if row is None else row.compiled


def _parts_of(manifest: Manifest) -> list[_Part]:
    """The runs, and the files that merges under way have finished, in the place of their inputs' first rows.

    So a segment is read where its rows are joined, while the merge goes on. The segment in which the merge resumes
    is read from the inputs.
    """
    parts: list[_Part] = []
    for run in manifest.runs:
        low = b""
        for merge in manifest.merges:
            if merge.files and merge.first <= run.first and run.last <= merge.last:
                low = merge.resume
                if DATA_START <= low < DATA_END:
                    low = low[: -SEQUENCE_BYTES - 1]
                if run.last == merge.last:
                    parts.append(_Part(merge.files, [file.last_key for file in merge.files], b"", low))
        parts.append(_Part(run.files, [file.last_key for file in run.files], low, _END))
    return parts


def _cut(held: tuple[int, bytes], wanted: Range) -> bytes:
    """A range, cut from the bytes of its row that were read ahead."""
    base, data = held
    return data[wanted.start - base : wanted.start - base + wanted.length]


def _tail_range(file: RunFile) -> Range:
    return Range(run_key(file.id), file.start + file.length - file.tail, file.tail, file.etag or None)


def _block_range(file: RunFile, tail: RunTail, number: int) -> Range:
    start = tail.offsets[number]
    return Range(run_key(file.id), file.start + start, tail.offsets[number + 1] - start, file.etag or None)


def _first_at(files: Sequence[RunFile], start: bytes, end: bytes) -> int:
    """The place of the first file that may hold keys from `start` on, before `end`; -1 if none may."""
    at = 0 if start <= files[0].last_key else bisect_left(files, start, 1, key=_last_key)
    return at if at < len(files) and files[at].first_key < end else -1


def _first_in(run: Run, start: bytes, end: bytes) -> RunFile | None:
    """The first file that may hold keys from `start` on, before `end`."""
    at = _first_at(run.files, start, end)
    return None if at < 0 else run.files[at]


def _only_between(block: Block, start: bytes, end: bytes) -> bytes | None:
    """The value of a block's only row with start <= key < end; None if it has none, or several."""
    low = block.seek(start)
    return block.values(low, low + 1)[0] if block.seek(end, low) == low + 1 else None


def _file_of(files: Sequence[RunFile], key: bytes) -> RunFile | None:
    """The file of a run that holds `key` if any does."""
    at = 0 if len(files) == 1 else bisect_left(files, key, key=_last_key)
    if at < len(files) and files[at].first_key <= key <= files[at].last_key:
        return files[at]
    return None
