"""A row is appended by the compiled twin in one step: the same bytes, and the same order between processes."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from random import Random
from types import FrameType
from typing import Any

import pytest
from fix_local import Append, LocalStore, P, Put, write

from harness.codecs import CODECS, choose, using
from streamkit.backend import NEXT, Conflict
from streamkit_local.log import _AHEAD, PartitionLog
from streamkit_local.record import NEXT_ROW, WHOLE, encode

pytestmark = pytest.mark.skipif(len(CODECS) < 2, reason="the compiled twin is not installed: make speed")


@pytest.fixture(autouse=True)
def _codec() -> Iterator[None]:
    with using("compiled"):
        yield


@pytest.fixture(params=[False, True], ids=["buffered", "durable"])
def durable(request: pytest.FixtureRequest) -> bool:
    durable: bool = request.param
    return durable


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each append, or other write, that takes several steps."""
    taken: list[int] = []
    lock = PartitionLog._lock
    monkeypatch.setattr(PartitionLog, "_lock", lambda log: (taken.append(1), lock(log))[1])
    return taken


def the_log(local: LocalStore) -> PartitionLog:
    log = local.backend._log(P)  # type: ignore[attr-defined]
    assert isinstance(log, PartitionLog)
    return log


def test_the_bytes_are_those_of_the_python_codec(local: LocalStore, locks: list[int], durable: bool) -> None:
    random, rows = Random(7), {}
    write(local.backend, P, [Append(b"0", b"")], durable=durable)
    log = the_log(local)
    steps = len(locks)
    for number in range(1, 60):
        choose(random.choice(CODECS))
        key, value = b"%04d" % number, random.randbytes(random.choice([0, 1, 100, 4096, WHOLE - 1, WHOLE, WHOLE + 1]))
        before = log.state.end
        write(local.backend, P, [Append(key, value)], durable=durable)
        made = encode(before, NEXT_ROW, key, value, log.reader.seed)
        assert os.pread(log._file.fd, len(made), before - log.state.base) == made  # type: ignore[union-attr]
        assert log.state.end == before + len(made)
        rows[key] = value
    assert steps < len(locks) < 59
    assert local.rows() == rows | {b"0": b""}
    assert local.rows_anew() == rows | {b"0": b""}


def test_a_row_whose_key_is_not_greater_is_refused(local: LocalStore, durable: bool) -> None:
    write(local.backend, P, [Put(b"7", b"row"), Append(b"5", b"five")], durable=durable)
    for key in (b"5", b"4", b"7"):
        with pytest.raises(Conflict):
            write(local.backend, P, [Append(key, b"x")], durable=durable)
    write(local.backend, P, [Append(b"6", b"six")], durable=durable)
    assert local.rows_anew() == {b"5": b"five", b"6": b"six", b"7": b"row"}


def test_rows_that_others_wrote_meanwhile_are_seen_first(local: LocalStore, durable: bool) -> None:
    write(local.backend, P, [Append(b"1", b"one")], durable=durable)
    local.run("b.put(P, b'2', b'two', NEXT, durable=False)")
    with pytest.raises(Conflict):
        write(local.backend, P, [Append(b"2", b"mine")], durable=durable)
    local.run("b.put(P, b'3', b'three', NEXT, durable=False)")
    write(local.backend, P, [Append(b"4", b"four")], durable=durable)
    assert local.rows_anew() == {b"1": b"one", b"2": b"two", b"3": b"three", b"4": b"four"}


def test_a_writer_waits_while_another_one_holds_the_lock(
    local: LocalStore, locks: list[int], monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    write(local.backend, P, [Append(b"1", b"one")], durable=durable)
    write(local.backend, P, [Append(b"2", b"two")], durable=durable)
    steps, file = len(locks), os.open(local.logs()[-1], os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    taken = PartitionLog._lock

    def release(log: PartitionLog) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
        taken(log)

    monkeypatch.setattr(PartitionLog, "_lock", release)
    write(local.backend, P, [Append(b"3", b"three")], durable=durable)
    assert len(locks) == steps + 1
    write(local.backend, P, [Append(b"4", b"four")], durable=durable)
    assert len(locks) == steps + 1
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the twin has released it
    os.close(file)
    assert [*local.rows_anew()] == [b"1", b"2", b"3", b"4"]


def test_what_a_dead_writer_left_is_dropped_first(local: LocalStore, locks: list[int], durable: bool) -> None:
    write(local.backend, P, [Append(b"1", b"one")], durable=durable)
    write(local.backend, P, [Append(b"2", b"two")], durable=durable)
    log, steps = the_log(local), len(locks)
    with open(local.logs()[-1], "r+b") as file:
        file.seek(log.state.end - log.state.base)
        file.write(encode(log.state.end, NEXT_ROW, b"3", b"unpublished", log.reader.seed))
    log.words[3] = 1
    write(local.backend, P, [Append(b"4", b"four")], durable=durable)
    assert len(locks) == steps + 1
    assert log.words[3] == 0
    assert [*local.rows_anew()] == [b"1", b"2", b"4"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system is not asked")
def test_the_disk_begins_with_small_rows_too(
    local: LocalStore, locks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, start, size, advice: asked.append((start, start + size)))
    backend, value = local.open(), os.urandom(WHOLE)
    for number in range(200):
        backend.put(P, b"%03d" % number, value, NEXT, durable=False)
    assert asked == [(0, _AHEAD), (_AHEAD, 2 * _AHEAD), (2 * _AHEAD, 3 * _AHEAD)]
    assert len(locks) < 10


def test_an_interrupt_while_a_row_is_written_leaves_the_lock_free(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    write(local.backend, P, [Append(b"1", b"one")], durable=durable)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            local.backend.put(P, b"2", b"two", NEXT, durable=durable)
    local.run("b.put(P, b'2', b'theirs', NEXT, durable=False)")
    write(local.backend, P, [Append(b"3", b"three")], durable=durable)
    assert local.rows_anew() == {b"1": b"one", b"2": b"theirs", b"3": b"three"}


def test_an_interrupt_at_any_line_leaves_no_lock_noted(local: LocalStore, durable: bool) -> None:
    write(local.backend, P, [Append(b"0", b"zero")], durable=durable)
    log, before, lines = the_log(local), sys.gettrace(), 0

    def at(line: int) -> Callable[[FrameType, str, Any], Any]:
        left = line

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            if frame.f_code is not PartitionLog._append_at_once.__code__:
                return None
            left -= event == "line"
            if not left:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        return trace

    for number in range(1, 100):
        lines = number
        sys.settrace(at(number))
        try:
            local.backend.put(P, b"%03d" % number, b"", NEXT, durable=durable)
            break
        except KeyboardInterrupt:
            assert not log._locked, number
        finally:
            sys.settrace(before)
    assert 10 < lines < 99
    with open(local.logs()[-1], "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert b"%03d" % lines in local.rows_anew()
