"""A process that is killed at any call of its storage, those to the archive's table and to published views included."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streamkit.backend import Driver
from streamkit.testing import FaultyDriver, Plan

__all__ = ["doomed", "killed_at", "telling_of_tables"]

_CHANGES = ("fsync", "fdatasync", "ftruncate", "link", "mkdir", "pwrite", "rename", "replace", "rmdir", "unlink")


class _Doomed(FaultyDriver):
    """A driver that stops its process. Its archive is in the same place as that of the inner driver."""

    def archive_root(self) -> Any:
        return self.inner.archive_root()  # type: ignore[attr-defined]


class _DoomedWriter(_Doomed):
    def put_archived(self, path: str, data: bytes) -> None:
        turn = self.faults.begin("put", f"archive {path}")
        self.faults.perform(turn, lambda: self.inner.put_archived(path, data))  # type: ignore[attr-defined]


def doomed(inner: Driver, plan: Plan) -> FaultyDriver:
    if hasattr(inner, "put_archived"):
        return _DoomedWriter(inner, plan)
    return _Doomed(inner, plan) if hasattr(inner, "archive_root") else FaultyDriver(inner, plan)


@contextmanager
def telling_of_tables(driver: FaultyDriver) -> Iterator[None]:
    """Count writes and deletions of archives and published views as calls of `driver`, within the block."""
    from streamkit.archive.files import TableFiles
    from streamkit.archive.table import Table

    faults = driver.faults

    class Files:
        """A pyarrow file system whose deletions count."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def delete_file(self, path: str) -> None:
            turn = faults.begin("delete", f"file {path}")
            faults.perform(turn, lambda: self._inner.delete_file(path))

    inner_system = TableFiles.filesystem.fget
    assert inner_system is not None
    write, commit = TableFiles.write, Table._write

    def counted_write(self: Any, path: str, data: Any) -> None:
        turn = faults.begin("put", f"file {path}")
        faults.perform(turn, lambda: write(self, path, data))

    def counted_commit(self: Any, work: Any, create: bool = False) -> bool:
        turn = faults.begin("put", "a version of the table")
        return faults.perform(turn, lambda: commit(self, work, create))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableFiles, "filesystem", property(lambda self: Files(inner_system(self))))
        patch.setattr(TableFiles, "write", counted_write)
        patch.setattr(Table, "_write", counted_commit)
        yield


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Do `work` in a child that is killed before its call `number`, from 1, of those that change or sync a file.

    False if it came to its end.
    """
    pid = os.fork()
    if pid == 0:
        count = 0

        def wrapped(call: Any) -> Any:
            def counted(*arguments: Any, **options: Any) -> Any:
                nonlocal count
                count += 1
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            return counted

        try:
            for name in _CHANGES:
                setattr(os, name, wrapped(getattr(os, name)))
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, "the work failed"
    return os.WIFSIGNALED(status)
