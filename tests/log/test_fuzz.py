"""Decoders trust no bytes: the result is data or a typed error.

Also where the checksums are right and the contents hostile, as someone with write access could make them: lengths that
are not there, numbers that do not fit, text that is none. Nothing hangs, and memory stays in proportion to the input.
A sample runs with the other tests; `make test-exhaustive` gives every decoder a million inputs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from fix_covered import EXHAUSTIVE
from msgspec.structs import replace

import streamkit
import streamkit_azure
import streamkit_local
import streamkit_memory
import streamkit_s3
from harness.mutations import HOSTILE, INTERESTING, believable_block, believable_frame, believable_record, mutated
from harness.sections import build_section
from streamkit import LexKey
from streamkit.compression import load_zstd
from streamkit.errors import CorruptData, InvalidOffset, MissingDependency, PermanentError, UnsupportedVersion
from streamkit.index.run_format import Block, decode_block, decode_inline, decode_tail, encode_inline
from streamkit.log import rows
from streamkit.log.index_rows import decode_index_row, encode_index_row
from streamkit.log.keys import HEAD
from streamkit.log.manifest import Manifest, Merge, Run, RunFile
from streamkit.log.offsets import Offset
from streamkit.log.pack_format import check_start, encode_pack, open_block, read_table, table_bytes
from streamkit.log.packs import PackFile
from streamkit.log.record_format import (
    KeyUse,
    decode_entries,
    decode_header,
    encode_body,
    encode_transaction,
    split_frames,
)
from streamkit.log.rows import (
    ArchiveRow,
    DataRow,
    GraceRow,
    Head,
    KeyRow,
    Piece,
    SegmentRow,
    Settings,
    decode_row,
    encode_row,
)

COUNT = 1_000_000 if EXHAUSTIVE else 10_000
SEED = 5


def attack(name: str, samples: list[bytes], wrap: Callable[[Random, bytes], bytes], decode: Callable[[bytes], object],
           typed: tuple[type[Exception], ...]) -> int:  # fmt: skip
    """Decode COUNT changed samples; how many were taken for data. Any other error than `typed` goes through."""
    dice = Random(f"{SEED} {name}")
    taken = 0
    for number in range(COUNT):
        data = wrap(dice, mutated(dice, dice.choice(samples)))
        try:
            decode(data)
            taken += 1
        except typed:
            pass
        except BaseException as error:
            error.add_note(f"input {number} of {name}: {data!r}")
            raise
    return taken


def records() -> list[bytes]:
    parts = [
        ("a", 1, encode_body([b"one", b"two"], None)),
        ("日本", 7, encode_body([b"packed " * 300], [{"key": "value"}])),
        ("b", 1 << 40, encode_body([b""] * 3, [None, {}, {"a": "b"}])),
    ]
    keys = (KeyUse(bytes(16), bytes(16), (("a", 2),)),)
    return [
        encode_transaction(number=1, timestamp=5, id=bytes(16), node=bytes(16), position=0, parts=parts[:count],
                           keys=keys[: count - 1], fences={"leader": 3})[1]
        for count in (1, 2, 3)
    ]  # fmt: skip


def read_record(data: bytes) -> None:
    header = decode_header(data, 0)
    _ = header.count, header.trx
    for frame in split_frames(data, 0):
        decode_entries("space", 0, 1, frame, 0)


@pytest.mark.usefixtures("codec")
def test_a_transaction_record(covered: Callable[[str, int], None]) -> None:
    taken = attack("record", records(), believable_record, read_record, (CorruptData, UnsupportedVersion))
    assert taken
    covered("fuzzed transaction records", COUNT)


def frames() -> list[bytes]:
    return [bytes(frame) for record in records() for frame in split_frames(record, 0)]


@pytest.mark.usefixtures("codec")
def test_a_frame(covered: Callable[[str, int], None]) -> None:
    typed = (CorruptData, UnsupportedVersion)
    assert attack("frame", frames(), believable_frame, lambda data: decode_entries("s", 0, 1, data, 0), typed)
    covered("fuzzed frames", COUNT)


FILE = RunFile(b"i" * 16, "etag", 7, 900, 60, b"first", b"last", 12)
ROWS: list[Settings | Head | ArchiveRow | GraceRow] = [
    Settings(3, "buffered"),
    Head(
        Settings(),
        47,
        6,
        7,
        5,
        Manifest(b"inline", 41, 47, (Run(1, 40, 1, (FILE,)),), (Merge(1, 40, (FILE,), b"resume"),)),
        (PackFile(b"p" * 16, "etag", 900, 4000, 80, 1, 40, 5),),
        b"pack",
        30,
        ((40, 6),),
    ),
    ArchiveRow(3, ((1, 2), (3, 4))),
    GraceRow(b"i" * 16, (ArchiveRow(), ArchiveRow(3, ((1, 2),)))),
]
INDEX_ROWS: list[SegmentRow | DataRow | KeyRow] = [
    SegmentRow(1, 2, 3, 4),
    DataRow([Piece(1, 2, 3, 4, 5, 6, b"frame"), Piece(2, 2, 7, 1, 5, 6)]),
    KeyRow(1, 2, bytes(16), bytes(16), bytes(16), (("a", 1), ("b", 2)), 3),
]
VERSION = bytes([rows.VERSION])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: type(row).__name__)
def test_a_row(row: Settings | Head | ArchiveRow | GraceRow, covered: Callable[[str, int], None]) -> None:
    kind, key = type(row), bytes(HEAD)

    def wrap(dice: Random, body: bytes) -> bytes:
        if dice.random() < 0.1:
            return body
        body = VERSION + body[5:]
        return zlib.crc32(body, zlib.crc32(key)).to_bytes(4, "little") + body

    count = attack(
        kind.__name__,
        [encode_row(key, row)],
        wrap,
        lambda data: decode_row(kind, key, data),
        (CorruptData, UnsupportedVersion),
    )
    assert count
    covered("fuzzed rows", COUNT)


@pytest.mark.parametrize("row", INDEX_ROWS, ids=lambda row: type(row).__name__)
def test_an_index_row(row: SegmentRow | DataRow | KeyRow, covered: Callable[[str, int], None]) -> None:
    kind = type(row)
    data = [encode_index_row(row)]
    assert attack(
        kind.__name__, data, lambda dice, data: data, lambda data: decode_index_row(kind, b"key", data), (CorruptData,)
    )
    covered("fuzzed index rows", COUNT)


def pack_of(count: int) -> bytes:
    found = [
        (number, encode_transaction(number=number, timestamp=number, id=bytes(16), node=bytes(16), position=number,
                                    parts=[("a", number, encode_body([b"%d" % number * size], None))], keys=(),
                                    fences={})[1])
        for number, size in zip(range(1, count + 1), (1, 30, 20_000, 5, 9) * count, strict=False)
    ]  # fmt: skip
    return encode_pack(1, count + 1, found, lambda number, record: number, 0).data


def believable_pack(dice: Random, data: bytes) -> bytes:
    """Mostly with a checksum of its table that is right again."""
    if len(data) < 16 or dice.random() < 0.2:
        return data
    size = int.from_bytes(data[-16:-12], "little")
    stored, sizes = data[-16 - size : -16], data[-16:-4]
    return data[:-4] + zlib.crc32(sizes, zlib.crc32(stored, 0)).to_bytes(4, "little")


def believable_table(dice: Random, table: bytes) -> bytes:
    """The footer around a table whose bytes were changed before they were compressed."""
    stored = load_zstd().compress(table, 1)
    sizes = b"".join(number.to_bytes(4, "little") for number in (len(stored), len(table), 1))
    return stored + sizes + zlib.crc32(sizes, zlib.crc32(stored, 0)).to_bytes(4, "little")


def read_pack(data: bytes) -> None:
    size = table_bytes(data)
    table = read_table(data[len(data) - size :], 0)
    check_start(data)
    for at, block in enumerate(table.blocks):
        raw = open_block(block, data[block.place : block.place + block.stored], 0)
        assert sum(1 for _ in table.records(at, raw)) <= table.last - table.first + 1
    for number in (0, table.first, table.last, 1 << 63):
        assert not table.holds(number) or table.block_of(number) >= 0
    table.first_at(5)


@pytest.mark.usefixtures("codec")
def test_a_pack(covered: Callable[[str, int], None]) -> None:
    packs = [pack_of(count) for count in (1, 3, 12)]
    assert attack("pack", packs, believable_pack, read_pack, (CorruptData, UnsupportedVersion))
    covered("fuzzed packs", COUNT)


@pytest.mark.usefixtures("codec")
def test_the_table_of_a_pack(covered: Callable[[str, int], None]) -> None:
    tables = []
    for count in (1, 3, 12):
        data = pack_of(count)
        size = table_bytes(data)
        tables.append(load_zstd().decompress(data[-size:-16]))

    def decode(data: bytes) -> None:
        table = read_table(data, 0)
        for number in (table.first, table.last):
            if table.holds(number):
                block = table.block_of(number)
                assert block >= 0
                table.start(block, number)
        table.first_at(5)

    assert attack("pack table", tables, believable_table, decode, (CorruptData, UnsupportedVersion))
    covered("fuzzed tables of packs", COUNT)


def run_of(count: int) -> tuple[bytes, RunFile]:
    keys = [b"INV\x00SEGMENTS\x00%05d" % number for number in range(count)]
    return build_section(b"i" * 16, 0, keys, [b"value %d" % number * (number % 300) for number in range(count)])


def read_block(block: Block) -> None:
    keys, values = block.keys(0, block.rows), block.values(0, block.rows)
    assert len(keys) == len(values) == block.rows
    for key in (keys[0], keys[-1], b"", b"INV\x00SEGMENTS\x0000001", b"\xff"):
        block.get(key)
        assert 0 <= block.seek(key) <= block.rows


@pytest.mark.usefixtures("codec")
def test_a_block_of_a_run(covered: Callable[[str, int], None]) -> None:
    samples, file = [], run_of(1)[1]
    for count in (1, 3, 40):
        data, file = run_of(count)
        samples.append(data[8 : decode_tail(data[-file.tail :], file, 0).offsets[1]])
    read = lambda data: read_block(decode_block(data, file, 8, 0))  # noqa: E731
    assert attack("block", samples, believable_block, read, (CorruptData,))
    covered("fuzzed blocks of runs", COUNT)


def test_the_tail_of_a_run(covered: Callable[[str, int], None]) -> None:
    """Random damage of a file of the correct length, mostly with a corrected checksum."""
    files = [run_of(count) for count in (1, 3, 400)]
    tails = {data[-file.tail :]: file for data, file in files}

    def read(data: bytes) -> None:
        for file in tails.values():
            before = file.length - file.tail
            told = replace(file, tail=len(data), length=before + len(data))
            crc = zlib.crc32(data[:-8], zlib.crc32(b"i" * 16) ^ before).to_bytes(4, "little")
            with suppress(CorruptData):
                tail = decode_tail(data[:-8] + crc + data[-4:], told, 0)
                for key in (b"", *map(tail.first, range(min(3, tail.blocks))), b"\xff"):
                    assert 0 <= tail.block_of(key) < tail.blocks
                    tail.last_block(key)
                tail.may_hold(12345, 1)
                return
        raise CorruptData("it is none of them")

    assert attack("tail", [*tails], lambda dice, data: data, read, (CorruptData, UnsupportedVersion))
    covered("fuzzed tails of runs", COUNT)


@pytest.mark.usefixtures("codec")
def test_the_run_of_a_head(covered: Callable[[str, int], None]) -> None:
    keys = [b"INV\x00KEYS\x00%05d" % number for number in range(60)]
    samples = [encode_inline(keys[:count], keys[:count], 0) for count in (1, 5, 60)]

    def believable(dice: Random, data: bytes) -> bytes:
        if dice.random() < 0.2:
            return data
        block = zlib.crc32(data[9:]).to_bytes(4, "little") + data[9:] if dice.random() < 0.9 else data[5:]
        rest = data[4:5] + block
        return zlib.crc32(rest).to_bytes(4, "little") + rest

    read = lambda data: read_block(decode_inline(data, 0))  # noqa: E731
    assert attack("inline run", samples, believable, read, (CorruptData, UnsupportedVersion))
    covered("fuzzed runs of heads", COUNT)


def test_an_offset(covered: Callable[[str, int], None]) -> None:
    samples = [
        bytes(Offset("space", 5, 0, ((1, 2),)).encode()),
        bytes(Offset("space", 5, 2, ((1, 2), (3, 4), (1 << 63, 0))).encode()),
        bytes(Offset("space", 5, 1, ((1, 2),), whole=False).encode()),
        bytes(Offset("space", 5, 1, ((1, 2),), False, b"12345678").encode()),
        bytes(Offset.beginning("space").encode()),
    ]

    def wrap(dice: Random, data: bytes) -> bytes:
        if dice.random() < 0.1:
            return data
        return data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "big")

    def decode(data: bytes) -> None:
        offset = Offset.decode(data, "space")
        with suppress(InvalidOffset):
            offset.check(Settings())
        assert Offset.decode(offset.encode().hex(), "space") == offset

    assert attack("offset", samples, wrap, decode, (InvalidOffset,))
    covered("fuzzed offsets", COUNT)


def test_an_offset_in_use_never_gives_more_than_there_is(covered: Callable[[str, int], None]) -> None:
    """Numbers that fit into the format and nowhere else."""
    rounds = COUNT // 20
    dice = Random(SEED)
    with streamkit.connect("memory://") as client:
        store = client.store("7d9f2c1e-0000-4000-8000-000000000002")
        store.create_space("three", partitions=3)
        for space in ("one", "three"):
            for at in range(3):
                store.produce(space, f"segment {at}", [streamkit.Record(b"x")] * 2)
        made = {space: Offset.decode(store.end_offset(space), space).incarnation for space in ("one", "three")}
        for _ in range(rounds):
            space, partitions = dice.choice((("one", 1), ("three", 3)))
            positions = tuple((dice.choice(INTERESTING), dice.choice(INTERESTING)) for _ in range(partitions))
            whole = dice.random() < 0.8
            offset = Offset(
                space,
                dice.choice(INTERESTING),
                dice.randrange(3),
                positions if whole else positions[:1],
                whole,
                made[space],
            )
            with suppress(InvalidOffset):
                assert len(list(store.consume_space(space, offset=offset.encode()))) <= 6
    covered("fuzzed offsets in use", rounds)


def test_a_lexkey(covered: Callable[[str, int], None]) -> None:
    """Text that is hexadecimal makes a key, any other raises ValueError; keys of parts keep the parts' order."""
    dice = Random(SEED)
    for _ in range(COUNT):
        text = mutated(dice, b"00ff10 aB").decode("latin-1")
        with suppress(ValueError):
            assert LexKey.from_hex(text) == bytes.fromhex(text)
        one, other = (dice.choice(INTERESTING) * dice.choice((-1, 1)) + dice.randrange(3) for _ in range(2))
        try:
            assert (LexKey.encode("k", one) < LexKey.encode("k", other)) == (one < other)
        except ValueError:
            assert not all(-(1 << 63) <= number < 1 << 63 for number in (one, other))
    covered("fuzzed lexkeys", COUNT)


URLS = {
    b"memory://name?remote=1&latency=3&page=2": streamkit_memory.connect,
    b"file:///var/lib/app%20x": streamkit_local.connect,
    b"s3://bucket/prefix?endpoint_url=http://127.0.0.1:1&region=eu-west-1": streamkit_s3.connect,
    b"azure://account/prefix": streamkit_azure.connect,
    b"azurite:///prefix?blob_port=1&table_port=2": streamkit_azure.connect,
}


@pytest.mark.parametrize("sample", URLS, ids=lambda sample: sample.partition(b":")[0].decode())
def test_a_url(sample: bytes, covered: Callable[[str, int], None]) -> None:
    """Each URL is accepted, or refused with an error that names the fault. None of them opens anything."""
    rounds = COUNT // 5
    dice = Random(SEED)
    for at in range(rounds):
        url = mutated(dice, sample).decode(dice.choice(("latin-1", "utf-8")), errors="replace")
        connect = streamkit.connect if at % 100 == 0 else partial(URLS[sample], timeout=1.0)
        try:
            connect(url).close()
        except (ValueError, MissingDependency, PermanentError):
            pass
        except BaseException as error:
            error.add_note(repr(url))
            raise
    covered("fuzzed URLs", rounds)


def test_lines_of_ndjson(monkeypatch: pytest.MonkeyPatch, covered: Callable[[str, int], None]) -> None:
    from streamkit.cli.ndjson import read_batches, segment_from

    dice = Random(SEED)
    lines = [json.dumps({"id": "order-42", "n": at, "deep": [[{"a": None}]] * 3}).encode() + b"\n" for at in range(3)]
    segment_of = segment_from("id")
    for _ in range(COUNT):
        data = mutated(dice, b"".join(dice.choices(lines, k=3)))
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=BytesIO(data)))
        with suppress(ValueError):
            assert all(read_batches(["-"], segment_of, 2))
    covered("fuzzed NDJSON", COUNT)


_HOSTILE = """
import resource, sys
sys.path[:0] = sys.argv[1:]
import test_fuzz
from streamkit.errors import CorruptData
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for decode, data in test_fuzz.claims():
    try:
        decode(data)
    except CorruptData:
        continue
    raise SystemExit(f"taken for data: {data[:200]!r}")
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown)
"""


def claims() -> list[tuple[Callable[[bytes], object], bytes]]:
    """Inputs with right checksums that claim to hold gigabytes."""
    found: list[tuple[Callable[[bytes], object], bytes]] = []
    for hostile in HOSTILE[:5]:
        for prefix in (b"", b"\x91", b"\x92\xc0", b"\x96\x91\x01\x01\x01\x01\x01\x01"):
            body = VERSION + prefix + hostile
            data = zlib.crc32(body, zlib.crc32(HEAD)).to_bytes(4, "little") + body
            for kind in (type(row) for row in ROWS):
                found.append((lambda data, kind=kind: decode_row(kind, bytes(HEAD), data), data))
            header = prefix + hostile
            rest = b"\x01" + bytes(3) + len(header).to_bytes(4, "little") + (24 + len(header)).to_bytes(8, "little")
            record = b"SKTX" + zlib.crc32(rest + header).to_bytes(4, "little") + rest + header
            found.append((lambda data: decode_header(data, 0), record))
    frame = frames()[1]
    for raw in (1 << 20, (1 << 31) - 1, (1 << 32) - 1):
        changed = bytearray(frame)
        changed[12:16] = raw.to_bytes(4, "little")
        changed[0:4] = zlib.crc32(changed[4:]).to_bytes(4, "little")
        found.append((lambda data: decode_entries("s", 0, 1, data, 0), bytes(changed)))
    return found


def test_a_claim_of_gigabytes_takes_no_memory() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _HOSTILE, *map(str, Path(__file__).parents[:2])],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert int(found.stdout) < 60_000, "kilobytes of memory that a few bytes took"
