"""The compiled twin and the Python functions: one result, or one error, for any bytes."""

from __future__ import annotations

import copy
import gc
import pickle
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain, pairwise
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest
from fix_covered import EXHAUSTIVE
from msgspec import structs

from harness.codecs import CODECS, choose, using
from harness.mutations import HOSTILE, believable_block, believable_frame, believable_record, mutated
from harness.sections import build_section
from streamkit import StreamkitError, speed
from streamkit.compression import compress, decompress, load_zstd
from streamkit.index.run_format import decode_block, decode_tail
from streamkit.log import record_format
from streamkit.log.index_rows import encode_index_row
from streamkit.log.keys import data_key, data_range
from streamkit.log.manifest import RunFile
from streamkit.log.pack_format import PackBlock, PackTable
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
from streamkit.log.rows import DataRow, Piece
from streamkit.log.segment_rows import SegmentRows
from streamkit.metadata import NO_METADATA
from streamkit.model import TRX, Entry, Origin

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
    """The entries of batches, and the numbers without entries. Entries before an error are a part of the result."""
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


def read_packed(space: str, partition: int, partitions: int, records: list[bytes], *rest: Any) -> list[Any]:
    """The same records in a block of a pack, from transaction 7 on; the transaction before the last one has none."""
    lengths = array("I", map(len, records))
    lengths.insert(len(lengths) - 1, 0)
    table = PackTable([PackBlock(7, 0, 0, 0, 0, 0, 0)], 7, 6 + len(lengths), lengths)
    return flat(decode_records(space, partition, partitions, [table.records(0, b"".join(records))], *rest))


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
                compare(case, read_records, "sp", 0, parts, [rows[:2], rows[2:]], SEED, b"in", located)
                compare(case, read_packed, "sp", 0, parts, [record for _, record in rows], SEED, b"in", located)
    assert taken
    covered("differential cases of both codecs", CASES * 3 // 10 + CASES * 3 // 20)


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
        assert compare(0, read_records, "sp", 0, 1, [[(7, bytes(record))]], SEED, b"", located)
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
        [block.between(start, end) for start, end in pairwise([b"", *keys, b"\xff" * 9, b""])],
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


def written_frame(dice: Random, number: int, first: int, count: int) -> bytes:
    told = [metadata(dice) for _ in range(count)] if dice.random() < 0.2 else None
    body = encode_body([dice.randbytes(dice.choice((0, 9, 200))) for _ in range(count)], told)
    record = encode_transaction(number=number, timestamp=5, id=dice.randbytes(16), node=bytes(16), position=41,
                                parts=[("s", first, body)], seed=SEED)[1]  # fmt: skip
    return bytes(split_frames(record, SEED)[0])


def data_rows(dice: Random) -> dict[bytes, bytes]:
    """The data rows of a segment. Most are as a writer makes them."""
    rows: dict[bytes, bytes] = {}
    first, number = 1, 7
    for _ in range(dice.choice((1, 1, 2, 4))):
        pieces = []
        for _ in range(dice.choice((1, 2, 20))):
            count = dice.choice((1, 1, 1, 3))
            frame: bytes | None = written_frame(dice, number, first, count)
            piece = Piece(number, 5, first, count, 0, len(frame or b""), frame, 0, 9)
            odd = dice.random()
            if odd < 0.01:
                piece = structs.replace(piece, frame=None)
            elif odd < 0.02:
                piece = structs.replace(piece, frame=believable_frame(dice, mutated(dice, frame or b""), SEED))
            elif odd < 0.03:
                piece = structs.replace(piece, count=dice.choice((0, 1, 2, 3)))
            elif odd < 0.04:
                piece = structs.replace(piece, number=dice.choice((0, 8, 1 << 63)))
            pieces.append(piece)
            first += count + (dice.random() < 0.01)
            number += 1
        row = encode_index_row(DataRow(pieces))
        rows[data_key("s", first - 1)] = mutated(dice, row) if dice.random() < 0.03 else row
    return rows


def as_block(rows: dict[bytes, bytes]) -> Any:
    keys = sorted(rows)
    data, file = build_section(ID, 0, keys, [rows[key] for key in keys])
    end = decode_tail(data[-file.tail :], file, 0).offsets[1]
    return decode_block(data[8:end], file, 8, 0)


def entries_in(blocks: Sequence[dict[bytes, bytes]], newest: int, first: int, last: int) -> list[Any]:
    rows, entries = SegmentRows("sp", 0, 1, "s", SEED, b"in"), list[Entry]()
    found = rows.in_blocks([*map(as_block, blocks)], newest, *data_range("s", first), first, last, entries)
    start, _ = data_range("s", first)
    merged = sorted(dict(chain.from_iterable(map(dict.items, blocks))).items())
    values = [row for _, row in merged]
    by_row = [*chain.from_iterable(rows.in_rows([row for key, row in merged if key >= start], first, last))]
    count = min(len(by_row), len(entries))
    assert plain(by_row[:count]) == plain(entries[:count])
    # Of many rows, the last ones are not in the first block of their section.
    assert len(by_row) >= len(entries) or not found.ended
    with suppress(StreamkitError):
        entries += [entry for entry in (rows.last_entry(values[-1]),) if entry is not None and found.ended]
    return [plain(entries), *found]


@both
def test_running_sums_are_those_of_python() -> None:
    chance = Random(5)
    for case in range(2000):
        code = chance.choice("HI")
        numbers = array(code, [chance.randrange(1 << chance.choice((4, 16))) for _ in range(case % 50)])
        if code == "I" and case % 7 == 0:
            numbers.append(2**32 - 1)
        first, data = chance.randrange(1 << 12), numbers.tobytes()
        summed = speed.twin.running_sums(data, numbers.itemsize, first)
        assert speed.twin.running_sums(data + b"x", numbers.itemsize, first) is None
        sums = list(accumulate(numbers, initial=first))
        if sums[-1] >= 1 << 32:
            assert summed is None
        else:
            assert array("I", summed) == array("I", sums)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("first", "count"), [(1, 0), (0, 1), (-5, 1), (1, 1 << 63), (1 << 63, 1), ((1 << 64) - 1, 9)])
def test_a_row_that_claims_what_no_segment_has_ends_with_no_entry(codec: str, first: int, count: int) -> None:
    frame = written_frame(Random(1), 7, 1, 1)
    with using(codec):
        rows = SegmentRows("sp", 0, 1, "s", SEED, b"in")
        row = encode_index_row(DataRow([Piece(7, 5, first, count, 0, len(frame), frame, 0, 9)]))
        assert rows.last_entry(row) is None
        assert rows.last_entry(encode_index_row(DataRow([]))) is None


@both
def test_segments_have_the_same_entries_for_both(covered: Callable[[str, int], None]) -> None:
    dice, whole, alike = Random(7), 0, 0
    with using("python"):
        for case in range(CASES // 20):
            rows = data_rows(dice)
            keys = sorted(rows)
            cut = dice.randrange(len(keys) + 1)
            blocks = [{key: rows[key] for key in keys[:cut]}, {key: rows[key] for key in keys[cut:]}]
            if dice.random() < 0.2:
                blocks.append({key: rows[key] for key in keys[: dice.randrange(len(keys) + 1)]})
            given = [block for block in blocks if block]
            first, last = dice.choice((1, 1, 1, 2, 9)), dice.choice((1 << 63, 1 << 63, 1, 7))
            choose("python")
            wanted = entries_in(given, 1, first, last)
            choose("compiled")
            found = entries_in(given, 1, first, last)
            alike += found == wanted
            whole += found[2]
            # Either may stop earlier than the other, and nothing else.
            count = min(len(found[0]), len(wanted[0]))
            assert found[0][:count] == wanted[0][:count], f"case {case}"
            assert found == wanted or not (found[2] and wanted[2]), f"case {case}"
            assert found[2] <= (len(found[0]) >= len(wanted[0])), f"case {case}"
            assert wanted[2] <= (len(wanted[0]) >= len(found[0])), f"case {case}"
    assert whole > CASES // 60
    assert alike > CASES // 25
    covered("differential cases of both codecs", CASES // 20)


def read_pack_rows(table: PackTable, raw: bytes, first: int, last: int) -> list[Any]:
    return list(table.records(0, raw, first, last))


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
    """The compiled codec is in use. Otherwise the other tests could compare Python with itself."""
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
    for far in (1 << 40, 1 << 70):
        assert decoder.decode_at("sp", 0, 1, bytes(frame), far, SEED, 0, b"") is None
        assert twin.pack_rows(b"record", array("I", [6]), 1, far) is None
        assert twin.read_part(0, 0, b"", far, far, 1) is None
    assert decoder.decode_at("sp", 0, 1, bytearray(frame), 0, SEED, 0, b"") is None, "somebody may change it"


def small_records(count: int) -> list[tuple[int, bytes]]:
    """Transactions of one entry each: numbers and sequences are larger than the integers that Python keeps."""
    body = encode_body([b"1" * 100], None)
    return [
        (number, encode_transaction(number=number, timestamp=number // 4, id=number.to_bytes(16), node=bytes(16),
                                    position=number - 1, parts=[(f"s{number % 3}", number // 3, body)], seed=SEED)[1])
        for number in range(1000, 1000 + count)
    ]  # fmt: skip


def read_both(records: list[tuple[int, bytes]], space: str = "sp") -> list[list[Entry]]:
    """The entries of the records by each codec, and by the compiled one from a pack."""
    table = PackTable(
        [PackBlock(records[0][0], 0, 0, 0, 0, 0, 0)],
        records[0][0],
        records[-1][0],
        array("I", [len(data) for _, data in records]),
    )
    raw, found = b"".join(data for _, data in records), []
    for codec in ("python", "compiled", "compiled"):
        with using(codec):
            part = records if len(found) < 2 else table.records(0, raw)
            batches = decode_records(space, 0, 1, [part], SEED, b"in", located)
            found.append([entry for _, entries in batches for entry in entries])
    return found


@both
def test_entries_that_the_twin_makes_are_those_of_their_classes() -> None:
    assert record_format._twin.is_direct, "msgspec lays its structs out in another way: find the fields of this version"
    python, *others = read_both(small_records(30))
    for entries in others:
        assert plain(entries) == plain(python)
        for made, wanted in zip(entries, python, strict=True):
            assert (made, hash(made.trx), repr(made)) == (wanted, hash(wanted.trx), repr(wanted))
            assert (made.space_offset, made.stream_id, made.segment_offset) == (
                wanted.space_offset, wanted.stream_id, wanted.segment_offset)  # fmt: skip
            for part in (made, made.trx, made.origin):
                assert not gc.is_tracked(part)
                for copied in (copy.copy(part), copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
                    assert plain([copied]) == plain([part])
                with pytest.raises(AttributeError):
                    part.number = 1
            assert sys.getsizeof(made) == sys.getsizeof(wanted)
            assert msgspec.structs.replace(made, payload=b"other").trx is made.trx
            assert ENCODER.encode(made.trx) == ENCODER.encode(wanted.trx)


def references(entry: Entry) -> list[int]:
    return [sys.getrefcount(value) for value in (entry, entry.trx, entry.origin, entry.payload, entry.trx.raw_id)]


@both
def test_the_twin_holds_no_value_of_entries_that_are_gone() -> None:
    records, space = small_records(600), "a space that nothing else names"
    kinds = (Entry, TRX, Origin)
    read_both(records, space)
    before = [sys.getrefcount(one) for one in (space, *kinds)]
    entries = read_both(records, space)
    assert sys.getrefcount(space) > 1800
    assert references(entries[1].pop()) == references(entries[2].pop()) == references(entries[0].pop())
    del entries
    assert [sys.getrefcount(one) for one in (space, *kinds)] == before


@both
def test_the_twin_calls_the_classes_of_another_layout() -> None:
    class Slow(msgspec.Struct, frozen=True, gc=True):
        raw_id: bytes
        raw_node: bytes
        number: int

    class Later(msgspec.Struct, frozen=True, gc=False):
        raw_id: bytes
        raw_node: bytes
        number: int
        seen: ClassVar[list[int]] = []

        def __post_init__(self) -> None:
            self.seen.append(self.number)

    class Plain:
        def __init__(self, raw_id: bytes, raw_node: bytes, number: int) -> None:
            self.number = number

    ((_, record),) = small_records(1)
    for kind in (Slow, Later, Plain):
        twin = speed.twin.Records(Entry, kind, Origin, FrameHead, record_format.Metadata, NO_METADATA)
        assert not twin.is_direct
        entries: list[Any] = []
        assert twin.reader("sp", 0, 1, SEED, b"").take(iter([(1000, record)]), entries, 5) is None
        assert type(entries[0].trx) is kind
        assert entries[0].trx.number == 1000
    assert Later.seen[-1] == 1000


@both
def test_records_of_a_pack_are_read_once_and_counted() -> None:
    records = small_records(5)
    raw = b"".join(data for _, data in records)
    rows = speed.twin.pack_rows(
        raw, array("I", [len(records[0][1]), 0, *(len(data) for _, data in records[1:])]), 1000, 0
    )
    assert len(rows) == 5
    assert next(rows) == records[0]
    assert (len(rows), next(rows)) == (4, (1002, records[1][1]))
    entries: list[Entry] = []
    reader = record_format._twin.reader("sp", 0, 1, SEED, b"")
    assert reader.take(rows, entries, 5) == (1003, records[2][1]), "it is that of another transaction"
    assert not entries
    assert [number for number, _ in rows] == [1004, 1005]
    assert list(rows) == [] == [*rows]
    assert speed.twin.pack_rows(raw, array("I", [len(raw) + 1]), 1, 0) is None
    assert speed.twin.pack_rows(raw, array("I", [1]), 1, len(raw)) is None
    assert speed.twin.pack_rows(memoryview(raw), array("I", [1]), 1, 0) is None


@both
def test_a_number_of_small_records_is_read_in_one_step_and_an_error_of_their_source_comes_after_them() -> None:
    record = encode_transaction(number=7, timestamp=5, id=bytes(16), node=bytes(16), position=0,
                                parts=[("s", 1, encode_body([b"1"], None))], seed=SEED)[1]  # fmt: skip

    def source() -> Iterator[tuple[int, bytes]]:
        yield from [(7, record)] * 300
        raise StreamkitError("the source is gone")

    for codec in CODECS:
        with using(codec):
            found = decode_records("sp", 0, 1, [source()], SEED, b"", located)
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
