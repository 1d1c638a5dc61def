"""Merging runs into larger ones, step by step. Nothing here writes; the caller puts the file of a step.

Runs are merged when a few neighbours have the same size. So there are few runs, and a row is rewritten only a few
times. A merge under way is in the manifest, with its finished files, so that any process can continue it. Its inputs
stay until it is done. Two processes that take the same step make the same rows: one of them wins the compare-and-set of
the head, and the other's file is an orphan.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

import msgspec

from ..log.manifest import Manifest, Merge, Run, RunFile
from .compaction import Rules, compact, keeps_data
from .cursor import Chunk
from .run_format import Block, SectionBuilder, Stored
from .runs import Runs, Starved

__all__ = [
    "FANOUT",
    "FILE_BYTES",
    "MergeStep",
    "after_inline",
    "joined",
    "level_of",
    "merge_inline",
    "merge_step",
    "next_merge",
    "plan_merge",
]

FANOUT = 8
FILE_BYTES = 8 << 20
"""About the most bytes of one file."""
_LEVEL_BYTES = 256 << 10
"""The most bytes of a run of level 0; each further level holds FANOUT times more."""
_MOST_RUNS = 48
"""The number of runs above which neighbours of any size are merged."""
_FILES = 32
"""A merge makes about so many files, if they need not be larger than FILE_BYTES for that."""
_SLICE = 512
"""Rows that are added to a file between looks at its size."""
_READ = 8
"""A step ends after it has read so many times its output: this matters if nearly all rows are dropped."""
_ROOM = 512 << 10
"""Bytes for a file's tail, and for the block and the slice with which it reaches its size."""
_SMALL_FILE = 1 << 20
"""A file up to so many bytes is read as a whole, if its tail and its blocks would be two requests."""
_LEAST_AHEAD = 64 << 10
_MOST_AHEAD, _MOST_AHEAD_LOCAL = 4 << 20, 1 << 20
"""Bytes that a step reads together. As rows in memory they take twice as many."""
_END = b"\xff" * 301
"""A key after every other key."""


def level_of(size: int) -> int:
    """The level of a run with so many bytes."""
    level = 0
    while size > _LEVEL_BYTES << (3 * level):
        level += 1
    return level


def plan_merge(manifest: Manifest, fanout: int = 0, most: int = 0, share: float = 2) -> Merge | None:
    """The smallest merge that is due beside those under way, or None. `fanout` neighbours of one size are due, with
    `share` times the bytes of the largest one; and any neighbours where there are more than `most` runs."""
    fanout, most = fanout or FANOUT, most or _MOST_RUNS
    stretches: list[list[Run]] = [[]]
    for run in manifest.runs:
        if any(merge.first <= run.first and run.last <= merge.last for merge in manifest.merges):
            stretches.append([])
        else:
            stretches[-1].append(run)
    highest = max((level_of(run.size) for run in manifest.runs), default=0)
    for level in range(highest + 1):
        for stretch in stretches:
            for part in _parts(stretch, level):
                sizes = [run.size for run in part]
                if len(part) >= fanout and sum(sizes) >= share * max(sizes):
                    return _merge_of(part)
    if len(manifest.runs) <= most:
        return None
    windows = [stretch[at : at + fanout] for stretch in stretches for at in range(len(stretch) - 1)]
    if not windows:
        return None
    return _merge_of(min(windows, key=lambda window: sum(run.size for run in window) / len(window)))


def _parts(runs: Sequence[Run], level: int) -> Iterator[list[Run]]:
    """The longest stretches of neighbours of at most that level."""
    part: list[Run] = []
    for run in runs:
        if level_of(run.size) <= level:
            part.append(run)
        elif part:
            yield part
            part = []
    if part:
        yield part


def _merge_of(newest_first: Sequence[Run]) -> Merge:
    return Merge(newest_first[-1].first, newest_first[0].last)


def next_merge(manifest: Manifest, fanout: int = 0, most: int = 0, share: float = 2) -> Merge | None:
    """The merge to go on with or to begin: the one with the least to do. None if none is due. See `plan_merge`."""
    due = [*manifest.merges]
    planned = plan_merge(manifest, fanout, most, share)
    if planned is not None:
        due.append(planned)
    return min(due, key=lambda merge: _left(manifest, merge), default=None)


def _left(manifest: Manifest, merge: Merge) -> int:
    done = sum(file.length for file in merge.files)
    return max(0, sum(run.size for run in manifest.inputs(merge)) - done)


class MergeStep(msgspec.Struct, frozen=True):
    """The result of a step. Put `data`, if any, under `run_key(file.id)` with ABSENT; then move the head."""

    merge: Merge
    """The merge before the step."""
    inputs: tuple[Run, ...]
    data: bytes | None
    file: RunFile | None
    """The entry of `data`, without its etag."""
    resume: bytes
    finished: bool

    def apply(self, manifest: Manifest, etag: str = "") -> Manifest | None:
        """The manifest after the step. `manifest` may be newer than that of the step. None if another process has taken
        it.

        `etag` is the result of the put of `data`.
        """
        files = self.merge.files
        if self.file is not None:
            files = (*files, self.file.stored(etag))
        if manifest.inputs(self.merge) != self.inputs:
            return None
        others = tuple(merge for merge in manifest.merges if merge != self.merge)
        begun = len(others) < len(manifest.merges)
        if not begun and (self.merge.resume or any(_overlap(merge, self.merge) for merge in others)):
            return None
        if not self.finished:
            after = Merge(self.merge.first, self.merge.last, files, self.resume)
            return msgspec.structs.replace(manifest, merges=(after, *others))
        runs: list[Run] = []
        for run in manifest.runs:
            if run not in self.inputs:
                runs.append(run)
            elif run == self.inputs[0] and files:
                size = sum(file.length for file in files)
                runs.append(Run(self.inputs[-1].first, self.inputs[0].last, level_of(size), files))
        return msgspec.structs.replace(manifest, runs=tuple(runs), merges=others)


def _overlap(one: Merge, other: Merge) -> bool:
    return one.first <= other.last and other.first <= one.last


def merge_step(runs: Runs, merge: Merge, budget: int, id: bytes, seed: int, rules: Rules | None = None) -> MergeStep:
    """Go on with `merge`, which `next_merge(runs.manifest)` gave, for about `budget` bytes; more in a large merge.

    `id` is that of the new file, 16 random bytes. Memory: a few times the bytes that are written, for runs of any size.
    Raises the errors of `Runs`.
    """
    inputs = runs.manifest.inputs(merge)
    total = sum(run.size for run in inputs)
    target = min(max(budget, total // _FILES), FILE_BYTES)
    together = min(2 * target, _MOST_AHEAD if runs.remote else _MOST_AHEAD_LOCAL)
    ahead = [max(_LEAST_AHEAD, together * run.size // max(1, total)) for run in inputs]
    if runs.remote:
        nexts = [_next_files(run, merge.resume, share) for run, share in zip(inputs, ahead, strict=True)]
        runs.hold([file for whole, _ in nexts for file in whole], [file for _, large in nexts for file in large])
    source = _Limited(runs.chunks(merge.resume, _END, inputs, ahead, stored=keeps_data(rules)), _READ * target)
    oldest = inputs[-1] == runs.manifest.runs[-1]
    builder = SectionBuilder(id, seed, min(target, total) + _ROOM)
    resume = _fill(builder, compact(source, rules, oldest=oldest), target)
    if resume is None:
        resume = source.resume
    data = file = None
    if builder.rows:
        data, file = builder.finish()
    return MergeStep(merge, inputs, data, file, resume or b"", not resume)


def _next_files(run: Run, start: bytes, share: int) -> tuple[list[RunFile], list[RunFile]]:
    """The files from `start` on that are to be read for a share of so many bytes: those that are to be read as a whole,
    or the first one if it is too large for that."""
    whole: list[RunFile] = []
    left = share
    for file in run.files[bisect_left(run.files, start, key=attrgetter("last_key")) :]:
        if left <= 0:
            break
        if file.length > max(2 * share, _SMALL_FILE):
            return whole, [] if whole else [file]
        whole.append(file)
        left -= file.length
    return whole, []


class _Limited:
    """Chunks up to about so many bytes of values."""

    def __init__(self, chunks: Iterator[Chunk | Stored], limit: int) -> None:
        self.resume: bytes | None = None
        """The key to go on from, if the limit ended it early."""
        self._chunks = chunks
        self._left = limit

    def __iter__(self) -> Iterator[Chunk | Stored]:
        after = b"\x00"
        try:
            for chunk in self._chunks:
                yield chunk
                if isinstance(chunk, Stored):
                    after = chunk.end
                    self._left -= sum(map(len, chunk.blocks))
                else:
                    after = chunk[0][-1] + b"\x00"
                    self._left -= sum(map(len, chunk[1]))
                if self._left <= 0:
                    break
            else:
                return
        except Starved:
            pass
        self.resume = after


def _fill(builder: SectionBuilder, chunks: Iterator[Chunk | Stored], target: int) -> bytes | None:
    """Add rows until there are about `target` bytes. The least key that is not in it, None if all are."""
    for chunk in chunks:
        if isinstance(chunk, Stored):
            builder.add_stored(chunk)
            if builder.size >= target:
                return chunk.end
            continue
        keys, values = chunk
        for at in range(0, len(keys), _SLICE):
            builder.add(keys[at : at + _SLICE], values[at : at + _SLICE])
            if builder.size >= target:
                return keys[min(at + _SLICE, len(keys)) - 1] + b"\x00"
    return None


def merge_inline(inline: Block | None, rows: Mapping[bytes, bytes], rules: Rules | None = None) -> Chunk:
    """The rows of the inline run and the newer `rows` in key order, for `encode_inline`."""
    keys = sorted(rows)
    return joined(after_inline(inline, [(keys, [rows[key] for key in keys])], rules))


def after_inline(inline: Block | None, chunks: Iterable[Chunk], rules: Rules | None = None) -> Iterator[Chunk]:
    """The rows of the inline run and the newer rows of `chunks`, which are in key order, with the rules and joined."""
    return compact(chunks if inline is None else _with_older(chunks, inline), rules, oldest=False)


def _with_older(chunks: Iterable[Chunk], inline: Block) -> Iterator[Chunk]:
    done = 0
    for keys, values in chunks:
        high = inline.seek(keys[-1] + b"\x00", done) if keys else done
        if high > done:
            rows = dict(zip(inline.keys(done, high), inline.values(done, high), strict=True))
            rows.update(zip(keys, values, strict=True))
            keys, done = sorted(rows), high
            values = [rows[key] for key in keys]
        yield keys, values
    if done < inline.rows:
        yield inline.keys(done, inline.rows), inline.values(done, inline.rows)


def joined(chunks: Iterable[Chunk]) -> Chunk:
    """All rows of `chunks` together."""
    parts = list(chunks)
    return [key for keys, _ in parts for key in keys], [value for _, values in parts for value in values]
