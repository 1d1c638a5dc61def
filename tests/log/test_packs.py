"""The packed part of a log: it comes back byte for byte, in few reads, and damage is never taken for data."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from harness.cramped import CLEAR, LARGE, cramped
from streamkit import Client, CorruptData, Record, UnsupportedVersion
from streamkit.backend import ABSENT, Backend
from streamkit.compression import Compressor, compress, decompress, load_zstd
from streamkit.log.keys import run_key
from streamkit.log.manifest import RunGone
from streamkit.log.pack_format import (
    EncodedPack,
    PackBlock,
    PackBuilder,
    encode_pack,
    open_block,
    read_table,
    table_bytes,
)
from streamkit.log.packs import PackFile, Packs, TableCache
from streamkit.log.partition import Partition
from streamkit.log.records import all_records
from streamkit.testing import ManualClock
from streamkit_memory import MemoryDriver

PARTITION = b"a partition"
SEED = 0xC0FFEE
BEFORE = b"rows of the index"
"""Bytes of a file before its pack."""

Log = dict[int, bytes]


def log_of(first: int, last: int, holes: tuple[int, ...] = ()) -> Log:
    """Records of every size: several to a block, one to a block, some that do not shrink."""
    dice = Random(5)
    found = {}
    for number in range(first, last + 1):
        size = (30, 90, 20_000, 400, 70_000)[number % 5]
        data = dice.randbytes(size) if number % 3 else bytes(size)
        if number not in holes:
            found[number] = b"%d " % number + data
    return found


def encode(log: Log, first: int, last: int) -> EncodedPack:
    return encode_pack(first, last, log.items(), lambda number, record: 1000 + 10 * number, SEED)


@pytest.mark.parametrize("numbers", [[], [1], [100], [17, 18, 62], range(1, 101)])
def test_some_records_of_a_pack_are_replaced_and_the_other_blocks_are_copied(
    backend: Backend, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(1, 100, holes=(40, 41))
    pack = encode(log, 1, 100)
    changed = {number: bytes(len(log[number])) for number in numbers if number in log}
    table = read_table(pack.data[-pack.table :], SEED)
    blocks = {table.block_of(number) for number in changed}
    shrunk: list[int] = []
    inner = Compressor.compress
    monkeypatch.setattr(Compressor, "compress", lambda self, data: shrunk.append(len(data)) or inner(self, data))  # type: ignore[func-returns-value]
    builder = PackBuilder(1, 100, lambda number, record: 1000 + 10 * number, SEED)
    builder.add_pack(table, pack.data, changed=changed)
    again = builder.finish()
    assert len(shrunk) <= len(blocks) + 1, "blocks were compressed anew that had not changed"
    assert (again.first, again.last, again.records, again.timestamp) == (1, 100, len(log), pack.timestamp)
    file = put(backend, again)
    assert dict(Packs(backend, PARTITION, SEED, [file], b"", TableCache()).all()) == log | changed


@pytest.mark.parametrize("largest", [500, (16 << 10) - 1, 16 << 10])
@pytest.mark.parametrize("holes", [(), (1,), (7, 8, 300)])
def test_records_that_are_added_together_make_the_same_pack(largest: int, holes: tuple[int, ...]) -> None:
    dice = Random(largest)
    log = {n: dice.randbytes(dice.choice((1, 400, largest))) for n in range(1, 301) if n not in holes}
    builder = PackBuilder(1, 300, lambda number, record: 1000 + 10 * number, SEED)
    builder.add_all([*log], [*log.values()])
    assert builder.finish() == encode(log, 1, 300)


def test_what_hardly_shrinks_is_as_small_as_what_is_compressed_with_care() -> None:
    dice = Random(3)
    parts = [b"".join(b"the same words %d" % n + dice.randbytes(40) for n in range(100)) for _ in range(5)]
    compressor = Compressor()
    packed = [compressor.compress(part) for part in parts]
    assert [decompress(some, len(part)) for some, part in zip(packed, parts, strict=True)] == parts
    assert sum(map(len, packed)) < 1.02 * sum(len(compress(part)) for part in parts)
    words = b"".join(b"the same words %d" % n for n in range(1000))
    compressor.compress(words)
    assert compressor.compress(words) == compress(words)


@pytest.fixture
def backend() -> Iterator[Backend]:
    driver = MemoryDriver(remote=True)
    yield driver.open(uuid4())
    driver.close()


def put(backend: Backend, pack: EncodedPack, data: bytes | None = None) -> PackFile:
    id = uuid4().bytes
    data = pack.data if data is None else data
    etag = backend.put(PARTITION, run_key(id), BEFORE + data, ABSENT)
    return PackFile(id, etag, len(BEFORE), len(pack.data), pack.table, pack.first, pack.last, pack.timestamp)


def open_packs(backend: Backend, *files: PackFile, inline: bytes = b"", seed: int = SEED) -> Packs:
    return Packs(backend, PARTITION, seed, files, inline, TableCache())


def read(packs: Packs, first: int, last: int) -> Log:
    return dict(packs.records(first, last))


@pytest.fixture
def three(backend: Backend) -> tuple[Packs, Log]:
    """Packs of 1..20 and 21..40, nothing of 41..44, and 45..50 in the head; 7, 21 and 50 are too large for a pack."""
    log = log_of(1, 50, holes=(7, 21, 41, 42, 43, 44, 50))
    parts = [({n: r for n, r in log.items() if a <= n <= b}, a, b) for a, b in ((1, 20), (21, 40), (45, 50))]
    one, two, inline = (encode(*part) for part in parts)
    return open_packs(backend, put(backend, one), put(backend, two), inline=inline.data), log


def test_records_come_back_in_order_up_to_one_that_is_in_no_pack(three: tuple[Packs, Log]) -> None:
    packs, log = three
    assert packs.last == 50
    for first in range(1, 52):
        for last in (first, first + 3, 60):
            wanted = []
            for number in range(first, last + 1):
                if number not in log:
                    break
                wanted.append((number, log[number]))
            assert list(packs.records(first, last)) == wanted
    assert dict(packs.all()) == log
    assert packs.get([3, 7, 22, 42, 49, 50, 51]) == [log[3], None, log[22], None, log[49], None, None]


def test_what_is_held_and_what_comes_next_is_told(three: tuple[Packs, Log]) -> None:
    packs, log = three
    for number in range(1, 60):
        assert packs.holds(number) == (number in log)
        assert packs.next_held(number) == min((held for held in log if held >= number), default=1 << 63)
    assert (packs.beyond(5), packs.beyond(20), packs.beyond(21)) == (21, 21, 41)
    assert packs.beyond(45) == 51


def test_parts_of_records_come_alone(three: tuple[Packs, Log]) -> None:
    packs, log = three
    wanted = [(number, start, 25) for number in (2, 4, 7, 9, 24, 29, 42, 45, 50, 51) for start in (0, 3)]
    assert packs.frames(wanted) == [
        log[number][start : start + 25] if number in log else None for number, start, _ in wanted
    ]


def test_a_part_of_a_large_record_is_read_without_the_rest(backend: Backend) -> None:
    log = log_of(1, 10)
    packs = open_packs(backend, put(backend, encode(log, 1, 10)))
    packs.get([1])
    before = backend.requests["bytes_read"]
    assert packs.frames([(4, 60_000, 100), (9, 5, 10)]) == [log[4][60_000:60_100], log[9][5:15]]
    assert backend.requests["bytes_read"] - before < 200


def test_a_page_opens_the_blocks_of_its_own_records_alone(backend: Backend) -> None:
    log = log_of(1, 20)
    pack = encode(log, 1, 20)
    last = read_table(pack.data[-pack.table :], SEED).blocks[-1]
    data = bytearray(pack.data)
    data[last.place] ^= 1
    packs = open_packs(backend, put(backend, pack, bytes(data)))
    before = {number: record for number, record in log.items() if number < last.number}
    assert before
    assert dict(packs.records(1, max(before))) == before
    found: Log = {}
    with pytest.raises(CorruptData, match="damaged"):
        found.update(packs.records(1, 20))
    assert found == before, "all records before the damage are given"


def test_a_log_is_read_in_few_requests(backend: Backend) -> None:
    log = {number: b"record %d" % number for number in range(1, 20_001)}
    packs = open_packs(backend, put(backend, encode(log, 1, 20_000)))
    assert read(packs, 1, 20_000) == log
    assert backend.requests["read"] <= 2


def test_the_time_is_looked_for_within_a_block(three: tuple[Packs, Log]) -> None:
    packs, _ = three
    for timestamp in range(1000, 1520, 5):
        for first, last in ((1, 50), (5, 33), (30, 45), (44, 44)):
            low, high = packs.narrow(timestamp, first, last)
            truth = next((n for n in range(first, last + 1) if 1000 + 10 * n >= timestamp), last + 1)
            assert low <= truth <= high, (timestamp, first, last)
            assert high - low <= 30


def test_a_pack_that_is_gone_is_told_by_its_name(backend: Backend) -> None:
    log = log_of(1, 10)
    file = put(backend, encode(log, 1, 10))
    packs = open_packs(backend, file)
    backend.delete(PARTITION, [run_key(file.id)])
    for read in (lambda: packs.get([3]), lambda: list(packs.all()), lambda: packs.frames([(4, 0, 5)])):
        with pytest.raises(RunGone) as gone:
            read()
        assert gone.value.key == run_key(file.id)


# -- damage -----------------------------------------------------------------------------------------------------------


def small() -> tuple[EncodedPack, Log]:
    """A pack with a compressed block, an uncompressed one, and a hole."""
    log = {1: b"one " * 20, 2: b"two", 4: Random(1).randbytes(17_000)[:16_500], 5: b"five"}
    return encode(log, 1, 5), log


def damaged(data: bytes) -> Iterator[bytes]:
    """A bit of each byte flipped, of large blocks of some; and cut short."""
    dice = Random(7)
    places = [at for at in range(len(data)) if at < 200 or at > len(data) - 400 or at % 97 == 0]
    for at in places:
        yield data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]
    for at in places[::5]:
        yield data[:at]
        yield data[:at] + bytes(len(data) - at)


def test_damage_at_any_byte_is_noticed_or_harmless(backend: Backend) -> None:
    pack, log = small()
    noticed = count = 0
    for broken in damaged(pack.data):
        if broken == pack.data:
            continue
        count += 1
        packs = open_packs(backend, put(backend, pack, broken))
        for number, record in log.items():
            try:
                assert packs.get([number]) == [record]
            except CorruptData:
                noticed += 1
                break
    assert noticed > count * 0.9


def test_damage_of_a_pack_in_the_head_is_noticed_or_harmless(backend: Backend) -> None:
    pack, log = small()
    for broken in filter(None, damaged(pack.data)):
        try:
            found = dict(open_packs(backend, inline=broken).all())
        except CorruptData:
            continue
        assert found == log


def test_the_pack_of_another_partition_is_refused(backend: Backend) -> None:
    pack, _ = small()
    for seed in (0, SEED + 1):
        with pytest.raises(CorruptData, match="damaged"):
            open_packs(backend, put(backend, pack), seed=seed).get([1])
        with pytest.raises(CorruptData, match="damaged"):
            open_packs(backend, inline=pack.data, seed=seed)


def test_a_pack_that_holds_other_numbers_than_the_head_says_is_refused(backend: Backend) -> None:
    pack, _ = small()
    file = put(backend, pack)
    for first, last in ((1, 6), (2, 5), (2, 6)):
        packs = open_packs(backend, replace(file, first=first, last=last))
        with pytest.raises(CorruptData, match="not the one that the head names"):
            packs.get([3])


def _rewritten(pack: EncodedPack, change: Any = lambda table: table, version: int = 1) -> bytes:
    """The pack with another table, or of another version, and the checksum that belongs to it."""
    size = table_bytes(pack.data)
    zstd = load_zstd()
    table = change(bytearray(zstd.decompress(pack.data[-size:-16])))
    stored = zstd.compress(bytes(table), 1)
    sizes = struct.pack("<III", len(stored), len(table), version)
    crc = zlib.crc32(sizes, zlib.crc32(stored, SEED))
    return pack.data[:-size] + stored + sizes + struct.pack("<I", crc)


def test_the_pack_of_a_later_format_is_refused_with_the_fix(backend: Backend) -> None:
    pack, log = small()
    assert dict(open_packs(backend, inline=_rewritten(pack)).all()) == log
    later = _rewritten(pack, version=2)
    told = r"format version 2; this release reads 1\. Upgrade streamkit"
    with pytest.raises(UnsupportedVersion, match=told):
        open_packs(backend, put(backend, pack, later)).get([1])
    with pytest.raises(UnsupportedVersion, match=told):
        open_packs(backend, inline=later)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: struct.pack("<QQI", 1, 5, 0) + table[-20:],
        lambda table: table[:20] + table[60:100] + table[20:60] + table[100:],
        lambda table: struct.pack("<Q", 2) + table[8:],
        lambda table: table[:-4],
        lambda table: table[:20] + struct.pack("<Q", 2) + table[28:],
    ],
    ids=["no blocks", "blocks in another order", "another first", "a length less", "a block that begins too late"],
)
def test_a_table_that_contradicts_itself_is_refused(change: Any) -> None:
    pack, _ = small()
    assert read_table(_rewritten(pack), SEED).last == 5
    with pytest.raises(CorruptData):
        read_table(_rewritten(pack, change), SEED)


# -- in a store -------------------------------------------------------------------------------------------------------


def _filled(kind: str, clock: ManualClock) -> tuple[Any, Partition]:
    driver = MemoryDriver(remote=kind == "remote", clock=clock, sleep=clock.sleep)
    store = Client("memory://", driver, 5.0, None, 64 << 20, clock).store(uuid4())
    for number in range(40):
        with store.transaction("s") as trx:
            for at in range(20 if number % 7 == 3 else 1):
                trx.produce(f"s{at}", [Record(b"%d" % number)])
    space = store._known("s")
    assert space is not None
    (partition,) = space.partitions
    return store, partition


@pytest.mark.parametrize("kind", ["memory", "remote"])
@pytest.mark.parametrize("cleared", [False, True])
def test_a_log_is_walked_over_packs_memory_and_rows(kind: str, cleared: bool) -> None:
    """Write packed transactions, one that is too large for a pack, and some that are not packed yet."""
    clock = ManualClock()
    with cramped():
        store, partition = _filled(kind, clock)
        if cleared:
            clock.sleep(5000)
            store.maintain()
            clock.sleep(5000)
            store.maintain()
            if kind == "memory":
                prefix = partition.transaction_key(1), partition.transaction_key(1 << 64)
                left = list(partition.backend.scan(partition.key, *prefix))
                assert all(len(row.data) > LARGE for row in left)
                assert len(left) == 6
            store.produce("s", "s0", [Record(b"last")])
        last = partition.number
        whole = dict(partition.records(1, last))
        assert list(whole) == list(range(1, last + 1))
        for first in range(1, last + 2, 3):
            assert dict(partition.records(first, last)) == {n: r for n, r in whole.items() if n >= first}
            assert list(partition.records(first, first)) == ([(first, whole[first])] if first <= last else [])
        assert dict(all_records(partition, partition.packs, 1)) == whole
        assert [partition.record(number) for number in (1, 4, 5, last, last + 1)] == [
            *(whole[number] for number in (1, 4, 5, last)),
            None,
        ]
        assert all(partition.decode_header(record, number).number == number for number, record in whole.items())
        assert sum(1 for _ in store.consume_space("s")) == 40 + 6 * 19 + cleared


def test_a_row_of_a_writer_that_came_too_late_is_not_taken_for_what_was_packed() -> None:
    clock = ManualClock()
    with cramped():
        store, partition = _filled("remote", clock)
        whole = dict(partition.records(1, partition.number))
        for _ in range(2):
            clock.sleep(2 * CLEAR)
            store.maintain()
        assert partition.backend.get(partition.key, [partition.transaction_key(5)]) == [None]
        partition.backend.put(partition.key, partition.transaction_key(5), whole[6])
        assert dict(partition.records(1, partition.number)) == whole
        assert partition.record(5) == whole[5]
        assert store.verify().ok
        assert store.repair() == 0


def test_what_a_head_says_is_cleared_is_not_in_the_log() -> None:
    """The log is cleared correctly, also if time passes between any two looks at the clock."""

    class Ticking(ManualClock):
        def __call__(self) -> float:
            self.sleep(CLEAR / 7)
            return super().__call__()

    with cramped():
        store, partition = _filled("memory", Ticking())
        for _ in range(3):
            store.produce("s", "s0", [Record(b"more")] * 2)
            store.maintain()
        head = partition.head
        assert head.cleared > 20
        start, end = partition.transaction_key(1), partition.transaction_key(head.cleared + 1)
        assert all(len(row.data) > LARGE for row in partition.backend.scan(partition.key, start, end))


def test_a_block_that_claims_to_be_larger_than_any_is_refused_before_it_is_decompressed() -> None:
    stored = compress(bytes(1 << 20))
    crc = zlib.crc32(stored, zlib.crc32((7).to_bytes(8, "little"), SEED))
    block = PackBlock(7, 0, 0, len(stored), 0xFFFF_FFFF, 1, crc)
    with pytest.raises(CorruptData, match="claims 4294967295 bytes"):
        open_block(block, stored, SEED)
