"""File descriptors: a closed store gives back all, and one that finds none left says so and harms nothing."""

from __future__ import annotations

import gc
import resource
import sys
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from fix_local import Append, P, Put, in_child, write

import streamkit_local
from streamkit.backend import Backend
from streamkit.errors import Unavailable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def fill(store: Backend) -> None:
    for partition in (P, b"another"):
        write(store, partition, [Append(b"1", b"x")])
        write(store, partition, [Put(b"row", b"x")])
        assert len(list(store.scan(partition, b"", b"\xff"))) == 2


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_closed_store_gives_back_what_it_had_open(tmp_path: Path) -> None:
    driver = streamkit_local.connect(f"file://{tmp_path}", timeout=5)
    gc.collect()  # files that other tests have left open are closed now, and not in the middle
    before = descriptors()
    for _ in range(20):
        store = driver.open(uuid4())
        fill(store)
        store.close()
    assert descriptors() == before
    stores = [driver.open(uuid4()) for _ in range(10)]
    for store in stores:
        write(store, P, [Append(b"1", b"x")])
    assert descriptors() - before <= 10 * 2
    driver.close()
    assert descriptors() == before


def test_where_none_is_left_the_error_says_so_and_what_is_open_goes_on(tmp_path: Path) -> None:
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        driver = streamkit_local.connect(f"file://{tmp_path}", timeout=5)
        opened: dict[UUID, Backend] = {}
        while True:
            new = uuid4()
            store = driver.open(new)
            try:
                fill(store)
            except Unavailable as error:
                refused, refusing = str(error), store
                break
            opened[new] = store
        assert "too many open files" in refused
        assert "ulimit -n" in refused
        assert len(opened) > 1
        for at, store in enumerate(opened.values()):
            write(store, P, [Append(b"2", b"x"), Put(b"row", b"%d" % at)])
        first = next(iter(opened))
        opened.pop(first).close()
        again = driver.open(new)
        fill(again) if not again.get(P, [b"1"])[0] else write(again, P, [Append(b"2", b"x")])
        again.close()
        refusing.close()
        assert len(list(driver.open(first).scan(P, b"", b"\xff"))) == 3

    assert in_child(work) == 0
