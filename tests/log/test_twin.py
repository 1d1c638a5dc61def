"""The compiled twin and the Python functions: one result, or one error, for any bytes."""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from fix_covered import EXHAUSTIVE

from harness.codecs import CODECS, choose, using
from harness.mutations import HOSTILE, believable_block, believable_frame, believable_record, mutated
from streamkit import StreamkitError, speed
from streamkit.compression import compress, decompress, load_zstd
from streamkit.index.run_format import build_section, decode_block, decode_tail
from streamkit.log import record_format
from streamkit.log.manifest import RunFile
from streamkit.log.pack_format import Block as PackBlock
from streamkit.log.pack_format import PackTable
from streamkit.log.record_format import (
    FrameHead,
    KeyUse,
    decode_entries,
    decode_frames,
    decode_records,
    decode_transaction,
    encode_body,
    encode_transaction,
    split_frames,
    without_entries,
)
from streamkit.model import Entry

CASES = 10_000_000 if EXHAUSTIVE else 4_000
"""Cases of all tests here."""
CORPUS = 5_000 if EXHAUSTIVE else 100
"""Values that the cases are changes of."""
SEED = 0xC0FFEE
ID = b"i" * 16
ENCODER = msgspec.msgpack.Encoder()

both = pytest.mark.skipif(len(CODECS) < 2, reason="the compiled twin is not installed: make speed")


def plain(value: Any) -> Any:
    """The value in parts that are equal only where nothing of it differs."""
    if isinstance(value, Entry):
        return [
            *map(plain, msgspec.structs.astuple(value)[:-1]),
            type(value.metadata),
            msgspec.structs.astuple(value.origin),
        ]
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, msgspec.Struct):
        return [type(value), *map(plain, msgspec.structs.astuple(value))]
    return value


def outcome(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    try:
        return plain(call(*arguments))
    except StreamkitError as error:
        return type(error), str(error)


def compare(case: int, call: Callable[..., Any], *arguments: Any) -> bool:
    """Make the call with both codecs; True if it has a result."""
    choose("python")
    wanted = outcome(call, arguments)
    choose("compiled")
    found = outcome(call, arguments)
    assert found == wanted, f"case {case}: {arguments!r}"
    return isinstance(wanted, list)


def payloads(dice: Random) -> list[bytes]:
    return [
        dice.randbytes(dice.choice((0, 1, 5, 31, 32, 200, 300))) for _ in range(dice.choice((0, 1, 1, 1, 2, 3, 20)))
    ]


def metadata(dice: Random) -> dict[str, str] | None:
    text = lambda: dice.choice(("", "type", "é🎉", "v" * 40, "placed"))  # noqa: E731
    return dice.choice((None, {}, {text(): text()}, {text(): text() for _ in range(20)}))


def whole_record(dice: Random) -> bytes:
    parts = []
    for at in range(dice.choice((0, 1, 1, 1, 1, 2, 3))):
        given = payloads(dice)
        told = [metadata(dice) for _ in given] if dice.random() < 0.4 else None
        if dice.random() < 0.2:
            given = [b"like the others " * 9 for _ in given]
        parts.append(
            (dice.choice(("s", "s", "é🎉", "t" * 40)), dice.choice((1, 7, 1 << 40)) + at, encode_body(given, told))
        )
    number = dice.choice((7, 7, 7, 300))
    keys = (KeyUse(bytes(16), bytes(16), (("a", 2),)),) if dice.random() < 0.2 else ()
    return encode_transaction(
        number=number, timestamp=dice.choice((5, 1_700_000_000_000)), id=dice.randbytes(16), node=bytes(16),
        position=dice.choice((0, 41, 1 << 33)), parts=parts, keys=keys, seed=SEED,
    )[1]  # fmt: skip


def hostile_frame(dice: Random) -> bytes:
    """A frame with a right checksum, whose head or body was changed before it was packed."""
    given = payloads(dice)
    count = len(given) if dice.random() < 0.9 else dice.choice((0, 1, 2, 1 << 32, 1 << 63))
    head = ENCODER.encode(FrameHead(7, 5, bytes(16), bytes(16), 41, 0, "s", 1, count))
    told = [metadata(dice) for _ in given] if dice.random() < 0.4 else None
    body = ENCODER.encode([given] if told is None else [given, told])
    if dice.random() < 0.3:
        head = mutated(dice, head)
    if dice.random() < 0.6:
        body = mutated(dice, body)
    flags = 2 * (told is not None) if dice.random() < 0.9 else dice.randrange(64)
    raw = len(body)
    if dice.random() < 0.4:
        flags |= 1
        body = compress(body)
        if dice.random() < 0.3:
            body = mutated(dice, body)
        body += bytes(dice.choice((0, 0, 16)))
    if dice.random() < 0.1:
        raw = dice.choice((0, raw + 1, max(0, raw - 1), (1 << 32) - 1))
    rest = struct.pack("<HBxII", len(head) & 0xFFFF, flags, len(body), raw) + head + body
    return struct.pack("<I", zlib.crc32(rest, SEED)) + rest


def located(error: StreamkitError, number: int) -> StreamkitError:
    return type(error)(f"transaction {number}: {error}")


def flat(batches: Iterator[tuple[int, list[Entry]]]) -> list[Any]:
    """The entries of batches, and the numbers without any. What is before an error is a part of the result."""
    found: list[Any] = []
    try:
        for last, entries in batches:
            assert not entries or entries[-1].trx.number == last
            found += entries or [last]
    except StreamkitError as error:
        found.append((type(error), str(error)))
    return found


def read_records(*arguments: Any) -> list[Any]:
    return flat(decode_records(*arguments))


def read_frames(*arguments: Any) -> list[Any]:
    return flat(decode_frames(*arguments))


@both
def test_records_are_the_same_entries_for_both(covered: Callable[[str, int], None]) -> None:
    dice, taken = Random(1), 0
    records = [whole_record(dice) for _ in range(CORPUS)]
    with using("python"):
        for case in range(CASES * 3 // 10):
            record = dice.choice(records)
            if dice.random() < 0.6:
                record = believable_record(dice, mutated(dice, record), SEED)
            parts = dice.choice((1, 3))
            taken += compare(case, decode_transaction, "sp", 0, parts, record, SEED, b"in")
            if case % 4 == 0:
                rows = [(7, record), (dice.choice((7, 8)), dice.choice(records)), (7, record)]
                compare(case, read_records, "sp", 0, parts, rows, SEED, b"in", located)
    assert taken
    covered("differential cases of both codecs", CASES * 3 // 10 + CASES * 3 // 40)


@both
def test_a_sequence_below_zero_is_the_same_for_both() -> None:
    head = ENCODER.encode(FrameHead(7, 5, bytes(16), bytes(16), 41, 0, "s", -1, 1))
    body = ENCODER.encode([[b"1"]])
    rest = struct.pack("<HBxII", len(head), 0, len(body), len(body)) + head + body
    frame = struct.pack("<I", zlib.crc32(rest, SEED)) + rest
    empty = encode_transaction(number=7, timestamp=5, id=bytes(16), node=bytes(16), position=0, parts=[], seed=SEED)[1]
    record = bytearray(empty + frame)
    record[16:24] = len(record).to_bytes(8, "little")
    end = len(empty)
    record[4:8] = zlib.crc32(record[8:end], SEED).to_bytes(4, "little")
    with using("python"):
        assert compare(0, read_records, "sp", 0, 1, [(7, bytes(record))], SEED, b"", located)
        assert compare(1, read_frames, "sp", 0, 1, "s", [(7, -1, frame)], SEED, b"", located)


@both
def test_frames_are_the_same_entries_for_both(covered: Callable[[str, int], None]) -> None:
    dice, taken = Random(2), 0
    frames = [hostile_frame(dice) for _ in range(CORPUS)]
    with using("python"):
        for case in range(CASES * 2 // 10):
            if case % 8 == 0:
                frames[case // 8 % CORPUS] = hostile_frame(dice)
            frame = dice.choice(frames)
            if dice.random() < 0.2:
                frame = believable_frame(dice, mutated(dice, frame), SEED)
            start = dice.choice((0, 0, 0, 1, 2, 3, 1 << 40))
            given: bytes | memoryview = memoryview(frame) if dice.random() < 0.3 else frame
            taken += compare(case, decode_entries, "sp", 0, 1, given, SEED, start, b"")
            if case % 2 == 0:
                rows = [(7, 1, frame), (7, 1, dice.choice(frames)), (dice.choice((7, 8)), dice.choice((1, 2)), frame)]
                compare(case, read_frames, "sp", 0, 1, "s", rows, SEED, b"", located)
    assert taken
    covered("differential cases of both codecs", CASES * 3 // 10)


def block_of(dice: Random) -> bytes:
    """The first block of a section."""
    wide = dice.random() < 0.1
    keys = sorted({dice.randbytes(dice.choice((0, 1, 9, 40))) for _ in range(dice.choice((1, 3, 30)))})
    content = dice.choice((lambda: dice.randbytes(dice.choice((0, 3, 200))), lambda: b"value " * dice.randrange(40)))
    values = [content() if not wide else bytes(70_000) for _ in keys]
    data, file = build_section(ID, 0, keys, values)
    return data[8 : decode_tail(data[-file.tail :], file, 0).offsets[1]]


def read_rows(data: bytes, file: RunFile, keys: list[bytes]) -> list[Any]:
    block = decode_block(data, file, 8, 0)
    rows = block.rows
    return [
        rows, len(block), block.size, block.used, block.keys(0, rows), block.values(0, rows),
        block.keys(rows // 2, rows), block.values(1, max(1, rows - 1)),
        [(block.get(key), block.seek(key), block.seek(key, rows // 3)) for key in keys],
    ]  # fmt: skip


@both
def test_blocks_have_the_same_rows_for_both(covered: Callable[[str, int], None]) -> None:
    dice, taken = Random(3), 0
    file = build_section(ID, 0, [b"k"], [b"v"])[1]
    blocks = [block_of(dice) for _ in range(CORPUS)]
    with using("python"):
        for case in range(CASES * 2 // 10):
            data = dice.choice(blocks)
            keys = [b"", b"\xff" * 9, dice.randbytes(1), data[60:61]]
            if dice.random() < 0.6:
                data = believable_block(dice, mutated(dice, data))
            taken += compare(case, read_rows, data, file, keys)
    assert taken
    covered("differential cases of both codecs", CASES * 2 // 10)


def read_pack_rows(table: PackTable, raw: bytes, first: int, last: int) -> list[Any]:
    return table.records(0, raw, first, last)


@both
def test_packs_have_the_same_records_for_both(covered: Callable[[str, int], None]) -> None:
    dice = Random(5)
    with using("python"):
        for case in range(CASES // 10):
            lengths = array("I", [dice.choice((0, 1, 5, 40)) for _ in range(dice.choice((1, 2, 9)))])
            lengths[0] = lengths[0] or 3
            if dice.random() < 0.1:
                lengths[-1] = dice.choice((1 << 31, (1 << 32) - 1))
            raw = dice.randbytes(max(0, min(sum(lengths), 400) - dice.choice((0, 0, 0, 1, 30))))
            number = dice.choice((1, 300, 1 << 40))
            table = PackTable([PackBlock(number, 0, 0, 0, 0, 0, 0)], number, number + len(lengths) - 1, lengths)
            given = memoryview(raw) if dice.random() < 0.2 else raw
            first, last = number + dice.choice((-1, 0, 1, 3)), number + dice.choice((0, 1, 5, 99))
            compare(case, read_pack_rows, table, given, first, last)
    covered("differential cases of both codecs", CASES // 10)


def grown(data: bytes | memoryview, most: int) -> Any:
    try:
        return [decompress(data, most)]
    except (ValueError, OverflowError) as error:
        return type(error), str(error)


@both
def test_frames_of_zstd_hold_the_same_for_both(covered: Callable[[str, int], None]) -> None:
    dice, zstd, taken = Random(6), load_zstd(), 0
    parameter = zstd.CompressionParameter
    with using("python"):
        for case in range(CASES // 10):
            content = dice.choice(
                (b"", b"a", b"like others " * dice.randrange(60), dice.randbytes(dice.randrange(200)))
            )
            if dice.random() < 0.02:
                content *= 1500
            options = {
                parameter.compression_level: dice.choice((1, 3)),
                parameter.checksum_flag: dice.randrange(2),
                parameter.content_size_flag: dice.choice((1, 1, 0)),
                parameter.window_log: dice.choice((0, 10, 20, 27, 29)),
            }
            compressor = zstd.ZstdCompressor(options=options)
            data = compressor.compress(content, compressor.FLUSH_BLOCK if dice.random() < 0.2 else compressor.CONTINUE)
            data += compressor.flush() + dice.choice((b"", bytes(16)))
            if dice.random() < 0.5:
                data = mutated(dice, data)
            most = max(0, len(content) + dice.choice((0, 0, 0, 1, -1, 70_000)))
            taken += compare(case, grown, memoryview(data) if dice.random() < 0.2 else data, most)
    assert taken
    covered("differential cases of both codecs", CASES // 10)


@both
def test_the_twin_decodes_what_is_usual_itself() -> None:
    """Without this the other tests could compare Python with itself."""
    twin, decoder = speed.twin, record_format._twin
    dice = Random(4)
    body = encode_body([b"1", b"2" * 900], [{"a": "b"}, None])
    record = encode_transaction(number=7, timestamp=5, id=bytes(16), node=bytes(16), position=0,
                                parts=[("s", 1, body)], seed=SEED)[1]  # fmt: skip
    (frame,) = split_frames(record, SEED)
    assert decoder.decode_at("sp", 0, 1, bytes(frame), 0, SEED, 0, b"") is not None
    assert decoder.decode_at("sp", 0, 1, frame, 0, SEED, 0, b"") is not None
    gone = without_entries(frame, SEED, lambda sequence: "erased" if sequence == 1 else "")
    assert gone is not None
    assert decoder.decode_at("sp", 0, 1, gone, 0, SEED, 0, b"") is None
    data = block_of(dice)
    assert twin.decode_block(data, zlib.crc32(ID) ^ 8) is not None
    for part in HOSTILE:
        assert twin.decode_block(part, 0) is None
        assert decoder.decode_at("sp", 0, 1, part, 0, SEED, 0, b"") is None
    assert decoder.decode_at("sp", 0, 1, bytes(frame), 1 << 40, SEED, 0, b"") is None
    assert decoder.decode_at("sp", 0, 1, bytearray(frame), 0, SEED, 0, b"") is None, "somebody may change it"


@both
def test_a_number_of_small_records_is_read_in_one_step_and_an_error_of_their_source_comes_after_them() -> None:
    record = encode_transaction(number=7, timestamp=5, id=bytes(16), node=bytes(16), position=0,
                                parts=[("s", 1, encode_body([b"1"], None))], seed=SEED)[1]  # fmt: skip

    def source() -> Iterator[tuple[int, bytes]]:
        yield from [(7, record)] * 300
        raise StreamkitError("the source is gone")

    for codec in CODECS:
        with using(codec):
            found = decode_records("sp", 0, 1, source(), SEED, b"", located)
            assert [len(next(found)[1]) for _ in range(2)] == [256, 44]
            with pytest.raises(StreamkitError, match="the source is gone"):
                next(found)


@both
@pytest.mark.parametrize("items", [[1, 2], None, "abc"], ids=repr)
def test_the_twin_takes_from_iterators_alone(items: Any) -> None:
    reader = record_format._twin.reader("s", 0, 1, 0, b"i")
    with pytest.raises(TypeError, match="Iterator"):
        reader.take(items, [], 5)
    assert reader.take(iter([1, 2]), [], 5) == 1
