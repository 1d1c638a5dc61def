"""A forked child keeps nothing that its parent holds: not a lock after the parent was killed, not a file."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_local import LocalStore, P

from streamkit.backend import Append, Put

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

# The syncing never ends: the thread is inside its write, with the lock, when the process forks.
_FORK_INSIDE = """
import threading
from streamkit_local import log, environment, pages
b.write(P, [Append(b"1", b"one"), Put(b"row", b"one")])
inside = threading.Event()
def never(*_):
    inside.set()
    time.sleep(1000)
{patch}
threading.Thread(target=lambda: b.write(P, {ops}), daemon=True).start()
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


def test_the_child_of_a_killed_writer_does_not_keep_the_lock_of_a_log(local: LocalStore) -> None:
    program = _FORK_INSIDE.format(patch="log.sync_data = never", ops="[Append(b'2', b'two')]")
    with orphan(local, program):
        local.backend.write(P, [Append(b"3", b"three")])
        assert local.rows() == {b"1": b"one", b"3": b"three", b"row": b"one"}


def test_the_child_of_a_killed_writer_does_not_keep_the_lock_of_the_index(local: LocalStore) -> None:
    # forking waits for the thread for `timeout` seconds
    program = "b._timeout = 1\n" + _FORK_INSIDE.format(
        patch="pages.Pages.committed = never", ops="[Put(b'row', b'two')]"
    )
    with orphan(local, program):
        local.backend.write(P, [Put(b"row", b"three")])
        assert local.rows()[b"row"] == b"three"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_child_has_no_file_of_its_parents_stores_open(local: LocalStore) -> None:
    local.backend.write(P, [Append(b"1", b"one"), Put(b"row", b"one")])
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
