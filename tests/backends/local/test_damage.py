"""Power cuts, copies and damage: acknowledged entries are there, damage is an error, and no entry is invented."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fix_local import Append, Delete, LocalStore, P, Put, flip, in_child, write

from streamkit.backend import Conflict, Range
from streamkit.errors import CorruptData, UnsupportedVersion
from streamkit_local import log
from streamkit_local.head import seal, unseal
from streamkit_local.reading import Reader
from streamkit_local.record import NEXT_ROW, encode
from streamkit_local.state import LogFile

LARGE = bytes(range(256)) * 320


def fill(local: LocalStore, count: int, *, durable: bool = False) -> dict[bytes, bytes]:
    rows = {b"%04d" % number: b"<%d>" % number * 5 for number in range(count)}
    for key, value in rows.items():
        write(local.backend, P, [Append(key, value)], durable=durable)
    return rows


def end_of(local: LocalStore) -> int:
    """The end of the written part, in the only file of the log."""
    word = int.from_bytes(local.head().read_bytes()[512:520], sys.byteorder)
    return unseal(word)


# After a power cut


@pytest.mark.parametrize("durable", [True, False])
def test_all_that_reached_the_disk_is_there_after_a_power_cut(local: LocalStore, durable: bool) -> None:
    rows = fill(local, 30, durable=durable)
    write(local.backend, P, [Put(b"row", LARGE)])
    rows[b"row"] = LARGE
    local.cut_power(synced=0)
    assert local.rows_anew() == rows
    write(local.backend, P, [Append(b"1", b"next")])
    assert local.rows() == rows | {b"1": b"next"}


@pytest.mark.parametrize("size", [5, 20_000])
def test_a_record_torn_by_a_power_cut_is_dropped_whole(local: LocalStore, size: int) -> None:
    rows = fill(local, 5)
    start = end_of(local)
    write(local.backend, P, [Append(b"9999", b"x" * size)], durable=False)
    whole = local.logs()[0].read_bytes()[: end_of(local)]
    step = 1 if size < 100 else 977
    for cut in range(start, len(whole), step):
        for tail in (b"", bytes(len(whole) - cut), b"\xff" * (len(whole) - cut)):
            local.cut_power(synced=start)
            local.logs()[0].write_bytes(whole[:cut] + tail)
            assert local.rows_anew() == rows
            write(local.backend, P, [Append(b"99999", b"next"), Put(b"row", b"x")])
            assert local.rows_anew() == rows | {b"99999": b"next", b"row": b"x"}


def test_what_was_synced_and_is_gone_after_a_power_cut_is_damage(local: LocalStore) -> None:
    fill(local, 10, durable=True)
    end = end_of(local)
    local.cut_power()
    os.truncate(local.logs()[0], end - 1)
    with pytest.raises(CorruptData, match="damaged record"):
        local.open().get(P, [b"0001"])


def test_a_power_cut_during_recovery_changes_nothing(local: LocalStore) -> None:
    rows = fill(local, 10)
    for _ in range(3):
        local.cut_power(synced=end_of(local) // 2)
        assert local.rows_anew() == rows


def test_a_file_that_was_begun_and_not_finished_is_passed_over_after_a_power_cut(local: LocalStore) -> None:
    rows = fill(local, 10)
    base = end_of(local)
    local.cut_power(synced=base)
    (local.log_path() / f"{base:016x}.log").write_bytes(b"SKlog-3\n" + bytes(100))
    assert local.rows_anew() == rows
    write(local.backend, P, [Append(b"1", b"next")])
    assert local.rows_anew() == rows | {b"1": b"next"}
    assert len(local.logs()) == 1


def test_the_last_key_is_known_after_every_row_was_deleted_and_the_power_cut(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_SMALL", 0)
    rows = fill(local, 10)
    write(local.backend, P, [Delete(key) for key in rows])
    local.cut_power()
    assert local.rows_anew() == {}
    for key in rows:
        with pytest.raises(Conflict):
            write(local.backend, P, [Append(key, b"again")])
    write(local.backend, P, [Append(b"1", b"next")])


# Copies


def test_a_copy_opens_and_is_written_to(local: LocalStore) -> None:
    rows = fill(local, 30)
    write(local.backend, P, [Put(b"row", b"x"), Put(b"large", LARGE)])
    local.copy()
    assert local.rows_anew() == rows | {b"row": b"x", b"large": LARGE}
    write(local.backend, P, [Append(b"1", b"next")])
    assert local.rows_anew() == rows | {b"row": b"x", b"large": LARGE, b"1": b"next"}


@pytest.mark.parametrize("head_first", [True, False])
def test_head_and_log_of_a_copy_may_be_of_different_moments(local: LocalStore, head_first: bool) -> None:
    fill(local, 5)
    early = {path.name: path.read_bytes() for path in local.log_path().iterdir()}
    rows = {b"%05d" % number: b"later" for number in range(9000, 9005)}
    write(local.backend, P, [Append(key, value) for key, value in rows.items()])
    late = {path.name: path.read_bytes() for path in local.log_path().iterdir()}
    expected = local.rows() if head_first else dict(list(local.rows().items())[:5])
    local.copy()
    for name in early:
        (local.log_path() / name).write_bytes((early if (name == "head") == head_first else late)[name])
    assert local.rows_anew() == expected


def test_a_row_whose_file_is_not_in_a_copy_ends_the_log_there(local: LocalStore) -> None:
    rows = fill(local, 5)
    write(local.backend, P, [Put(b"first", LARGE), Append(b"1", b"x"), Put(b"second", LARGE), Append(b"2", b"x")])
    kept = rows | {b"first": LARGE, b"1": b"x"}
    names = {path.name for path in local.log_path().glob("*.row")}
    first = local.rows()
    assert len(names) == 2
    assert first == kept | {b"second": LARGE, b"2": b"x"}
    missing = next(path for path in local.log_path().glob("*.row") if b"second" in path.read_bytes()[:200])
    local.copy()
    (local.log_path() / missing.name).unlink()
    assert local.rows_anew() == kept


_BUSY = """
n = 0
runs = []
parent = os.getppid()
print("ready", flush=True)
while os.getppid() == parent:  # not for longer than the test
    n += 1
    b.put(P, b"%08d" % n, b"x" * 200, NEXT, durable=False)
    if n % 50 == 0:
        b.put(P, b"RUN%08d" % n, b"%08d" % n * 1000, ABSENT)
        b.put(P, b"HEAD", b"%08d RUN%08d" % (n, n))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="cp -a")
def test_a_copy_of_a_store_in_use_is_what_was_there_at_some_moment(local: LocalStore, tmp_path: Path) -> None:
    write(local.backend, P, [Put(b"HEAD", b"0 ")])
    writer = local.start(_BUSY)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    try:
        for turn in range(12):
            before = len(local.rows())
            to = tmp_path / f"copy {turn}"
            writer.send_signal(signal.SIGCONT)
            done = subprocess.run(["cp", "-a", str(local.root), str(to)], capture_output=True, text=True)
            # a note that it writes for this copy would make the next copy longer
            writer.send_signal(signal.SIGSTOP)
            # a file that is being made is not part of the store yet
            assert all(".new'" in line for line in done.stderr.splitlines()), done.stderr
            copy = LocalStore(to)
            copy.id = local.id
            rows = copy.rows_anew()
            head, run = rows.pop(b"HEAD", b"0 ").split(b" ")
            runs = [key for key in rows if key.startswith(b"RUN")]
            logged = [key for key in rows if not key.startswith(b"RUN")]
            assert logged == [b"%08d" % number for number in range(1, len(logged) + 1)]
            assert len(logged) + len(runs) + 1 >= before - 1
            assert len(logged) - 50 <= int(head) <= len(logged)
            assert not int(head) or run in runs
            assert len(runs) - len(logged) // 50 in (-1, 0)
            copy.backend.put(P, b"HEAD", b"mine")
            copy.close()
            shutil.rmtree(to)
    finally:
        writer.kill()
        writer.communicate()


# Damage


def damaged(local: LocalStore, rows: dict[bytes, bytes]) -> bool:
    """True if reads fail with CorruptData. Otherwise every way to read must give the written entries."""
    found: list[object] = []
    errors = []
    calls = (
        lambda: local.rows_anew() == rows,
        lambda: [value and value.data for value in local.open().get(P, list(rows))] == list(rows.values()),
        lambda: (
            local.open().read(P, [Range(key, 1, 1 << 20) for key in rows]) == [value[1:] for value in rows.values()]
        ),
    )
    for call in calls:
        try:
            found.append(call())
        except CorruptData as error:
            errors.append(str(error))
    assert all(found)
    assert all(str(local.root) in error for error in errors)
    return bool(errors)


def sweep(local: LocalStore, path: Path, places: list[int], rows: dict[bytes, bytes]) -> set[int]:
    """The bytes at which a flipped bit is found. The file is restored afterwards."""
    local.close()
    head, before = local.head(), path.read_bytes()
    words = head.read_bytes()
    answers = set()
    for at in places:
        flip(path, at, at % 8)
        if damaged(local, rows):
            answers.add(at)
        local.close()
        with open(path, "r+b") as file:
            file.truncate(len(before))
            file.write(before)
        with open(head, "r+b") as file:
            file.write(words)
    assert local.rows_anew() == rows
    return answers


def test_a_process_that_starts_while_a_record_is_rewritten_reads_it_again(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erasure writes over records. A process that reads a record at that moment may get a part of it."""
    rows = fill(local, 3)
    whole, torn = Reader.read, list[int]()

    def read(self: Reader, file: LogFile, position: int, length: int) -> bytes:
        data = whole(self, file, position, length)
        at = data.find(rows[b"0001"])
        if at < 0 or len(torn) == 3:
            return data
        torn.append(position)
        return data[:at] + b"?" + data[at + 1 :]

    monkeypatch.setattr(Reader, "read", read)
    assert local.rows_anew() == rows
    assert len(torn) == 3


def test_a_flipped_bit_in_a_log_is_found(local: LocalStore) -> None:
    rows = fill(local, 3)
    write(local.backend, P, [Put(b"row", b"x"), Put(b"other", b"y" * 30), Delete(b"other")])
    rows[b"row"] = b"x"
    end = end_of(local)
    found = sweep(local, local.logs()[0], list(range(end)), rows)
    claim = set(range(8, 16))  # only a copy is judged by it
    assert found | claim == set(range(end))


def test_a_flipped_bit_is_found_when_the_file_that_is_written_to_is_opened(local: LocalStore) -> None:
    """Also if the row is not asked for."""
    fill(local, 30)
    local.close()
    flip(local.logs()[0], local.logs()[0].read_bytes().index(b"<20>"))
    with pytest.raises(CorruptData, match="damaged record"):
        local.open().get(P, [b"0001"])


def test_a_flipped_bit_in_a_large_row_of_the_log_is_found(local: LocalStore) -> None:
    rows = fill(local, 1)
    start = end_of(local)
    rows[b"1"] = LARGE
    write(local.backend, P, [Append(b"1", LARGE)])
    places = random.Random(1).sample(range(start, end_of(local)), 150)
    assert sweep(local, local.logs()[0], places, rows) == set(places)


def test_a_flipped_bit_in_a_full_file_is_found(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "ROLL", 500)
    rows = fill(local, 30)
    first = local.logs()[0]
    size = first.stat().st_size
    found = sweep(local, first, list(range(0, size, 3)), rows)
    # a part that only the writer uses: the beginning of the file
    begins = first.read_bytes().index(b"0000") - 20
    assert found >= {at for at in range(0, size, 3) if at >= begins}


def test_a_flipped_bit_in_the_file_of_a_row_is_found(local: LocalStore) -> None:
    rows = fill(local, 1)
    rows[b"row"] = LARGE
    write(local.backend, P, [Put(b"row", LARGE)])
    (path,) = local.log_path().glob("*.row")
    places = [*range(120), *random.Random(1).sample(range(120, path.stat().st_size), 150)]
    assert sweep(local, path, places, rows) == set(places)


def test_a_flipped_bit_in_a_head_is_found_or_harmless(local: LocalStore) -> None:
    rows = fill(local, 3)
    found = sweep(local, local.head(), [*range(24 + len(P)), *range(512, 576)], rows)
    assert found >= {*range(18), *range(20, 24 + len(P)), *range(512, 528)}


def test_a_head_of_a_machine_with_another_byte_order_is_refused_and_is_no_damage(local: LocalStore) -> None:
    rows = fill(local, 3)
    head, before = local.head(), local.head().read_bytes()
    words = before[512 : 512 + 72]
    swapped = b"".join(words[at : at + 8][::-1] for at in range(0, len(words), 8))
    head.write_bytes(before[:512] + swapped + before[584:])
    with pytest.raises(UnsupportedVersion, match="another byte order: export the store there"):
        local.rows_anew()
    head.write_bytes(before[:512] + swapped[:8] + before[520:])
    with pytest.raises(CorruptData, match="head is damaged"):
        local.rows_anew()
    head.write_bytes(before)
    assert local.rows_anew() == rows


@pytest.mark.parametrize("size", [8, 24, 3584])
def test_a_head_with_zeros_in_the_place_of_its_words_is_damage(local: LocalStore, size: int) -> None:
    rows = fill(local, 3)
    local.close()
    with open(local.head(), "r+b") as file:
        file.seek(512)
        file.write(bytes(size))
    for call in (lambda: local.rows_anew(), lambda: local.open().get(P, list(rows))):
        with pytest.raises(CorruptData, match="head is damaged"):
            call()


def test_any_flipped_bit_of_a_position_is_found() -> None:
    for position in (0, 1, 65535, 1 << 40, (1 << 48) - 1):
        word = seal(position)
        assert unseal(word) == position
        assert all(unseal(word ^ 1 << bit) == -1 for bit in range(64))


@pytest.mark.parametrize("what", ["head", "log", "first log", "row", "format"])
def test_a_missing_file_is_damage_and_not_an_empty_store(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(log, "ROLL", 200)
    fill(local, 10)
    write(local.backend, P, [Put(b"row", LARGE)])
    local.close()
    paths = {
        "head": local.head(),
        "log": local.logs()[-1],
        "first log": local.logs()[0],
        "row": next(local.log_path().glob("*.row")),
        "format": local.path / "format",
    }
    paths[what].unlink()
    with pytest.raises(CorruptData, match="is missing"):
        local.rows_anew()
    if what not in ("first log", "row"):
        with pytest.raises(CorruptData, match="is missing"):
            write(local.open(), P, [Append(b"9", b"x")])


@pytest.mark.parametrize("kind", ["log", "row", "head", "format"])
def test_a_file_that_was_cut_is_damage(local: LocalStore, kind: str) -> None:
    rows = fill(local, 20)
    write(local.backend, P, [Put(b"row", LARGE)])
    end = end_of(local)
    local.close()
    path = {
        "log": local.logs()[0],
        "row": next(local.log_path().glob("*.row")),
        "head": local.head(),
        "format": local.path / "format",
    }[kind]
    size = end if kind == "log" else path.stat().st_size
    before, words = path.read_bytes(), local.head().read_bytes()
    for cut in (1, 2, 30, 300, size // 2, size - 1, size):
        os.truncate(path, max(size - cut, 0))
        assert damaged(local, rows | {b"row": LARGE})
        local.close()
        for name, data in ((path, before), (local.head(), words)):
            with open(name, "r+b") as file:
                file.truncate(len(data))
                file.write(data)


@pytest.mark.parametrize("size", [0, 100, 520])
def test_a_store_of_which_a_head_was_cut_can_be_deleted(local: LocalStore, size: int) -> None:
    fill(local, 3)
    local.close()
    os.truncate(local.head(), size)
    local.open()
    local.driver.delete(local.id)
    assert list(local.driver.stores()) == []
    assert os.listdir(local.root) == []


@pytest.mark.parametrize("size", [0, 3, 4])
def test_a_note_of_what_is_written_anew_that_was_cut_says_nothing(local: LocalStore, size: int) -> None:
    rows = fill(local, 3)
    (local.log_path() / "anew").write_bytes(bytes(size))
    local.cut_power()
    assert local.rows_anew() == rows


def test_a_store_that_was_closed_and_copied_without_its_end_is_damaged(local: LocalStore) -> None:
    fill(local, 20, durable=True)
    end = end_of(local)
    local.copy()
    local.open()
    os.truncate(local.logs()[0], end - 1)
    assert local.rows(), "while it was open nobody can say"
    local.close()
    fill(local, 0)
    write(local.open(), P, [Append(b"1", b"x")])
    local.close()
    end = end_of(local)
    local.copy()
    os.truncate(local.logs()[0], end - 1)
    with pytest.raises(CorruptData, match="damaged record"):
        local.rows_anew()


def spoil(path: Path, end: int, how: str) -> None:
    """Damage the last record of a log."""
    if how == "cut":
        os.truncate(path, end - 1)
    else:
        flip(path, end - 1)


@pytest.mark.parametrize("how", ["cut", "flip"])
@pytest.mark.parametrize("after", ["copy", "power cut"])
def test_damage_to_what_was_buffered_and_then_closed_is_found(local: LocalStore, after: str, how: str) -> None:
    rows = fill(local, 20)
    end = end_of(local)
    local.close()
    if after == "copy":
        local.copy()
    else:
        local.cut_power(synced=0)
    assert local.rows_anew() == rows
    local.close()
    if after == "copy":
        local.copy()
    else:
        local.cut_power(synced=0)
    spoil(local.logs()[0], end, how)
    with pytest.raises(CorruptData, match="damaged record"):
        local.rows_anew()


@pytest.mark.parametrize("how", ["cut", "flip"])
def test_a_killed_process_leaves_an_end_that_may_be_torn(local: LocalStore, how: str) -> None:
    write(local.backend, P, [Append(b"0", b"x")])
    local.close()

    def work() -> None:
        fill(local, 5)
        os._exit(0)

    local.open()
    assert in_child(work) == 0
    end = end_of(local)
    local.cut_power(synced=0)
    spoil(local.logs()[0], end, how)
    assert list(local.rows_anew()) == [b"0", b"0000", b"0001", b"0002", b"0003"]


def test_closing_syncs_each_partition_that_was_buffered_once(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamkit_local.store._LOGS", 2)
    partitions = [b"%d" % number for number in range(5)]
    for at, partition in enumerate((*partitions, *partitions)):
        write(local.backend, partition, [Append(b"%06d" % at, b"x" * 50)], durable=False)
    other = local.driver.open(local.id)
    assert all(other.scan(partition, b"", b"\xff") for partition in partitions)
    synced: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), real(fd)))
    local.backend.close()
    assert not synced, "the other one has it open"
    other.close()
    assert len(synced) == 5
    local.copy()
    local.open()
    for partition in partitions:
        path = local.logs(partition)[0]
        os.truncate(path, path.stat().st_size - 1)
        with pytest.raises(CorruptData, match="damaged record"):
            local.rows(partition)


def test_closing_where_the_disk_fails_claims_nothing(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fill(local, 5)
    end = end_of(local)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", lambda fd: (_ for _ in ()).throw(OSError(5, "I/O error")))
        local.close()
    assert local.logs()[0].read_bytes()[8:16] == bytes(8)
    local.cut_power(synced=0)
    spoil(local.logs()[0], end, "cut")
    rows.popitem()
    assert local.rows_anew() == rows


def test_a_log_that_is_cut_while_it_is_read_is_damage(local: LocalStore) -> None:
    for number in range(9000):
        write(local.backend, P, [Append(b"%06d" % number, b"x" * 100)], durable=False)
    scan = local.backend.scan(P, b"", b"\xff")
    next(scan)
    os.truncate(local.logs()[0], end_of(local) // 2 + 100)
    with pytest.raises(CorruptData, match="damaged record at position"):
        list(scan)


def test_files_of_two_partitions_cannot_be_exchanged(local: LocalStore) -> None:
    fill(local, 3)
    for key, value in local.rows().items():
        write(local.backend, b"other", [Append(key, value[::-1])])
    local.close()
    one, other = local.logs()[0], local.logs(b"other")[0]
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    with pytest.raises(CorruptData):
        local.rows_anew()


def test_a_record_is_as_long_as_it_is_said_to_be(local: LocalStore) -> None:
    for size in (0, 1, 16384, 16385, 100_000):
        before = end_of(local) if local.head().exists() else 0
        write(local.backend, P, [Append(b"%06d" % size, bytes(size))])
        assert not before or end_of(local) - before == len(encode(0, NEXT_ROW, bytes(6), bytes(size), 0))
