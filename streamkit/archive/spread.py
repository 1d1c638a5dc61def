"""Archiving and compaction by several processes: one gives tasks out, and commits the files that come back.

    store.archive("orders", spread=Processes(url, 4))
    store.compact("orders", spread=Processes(url, 4))

A file counts once a commit to the table names it. So a process that is stopped anywhere loses and doubles nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING
from uuid import UUID

import msgspec

from ..arguments import check_type
from ..decoders import json_decoder
from ..errors import PermanentError, StreamkitError, Unavailable
from .snapshot import File

if TYPE_CHECKING:
    from ..store import Store

__all__ = ["Processes", "Rewrite", "Rewritten", "Spread", "Task", "Work", "Wrote", "discard_files", "do_task"]


class Work(msgspec.Struct, frozen=True, tag="archive"):
    """The transactions reached+1..last of a partition, to be written to files of the table."""

    store: UUID
    space: str
    partition: int
    reached: int
    last: int
    until: int
    """The newest timestamp (ms) to archive."""
    target_bytes: int

    @property
    def amount(self) -> int:
        """The size of the task, for comparison with other tasks."""
        return self.last - self.reached


class Wrote(msgspec.Struct, frozen=True, tag="archive"):
    """The result of one `Work`: each file, with the transaction up to which the files then reach."""

    partition: int
    files: list[tuple[File | None, int]]


class Rewrite(msgspec.Struct, frozen=True, tag="compact"):
    """Files of the table to rewrite."""

    store: UUID
    space: str
    columns: list[str]
    """The table's columns."""
    old: list[File]
    """A shared file stands here once for each of its partitions."""
    new: list[list[list[File]]]
    """The files that each new file replaces, for each of its partitions. Empty if the old files overlap: then their
    rows are sorted first."""

    @property
    def amount(self) -> int:
        """The size of the task, for comparison with other tasks."""
        return sum({file.path: file.size for file in self.old}.values())


class Rewritten(msgspec.Struct, frozen=True, tag="compact"):
    """The result of one `Rewrite`."""

    old: list[File]
    new: list[File]
    gone: str = ""
    """The old file that is not there any more: then there are no new ones."""


Task = Work | Rewrite
Spread = Callable[[Sequence[Task]], Iterator[Wrote | Rewritten]]
"""Has all of these done, anywhere and in any order."""


def do_task(store: Store, task: Task) -> Wrote | Rewritten:
    """Do `task` here. No version of the table names the new files yet.

    PermanentError if there is no table here: the files would be in another place than the table that names them.
    """
    from ..store import inner
    from .compact import rewrite

    archive = inner(store).archive(task.space)
    if archive.table.state() is None:
        raise PermanentError(
            f"there is no table at {archive.table.url}, where this process would write the files of the space "
            f"{task.space!r}: name the place of the archives, with Processes(url, count, archive=URL)"
        )
    if isinstance(task, Work):
        return _write_files_of(store, task)
    return rewrite(archive.files, task)


def discard_files(store: Store, space: str, done: Wrote | Rewritten) -> None:
    """Delete the files of a task that will not be committed."""
    from ..store import inner

    files = [file for file, _ in done.files if file is not None] if isinstance(done, Wrote) else done.new
    inner(store).archive(space).table.discard(files)


def _write_files_of(store: Store, work: Work) -> Wrote:
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
    """Several processes of this machine that write the files of an archive run, or of a compaction. Each opens the
    store at `url`."""

    def __init__(self, url: str, count: int, *, archive: str | None = None) -> None:
        check_type(count, int, "count is the number of processes, an int")
        if count < 1:
            raise ValueError(f"count is one process or more, not {count}")
        if url.startswith("memory:"):
            raise ValueError("other processes do not see a store in memory: leave out `spread`")
        self._url, self._archive, self._count = url, archive, count

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Wrote | Rewritten]:
        waiting: SimpleQueue[Task] = SimpleQueue()
        for task in sorted(tasks, key=lambda task: -task.amount):
            waiting.put(task)
        count = min(self._count, len(tasks))
        done: SimpleQueue[Wrote | Rewritten | None] = SimpleQueue()
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

    def _run(self, waiting: SimpleQueue[Task], done: SimpleQueue[Wrote | Rewritten | None]) -> None:
        """One process, until no task waits."""
        from queue import Empty

        command = [sys.executable, "-m", "streamkit.archive.worker"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            # Not in its arguments: a URL may hold a key.
            process.stdin.write(msgspec.json.encode([self._url, self._archive]) + b"\n")
            while True:
                try:
                    task = waiting.get_nowait()
                except Empty:
                    _close(process.stdin)
                    return
                try:
                    process.stdin.write(msgspec.json.encode(task) + b"\n")
                    process.stdin.flush()
                    answer = process.stdout.readline()
                except OSError:
                    answer = b""
                if not answer.endswith(b"\n"):
                    _close(process.stdin)
                    raise Unavailable(f"a process that wrote files of the space {task.space!r} ended: run it again")
                result = json_decoder(Wrote | Rewritten | str).decode(answer)
                if isinstance(result, str):
                    raise _error(result)
                done.put(result)


def _close(pipe: IO[bytes]) -> None:
    """Close a pipe whose reader may have ended. The answers show whether it failed."""
    with suppress(OSError):
        pipe.close()


def _error(said: str) -> StreamkitError:
    """The error of another process, by its name and its text."""
    from .. import errors

    name, _, text = said.partition(": ")
    kind = getattr(errors, name, None)
    return kind(text) if isinstance(kind, type) and issubclass(kind, StreamkitError) else PermanentError(said)
