"""Processes that end or stop at any moment, and calls that fail: nothing acknowledged is lost, nothing half done."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_local import Append, Delete, LocalStore, P, Put, in_child, write

import streamkit
import streamkit_local
from harness.cuts import Cut, Interrupt
from streamkit.backend import Ambiguous
from streamkit.errors import Unavailable
from streamkit_local import log
from streamkit_local.record import NEXT_ROW, encode

LARGE = bytes(range(256)) * 400
CHANGES = ["pwrite", "fdatasync", "fsync", "ftruncate", "rename", "unlink", "mkdir", "open"]


def fill(local: LocalStore, count: int, *, durable: bool = False) -> dict[bytes, bytes]:
    rows = {b"%04d" % number: b"<%d>" % number * 5 for number in range(count)}
    for key, value in rows.items():
        write(local.backend, P, [Append(key, value)], durable=durable)
    return rows


# Ends of processes


def end_at_call(number: int, half: bool, names: Sequence[str] = CHANGES) -> None:
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

    for name in names:
        setattr(os, name, wrapped(name))


@pytest.mark.parametrize("half", [False, True])
def test_a_process_that_ends_at_any_call_loses_nothing(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool
) -> None:
    monkeypatch.setattr(log, "ROLL", 900)
    monkeypatch.setattr(log, "_SMALL", 300)
    done = tmp_path / "done"

    def work() -> None:
        with open(done, "wb", buffering=0) as noted:
            for number in range(8):
                key = b"%04d" % number
                write(local.backend, P, [Append(key, key * 20)], durable=number % 2 == 0)
                noted.write(b"a%d\n" % number)
                if number % 4 == 3:
                    write(local.backend, P, [Put(b"row", key), Put(b"row 2", key * 20_000)])
                    noted.write(b"r%d\n" % number)
            write(local.backend, P, [Delete(b"%04d" % number) for number in range(5)])
            noted.write(b"d\n")
            grant = local.backend.acquire("leader", 0.001)
            assert grant is not None
            noted.write(b"l%d\n" % grant.token)

    ended = 0
    for call in range(1, 400):
        local.close()
        shutil.rmtree(local.root, ignore_errors=True)
        done.write_bytes(b"")

        def child(call: int = call) -> None:
            local.open()
            end_at_call(call, half)
            work()

        code = in_child(child)
        assert code in (0, 77)
        notes = done.read_bytes().split()
        local.open()
        rows = local.rows()
        one, two = rows.pop(b"row", b""), rows.pop(b"row 2", b"")[:4]
        appended = [int(note[1:]) for note in notes if note[:1] == b"a"]
        put = max([int(note[1:]) for note in notes if note[:1] == b"r"], default=-1)
        assert two in ((b"%04d" % put if put > 0 else b""), one)
        assert not one or int(one) in (put, put + 4)
        expected = [b"%04d" % number for number in appended]
        if b"d" in notes or (len(expected) == 8 and b"0000" not in rows):
            assert list(rows) == expected[5:]
        else:
            assert list(rows) in (expected, [*expected, b"%04d" % len(expected)])
        assert all(value == key * 20 for key, value in rows.items())
        token = max([int(note[1:]) for note in notes if note[:1] == b"l"], default=0)
        time.sleep(0.001)
        grant = local.backend.acquire("leader", 5)
        assert grant is not None
        assert grant.token > token
        write(local.backend, P, [Append(b"9", b"next"), Put(b"row", b"new"), Put(b"row 3", LARGE)])
        after = local.rows_anew()
        assert (after.pop(b"9"), after.pop(b"row"), after.pop(b"row 3")) == (b"next", b"new", LARGE)
        after.pop(b"row 2", b"")
        assert after == rows
        if code == 0:
            break
        ended += 1
    else:
        pytest.fail("the work never came to its end")
    assert ended > 60


@pytest.mark.parametrize("then", ["read beside", "written beside", "opened", "started anew", "copied"])
def test_a_process_that_ends_while_it_writes_a_row_anew_harms_no_other(local: LocalStore, then: str) -> None:
    """A transaction is written anew where it is, without what was erased: all others are whole."""
    rows = {b"%d" % number: bytes([number + 1]) * 9000 * number for number in range(1, 5)}
    new = b"new" * 3000

    def work(call: int) -> None:
        local.open()
        write(local.backend, P, [*(Append(*row) for row in rows.items()), Put(b"row", b"x" * 9000)])
        local.backend.delete(P, [b"row", b"3"])
        before = local.backend.get(P, [b"1"])[0]
        assert before is not None
        end_at_call(call, half=True, names=CHANGES if EXHAUSTIVE else ["pwrite"])
        local.backend.put(P, b"1", new, before.etag)
        local.backend.scrub(P)  # type: ignore[attr-defined]

    ended = 0
    for call in range(1, 100):
        local.close()
        shutil.rmtree(local.root, ignore_errors=True)
        write(local.open(), P, [Append(b"0", b"first")])
        code = in_child(partial(work, call))
        assert code in (0, 77)
        if then == "opened":
            local.open()
        elif then == "started anew":
            local.cut_power()
            local.open()
        elif then == "copied":
            local.copy()
            local.open()
        elif then == "written beside":
            write(local.backend, P, [Append(b"9", b"last"), Put(b"other", b"x")])
        found = local.rows()
        assert found.pop(b"9", b"last") == b"last"
        assert found.pop(b"other", b"x") == b"x"
        first = found.pop(b"1")
        assert first in (rows[b"1"], new)
        assert found == {b"0": b"first", b"2": rows[b"2"], b"4": rows[b"4"]}
        write(local.backend, P, [Append(b"A", b"next")])
        assert local.rows_anew()[b"1"] in (first, new)  # the next writer has completed it
        assert not list(local.path.rglob("anew"))
        if code == 0:
            break
        ended += 1
    assert 3 < ended < 99


def test_what_is_written_anew_and_fails_is_completed(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fill(local, 3) | {b"4": LARGE, b"5": LARGE}
    write(local.backend, P, [Append(b"4", LARGE), Append(b"5", LARGE)])
    before = local.backend.get(P, [b"4"])[0]
    assert before is not None
    call, new = os.pwrite, LARGE[::-1]

    def failing(fd: int, data: Any, at: int) -> int:
        if at == 0 or len(data) < 1000:  # what is noted
            return call(fd, data, at)
        if len(data) == len(LARGE) // 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(fd, data[: len(data) - len(LARGE) // 2], at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", failing)
        with pytest.raises(Unavailable):
            local.backend.put(P, b"4", new, before.etag)
    write(local.backend, P, [Append(b"6", b"x")])
    assert local.rows() == {**rows, b"4": new, b"6": b"x"}


def test_what_killed_writers_left_behind_is_removed(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(local, 1)
    for name in ("1" * 16 + ".row", "2" * 16 + ".row.new"):
        (local.log_path() / name).write_bytes(b"left")
    busy = local.log_path() / ("3" * 16 + ".row")
    with open(busy, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # its writer is about to name it
        monkeypatch.setattr(log, "ROLL", 10)
        write(local.backend, P, [Append(b"1", b"x")])
        assert list(local.log_path().glob("*.row*")) == [busy]
    write(local.backend, P, [Append(b"2", b"x")])
    assert not busy.exists()


def test_a_file_that_is_removed_before_its_writer_has_locked_it_is_begun_again(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fill(local, 2)
    drafts = []
    lock = fcntl.flock

    def locking(fd: int, how: int) -> None:
        found = list(local.log_path().glob("*.row.new"))
        if found and not drafts:
            drafts.extend(found)
            local.run("b.delete(P, [b'0000'])")  # and removes what was left behind
            assert not found[0].exists()
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", locking)
    write(local.backend, P, [Put(b"row", LARGE)])
    assert drafts
    assert local.rows_anew() == {b"0001": rows[b"0001"], b"row": LARGE}


def test_a_record_that_a_dead_writer_did_not_publish_never_appears(local: LocalStore) -> None:
    rows = fill(local, 3)
    local.close()

    def write_without_publishing(keep: int) -> None:
        os_write = os.pwrite

        def partly(fd: int, data: bytes, at: int) -> int:
            os_write(fd, data[:keep], at)
            os._exit(0)

        os.pwrite = partly  # type: ignore[assignment]
        write(local.open(), P, [Append(b"5", b"unpublished")], durable=False)

    whole = len(encode(0, NEXT_ROW, bytes(1), bytes(11), 0))
    for keep in (0, 1, 20, whole - 1, whole):
        in_child(lambda keep=keep: write_without_publishing(keep))
        assert local.rows_anew() == rows
    write(local.backend, P, [Append(b"6", b"next")])
    assert local.rows() == rows | {b"6": b"next"}


_WRITER = """
n = max([int(r.key) for r in b.scan(P, b"0", b"9")], default=0)
print("ready", flush=True)
out = open(args[0], "a")
print(n, file=out, flush=True)
while True:
    n += 1
    b.put(P, b"%08d" % n, os.urandom(50) + b"%08d" % n, NEXT, durable=n % 3 == 0)
    if n % 7 == 0:
        b.put(P, b"row", b"%08d" % n * 9000)
    print(n, file=out, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_killed_writers_lose_nothing(local: LocalStore, tmp_path: Path, stopped: bool) -> None:
    noted = tmp_path / "noted"
    noted.touch()
    chance = random.Random(7)
    write(local.backend, P, [Put(b"row", b"0")])
    for _ in range(8):
        process = local.start(_WRITER, str(noted))
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(chance.random() / 10)
        if stopped:
            process.send_signal(signal.SIGSTOP)
            last = int((noted.read_text().split() or ["0"])[-1])
            assert len(local.rows()) - 1 >= last
        process.kill()
        process.communicate()
        rows = local.rows() if stopped else local.rows_anew()
        row = int(rows.pop(b"row")[:8])
        last = int((noted.read_text().split() or ["0"])[-1])
        assert len(rows) in (last, last + 1)
        assert row % 7 == 0
        assert row <= len(rows)
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
@pytest.mark.parametrize("kind", [Append, Put])
def test_a_write_that_fails_leaves_nothing(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int, part: int, kind: type[Append | Put]
) -> None:
    rows = fill(local, 5)
    failing = Failing(monkeypatch, "pwrite", code, part=part)
    for value in (b"x" * 100, b"x" * 30_000, LARGE):
        failing.times, failing.part = (2 if part else 1), part
        with pytest.raises(Unavailable) as caught:
            write(local.backend, P, [kind(b"5", value)], durable=False)
        assert str(local.root) in str(caught.value)
        assert local.rows() == rows
    failing.times = 0
    write(local.backend, P, [kind(b"5", b"y")])
    assert local.rows_anew() == rows | {b"5": b"y"}
    assert not list(local.log_path().glob("*.row*"))


def test_every_call_of_a_durable_write_may_fail(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "ROLL", 600)
    rows: dict[bytes, bytes] = {}
    refused = 0
    for name in ("pwrite", "fdatasync", "fsync", "open", "ftruncate", "rename", "stat"):
        for skip in range(6):
            with monkeypatch.context() as patch:
                call, left = getattr(os, name), [skip]

                def once(*args: Any, call: Callable[..., Any] = call, left: list[int] = left, **options: Any) -> Any:
                    left[0] -= 1
                    if left[0] == -1:
                        raise OSError(errno.EIO, os.strerror(errno.EIO))
                    return call(*args, **options)

                patch.setattr(os, name, once)
                key = b"%06d" % len(rows)
                for op in (Append(key, b"v" * 100), Put(b"row " + key, LARGE)):
                    before = dict(rows)
                    try:
                        write(local.backend, P, [op])
                        rows[op.key] = op.value
                    except (Unavailable, Ambiguous):
                        refused += 1
                    patch.undo()
                    found = local.rows()
                    assert found == rows, (name, skip, op.key)
                    assert local.rows_anew() == rows
                    del before
    assert refused > 8
    write(local.backend, P, [Append(b"9", b"next")])


@pytest.mark.parametrize("durable", [False, True])
def test_a_short_write_is_finished(local: LocalStore, monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    rows = fill(local, 5)
    failing = Failing(monkeypatch, "pwrite", 0, part=10)
    failing.times = 1
    write(local.backend, P, [Append(b"5", b"x" * 100)], durable=durable)
    assert local.rows_anew() == rows | {b"5": b"x" * 100}


def test_after_a_sync_that_failed_all_that_was_not_synced_is_written_again(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fill(local, 1, durable=True) | fill(local, 0)
    start = local.logs()[0].read_bytes().rstrip(b"\0")
    for number in range(1, 5):
        rows[b"%04d" % number] = b"x"
        write(local.backend, P, [Append(b"%04d" % number, b"x")], durable=False)
    unsynced = local.logs()[0].read_bytes().rstrip(b"\0")[len(start) :]
    failing = Failing(monkeypatch, "fdatasync", errno.EIO)
    failing.times = 1
    with pytest.raises(Unavailable):
        write(local.backend, P, [Append(b"5", b"lost")])
    assert local.rows() == rows
    written: list[bytes] = []
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: (written.append(bytes(data)), pwrite(fd, data, at))[1])
    write(local.backend, P, [Append(b"5", b"kept")])
    assert unsynced in written
    written.clear()
    write(local.backend, P, [Append(b"6", b"kept")])
    assert len(written) == 1
    assert local.rows_anew() == rows | {b"5": b"kept", b"6": b"kept"}


def test_a_write_that_can_neither_be_finished_nor_taken_back_is_ambiguous(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fill(local, 5)
    sync, cut = Failing(monkeypatch, "fdatasync", errno.EIO), Failing(monkeypatch, "ftruncate", errno.EIO)
    sync.times = cut.times = 1
    with pytest.raises(Ambiguous):
        write(local.backend, P, [Append(b"5", b"maybe")])
    write(local.backend, P, [Append(b"6", b"next")])
    assert local.rows_anew() == rows | {b"6": b"next"}


def test_a_thread_may_be_interrupted_at_any_step(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "ROLL", 700)
    rows: dict[bytes, bytes] = {}
    cuts = 0
    for step in range(3000):
        key = b"%06d" % step
        op = Append(key, key * 3) if step % 2 else Put(b"row", key * 3)
        durable = step % 5 == 0
        cut = Cut(step // 2 % 150)
        try:
            with cut:
                write(local.backend, P, [op], durable=durable)
            rows[op.key] = op.value
        except Interrupt:
            cuts += 1
            found = local.rows()
            assert found in (rows, rows | {op.key: op.value})
            rows = found
        if step % 50 == 49:
            assert local.rows() == rows
            if step % 500 == 499:
                assert local.rows_anew() == rows
                write(local.backend, P, [Delete(key) for key in list(rows)[:-3]])
                rows = dict(list(rows.items())[-3:])
    assert cuts > 500


def test_a_large_row_is_there_at_whatever_step_its_writer_is_interrupted(local: LocalStore) -> None:
    """The file of a row must stay if the log names it by then."""
    before, cuts = b"before", 0
    local.backend.put(P, b"row", before)
    for step in range(60, 200):
        value = b"%06d" % step * 12_000
        try:
            with Cut(step):
                local.backend.put(P, b"row", value)
            before = value
        except Interrupt:
            cuts += 1
            found = local.rows()[b"row"]
            assert found in (before, value)
            before = found
    assert cuts > 50
    assert local.rows_anew() == {b"row": before}


def test_a_row_that_was_put_is_no_error_if_the_file_of_the_one_before_cannot_be_removed(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = b"x" * 100_000
    etag = local.backend.put(P, b"row", value)

    def broken(path: str) -> None:
        raise OSError(errno.EIO, "broken", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", broken)
        etag = local.backend.put(P, b"row", value + b"y", etag)
    assert local.backend.get(P, [b"row"]) == [(value + b"y", etag)]
    monkeypatch.setattr(log, "ROLL", 100)
    fill(local, 3)
    assert len(list(local.log_path().glob("*.row"))) == 1


# Processes that stand still


def test_a_store_can_be_used_while_a_stopped_process_has_it_open(local: LocalStore) -> None:
    rows = fill(local, 3)
    process = local.start("b.get(P, [b'0001']); print('ready', flush=True); time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGSTOP)
    try:
        write(local.backend, P, [Append(b"5", b"x"), Put(b"row", b"y")])
        assert local.rows() == rows | {b"5": b"x", b"row": b"y"}
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second holder of a lock")
def test_a_lock_that_is_never_given_back_is_an_error_in_time(local: LocalStore) -> None:
    fill(local, 3)
    local.close()
    program = (
        "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print('ready', flush=True)"
        "; time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(local.logs()[0])], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        hasty = streamkit_local.connect(f"file://{local.root}", timeout=0.2).open(local.id)
        with pytest.raises(Unavailable, match="has held the lock"):
            write(hasty, P, [Append(b"5", b"x")])
    finally:
        process.kill()
        process.communicate()
    write(hasty, P, [Append(b"5", b"x")])


@pytest.mark.parametrize("fresh", [True, False])
def test_a_file_that_a_dead_writer_began_is_not_taken_for_the_log_after_a_power_cut(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    rows = fill(local, 5)

    def end_before_publishing() -> None:
        log.ROLL = 10  # type: ignore[misc]
        monkeypatch.setattr(log, "sync_directory", lambda _: os._exit(0))
        write(local.open(), P, [Append(b"5", b"unpublished")])

    assert in_child(end_before_publishing) == 0
    assert len(local.logs()) == 2
    write(local.open() if fresh else local.backend, P, [Append(b"6", b"next")])
    local.cut_power()
    assert local.rows_anew() == rows | {b"6": b"next"}
    assert len(local.logs()) == 1


def test_half_made_partitions_of_killed_processes_are_looked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    listdir = os.listdir

    def counted(path: str) -> list[str]:
        looked.append(path)
        return listdir(path)

    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        store.create_space("before")
    inside = tmp_path / str(store.id)
    old, young = inside / ".new-old", inside / ".new-young"
    for draft in old, young:
        draft.mkdir()
    os.utime(old, (0, 0))
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(store.id)
        monkeypatch.setattr(os, "listdir", counted)
        for number in range(10):
            store.create_space(f"space-{number}")
        assert looked.count(str(inside)) == 1  # it grows with the store
        assert not old.exists()
        assert young.exists()
