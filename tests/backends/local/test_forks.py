"""A forked child keeps nothing that its parent holds: not a lock after the parent was killed, not a file."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_local import Append, LocalStore, P, Put, write

from streamkit.backend import Ambiguous
from streamkit_local import syncing

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

# The syncing never ends: the thread is inside its write, with the lock, when the process forks.
_FORK_INSIDE = """
import threading
from streamkit_local import syncing
b.put(P, b"1", b"one", NEXT)
b.put(P, b"row", b"one")
inside = threading.Event()
def never(*_):
    inside.set()
    time.sleep(1000)
syncing.sync_data = never
threading.Thread(target=lambda: b.put(P, {row}), daemon=True).start()
inside.wait()
child = os.fork()
if child == 0:
    time.sleep(1000)
print(child, flush=True)
time.sleep(1000)
"""


@contextlib.contextmanager
def orphan(local: LocalStore, program: str) -> Iterator[int]:
    """The child of a process that was killed."""
    process = local.start(program)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.send_signal(signal.SIGKILL)
        process.wait()
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("row", ["b'2', b'two', NEXT", "b'row', b'two'"])
def test_the_child_of_a_killed_writer_does_not_keep_its_lock(local: LocalStore, row: str) -> None:
    with orphan(local, _FORK_INSIDE.format(row=row)):
        write(local.backend, P, [Append(b"3", b"three")])
        assert local.rows() == {b"1": b"one", b"3": b"three", b"row": b"one"}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_child_has_no_file_of_its_parents_stores_open(local: LocalStore) -> None:
    write(local.backend, P, [Append(b"1", b"one"), Put(b"row", b"one")])
    found, told = os.pipe()
    child = os.fork()
    if child == 0:
        names = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.exists()]
        os.write(told, "\n".join(name for name in names if str(local.id) in name).encode() or b"none")
        os._exit(0)
    os.waitpid(child, 0)
    os.close(told)
    with open(found, "rb") as pipe:
        assert pipe.read() == b"none"
    assert local.rows() == {b"1": b"one", b"row": b"one"}


def test_a_child_publishes_nothing_of_the_write_that_its_parent_was_in(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler forks in the middle of a write, and the child goes on with it after its parent has."""
    for key in (b"1", b"2", b"3"):
        write(local.backend, P, [Append(key, b"")])
    parent, children, sync_data = os.getpid(), list[int](), syncing.sync_data
    waiting, going = os.pipe()

    def fork(fd: int) -> None:
        sync_data(fd)
        monkeypatch.setattr(syncing, "sync_data", sync_data)
        children.append(os.fork())
        if children == [0]:
            os.read(waiting, 1)

    monkeypatch.setattr(syncing, "sync_data", fork)
    code = 1
    try:
        write(local.backend, P, [Append(b"4", b"")])
    except Ambiguous:
        code = 0
    finally:
        if os.getpid() != parent:
            os._exit(code)
    for key in (b"5", b"6", b"7"):
        write(local.backend, P, [Append(key, b"")])
    heads = {path: path.read_bytes() for path in local.root.rglob("head")}
    os.write(going, b"1")
    assert os.waitpid(children[0], 0)[1] == 0
    assert heads
    assert {path: path.read_bytes() for path in heads} == heads
    assert list(local.rows()) == [b"%d" % key for key in range(1, 8)]
    os.close(waiting)
    os.close(going)
