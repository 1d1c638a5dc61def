"""Facts of the index alone outlive damage to a part of it: repair finds them in neither log nor archive."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE
from msgspec.structs import replace

from harness.cramped import cramped
from harness.index_rows import read_head
from streamkit import Client, Lease, Record, Store
from streamkit.archive_url import archive_place
from streamkit.backend import Backend
from streamkit.errors import CorruptData, Fenced
from streamkit.index.run_format import Block, decode_block, decode_tail
from streamkit.log import policy
from streamkit.log.index_rows import decode_index_row
from streamkit.log.keys import FENCES, HEAD, KEYS, SEGMENTS, partition_key, run_key
from streamkit.log.manifest import RunFile
from streamkit.log.partition import seed_of
from streamkit.log.rows import KeyRow, encode_row
from streamkit.testing import ManualClock
from streamkit_local.driver import LocalDriver
from streamkit_memory import MemoryDriver

pytest.importorskip("deltalake")

P = bytes(partition_key("s", 0))
SEGMENTS_WRITTEN = 7
WRITES = 20
FIRST_KEY = 5
"""The transaction that uses the first key: after four with leases."""


class World:
    """A space whose packed transactions have left the log, and a tail. `copy` is another one to be damaged."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.clock = ManualClock()
        self.id: UUID = uuid4()
        self.driver: Any = self._driver(folder / "stores")
        self.leases: dict[str, Lease] = {}
        """The token of an earlier holder of each lease."""
        self.copies = 0

    def _driver(self, folder: Path) -> Any:
        if self.kind == "local":
            return LocalDriver(str(folder), 5.0)
        return MemoryDriver(remote=True, clock=self.clock, sleep=self.clock.sleep)

    @property
    def backend(self) -> Backend:
        backend: Backend = self.driver.open(self.id)
        return backend

    def open(self) -> Store:
        archive = archive_place((self.folder / "archive").as_uri())
        return Client("memory://", self.driver, 5.0, None, 64 << 20, self.clock, archive).store(self.id)

    def copy(self) -> World:
        other = World(self.kind, self.folder)
        other.id, other.clock, other.leases = self.id, self.clock, self.leases
        self.copies += 1
        folder = self.folder / f"copy {self.copies}"
        other.driver = other._driver(folder)
        if self.kind == "local":
            shutil.copytree(self.folder / "stores", folder)
        else:
            service = self.driver._service
            for partition in list(service.stores[self.id]):
                for row in list(self.backend.scan(partition, b"", b"\xff" * 300)):
                    other.backend.put(partition, row.key, row.data)
            other.driver._service.leases.update(service.leases)
        return other

    def write(self) -> None:
        """Keys, leases, a segment that was trimmed and one that was deleted."""
        store = self.open()
        store.create_space("s", archive_grace=60.0)
        for at in range(4):
            for _ in range(2):
                with store.lease(f"leader {at}") as lease:
                    self.leases.setdefault(lease.key, lease)
            store.produce("s", "led", [Record(b"x")], lease=lease)
        for at in range(WRITES):
            store.produce("s", f"s{at % SEGMENTS_WRITTEN}", [Record(b"%d" % at)] * 2, idempotency_key=f"key {at}")
        store.produce("s", "trimmed", [Record(b"x")] * 6)
        store.produce("s", "deleted", [Record(b"x")] * 3)
        store.trim("s", "trimmed", before=4)
        store.delete_segment("s", "deleted")

    def let_go(self, archive: bool = True) -> None:
        """Leave the entries in the archive alone, or nowhere if they were trimmed."""
        store = self.open()
        if archive:
            store.archive("s")
            self.clock.sleep(7200)
            assert store.archive("s").removed
        for _ in range(3):
            store.maintain()
            self.clock.sleep(7200)

    def told(self) -> dict[str, object]:
        """Return what the store knows of each key, lease and segment; this writes to the store."""
        store = self.open()
        found: dict[str, object] = {"entries": list(store.consume_space("s"))}
        found["size"] = store.size("s").bytes
        for at in range(WRITES):
            found[f"key {at}"] = store.lookup("s", f"key {at}", segment=f"s{at % SEGMENTS_WRITTEN}")
        for name, lease in self.leases.items():
            try:
                store.produce("s", "other", [Record(b"of a deposed leader")], lease=lease)
                found[name] = "accepted"
            except Fenced:
                found[name] = "fenced"
        for name in ("led", "trimmed", "deleted", *(f"s{at}" for at in range(SEGMENTS_WRITTEN))):
            before = [entry.sequence for entry in store.consume_segment("s", name)]
            found[name] = before, store.produce("s", name, [Record(b"next")]).last_sequence
        assert store.verify("s").ok
        return found


@pytest.fixture(params=["remote", "local"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Blocks of a few rows."""
    with cramped(inline=0):
        yield World(request.param, tmp_path)


def blocks_of(world: World, file: RunFile) -> list[tuple[int, Block]]:
    """Return (where it begins in the row, block)."""
    (value,) = world.backend.get(P, [run_key(file.id)])
    assert value is not None
    data = value.data[file.start : file.start + file.length]
    seed = seed_of(read_head(world.backend, P).settings, P)
    tail = decode_tail(data[-file.tail :], file, seed)
    ends = zip(tail.offsets, tail.offsets[1:], strict=False)
    return [(file.start + start, decode_block(data[start:end], file, start, seed)) for start, end in ends]


def flip(world: World, key: bytes, at: int) -> None:
    (value,) = world.backend.get(P, [key])
    assert value is not None
    data = bytearray(value.data)
    data[at] ^= 4
    world.backend.put(P, key, bytes(data))


def named(block: Block) -> tuple[set[str], set[str]]:
    """The kinds of rows in a block, by the names of `told`; and their names in a report."""
    names: set[str] = set()
    kinds: set[str] = set()
    for key, value in zip(block.keys(0, block.rows), block.values(0, block.rows), strict=True):
        for prefix, kind in ((SEGMENTS, "segments"), (KEYS, "idempotency keys"), (FENCES, "leases")):
            if key.startswith(bytes(prefix) + b"\x00"):
                kinds.add(kind)
                if prefix == KEYS:
                    names.add(f"key {decode_index_row(KeyRow, key, value).number - FIRST_KEY}")
                else:
                    names.add(key[len(prefix) + 1 :].decode())
    return names, kinds


def test_what_is_beside_a_damaged_block_is_not_forgotten(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.write()
    world.let_go()
    before = world.copy().told()
    assert (before["trimmed"], before["deleted"]) == (([4, 5, 6], 7), ([], 4))
    assert {before[name] for name in world.leases} == {"fenced"}
    seen: set[str] = set()
    for file in read_head(world.backend, P).manifest.files():
        for start, block in blocks_of(world, file):
            names, kinds = named(block)
            if kinds <= seen and not EXHAUSTIVE:
                continue  # one of each kind
            seen |= kinds or {"entries"}
            other = world.copy()
            flip(other, run_key(file.id), start + 20)
            assert not other.open().verify("s").ok
            caplog.clear()
            assert other.open().repair("s")
            after = other.told()
            changed = {name for name in before if before[name] != after[name]}
            assert changed <= {*names, "size", "entries" if "segments" in kinds else ""}, (kinds, names)
            assert {kind for kind in kinds if kind in caplog.text} == kinds
            assert not kinds or repr(run_key(file.id)) in caplog.text
    assert seen >= {"segments", "idempotency keys", "leases"}


@pytest.mark.parametrize("harm", ["tail", "gone", "cut short"])
def test_a_run_without_its_end_is_read_as_far_as_it_goes(
    world: World, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.write()
    world.let_go()
    before = world.copy().told()
    files = list(read_head(world.backend, P).manifest.files())
    assert len(files) > 1
    for file in files[:: 1 if EXHAUSTIVE else 3]:
        blocks = blocks_of(world, file)
        names = [named(block)[0] for _, block in blocks]
        other = world.copy()
        if harm == "tail":
            flip(other, run_key(file.id), file.start + file.length - file.tail)
            lost: set[str] = set()
        elif harm == "gone":
            other.backend.delete(P, [run_key(file.id)])
            lost = set().union(*names)
        else:
            (value,) = other.backend.get(P, [run_key(file.id)])
            assert value is not None
            other.backend.put(P, run_key(file.id), value.data[: blocks[len(blocks) // 2][0]])
            lost = set().union(*names[len(blocks) // 2 :])
        caplog.clear()
        assert other.open().repair("s")
        after = other.told()
        changed = {name for name in before if before[name] != after[name]}
        assert changed <= (lost | {"size", "entries"} if lost else set())
        assert bool(caplog.text) == bool(lost)


def test_what_is_beside_a_damaged_sector_of_a_disk_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The storage itself refuses 4 KiB of a file, and every read that includes them."""
    monkeypatch.setattr(policy, "LOCAL", policy.LOCAL._replace(inline=0))
    world = World("local", tmp_path)
    store = world.open()
    store.create_space("s", archive_grace=60.0)
    for at in range(700):
        store.produce("s", "a", [Record(b"x")], idempotency_key=f"key {at}")
    world.let_go()
    (file,) = read_head(world.backend, P).manifest.files()
    blocks = blocks_of(world, file)
    (value,) = world.backend.get(P, [run_key(file.id)])
    assert value is not None
    start = blocks[len(blocks) // 2][0]
    part = value.data[start : start + 64]
    (path,) = [path for path in (tmp_path / "stores").rglob("*.*") if path.is_file() and part in path.read_bytes()]
    with open(path, "r+b") as damaged:
        at = path.read_bytes().index(part)
        damaged.seek(at)
        damaged.write(bytes([part[0] ^ 4]))
    (tmp_path / "stores").rename(tmp_path / "moved")  # no process has it open there
    world.driver = LocalDriver(str(tmp_path / "moved"), 5.0)
    with pytest.raises(CorruptData):
        world.backend.get(P, [run_key(file.id)])
    assert world.open().repair("s")
    assert world.open().verify("s").ok
    kept = [at for at in range(700) if world.open().lookup("s", f"key {at}") is not None]
    assert 350 < len(kept) < 700
    assert "idempotency keys" in caplog.text


@pytest.mark.parametrize("harm", ["damaged", "deleted"])
def test_what_files_of_the_index_know_outlives_the_head(
    world: World, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.write()
    world.let_go()
    before = world.copy().told()
    other = world.copy()
    if harm == "damaged":
        other.backend.put(P, bytes(HEAD), b"damaged")
    else:
        other.backend.delete(P, [bytes(HEAD)])
    assert other.open().repair("s")
    assert other.told() == before
    assert "the head cannot be read" in caplog.text


def test_what_the_index_alone_knows_of_what_was_trimmed_outlives_a_repair(world: World) -> None:
    """A space without an archive has a wrong row in the index, and all of it can be read."""
    world.write()
    world.open().trim("s", keep_entries=10)
    world.let_go(archive=False)
    before = world.copy().told()
    assert before["key 0"] is not None
    other = world.copy()
    head = read_head(other.backend, P)
    other.backend.put(P, bytes(HEAD), encode_row(HEAD, replace(head, timestamp=head.timestamp + 1)))
    assert other.open().repair("s")
    assert other.told() == before


@pytest.mark.parametrize("harm", ["a row is wrong", "nothing can be read"])
def test_what_is_trimmed_after_a_repair_is_gone_from_its_segments(world: World, harm: str) -> None:
    """The space is trimmed up to a place in the archive, of segments that go on in the log."""
    world.write()
    world.let_go()
    for at in range(SEGMENTS_WRITTEN):
        world.open().produce("s", f"s{at}", [Record(b"of the log")])
    head = read_head(world.backend, P)
    if harm == "a row is wrong":
        world.backend.put(P, bytes(HEAD), encode_row(HEAD, replace(head, timestamp=head.timestamp + 1)))
    else:
        for file in head.manifest.files():
            world.backend.put(P, run_key(file.id), b"damaged")
    assert world.open().repair("s")
    store = world.open()
    store.trim("s", before=list(store.consume_space("s"))[20].space_offset)
    for _ in range(2):
        left = sorted((entry.segment, entry.sequence) for entry in store.consume_space("s"))
        by_segment = [entry for name in store.get_segments("s") for entry in store.consume_segment("s", name)]
        assert sorted((entry.segment, entry.sequence) for entry in by_segment) == left
        store.maintain()
        store = world.open()


def test_a_head_that_was_deleted_is_damage_and_not_an_empty_space(world: World) -> None:
    """Move all transactions from the log into packs."""
    world.write()
    world.let_go()
    before = list(world.open().consume_space("s"))
    world.backend.delete(P, [bytes(HEAD)])
    findings = world.open().verify().findings
    assert [(finding.key, finding.problem) for finding in findings] == [(bytes(HEAD), "the head is missing")]
    for write in (
        lambda store: store.produce("s", "s1", [Record(b"over it")]),
        lambda store: store.create_space("s", archive_grace=60.0),
    ):
        with pytest.raises(CorruptData, match="repair"):
            write(world.open())
    assert world.open().repair()
    assert world.open().verify().ok
    assert list(world.open().consume_space("s")) == before
    assert (
        world.open().produce("s", "s1", [Record(b"on")]).last_sequence
        == len([entry for entry in before if entry.segment == "s1"]) + 1
    )


def test_a_space_of_which_only_the_catalog_was_written_is_made_by_the_next_write(world: World) -> None:
    world.open().create_space("s")
    world.backend.delete(P, [bytes(HEAD)])
    assert world.open().verify().ok
    assert world.open().produce("s", "a", [Record(b"x")]).first_sequence == 1
