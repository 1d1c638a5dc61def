"""Flipped bits and cut tails in all files of a store: every reader raises CorruptData, or gives the written entries.

Never wrong data, never missing data, and no reader that ends the process.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fix_covered import EXHAUSTIVE
from fix_local import Repeating, in_child

import streamkit
from streamkit import CorruptData, Record, Store, UnsupportedVersion
from streamkit.log.keys import CATALOG, partition_key
from streamkit_memory import MemoryDriver

SEED = 20_240_711
ID = UUID("7d9f2c1e-0000-4000-8000-000000000001")
REFUSED = (CorruptData, UnsupportedVersion)
SPACES = ("one", "four", "buffered")


def fill(store: Store) -> None:
    store.create_space("four", partitions=4)
    store.create_space("buffered", durability="buffered")
    for space in SPACES:
        for number in range(12):
            with store.transaction(space, idempotency_key=f"{space} {number}" if number % 4 == 0 else None) as trx:
                for at in range(1 + number % 3):
                    trx.produce(
                        f"{{{number % 5}}}/{at}", [Record(b"%d.%d" % (number, at), {"number": str(number)})] * 2
                    )
        store.produce(space, "compressed", [Record(b'{"a": 1, "b": "text"}' * 40)] * 3)
    store.with_lease("leader", lambda lease: store.produce("one", "led", [Record(b"%d" % lease.token)], lease=lease))


def readers(store: Store) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Everything that can be read, one call at a time."""
    yield "get_spaces", lambda: list(store.get_spaces())
    yield "led", lambda: store.peek("one", "led")
    yield "consume", lambda: list(store.consume(dict.fromkeys(SPACES)))
    for space in SPACES:
        yield f"consume_space {space}", partial(lambda space: list(store.consume_space(space)), space)
        yield f"get_segments {space}", partial(lambda space: list(store.get_segments(space)), space)
        yield f"a page of {space}", partial(lambda space: list(store.consume_space(space, limit=5)), space)
        for segment in ("{0}/0", "{1}/1", "compressed", "none"):
            yield f"consume_segment {space} {segment}", partial(_segment, store, space, segment)
            yield f"status {space} {segment}", partial(store.segment_status, space, segment)
            yield f"peek {space} {segment}", partial(store.peek, space, segment)


def _segment(store: Store, space: str, segment: str) -> Any:
    return list(store.consume_segment(space, segment))


def read_all(store: Store) -> dict[str, Any]:
    return {name: read() for name, read in readers(store)}


def check(store: Store, wanted: dict[str, Any]) -> int:
    """Count the readers that reported damage; the others are right, or this fails."""
    refused = 0
    for name, read in readers(store):
        try:
            found = read()
        except REFUSED:
            refused += 1
            continue
        assert found == wanted[name], f"{name} of a damaged store: {found!r:.300}, not {wanted[name]!r:.300}"
    return refused


def write_on(store: Store, wanted: dict[str, Any]) -> int:
    """Count the refused writers; the others go on behind the entries that were there, or this fails."""
    refused = 0
    for space in SPACES:
        last = wanted[f"status {space} compressed"].last_sequence
        try:
            status = store.produce(space, "compressed", [Record(b"more")])
        except REFUSED:
            refused += 1
            continue
        assert status.last_sequence == last + 1, f"a writer to {space} of a damaged store goes on at {status}"
    try:
        token = store.with_lease("leader", lambda lease: lease.token)
        assert token == int(wanted["led"].payload) + 1, "a token that was granted before, or another row"
    except REFUSED:
        refused += 1
    return refused


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["closed", "copied", "killed"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store on disk as a process leaves it that closed it, a copy of that, or one of a process that was killed."""
    made = tmp_path / "made"

    def work() -> None:
        client = streamkit.connect(f"file://{made}")
        fill(client.store(ID))
        if request.param != "killed":
            client.close()
        os._exit(0)

    assert in_child(work) == 0
    return shutil.copytree(made, tmp_path / "copy") if request.param == "copied" else made


@contextlib.contextmanager
def as_it_was(root: Path) -> Iterator[None]:
    """Restore all files after the block, in place, because copies are treated differently."""
    aside = root.with_name("aside")
    shutil.copytree(root, aside, copy_function=os.link)
    data = {path: path.read_bytes() for path in aside.rglob("*") if path.is_file()}
    yield
    for path, before in data.items():
        with path.open("r+b") as file:
            file.truncate(len(before))
            file.write(before)
    shutil.rmtree(root)
    aside.rename(root)


def places(size: int, dice: random.Random) -> Iterator[tuple[str, int]]:
    """Choose the places of flips and cuts in a file of this size: at random, and where formats begin and end."""
    if size:
        for at in {0, 8, 512, 4096, size - 1, *(dice.randrange(size) for _ in range(500 if EXHAUSTIVE else 5))}:
            if at < size:
                yield "flip", at
        for at in {0, 100, 4096, size - 1, *(dice.randrange(size) for _ in range(50 if EXHAUSTIVE else 2))}:
            if at < size:
                yield "cut", at
    yield "remove", 0


def damage(path: Path, how: str, at: int, dice: random.Random) -> None:
    if how == "remove":
        path.unlink()
    elif how == "cut":
        os.truncate(path, at)
    else:
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << dice.randrange(8)]))


def test_damage_to_any_file_is_noticed_or_harmless(root: Path) -> None:
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    with as_it_was(root), streamkit.connect(f"file://{root}") as client:
        wanted = read_all(client.store(ID))
    assert len(wanted["consume"]) > 100
    files = sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())
    assert len(files) >= 10
    noticed: dict[Path, int] = {}
    failed = []

    def work() -> int:
        with streamkit.connect(f"file://{root}") as client:
            refused = check(client.store(ID), wanted)
            refused += write_on(client.store(ID), wanted)
        return 1 if refused else 0

    with contextlib.closing(Repeating(work)) as refuses:
        for file in files:
            for how, at in places((root / file).stat().st_size, dice):
                with as_it_was(root):
                    damage(root / file, how, at, dice)
                    code = refuses()
                if code not in (0, 1):
                    failed.append(f"{file}: {how} at {at}: {'an error' if code > 0 else f'signal {-code}'}")
                noticed[file] = noticed.get(file, 0) + (code == 1)
    assert not failed, "\n".join(failed)
    for file, count in noticed.items():
        if file.suffix == ".log" or file.name in ("head", "format"):
            assert count, f"no damage to {file} was noticed"


# -- rows -------------------------------------------------------------------------------------------------------------

PARTITIONS = [bytes(CATALOG), *(bytes(partition_key(space, number)) for space in SPACES for number in range(4))]


@pytest.mark.parametrize("kind", ["memory", "remote"])
@pytest.mark.parametrize("kept", [False, True], ids=["as written", "maintained"])
def test_damage_to_any_row_is_noticed_or_harmless(kind: str, kept: bool) -> None:
    url = f"memory://damage-{kind}-{kept}?remote={int(kind == 'remote')}"
    with streamkit.connect(url) as client:
        store = client.store(ID)
        fill(store)
        if kept:
            store.maintain()
        wanted = read_all(store)
        rows = MemoryDriver(url[9:].partition("?")[0], remote=kind == "remote").open(ID)
        dice = random.Random(SEED)
        for partition in PARTITIONS:
            for key, data, _ in list(rows.scan(partition, b"", b"\xff")):
                for broken in (_flip(data, dice.randrange(len(data)), dice), data[: dice.randrange(len(data))]):
                    rows.put(partition, key, broken)
                    with streamkit.connect(url) as other:
                        noticed = bool(check(other.store(ID), wanted))
                    # readers need no settings, which heads have too, and no transactions that are in runs
                    needed = partition != bytes(CATALOG) and not (kept and key.startswith(b"TXN"))
                    assert noticed == needed, f"{key!r} of {partition!r}"
                rows.put(partition, key, data)
        assert read_all(client.store(ID)) == wanted
        client.delete_store(ID)


def _flip(data: bytes, at: int, dice: random.Random) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]


@pytest.mark.parametrize("kind", ["memory", "remote"])
def test_a_transaction_that_is_gone_is_noticed(kind: str) -> None:
    url = f"memory://gone-{kind}?remote={int(kind == 'remote')}"
    with streamkit.connect(url) as client:
        fill(client.store(ID))
        wanted = read_all(client.store(ID))
        rows = MemoryDriver(url[9:].partition("?")[0], remote=kind == "remote").open(ID)
        for space in SPACES:
            partition = bytes(partition_key(space, 0))
            logged = list(rows.scan(partition, b"TXN", b"TXO"))
            for row in logged[:-1]:
                rows.delete(partition, [row.key])
                with streamkit.connect(url) as other:
                    assert check(other.store(ID), wanted)
                rows.put(partition, row.key, row.data)
        client.delete_store(ID)
