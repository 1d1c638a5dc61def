"""Any bit of the index may be wrong: whoever reads or writes then is told, or is not affected; no process is ended.

LMDB trusts its pages. The stores here have the shapes that its pages take: a few rows, a tree of several levels, values
over many pages, a long list of free pages.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fix_covered import EXHAUSTIVE
from fix_local import P

import streamkit
import streamkit_local
from streamkit import CorruptData, Record, UnsupportedVersion
from streamkit.backend import Append, Backend, Delete, Put
from streamkit_local import pages
from streamkit_local.census import Census
from streamkit_local.meta import read_metas
from streamkit_local.pages import Pages
from streamkit_local.sums import Sums

SEED = 7_112_024
ID = UUID("7d9f2c1e-0000-4000-8000-000000000002")
REFUSED = (CorruptData, UnsupportedVersion)
Rows = dict[bytes, bytes]


# -- shapes -----------------------------------------------------------------------------------------------------------


def put(backend: Backend, rows: Rows, keys: list[bytes], size: int, chance: random.Random) -> None:
    new = {key: chance.randbytes(size) for key in keys}
    backend.write(P, [Put(key, value) for key, value in new.items()])
    rows |= new


def few(backend: Backend, rows: Rows, chance: random.Random) -> None:
    """One leaf page, and rows of the log."""
    put(backend, rows, [b"%02d" % number for number in range(20)], 30, chance)
    for number in range(10):
        key, value = b"z%02d" % number, b"<%d>" % number
        backend.write(P, [Append(key, value)])
        rows[key] = value
    put(backend, rows, [b"row"], 3, chance)


def levels(backend: Backend, rows: Rows, chance: random.Random) -> None:
    """Four levels, as long keys make branch pages that hold little."""
    keys = [b"%06d" % number + b"k" * 250 for number in range(2000)]
    chance.shuffle(keys)
    for first in range(0, len(keys), 400):
        put(backend, rows, keys[first : first + 400], 60, chance)


def large(backend: Backend, rows: Rows, chance: random.Random) -> None:
    """Values that are longer than a page, some of them replaced."""
    for size in (5000, 12000, 3000, 9000):
        put(backend, rows, [b"%03d" % number for number in range(0, 40, 2)], size, chance)
        put(backend, rows, [b"%03d" % number for number in range(1, 40, 2)], size // 100, chance)


def freed(backend: Backend, rows: Rows, chance: random.Random) -> None:
    """Most pages are free; the list of them is long itself, and what was there before is still to be read in them."""
    keys = [b"%05d" % number for number in range(1200)]
    put(backend, rows, keys, 900, chance)
    for _ in range(2):
        put(backend, rows, keys[::3], 900, chance)
    gone = [key for number, key in enumerate(keys) if number % 30]
    backend.write(P, [Delete(key) for key in gone])
    for key in gone:
        del rows[key]
    for _ in range(5):
        put(backend, rows, [b"again"], 10, chance)


SHAPES: list[Callable[[Backend, Rows, random.Random], None]] = [few, levels, large, freed]


class Damaged:
    """A store on disk that is put back as it was before each try."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / str(ID)
        self.files = {path: path.read_bytes() for path in self.path.rglob("*") if path.is_file()}
        self.index = self.files[self.path / "index" / "data.mdb"]

    def restore(self) -> None:
        for path in self.path.rglob("*"):
            if path.is_file() and path not in self.files:
                path.unlink()
        for path, data in self.files.items():
            path.write_bytes(data)

    def flip(self, name: str, bit: int) -> None:
        path = self.path / "index" / name
        with path.open("r+b") as file:
            file.seek(bit >> 3)
            byte = file.read(1)[0]
            file.seek(bit >> 3)
            file.write(bytes([byte ^ 1 << (bit & 7)]))

    @contextlib.contextmanager
    def opened(self) -> Iterator[Backend]:
        driver = streamkit_local.connect(f"file://{self.root}", timeout=10)
        try:
            yield driver.open(ID)
        finally:
            driver.close()


def use(store: Damaged, rows: Rows, chance: random.Random) -> bool:
    """Read and write in every way. False if some of that was refused; what was not, must be right."""
    whole = True
    keys = sorted(rows)
    some = [*chance.sample(keys, min(8, len(keys))), keys[0], keys[-1]]
    absent = [b"", b"none", some[0] + b"\0", b"\xfe"]

    def one(work: Callable[[], Any], wanted: Any) -> None:
        nonlocal whole
        try:
            found = work()
        except REFUSED:
            whole = False
        else:
            assert found == wanted, f"{found!r:.200} instead of {wanted!r:.200}"

    def get(backend: Backend, keys: list[bytes]) -> list[bytes | None]:
        return [value and value.data for value in backend.get(P, keys)]

    def scan(backend: Backend, start: bytes, limit: int = 0) -> list[tuple[bytes, bytes]]:
        return [(row.key, row.data) for row in backend.scan(P, start, b"\xff" * 300, limit=limit)]

    def read(backend: Backend) -> None:
        for key in some:
            one(lambda key=key: get(backend, [key]), [rows.get(key)])  # type: ignore[misc]
        one(lambda: get(backend, some), [rows.get(key) for key in some])
        for key in absent:
            one(lambda key=key: get(backend, [key]), [None])  # type: ignore[misc]
        inside = chance.choice(some)
        near = [(key, rows[key]) for key in sorted(rows) if key >= inside][:50]
        one(lambda: scan(backend, inside, 50), near)
        one(lambda: scan(backend, b""), sorted(rows.items()))

    def write(backend: Backend, ops: list[Put | Delete]) -> None:
        nonlocal whole
        try:
            backend.write(P, ops)
        except REFUSED:
            whole = False
            return
        for op in ops:
            if isinstance(op, Put):
                rows[op.key] = op.value
            else:
                rows.pop(op.key, None)

    with store.opened() as backend:
        read(backend)
    with store.opened() as backend:
        write(backend, [Put(some[0], b"other"), Put(some[1] + b"new", bytes(3000))])
        write(backend, [Delete(key) for key in chance.sample(keys, min(5, len(keys)))])
        write(backend, [Put(chance.randbytes(3) + b"x" * 100, chance.randbytes(200)) for _ in range(20)])
        write(backend, [Put(b"lease", b"x")])
        read(backend)
    with store.opened() as backend:
        read(backend)
    return whole


def tried(store: Damaged, rows: Rows, number: int) -> bool:
    return use(store, dict(rows), random.Random(number))


# -- flips ------------------------------------------------------------------------------------------------------------


def telling(path: Path) -> list[int]:
    """Bits that say how pages in use hang together: heads of pages, offsets and heads of nodes, numbers of pages."""
    bits, data = [], path.read_bytes()
    with path.open("rb") as file:
        meta = read_metas(file.fileno(), "")[0]
    free = Census.take(meta, lambda page: data[page * 4096 : page * 4096 + 4096]).free
    for page in range(0, len(data), 4096):
        if page // 4096 in free:
            continue
        places = set(range(page, page + 24))
        lower = int.from_bytes(data[page + 12 : page + 14], "little")
        if page >= 8192 and data[page + 10] in (1, 2) and 16 < lower < 4096:
            nodes = struct.unpack_from(f"<{(lower - 16) // 2}H", data, page + 16)
            places.update(range(page + 16, page + lower))
            for node in nodes:
                places.update(range(page + node, min(page + node + 12, page + 4096)))
        if page < 8192:
            places.update(range(page, page + 160))
        bits += [place * 8 + bit for place in places if place < len(data) for bit in range(8)]
    return bits


def sample(store: Damaged, name: str, count: int, chance: random.Random) -> list[int]:
    data = store.files[store.path / "index" / name]
    bits = [chance.randrange(len(data) * 8) for _ in range(count)]
    if name == "data.mdb":
        candidates = telling(store.path / "index" / name)
        metas = [bit for bit in candidates if bit < 8192 * 8]
        bits[: count // 2] = chance.sample(candidates, min(count // 2, len(candidates)))
        bits[: count // 10] = chance.sample(metas, min(count // 10, len(metas)))
        bits += [(page * 4096 + 144) * 8 + bit for page in (0, 1) for bit in range(3)]
    return bits


def run(store: Damaged, tries: list[tuple[str, int]], work: Callable[[int], bool], seconds: int = 60) -> int:
    """Try each flip, many of them in one process; how many of them were noticed. Fails if a process ended."""
    noticed, first = 0, 0
    while first < len(tries):
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receive)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            for number in range(first, len(tries)):
                signal.alarm(seconds)
                try:
                    store.restore()
                    store.flip(*tries[number])
                    os.write(send, b"." if work(number) else b"!")
                except BaseException as error:
                    os.write(send, repr(error).encode())
                    os._exit(1)
            os._exit(0)
        os.close(send)
        answers = b""
        while piece := os.read(receive, 1 << 16):
            answers += piece
        os.close(receive)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        done = len(answers) - len(answers.lstrip(b".!"))
        if status:
            name, bit = tries[first + done]
            how = answers[done:].decode() if status > 0 else f"signal {-status}"
            pytest.fail(f"bit {bit & 7} of byte {bit >> 3} (page {bit >> 15}) of {name}: {how}")
        noticed += answers.count(b"!")
        first += done
    return noticed


@pytest.fixture(params=["closed", "killed"])
def closed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "closed")


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_any_flipped_bit_of_the_index_is_found_or_harmless(
    shape: Callable[..., None], closed: bool, tmp_path: Path
) -> None:
    print(f"seed {SEED}")
    rows: Rows = {}
    driver = streamkit_local.connect(f"file://{tmp_path}", timeout=10)
    shape(driver.open(ID), rows, random.Random(SEED))
    if closed:
        driver.close()
    store, chance = Damaged(tmp_path), random.Random(SEED + closed)
    driver.close()
    store.restore()
    count = (4000 if EXHAUSTIVE else 60) if len(store.index) < 1 << 20 else (1200 if EXHAUSTIVE else 25)
    tries = [("data.mdb", bit) for bit in sample(store, "data.mdb", count, chance)]
    tries += [("pages", bit) for bit in sample(store, "pages", count // 6, chance)]
    noticed = run(store, tries, partial(tried, store, rows))
    print(f"{len(tries)} flips, {noticed} noticed")
    assert noticed > len(tries) * 0.1


# -- the same without damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_a_state_of_which_not_all_is_known_reads_and_writes_the_same(
    shape: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is in a large store: pages are checked as they are needed."""
    monkeypatch.setattr(pages, "_AT_ONCE", 0)
    monkeypatch.setattr(pages, "_EACH", 0)
    rows: Rows = {}
    driver = streamkit_local.connect(f"file://{tmp_path}", timeout=10)
    shape(driver.open(ID), rows, random.Random(SEED))
    driver.close()
    store = Damaged(tmp_path)
    for number in range(3):
        assert use(store, rows, random.Random(number))


def test_what_others_commit_is_checked_anew(tmp_path: Path) -> None:
    one = streamkit_local.connect(f"file://{tmp_path}", timeout=10)
    other = streamkit_local.connect(f"file://{tmp_path}", timeout=10)
    rows: Rows = {}
    chance = random.Random(SEED)
    levels(one.open(ID), rows, chance)
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            backend = streamkit_local.connect(f"file://{tmp_path}", timeout=10).open(ID)
            found = dict(rows)
            for number in range(50):
                put(backend, found, [sorted(found)[number * 7], b"new %d" % number], 100, chance)
            os.write(
                send, b"." if {row.key: row.data for row in backend.scan(P, b"", b"\xff" * 300)} == found else b"!"
            )
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(receive, 1) == b"."
    found = dict(rows)
    for number in range(50):
        key = sorted(found)[number * 7]
        found |= {key: chance.randbytes(100), b"new %d" % number: chance.randbytes(100)}
    assert {row.key: row.data for row in other.open(ID).scan(P, b"", b"\xff" * 300)} == found
    one.close()
    other.close()


# -- a writer that ends between a commit and its checksums -------------------------------------------------------------


@pytest.mark.parametrize("where", ["before", "meanwhile", "after"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_a_commit_whose_checksums_are_not_noted_is_looked_at_and_taken(
    shape: Callable[..., None], where: str, tmp_path: Path
) -> None:
    store, rows = unnoted(shape, tmp_path, where)
    assert use(store, dict(rows), random.Random(1))


def test_a_flipped_bit_in_such_a_commit_is_found_or_harmless(tmp_path: Path) -> None:
    noticed = 0
    for shape in SHAPES:
        store, rows = unnoted(shape, tmp_path / shape.__name__)
        chance = random.Random(SEED)
        tries = [("data.mdb", bit) for bit in sample(store, "data.mdb", 2000 if EXHAUSTIVE else 12, chance)]
        noticed += run(store, tries, partial(tried, store, rows))
    assert noticed


def interrupt(where: str) -> None:
    """Let this process end before checksums are noted, when half of them are, or before they are durable."""
    note = Pages._note_pages

    def half(self: Pages, pages: list[int]) -> None:
        note(self, pages[: len(pages) // 2 + 1])
        os._exit(0)

    if where == "before":
        Pages.committed = lambda self, before: os._exit(0)  # type: ignore[method-assign]
    elif where == "meanwhile":
        Pages._note_pages = half  # type: ignore[method-assign]
    else:
        Sums.settle = lambda self, transaction: os._exit(0)  # type: ignore[method-assign]


def unnoted(shape: Callable[..., None], root: Path, where: str = "before") -> tuple[Damaged, Rows]:
    """A store whose last commit was interrupted after LMDB had done with it."""
    rows: Rows = {}
    chance = random.Random(SEED)
    driver = streamkit_local.connect(f"file://{root}", timeout=10)
    shape(driver.open(ID), rows, chance)
    driver.close()
    child = os.fork()
    if child == 0:
        interrupt(where)
        backend = streamkit_local.connect(f"file://{root}", timeout=10).open(ID)
        put(backend, rows, chance.sample(sorted(rows), 10), 300, chance)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    rows |= {key: chance.randbytes(300) for key in chance.sample(sorted(rows), 10)}
    return Damaged(root), rows


# -- verify and repair -------------------------------------------------------------------------------------------------


def test_verify_and_repair_of_a_damaged_index_end_no_process(tmp_path: Path) -> None:
    with streamkit.connect(f"file://{tmp_path}") as client:
        opened = client.store(ID)
        for number in range(40):
            opened.produce("space", f"segment {number % 7}", [Record(b"%d" % number)] * 3, idempotency_key=str(number))
        opened.maintain()
        wanted = list(opened.consume_space("space"))
    store = Damaged(tmp_path)

    def work(number: int) -> bool:
        with streamkit.connect(f"file://{tmp_path}") as client:
            opened = client.store(ID)
            try:
                if opened.verify().findings:
                    return False
                assert list(opened.consume_space("space")) == wanted
            except REFUSED:
                with contextlib.suppress(REFUSED):
                    opened.repair()
                with contextlib.suppress(REFUSED):
                    assert list(opened.consume_space("space")) == wanted
                return False
            opened.repair()
            assert list(opened.consume_space("space")) == wanted
            return True

    chance = random.Random(SEED)
    tries = [("data.mdb", bit) for bit in sample(store, "data.mdb", 3000 if EXHAUSTIVE else 40, chance)]
    assert run(store, tries, work)
