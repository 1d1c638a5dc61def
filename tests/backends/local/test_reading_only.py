"""A store that may be read and not written: its reader sees what its writers acknowledge, and changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_local import Append, LocalStore, P, Put, as_user, in_child, write

import streamkit
import streamkit_local
from streamkit import Record
from streamkit.backend import Backend, Grant, Range
from streamkit.errors import AccessDenied

READER = 12347


@pytest.fixture
def shared(shared_directory: Path) -> Iterator[LocalStore]:
    """A store of root's that every other user may read."""
    store = LocalStore(shared_directory / "stores")
    store.root.mkdir(0o755)
    yield store
    store.close()


def publish(store: LocalStore) -> None:
    """Make existing and new files readable for everyone."""
    subprocess.run(["chmod", "-R", "go=rX", str(store.root)], check=True)


def as_reader(store: LocalStore, work: Callable[[Backend], Any]) -> None:
    def opened() -> None:
        driver = streamkit_local.connect(f"file://{store.root}", timeout=10)
        assert list(driver.stores()) == [store.id]
        backend = driver.open(store.id)
        work(backend)
        driver.close()

    assert as_user(READER, READER, opened) == 0


def rows(backend: Backend) -> dict[bytes, bytes]:
    return {row.key: row.data for row in backend.scan(P, b"", b"\xff" * 300)}


def fill(store: LocalStore, first: int, count: int = 20) -> None:
    for number in range(first, first + count):
        write(store.backend, P, [Append(b"%06d" % number, b"%d" % number)], durable=False)


def beside(work: Callable[[], Any]) -> int:
    """A process that does `work` while this one goes on; it ends with 0 if nothing was raised."""
    child = os.fork()
    if child == 0:
        os._exit(in_child(work))
    return child


def test_another_user_reads_the_index_and_the_log(shared: LocalStore) -> None:
    fill(shared, 0)
    write(shared.backend, P, [Put(b"row", b"x")])
    fill(shared, 20)
    publish(shared)
    expected = shared.rows()

    def read(backend: Backend) -> None:
        assert rows(backend) == expected
        assert [value and value.data for value in backend.get(P, [b"row", b"000003", b"no"])] == [b"x", b"3", None]
        assert backend.read(P, [Range(b"000025", 1, 1)]) == [b"5"]
        assert rows(backend) == expected

    as_reader(shared, read)
    shared.close()
    as_reader(shared, read)


def test_it_sees_what_is_written_meanwhile(shared: LocalStore) -> None:
    fill(shared, 0)
    publish(shared)
    started, begun = os.pipe()
    go, gone = os.pipe()

    def read(backend: Backend) -> None:
        assert len(rows(backend)) == 20
        os.write(begun, b"x")
        os.read(go, 1)
        found = rows(backend)
        assert len(found) == 20_001
        assert len(backend.get(b"new partition", [b"1"])) == 1

    child = beside(lambda: as_reader(shared, read))
    os.close(begun)
    assert os.read(started, 1), "it ended before it had begun"
    fill(shared, 20, 19_980)
    write(shared.backend, P, [Put(b"row", b"x")])
    write(shared.backend, b"new partition", [Append(b"1", b"x")])
    publish(shared)
    os.write(gone, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("started", [False, True], ids=["beside", "started anew"])
def test_what_is_half_written_anew_is_read_as_it_will_be(shared: LocalStore, started: bool) -> None:
    old, new = b"old" * 20_000, b"new" * 20_000

    def killed() -> None:
        shared.open()
        write(shared.backend, P, [Append(b"1", old), Append(b"2", b"x" * 30_000)])
        before = shared.backend.get(P, [b"1"])[0]
        assert before is not None
        whole = os.pwrite

        def half(fd: int, data: Any, at: int) -> int:
            if at:
                whole(fd, data[: len(data) // 2], at)
                os._exit(77)
            return whole(fd, data, at)

        os.pwrite = half
        shared.backend.put(P, b"1", new, before.etag)

    shared.backend.put(P, b"row", b"x")
    assert in_child(killed) == 77
    if started:
        shared.cut_power()
    publish(shared)

    def read(backend: Backend) -> None:
        assert rows(backend) == {b"1": new, b"2": b"x" * 30_000, b"row": b"x"}

    as_reader(shared, read)
    assert shared.rows_anew() == {b"1": new, b"2": b"x" * 30_000, b"row": b"x"}


def test_what_a_killed_writer_left_is_read_and_not_repaired(shared: LocalStore) -> None:
    write(shared.backend, P, [Append(b"1", b"one"), Put(b"row", b"x")])
    shared.close()

    def end_before_publishing() -> None:
        pwrite = os.pwrite
        os.pwrite = lambda *args: (pwrite(*args), os._exit(0))[0]  # type: ignore[assignment]
        write(shared.open(), P, [Put(b"row", b"y")], durable=False)

    in_child(end_before_publishing)
    publish(shared)
    before = {path: path.read_bytes() for path in shared.root.rglob("*") if path.is_file()}
    as_reader(shared, lambda backend: _same(rows(backend), {b"1": b"one", b"row": b"x"}))
    assert {path: path.read_bytes() for path in shared.root.rglob("*") if path.is_file()} == before


def test_a_log_from_before_the_machine_started_is_read_without_recovering_it(shared: LocalStore) -> None:
    fill(shared, 0)
    write(shared.backend, P, [Put(b"row", b"x")])
    fill(shared, 20)
    shared.cut_power()
    publish(shared)
    before = shared.head().read_bytes()

    def read(backend: Backend) -> None:
        for _ in range(2):
            assert len(rows(backend)) == 41

    as_reader(shared, read)
    assert shared.head().read_bytes() == before


def test_a_reader_goes_on_when_a_writer_has_recovered_the_log(shared: LocalStore) -> None:
    fill(shared, 0)
    shared.cut_power()
    publish(shared)
    started, begun = os.pipe()
    go, gone = os.pipe()

    def read(backend: Backend) -> None:
        assert len(rows(backend)) == 20
        os.write(begun, b"x")
        os.read(go, 1)
        assert len(rows(backend)) == 40

    child = beside(lambda: as_reader(shared, read))
    os.close(begun)
    assert os.read(started, 1), "it ended before it had begun"
    shared.open()
    fill(shared, 20)
    os.write(gone, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _same(found: object, expected: object) -> None:
    assert found == expected


CHANGES: dict[str, Callable[[Backend], object]] = {
    "append": lambda backend: write(backend, P, [Append(b"9", b"x")]),
    "put": lambda backend: write(backend, P, [Put(b"row", b"y")]),
    "another partition": lambda backend: write(backend, b"new", [Append(b"9", b"x")]),
    "acquire": lambda backend: backend.acquire("leader", 5),
    "renew": lambda backend: backend.renew(Grant("leader", 1, 5, "00")),
    "release": lambda backend: backend.release(Grant("leader", 1, 5, "00")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("read_first", [True, False])
def test_every_change_is_denied(shared: LocalStore, change: Callable[[Backend], object], read_first: bool) -> None:
    fill(shared, 0, 3)
    publish(shared)

    def attempt(backend: Backend) -> None:
        if read_first:
            assert len(rows(backend)) == 3
        with pytest.raises(AccessDenied, match="give this user write access"):
            change(backend)
        assert len(rows(backend)) == 3

    as_reader(shared, attempt)
    assert len(shared.rows()) == 3


def test_a_store_that_is_just_being_made_reads_empty(shared: LocalStore) -> None:
    fill(shared, 0, 1)
    shared.close()
    shutil.rmtree(shared.log_path())
    shared.log_path().with_suffix(".made").unlink()
    publish(shared)
    as_reader(shared, lambda backend: _same(rows(backend), {}))


def test_a_reader_does_all_that_reading_is(shared: LocalStore) -> None:
    with streamkit.connect(f"file://{shared.root}") as client:
        store = client.store(shared.id)
        for number in range(1, 6):
            store.produce("orders", "order-42", [Record(b"%d" % number)])
        publish(shared)

        def read() -> None:
            with streamkit.connect(f"file://{shared.root}") as client:
                store = client.store(shared.id)
                assert [entry.payload for entry in store.consume_space("orders")] == [b"1", b"2", b"3", b"4", b"5"]
                assert store.peek("orders", "order-42").sequence == 5
                assert list(store.get_spaces()) == ["orders"]
                followed = store.follow_segment("orders", "order-42", after=3, timeout=0.01)
                assert [entry.sequence for entry in followed] == [4, 5]
                with pytest.raises(AccessDenied, match="give this user write access"):
                    store.produce("orders", "order-42", [Record(b"6")])

        assert as_user(READER, READER, read) == 0
        assert store.produce("orders", "order-42", [Record(b"6")]).last_sequence == 6


@pytest.mark.skipif(sys.platform != "linux", reason="mounts as on Linux")
def test_a_store_on_a_file_system_that_is_mounted_for_reading_is_readable(shared: LocalStore, tmp_path: Path) -> None:
    fill(shared, 0, 3)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    if subprocess.run(["mount", "--bind", str(shared.root), str(mounted)], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(mounted)], check=True, capture_output=True)

        def read() -> None:
            driver = streamkit_local.connect(f"file://{mounted}", timeout=5)
            backend = driver.open(shared.id)
            assert rows(backend) == expected
            with pytest.raises(AccessDenied, match="give this user write access"):
                write(backend, P, [Append(b"9", b"x")])
            driver.close()

        for first in (3, 6):
            expected = shared.rows()
            assert in_child(read) == 0
            fill(shared, first, 3)
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)
