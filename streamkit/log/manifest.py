"""The manifest: the index of a partition, in its head. It lists the inline run, run files and unfinished merges. Values
only."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from .moved import Moved

__all__ = ["Manifest", "Merge", "Run", "RunFile", "RunGone"]


class RunFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A section of sorted rows: `length` bytes from `start` of the row `run_key(id)`; the last `tail` of them are its
    sparse index and filter."""

    id: bytes
    etag: str
    start: int
    length: int
    tail: int
    first_key: bytes
    last_key: bytes
    rows: int

    def stored(self, etag: str, start: int = 0) -> RunFile:
        """The section after it was put: with its row's etag, and its first byte in that row."""
        return msgspec.structs.replace(self, etag=etag, start=start)


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The index rows of the transactions first to last. Its files follow each other in key order and do not overlap."""

    first: int
    last: int
    level: int
    files: tuple[RunFile, ...]

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.length for file in self.files)


class Merge(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A merge under way. Its inputs are the runs within the transactions first to last; `files` holds all of their rows
    with keys below `resume`."""

    first: int
    last: int
    files: tuple[RunFile, ...] = ()
    resume: bytes = b""


class RunGone(Moved):
    """A run that the manifest names is not there: merged into another one since, as the head tells, or lost.

    `key` is the run's.
    """

    def __init__(self, key: bytes) -> None:
        super().__init__(f"the run {key!r} is not there any more")
        self.key = key

    def __reduce__(self) -> tuple[type, tuple[bytes]]:
        return type(self), (self.key,)


class Manifest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The index of one partition. `inline` is the newest run, kept in the head while it is small."""

    inline: bytes = b""
    inline_first: int = 0
    inline_last: int = 0
    runs: tuple[Run, ...] = ()
    """Newest first."""
    merges: tuple[Merge, ...] = ()
    """No run is the input of two of them."""

    def with_inline(self, inline: bytes, first: int, last: int) -> Manifest:
        """The manifest with another inline run: the rows of the present one and of the transactions up to `last`."""
        return msgspec.structs.replace(self, inline=inline, inline_first=first, inline_last=last)

    def with_run(self, run: Run) -> Manifest:
        """The manifest with a run file in place of the inline run: its rows, and those of the transactions after it."""
        runs = (run, *self.runs) if run.files else self.runs
        return Manifest(b"", 0, 0, runs, self.merges)

    def inputs(self, merge: Merge) -> tuple[Run, ...]:
        """The runs that `merge` replaces, newest first."""
        return tuple(run for run in self.runs if merge.first <= run.first and run.last <= merge.last)

    def files(self) -> Iterator[RunFile]:
        """The files that the manifest refers to, those of unfinished merges too. A sweep must leave them."""
        for run in self.runs:
            yield from run.files
        for merge in self.merges:
            yield from merge.files
