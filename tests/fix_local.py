"""A store on disk for tests, and ways to damage it behind its back."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest

import streamkit_local
from streamkit.backend import ANY, NEXT, Backend, Driver, Etag, Expect
from streamkit_local.head import seal

P = b"space\x00p"

_PROGRAM = """
import os, sys, time
from uuid import UUID
import streamkit_local
from streamkit.backend import *
b = streamkit_local.connect("file://" + sys.argv[1], timeout=10).open(UUID(sys.argv[2]))
args = sys.argv[3:]
P = b"space\\x00p"
"""


class Append(NamedTuple):
    """A row to put with NEXT."""

    key: bytes
    value: bytes


class Put(NamedTuple):
    """A row to put."""

    key: bytes
    value: bytes
    expect: Expect | Etag = ANY


class Delete(NamedTuple):
    """A row to delete."""

    key: bytes


Op = Append | Put | Delete


def write(backend: Backend, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> None:
    """Perform operations one after the other, and the deletions together."""
    gone = [op.key for op in ops if isinstance(op, Delete)]
    for op in ops:
        if isinstance(op, Append):
            backend.put(partition, op.key, op.value, NEXT, durable=durable)
        elif isinstance(op, Put):
            backend.put(partition, op.key, op.value, op.expect, durable=durable)
    if gone:
        backend.delete(partition, gone)


class LocalStore:
    """One store, under a root of its own. `close` and `open` stand for a process that ends and one that starts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.copies = 0
        self.id: UUID = uuid4()
        self.driver: Driver = self.connect()
        self.backend: Backend = self.driver.open(self.id)

    def connect(self) -> Driver:
        return streamkit_local.connect(f"file://{self.root}", timeout=10)

    def close(self) -> None:
        self.driver.close()

    def open(self) -> Backend:
        self.close()
        self.driver = self.connect()
        self.backend = self.driver.open(self.id)
        return self.backend

    @property
    def path(self) -> Path:
        return self.root / str(self.id)

    def log_path(self, partition: bytes = P) -> Path:
        return self.path / hashlib.blake2b(partition, digest_size=16).hexdigest()

    def head(self, partition: bytes = P) -> Path:
        return self.log_path(partition) / "head"

    def logs(self, partition: bytes = P) -> list[Path]:
        return sorted(self.log_path(partition).glob("*.log"))

    def rows(self, partition: bytes = P) -> dict[bytes, bytes]:
        return {row.key: row.data for row in self.backend.scan(partition, b"", b"\xff" * 300)}

    def rows_anew(self) -> dict[bytes, bytes]:
        """The rows that the next process finds."""
        self.open()
        return self.rows()

    def copy(self) -> None:
        """Go on with a copy of the files as they are now."""
        self.copies += 1
        copy = self.root.with_name(f"stores-{self.copies}")
        shutil.copytree(self.root, copy)
        self.close()
        self.root = copy

    def files(self) -> list[Path]:
        """All files of the store."""
        return sorted(path for path in self.path.rglob("*") if path.is_file())

    def cut_power(self, synced: int | None = None, partition: bytes = P) -> None:
        """Simulate a restart of the machine. `synced`: the known durable end."""
        self.close()
        data = bytearray(self.head(partition).read_bytes())
        data[560:576] = bytes(16)
        if synced is not None:
            data[528:536] = seal(synced).to_bytes(8, sys.byteorder)
        self.head(partition).write_bytes(data)

    def start(self, program: str, *args: str) -> subprocess.Popen[str]:
        """Another process, in which `b` is this store's backend."""
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM + program, str(self.root), str(self.id), *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str, *args: str) -> str:
        process = self.start(program, *args)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        return out


def flip(path: Path, at: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def in_child(work: Callable[[], Any]) -> int:
    """Run `work` in a forked process that ends without cleaning up; its exit code, negative if a signal ended it."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Repeating:
    """A function that calls `work` in a forked process, the same one for many calls, because a fork takes longer than
    most work.

    A call gives what `work` returns, 0 to 98; 99 if it raised; negative if a signal ended the process, and then
    the next call starts another.
    """

    def __init__(self, work: Callable[[], int]) -> None:
        self._work = work
        self._child = 0

    def __call__(self) -> int:
        if not self._child:
            self._start()
        os.write(self._ask, b"?")
        answer = os.read(self._answer, 1)
        return answer[0] if answer else self._end()

    def _start(self) -> None:
        asked, self._ask = os.pipe()
        self._answer, answer = os.pipe()
        self._child = os.fork()
        if self._child:
            os.close(asked)
            os.close(answer)
            return
        os.close(self._ask)
        while os.read(asked, 1):
            try:
                code = self._work()
            except BaseException:
                traceback.print_exc()
                code = 99
            os.write(answer, bytes([code]))
        os._exit(0)

    def _end(self) -> int:
        os.close(self._ask)
        os.close(self._answer)
        child, self._child = self._child, 0
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def close(self) -> None:
        if self._child:
            self._end()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(tmp_path / "stores")
    yield store
    store.close()


def as_user(user: int, group: int, work: Callable[[], Any]) -> int:
    """Run `work` in a forked process of another user, with the usual umask; its exit code."""

    def switched() -> None:
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
        os.umask(0o022)
        work()

    return in_child(switched)


@pytest.fixture
def shared_directory() -> Iterator[Path]:
    """A directory that other users reach. Becoming another user needs root."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    path = Path(tempfile.mkdtemp(prefix="streamkit-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)
