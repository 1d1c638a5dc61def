"""Local stores beyond the contract of all backends: files, forks, growth, and several processes."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest
from fix_local import Append, Delete, LocalStore, Op, P, Put, write

import streamkit_local
from streamkit.backend import ANY, NEXT, Conflict, Range
from streamkit.errors import PermanentError, StoreClosed, UnsupportedVersion
from streamkit_local import log


def fill(local: LocalStore, count: int, size: int = 10, *, first: int = 0, durable: bool = False) -> dict[bytes, bytes]:
    rows = {b"%06d" % number: b"%06d" % number * size for number in range(first, first + count)}
    for key, value in rows.items():
        write(local.backend, P, [Append(key, value)], durable=durable)
    return rows


# URLs and the directory


@pytest.mark.parametrize(
    "url",
    [
        "file://relative/path",
        "file:relative",
        "file:///a#b",
        "file:///a?x=1",
        "file:///a%00b",
        "file:///a%0Ab",
        "file:///a%7Fb",
        "s3:///a",
        "file:",
    ],
)
def test_a_url_that_is_not_an_absolute_path_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        streamkit_local.connect(url, timeout=1)


def test_the_path_of_a_url_is_decoded(tmp_path: Path) -> None:
    driver = streamkit_local.connect(f"file://{tmp_path}/a%20b%23%C3%A9", timeout=1)
    write(driver.open(uuid4()), P, [Put(b"k", b"v")])
    driver.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a b#é"]


def test_nothing_is_made_by_reading(local: LocalStore) -> None:
    assert local.rows() == {}
    assert local.backend.get(P, [b"k"]) == [None]
    assert local.backend.read(P, [Range(b"k", 0, 1)]) == [None]
    assert list(local.driver.stores()) == []
    assert not local.root.exists()


def test_only_directories_of_stores_are_stores(local: LocalStore) -> None:
    fill(local, 1)
    (local.root / str(uuid4())).mkdir()
    (local.root / "notes.txt").write_text("mine")
    (local.root / f".deleted-{uuid4()}-00").mkdir()
    assert list(local.driver.stores()) == [local.id]


def test_deleting_removes_every_file_and_goes_on_where_it_stopped(local: LocalStore) -> None:
    fill(local, 10)
    half = local.root / f".deleted-{local.id}-12345678"
    half.mkdir()
    (half / "format").write_bytes(b"")
    local.driver.delete(local.id)
    assert list(local.root.iterdir()) == []
    local.driver.delete(local.id)


def test_a_store_deleted_by_another_process_is_closed_here(local: LocalStore) -> None:
    fill(local, 3)
    local.run("streamkit_local.connect('file://' + sys.argv[1], timeout=10).delete(UUID(sys.argv[2]))")
    for call in (
        lambda: local.backend.get(P, [b"k"]),
        lambda: write(local.backend, P, [Append(b"9", b"")]),
        lambda: write(local.backend, P, [Put(b"9", b"")]),
    ):
        with pytest.raises(StoreClosed):
            call()
    other = local.driver.open(local.id)
    assert other.get(P, [b"000001"]) == [None]
    write(other, P, [Append(b"000001", b"new")])
    assert [value and value.data for value in other.get(P, [b"000001"])] == [b"new"]


def test_a_backend_shows_where_it_is(local: LocalStore) -> None:
    assert str(local.id) in repr(local.backend)
    assert "open" in repr(local.backend)
    local.close()
    assert "closed" in repr(local.backend)


# Rows


def test_rows_of_both_kinds_are_seen(local: LocalStore) -> None:
    rows = fill(local, 50)
    assert local.rows() == rows
    write(local.backend, P, [Put(b"a row", b"x")])
    rows[b"a row"] = b"x"
    assert local.rows() == rows
    rows |= fill(local, 50, first=50)
    assert local.rows() == rows
    assert [value and value.data for value in local.backend.get(P, list(rows))] == list(rows.values())
    parts = local.backend.read(P, [Range(key, 3, 5) for key in rows])
    assert parts == [value[3:8] for value in rows.values()]
    local.open()
    assert local.rows() == rows


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_rows_and_appended_rows_come_in_one_order(local: LocalStore, limit: int) -> None:
    rows: dict[bytes, bytes] = {}
    for number in range(60):
        key = b"%03d" % number
        op: Op = Append(key, key) if number % 3 else Put(key, key)
        write(local.backend, P, [op])
        rows[key] = key
    for start in range(0, 60, 7):
        found = list(local.backend.scan(P, b"%03d" % start, b"050", limit=limit))
        expected = [key for key in rows if b"%03d" % start <= key < b"050"][:limit]
        assert [row.key for row in found] == expected
        assert [row.data for row in found] == expected


def test_pages_are_cut_by_size_without_losing_rows(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkit_local.reading._PAGE_BYTES", 1000)
    rows = {}
    for number in range(100):
        key = b"%03d" % number
        op: Op = Append(key, bytes([number]) * (number * 7 % 600)) if number % 2 else Put(key, bytes([number]) * 90)
        write(local.backend, P, [op], durable=False)
        rows[key] = op.value
    assert local.rows() == rows


def test_a_row_that_was_put_over_an_appended_one_replaces_it(local: LocalStore) -> None:
    fill(local, 3)
    write(local.backend, P, [Put(b"000001", b"new")])
    assert local.rows()[b"000001"] == b"new"
    write(local.backend, P, [Delete(b"000001")])
    assert b"000001" not in local.rows()


def test_values_of_all_sizes_come_back(local: LocalStore) -> None:
    sizes = [0, 1, 4095, 4096, 16383, 16384, 16385, 1 << 20, (1 << 20) + 1, 5 << 20]
    rows = {b"%02d" % number: os.urandom(size) for number, size in enumerate(sizes)}
    for key, value in rows.items():
        write(local.backend, P, [Append(key, value), Put(b"row" + key, value)])
    expected = rows | {b"row" + key: value for key, value in rows.items()}
    assert local.rows() == expected
    for key, value in expected.items():
        ranges = [
            Range(key, start, 100) for start in (0, 4000, 4096, 4097, len(value) - 3, len(value) + 5) if start >= 0
        ]
        assert local.backend.read(P, ranges) == [value[start : start + 100] for _, start, _, _ in ranges]
        assert local.backend.read(P, [Range(key, 0, 1 << 40)]) == [value]


def test_the_longest_keys_and_partitions_are_taken(local: LocalStore) -> None:
    partition, key = b"p" * 300, b"k" * 300
    write(local.backend, partition, [Put(key, b"put")])
    write(local.backend, partition, [Append(b"l" * 300, b"appended")])
    local.open()
    assert local.rows(partition) == {key: b"put", b"l" * 300: b"appended"}
    with pytest.raises(ValueError):
        write(local.backend, partition, [Put(b"k" * 301, b"")])


def test_files_roll_and_are_removed_when_their_rows_are(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "ROLL", 20_000)
    rows = fill(local, 400, 50)
    assert len(local.logs()) > 5
    assert local.rows() == rows
    before = sum(path.stat().st_size for path in local.logs())
    write(local.backend, P, [Delete(key) for key in list(rows)[:300]])
    for key in list(rows)[:300]:
        del rows[key]
    assert sum(path.stat().st_size for path in local.logs()) < before / 2
    assert local.rows() == rows
    local.open()
    assert local.rows() == rows
    rows |= fill(local, 10, 50, first=400)
    write(local.backend, P, [Delete(key) for key in rows])
    assert local.rows() == {}
    assert len(local.logs()) == 1
    local.open()
    assert local.rows() == {}
    with pytest.raises(Conflict):
        write(local.backend, P, [Append(b"000409", b"again")])
    assert fill(local, 1, first=410) == local.rows()


def test_a_scan_goes_on_while_what_it_has_passed_is_deleted(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "ROLL", 20_000)
    rows = fill(local, 3000, 5)
    found = []
    for row in local.backend.scan(P, b"", b"\xff"):
        found.append(row.key)
        if len(found) == 1500:
            write(local.backend, P, [Delete(key) for key in found])
            assert min(int(path.name[:16], 16) for path in local.logs()) > 0
    assert found == list(rows)


def test_a_process_that_slept_while_the_log_was_trimmed_goes_on(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "ROLL", 20_000)
    fill(local, 10)
    program = """
import streamkit_local.log
streamkit_local.log.ROLL = 20_000
for n in range(10, 2000): b.put(P, b"%06d" % n, b"x" * 100, NEXT, durable=False)
b.delete(P, [b"%06d" % n for n in range(1900)])
"""
    local.run(program)
    assert len(local.logs()) < 5
    write(local.backend, P, [Append(b"002000", b"mine")], durable=False)
    assert sorted(local.rows()) == [b"%06d" % number for number in range(1900, 2001)]
    local.run(program.replace("10, 2000", "2001, 4000").replace("1900", "3900"))
    assert min(local.rows()) == b"003900"


def test_many_partitions_need_few_open_files(local: LocalStore) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    for number in range(200):
        write(local.backend, b"p%d" % number, [Append(b"k", b"%d" % number)], durable=False)
    for number in range(200):
        assert local.rows(b"p%d" % number) == {b"k": b"%d" % number}
    if before:
        assert len(os.listdir("/proc/self/fd")) < before + 210
    local.close()
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before


# Several threads and processes


def test_threads_append_without_losing_a_row(local: LocalStore) -> None:
    won: list[int] = []

    def work(number: int) -> None:
        for turn in range(100):
            while True:
                last = max(local.rows(), default=b"000000")
                key = b"%06d" % (int(last) + 1)
                try:
                    write(local.backend, P, [Append(key, b"%d %d" % (number, turn))], durable=False)
                    won.append(int(key))
                    break
                except Conflict:
                    pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(1, 401))
    assert len(local.rows()) == 400


def test_two_processes_append_to_one_log_and_see_each_other(local: LocalStore) -> None:
    program = """
mine = args[0].encode()
done = 0
n = 0
while done < 300:
    n = max([int(r.key) for r in b.scan(P, b"%06d" % n, b"9", values=False)], default=n)
    try:
        b.put(P, b"%06d" % (n + 1), mine, NEXT, durable=n % 10 == 0)
        done += 1
        if done % 50 == 0:
            b.put(P, b"x" + mine, b"%d" % done)
    except Conflict:
        pass
"""
    processes = [local.start(program, name) for name in ("one", "two", "three")]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    rows = local.rows()
    assert [rows.pop(b"x" + name) for name in (b"one", b"two", b"three")] == [b"300"] * 3
    assert list(rows) == [b"%06d" % number for number in range(1, 901)]
    assert sorted(rows.values()) == [b"one"] * 300 + [b"three"] * 300 + [b"two"] * 300


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_store_of_its_own(local: LocalStore) -> None:
    rows = fill(local, 20)
    write(local.backend, P, [Put(b"row", b"x")])
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            local.backend.get(P, [b"row", b"000001"])

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for turn in range(5):
            child = os.fork()
            if child == 0:
                try:
                    found = local.rows()
                    write(local.backend, P, [Append(b"child %d" % turn, b"c"), Put(b"child row", b"%d" % turn)])
                    os._exit(0 if found[b"000019"] == rows[b"000019"] and found[b"row"] == b"x" else 1)
                except BaseException:
                    os._exit(2)
            write(local.backend, P, [Put(b"parent row", b"%d" % turn)])
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            assert local.rows()[b"child %d" % turn] == b"c"
    finally:
        stop.set()
        thread.join()
    assert local.rows()[b"child row"] == b"4"


def test_closing_one_of_two_backends_of_a_store_leaves_the_other_open(local: LocalStore) -> None:
    fill(local, 3)
    other = local.driver.open(local.id)
    assert other.get(P, [b"000001"]) != [None]
    local.backend.close()
    assert other.get(P, [b"000001"]) != [None]
    with pytest.raises(StoreClosed):
        local.backend.get(P, [b"000001"])
    with pytest.raises(StoreClosed):
        local.backend.scan(P, b"", b"\xff")


# Leases


def test_a_lease_outlives_its_process_until_its_deadline_and_the_machine_for_its_ttl(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = int(local.run("print(b.acquire('leader', 1000).token); assert b.acquire('leader', 1000) is None"))
    assert local.backend.acquire("leader", 1) is None
    now = 10**12
    monkeypatch.setattr("streamkit_local.leases._now", lambda: now)
    monkeypatch.setattr("streamkit_local.leases.clock_id", lambda: b"another boot id.")
    assert local.backend.acquire("leader", 1000) is None, "it may be another container's, with another clock"
    now += 10**12 - 1
    assert local.backend.acquire("leader", 1000) is None
    now += 1
    grant = local.backend.acquire("leader", 1000)
    assert grant is not None
    assert grant.token == first + 1


def test_a_lease_is_judged_by_the_time_since_boot(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10**12
    monkeypatch.setattr("streamkit_local.leases._now", lambda: now)
    monkeypatch.setattr("time.time", lambda: 0.0)
    first = local.backend.acquire("leader", 5)
    assert first is not None
    now += 4_999_999_999
    assert local.backend.acquire("leader", 5) is None
    now += 1
    second = local.backend.acquire("leader", 5)
    assert second is not None
    assert second.token == first.token + 1


def test_tokens_grow_also_after_somebody_deleted_the_leases(local: LocalStore) -> None:
    """An operator may delete damaged lease files: no former holder fences anybody."""
    before = local.backend.acquire("leader", 30)
    assert before is not None
    local.backend.release(before)
    local.close()
    shutil.rmtree(local.path / "leases")
    after = local.open().acquire("leader", 30)
    assert after is not None
    assert after.token // 1_000_000 >= before.token // 1_000_000 > 1 << 30  # they begin with the second


# Other formats


def test_a_store_of_a_later_format_is_refused(local: LocalStore) -> None:
    fill(local, 1)
    local.close()
    mark = bytearray((local.path / "format").read_bytes())
    mark[24] += 1
    (local.path / "format").write_bytes(mark)
    with pytest.raises(UnsupportedVersion, match="format version 4"):
        local.open().get(P, [b"k"])


def test_windows_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(PermanentError, match="WSL"):
        streamkit_local.connect("file:///c/x", timeout=1)


def test_a_store_of_before_the_first_release_is_refused(local: LocalStore) -> None:
    (local.path / "index").mkdir(parents=True)
    (local.path / "format").write_bytes((b"streamkit local store\n".ljust(24, b"\0") + b"\1\0\0\0").ljust(4096, b"\0"))
    with pytest.raises(UnsupportedVersion, match="before streamkit's first release"):
        local.backend.get(P, [b"k"])
    with pytest.raises(UnsupportedVersion, match="write a new store"):
        write(local.backend, P, [Append(b"k", b"v")])


# Space


def test_space_comes_back_whatever_is_deleted(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "ROLL", 20_000)
    rows = fill(local, 400, 50)
    write(local.backend, P, [Put(b"row", b"x" * 500), Put(b"large", bytes(200_000))])
    assert len(local.logs()) > 5
    write(local.backend, P, [Delete(key) for key in [*list(rows)[1::2], b"large"]])
    assert not list(local.log_path().glob("*.row"))
    write(local.backend, P, [Delete(key) for key in list(rows)[::2]])
    assert sum(path.stat().st_size for path in local.log_path().iterdir() if path.suffix == ".log") < 30_000
    assert local.rows_anew() == {b"row": b"x" * 500}
    with pytest.raises(Conflict):
        write(local.backend, P, [Append(b"000399", b"again")])


def test_rows_that_are_replaced_all_the_time_take_no_more_space(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "ROLL", 20_000)
    etag = local.backend.put(P, b"kept", b"k" * 100)
    for number in range(1000):
        local.backend.put(P, b"head", b"%d" % number * 100, durable=False)
        if number % 100 == 0:
            local.backend.put(P, b"large", b"%d" % number * 50_000)
    assert sum(path.stat().st_size for path in local.log_path().iterdir()) < 300_000
    assert local.rows_anew() == {b"head": b"999" * 100, b"kept": b"k" * 100, b"large": b"900" * 50_000}
    local.backend.put(P, b"kept", b"new", etag)


def test_a_durable_row_is_synced_with_those_before_it(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fdatasync = os.fdatasync
    fill(local, 1)
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), fdatasync(fd))[1])
    fill(local, 5, first=1)
    assert synced == []
    local.backend.put(P, b"head", b"x", ANY)
    assert len(synced) == 1
    local.backend.put(P, b"1", b"x", NEXT)
    assert len(synced) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system is not asked")
def test_the_disk_begins_with_buffered_rows_long_before_they_are_synced(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda fd, start, size, advice: asked.append((start, start + size, advice))
    )
    backend, value = local.open(), os.urandom(300_000)
    for number in range(20):
        write(backend, P, [Append(b"%03d" % number, value)], durable=False)
    full = local.logs()[0].stat().st_size // log._AHEAD * log._AHEAD
    assert [(start, stop) for start, stop, _ in asked] == list(pairwise(range(0, full + 1, log._AHEAD)))
    assert {advice for _, _, advice in asked} == {os.POSIX_FADV_DONTNEED}
    del asked[:]
    write(backend, P, [Append(b"%03d" % number, value) for number in range(20, 26)])
    assert not asked, "a durable row is written by its sync"


READ = """
import os, resource, sys, streamkit
from streamkit import Record
with streamkit.connect(sys.argv[1]) as client:
    store = client.store("7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55")
    store.create_space("s", durability="buffered")
    for _ in range(100):
        store.produce("s", "a", [Record(os.urandom(128)) for _ in range(1000)])
    faults = []
    for _ in range(5):
        faults.append(-resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        read = sum(len(entry.payload) for entry in store.consume_segment("s", "a"))
        faults[-1] += resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    print(read // resource.getpagesize(), min(faults))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_a_read_does_not_get_its_memory_anew_from_the_system(tmp_path: Path) -> None:
    command = [sys.executable, "-c", READ, tmp_path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    pages, faults = map(int, done.stdout.split())
    assert faults < pages / 3


def test_partitions_whose_names_differ_in_case_or_are_not_text_are_apart(local: LocalStore) -> None:
    names = [b"a", b"A", b"", b"/", b"..", b"\xff\x00", b"p" * 300, b"leases"]
    for name in names:
        local.backend.put(name, b"Key", name)
        local.backend.put(name, b"key", b"small")
    local.open()
    for name in names:
        assert local.rows(name) == {b"Key": name, b"key": b"small"}
