"""Archiving by several processes: the holder of the lease gives partitions out, and commits the files that come back.

    store.archive("orders", spread=Processes(url, 4))

A file counts once the holder's commit names it. So a process that is stopped anywhere loses and doubles nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from ..errors import PermanentError, StreamkitError, Unavailable
from .snapshot import File

if TYPE_CHECKING:
    from ..store import Store

__all__ = ["Processes", "Spread", "Work", "Wrote", "write_files_of"]


class Work(msgspec.Struct, frozen=True):
    """The transactions reached+1..last of a partition, to be written to files of the table."""

    store: UUID
    space: str
    partition: int
    reached: int
    last: int
    until: int
    """The newest timestamp (ms) to archive."""
    target_bytes: int


class Wrote(msgspec.Struct, frozen=True):
    """What became of one `Work`: each file, and the transaction that they go up to by then."""

    partition: int
    files: list[tuple[File | None, int]]


Spread = Callable[[Sequence[Work]], Iterator[Wrote]]
"""Has all of these done, anywhere and in any order."""


def write_files_of(store: Store, work: Work) -> Wrote:
    """Do `work` here. No version of the table names the files yet."""
    from ..store import inner
    from .write import files_of

    known = inner(store).look_up(work.space)[0]
    if known is None:
        raise PermanentError(f"the space {work.space!r} of the store {work.store} is gone")
    partition, table = known.partitions[work.partition], inner(store).archive(work.space).table
    partition.refresh()
    files: list[tuple[File | None, int]] = []
    try:
        for file, number in files_of(partition, table, work.reached, work.last, work.until, work.target_bytes):
            files.append((file, number))
    except BaseException:
        table.discard(file for file, _ in files if file is not None)
        raise
    return Wrote(work.partition, files)


class Processes:
    """So many processes of this machine write the files of an archive run. Each opens the store at `url`."""

    def __init__(self, url: str, count: int, *, archive: str | None = None) -> None:
        if type(count) is not int:
            raise TypeError(f"count is how many processes, an int, not {type(count).__name__}")
        if count < 1:
            raise ValueError(f"count is one process or more, not {count}")
        if url.startswith("memory:"):
            raise ValueError("other processes do not see a store in memory: archive it without `spread`")
        self._url, self._archive, self._count = url, archive, count

    def __call__(self, works: Sequence[Work]) -> Iterator[Wrote]:
        waiting: SimpleQueue[Work] = SimpleQueue()
        for work in sorted(works, key=lambda one: one.reached - one.last):
            waiting.put(work)
        count = min(self._count, len(works))
        done: SimpleQueue[Wrote | None] = SimpleQueue()
        with ThreadPoolExecutor(max(1, count)) as threads:
            running = [threads.submit(self._run, waiting, done) for _ in range(count)]
            for future in running:
                future.add_done_callback(lambda _: done.put(None))
            ended = 0
            while ended < count:
                wrote = done.get()
                if wrote is None:
                    ended += 1
                else:
                    yield wrote
            for future in as_completed(running):
                future.result()

    def _run(self, waiting: SimpleQueue[Work], done: SimpleQueue[Wrote | None]) -> None:
        """One process, until no work waits."""
        from queue import Empty

        command = [sys.executable, "-m", "streamkit.archive.worker"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            # Not in its arguments: a URL may hold a key.
            process.stdin.write(msgspec.json.encode([self._url, self._archive]) + b"\n")
            while True:
                try:
                    work = waiting.get_nowait()
                except Empty:
                    process.stdin.close()
                    return
                try:
                    process.stdin.write(msgspec.json.encode(work) + b"\n")
                    process.stdin.flush()
                    answer = process.stdout.readline()
                except OSError:
                    answer = b""
                if not answer.endswith(b"\n"):
                    raise Unavailable(f"a process that archived partition {work.partition} ended: archive again")
                found = msgspec.json.decode(answer, type=Wrote | str)
                if isinstance(found, str):
                    raise _error(found)
                done.put(found)


def _error(said: str) -> StreamkitError:
    """The error of another process, by its name and its text."""
    from .. import errors

    name, _, text = said.partition(": ")
    kind = getattr(errors, name, None)
    return kind(text) if isinstance(kind, type) and issubclass(kind, StreamkitError) else PermanentError(said)
