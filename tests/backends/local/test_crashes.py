"""Processes that end or stop at any moment, and calls that fail: nothing acknowledged is lost, nothing half done."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fix_local import LocalStore, P, in_child

from streamkit.backend import Ambiguous, Append, Delete, Put
from streamkit.errors import StreamkitError, Unavailable
from streamkit_local import log, store

HEADER = 28


def size_of(key: bytes, value: bytes) -> int:
    return HEADER + len(key) + len(value)


def fill(local: LocalStore, count: int, *, durable: bool = False) -> dict[bytes, bytes]:
    rows = {b"%04d" % number: b"<%d>" % number * 5 for number in range(count)}
    for key, value in rows.items():
        local.backend.write(P, [Append(key, value)], durable=durable)
    return rows


def end_of(rows: dict[bytes, bytes]) -> int:
    return sum(size_of(key, value) for key, value in rows.items())


# Ends of processes


def end_at_call(number: int, half: bool) -> None:
    """End this process at its `number`th call that changes the disk, before it or in the middle of it."""
    calls = 0

    def wrapped(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= number:
                try:
                    if half and name == "pwrite":
                        call(args[0], args[1][: len(args[1]) // 2], args[2])
                    elif half:
                        call(*args, **kwargs)
                finally:  # also if it failed, as making what is there does
                    os._exit(77)
            return call(*args, **kwargs)

        return counted

    names = ["pwrite", "pwritev", "fdatasync", "fsync", "ftruncate", "rename", "unlink", "mkdir", "posix_fallocate"]
    for name in names:
        setattr(os, name, wrapped(name))


@pytest.mark.parametrize("half", [False, True])
def test_a_process_that_ends_at_any_call_loses_nothing(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool
) -> None:
    monkeypatch.setattr(log, "ROLL", 600)
    done = tmp_path / "done"

    def work() -> None:
        with open(done, "wb", buffering=0) as noted:
            for number in range(12):
                key = b"%04d" % number
                local.backend.write(P, [Append(key, key * 20)], durable=number % 2 == 0)
                noted.write(b"a%d\n" % number)
                if number % 4 == 3:
                    local.backend.write(P, [Put(b"row", key), Put(b"row 2", key)])
                    noted.write(b"r%d\n" % number)
            local.backend.write(P, [Delete(b"%04d" % number) for number in range(8)])
            noted.write(b"d\n")

    ended = 0
    for call in range(1, 200):
        shutil.rmtree(local.root, ignore_errors=True)
        done.write_bytes(b"")

        def child(call: int = call) -> None:
            end_at_call(call, half)
            work()

        code = in_child(child)
        assert code in (0, 77)
        notes = done.read_bytes().split()
        local.open()
        rows = local.rows()
        one, two = rows.pop(b"row", b""), rows.pop(b"row 2", b"")
        assert one == two
        appended = [int(note[1:]) for note in notes if note[:1] == b"a"]
        put = [int(note[1:]) for note in notes if note[:1] == b"r"]
        assert one in (b"%04d" % max(put, default=-1), b"%04d" % (max(put, default=-1) + 4)) or not put
        expected = [b"%04d" % number for number in appended]
        if b"d" in notes:
            assert list(rows) == expected[8:]
        elif list(rows)[:1] == [b"0008"]:
            assert list(rows) == expected[8:]  # the deletion was made and not acknowledged
        else:
            extra = [b"%04d" % len(expected)]
            assert list(rows) in (expected, expected + extra)
        assert all(value == key * 20 for key, value in rows.items())
        local.backend.write(P, [Append(b"9", b"next"), Put(b"row", b"new")])
        local.open()
        after = local.rows()
        assert (after.pop(b"9"), after.pop(b"row"), after.pop(b"row 2", b"")) == (b"next", b"new", two)
        assert list(after) in (list(rows), [*rows, b"%04d" % len(expected)])
        if code == 0:
            break
        ended += 1
    else:
        pytest.fail("the work never came to its end")
    assert ended > 40


def test_a_record_that_a_dead_writer_did_not_publish_never_appears(local: LocalStore) -> None:
    rows = fill(local, 3)
    local.close()

    def write_without_publishing(keep: int) -> None:
        os_write = os.pwrite

        def partly(fd: int, data: bytes, at: int) -> int:
            os_write(fd, data[:keep], at)
            os._exit(0)

        os.pwrite = partly  # type: ignore[assignment]
        local.open().write(P, [Append(b"5", b"unpublished")], durable=False)

    whole = size_of(b"5", b"unpublished")
    for keep in (0, 1, HEADER, whole - 1, whole):
        in_child(lambda keep=keep: write_without_publishing(keep))
        assert local.rows_anew() == rows
    local.backend.write(P, [Append(b"6", b"next")])
    assert local.rows() == rows | {b"6": b"next"}


_WRITER = """
n = max([int(r.key) for r in b.scan(P, b"0", b"9")], default=0)
print("ready", flush=True)
out = open(args[0], "a")
print(n, file=out, flush=True)
while True:
    n += 1
    b.write(P, [Append(b"%08d" % n, os.urandom(50) + b"%08d" % n)], durable=n % 3 == 0)
    if n % 7 == 0:
        b.write(P, [Put(b"row", b"%08d" % n), Put(b"row 2", b"%08d" % n)])
    print(n, file=out, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_killed_writers_lose_nothing(local: LocalStore, tmp_path: Path, stopped: bool) -> None:
    noted = tmp_path / "noted"
    noted.touch()
    chance = random.Random(7)
    local.backend.write(P, [Put(b"row", b""), Put(b"row 2", b"")])
    for _ in range(8):
        process = local.start(_WRITER, str(noted))
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(chance.random() / 10)
        if stopped:
            process.send_signal(signal.SIGSTOP)
            last = int((noted.read_text().split() or ["0"])[-1])
            assert len(local.rows()) - 2 >= last
        process.kill()
        process.communicate()
        rows = local.rows() if stopped else local.rows_anew()
        one, two = rows.pop(b"row"), rows.pop(b"row 2")
        last = int((noted.read_text().split() or ["0"])[-1])
        assert one == two
        assert len(rows) in (last, last + 1)
        assert list(rows) == [b"%08d" % number for number in range(1, len(rows) + 1)]
        assert all(value[50:] == key for key, value in rows.items())


# Calls that fail


class Failing:
    """Stands for a function of os: fails with `code` on its next `times` calls, after writing `part` bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, code: int, *, part: int = 0) -> None:
        self.call = getattr(os, name)
        self.times = 0
        self.code = code
        self.part = part
        monkeypatch.setattr(os, name, self)

    def __call__(self, *args: Any) -> Any:
        if not self.times:
            return self.call(*args)
        self.times -= 1
        if self.part:
            part, self.part = self.part, 0
            return self.call(args[0], args[1][:part], args[2])
        raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("part", [0, 10])
@pytest.mark.parametrize("durable", [False, True])
def test_a_write_that_fails_leaves_nothing(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int, part: int, durable: bool
) -> None:
    rows = fill(local, 5)
    failing = Failing(monkeypatch, "pwrite", code, part=part)
    failing.times = 2 if part else 1
    with pytest.raises(Unavailable) as caught:
        local.backend.write(P, [Append(b"5", b"x" * 100)], durable=durable)
    assert str(local.root) in str(caught.value)
    assert local.rows() == rows
    local.backend.write(P, [Append(b"5", b"y")], durable=durable)
    assert local.rows_anew() == rows | {b"5": b"y"}


def test_a_short_write_is_finished(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fill(local, 5)
    failing = Failing(monkeypatch, "pwrite", 0, part=10)
    failing.times = 1
    local.backend.write(P, [Append(b"5", b"x" * 100)])
    assert local.rows_anew() == rows | {b"5": b"x" * 100}


def test_after_a_sync_that_failed_all_that_was_not_synced_is_written_again(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fill(local, 5)
    failing = Failing(monkeypatch, "fdatasync", errno.EIO)
    failing.times = 1
    with pytest.raises(Unavailable):
        local.backend.write(P, [Append(b"5", b"lost")])
    assert local.rows() == rows
    written: list[tuple[int, int]] = []
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: (written.append((at, len(data))), pwrite(fd, data, at))[1])
    local.backend.write(P, [Append(b"5", b"kept")])
    assert written == [(end_of(rows), size_of(b"5", b"kept")), (0, end_of(rows))]
    written.clear()
    local.backend.write(P, [Append(b"6", b"kept")])
    assert len(written) == 1
    assert local.rows_anew() == rows | {b"5": b"kept", b"6": b"kept"}


def test_a_write_that_can_neither_be_finished_nor_taken_back_is_ambiguous(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fill(local, 5)
    sync, cut = Failing(monkeypatch, "fdatasync", errno.EIO), Failing(monkeypatch, "ftruncate", errno.EIO)
    sync.times = cut.times = 1
    with pytest.raises(Ambiguous):
        local.backend.write(P, [Append(b"5", b"maybe")])
    local.backend.write(P, [Append(b"6", b"next")])
    assert local.rows_anew() == rows | {b"6": b"next"}


def test_an_append_that_was_made_is_acknowledged_although_the_index_cannot_be_written(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamkit_local.store._FLUSH", 10)

    def refuse(*_: object) -> None:
        raise Unavailable("no room")

    local.backend.write(P, [Put(b"row", b"x")])
    monkeypatch.setattr("streamkit_local.environment.Environment.write", refuse)
    rows = fill(local, 50)
    with pytest.raises(StreamkitError):
        local.backend.write(P, [Put(b"row", b"y")])
    monkeypatch.undo()
    assert local.rows_anew() == rows | {b"row": b"x"}


def test_an_interrupted_append_never_appears_later(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fill(local, 5)
    for name in ("pwrite", "fdatasync"):
        call = getattr(os, name)

        def interrupted(*args: Any, call: Callable[..., Any] = call) -> Any:
            call(*args)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(os, name, interrupted)
            key = b"%d" % len(rows)
            with pytest.raises(KeyboardInterrupt):
                local.backend.write(P, [Append(key, b"maybe")])
        local.backend.write(P, [Append(key + b" after", b"x")])
        found = local.rows()
        rows |= {key + b" after": b"x"}
        assert found == rows
    assert local.rows_anew() == rows


def test_a_log_whose_maker_ended_before_it_said_so_is_seen_by_those_who_looked_before(local: LocalStore) -> None:
    local.backend.write(P, [Put(b"row", b"x")])
    assert local.rows() == {b"row": b"x"}

    def end_between() -> None:
        store.sync_directory = lambda path: os._exit(77)  # type: ignore[assignment]
        local.open().write(P, [Append(b"1", b"never")])

    assert in_child(end_between) == 77
    local.run("b.write(P, [Append(b'2', b'y')])")
    assert local.rows() == {b"2": b"y", b"row": b"x"}


_STOPS = """
import signal
from streamkit_local.pages import Pages
def stop(*_):
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
Pages._note = stop
b.write(P, [Put(b"row", b"y")])
"""


def test_nobody_waits_for_a_writer_that_stopped_before_it_noted_its_checksums(local: LocalStore) -> None:
    local.backend.write(P, [Put(b"row", b"x")])
    process = local.start(_STOPS)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        for _ in range(3):
            assert local.rows() == {b"row": b"y"}
    finally:
        process.kill()
        process.communicate()
    local.backend.write(P, [Append(b"1", b"z")])
    assert local.rows() == local.rows_anew() == {b"1": b"z", b"row": b"y"}


def test_a_store_can_be_used_while_a_stopped_process_has_it_open(local: LocalStore) -> None:
    rows = fill(local, 3)
    process = local.start("b.get(P, [b'0001']); print('ready', flush=True); time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGSTOP)
    try:
        local.backend.write(P, [Append(b"5", b"x"), Put(b"row", b"y")])
        assert local.rows() == rows | {b"5": b"x", b"row": b"y"}
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second holder of a lock")
def test_a_lock_that_is_never_given_back_is_an_error_in_time(local: LocalStore) -> None:
    import streamkit_local

    fill(local, 3)
    local.close()
    program = (
        "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print('ready', flush=True)"
    )
    program += "; print('ready', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", program, str(local.head())], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        hasty = streamkit_local.connect(f"file://{local.root}", timeout=0.2).open(local.id)
        with pytest.raises(Unavailable, match="holds the lock"):
            hasty.write(P, [Append(b"5", b"x")])
    finally:
        process.kill()
        process.communicate()
    hasty.write(P, [Append(b"5", b"x")])
