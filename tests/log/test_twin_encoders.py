"""The encoders of the compiled twin and those in Python: the same bytes for the same values."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from random import Random
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from fix_covered import EXHAUSTIVE
from msgspec.structs import astuple, replace

import streamkit
from harness.codecs import CODECS, choose, using
from streamkit import Record, SegmentStatus, speed, writing
from streamkit.checksum import crc32
from streamkit.errors import CorruptData
from streamkit.index import subject_filter
from streamkit.index.run_format import SectionBuilder, Stored, decode_section, decode_tail
from streamkit.index.subject_filter import filter_of, hash_of, mask_of, passing, subject_of
from streamkit.index.upkeep import index_rows
from streamkit.log.freshness import Look
from streamkit.log.ids import BITS, is_id, made_at
from streamkit.log.keys import data_key, fence_key, idempotency_key, segment_key, transaction_key
from streamkit.log.lone import LoneEncoder
from streamkit.log.manifest import RunFile
from streamkit.log.record_format import (
    Body,
    Header,
    decode_header,
    decode_transaction,
    encode_body,
    encode_transaction,
)
from streamkit.log.request import Part
from streamkit.log.rows import Piece, SegmentRow, Settings
from streamkit.log.tail import Tail, piece_of
from streamkit.model import Position
from streamkit.names import check_name, internal_name
from streamkit_local.record import NEXT_ROW, ROW, WHOLE, pack, parse

CASES = 300_000 if EXHAUSTIVE else 1_500
SEED = 0xE2C0DE
EDGES = [0, 1, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x10000, 0xFFFFFFFF, 0x100000000, (1 << 53) + 1, (1 << 62) - 1]
LENGTHS = [0, 1, 14, 15, 16, 31, 32, 33, 127, 128, 255, 256, 300]

pytestmark = pytest.mark.skipif(len(CODECS) < 2, reason="the compiled twin is not installed: make speed")


@pytest.fixture(autouse=True)
def _codec() -> Iterator[None]:
    with using("python"):
        yield


def number(random: Random) -> int:
    return random.choice(EDGES) if random.random() < 0.5 else random.getrandbits(random.randrange(1, 62))


def name(random: Random) -> str:
    letter = random.choice("aé€𐍈")
    return letter * max(1, random.choice(LENGTHS) // len(letter.encode()))


def body(random: Random) -> Body:
    payloads = [random.randbytes(random.choice(LENGTHS)) for _ in range(random.choice([1, 1, 1, 2, 20]))]
    if random.random() < 0.3:
        payloads = [b"again and again" * 60 for _ in payloads]
    metadata: Any = [{"kind": "é"} for _ in payloads] if random.random() < 0.2 else None
    made = encode_body(payloads, metadata)
    return Body(memoryview(made.data), made.raw, made.flags, made.count) if random.random() < 0.1 else made


def row_of(random: Random) -> SegmentRow:
    values = [random.choice([0, number(random)]) for _ in range(8)]
    return SegmentRow(*values, random.choice([(), ((3, "trimmed"),)]))


def lone_of(random: Random) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The arguments of an encoder and of a call that it gets."""
    place = random.choice(["s", "é" * 40]), random.choice([0, 7])
    settings = Settings(random.choice([1, 1, 8]), incarnation=b"incarnat")
    given, segment = body(random), name(random)
    base = row_of(random), *(number(random) for _ in range(4)), Look(None, 0.0, 0)
    part = Part(segment, given, number(random), None)
    id = random.choice([0, random.getrandbits(48), (1 << 48) - 1]), random.getrandbits(BITS)
    node = random.choice([random.randbytes(16), b"-", b""])
    encoder = (
        *place,
        settings,
        random.getrandbits(32),
        random.randbytes(random.choice([0, 12])),
        random.choice([0, 4096]),
    )
    return encoder, (*id, node, number(random), base, part)


def test_a_transaction_of_one_frame_and_what_follows_from_it_are_the_same_from_both_encoders() -> None:
    random = Random(SEED)
    for case in range(CASES):
        encoder, arguments = lone_of(random)
        choose("python")
        made = LoneEncoder(*encoder).encode(*arguments)
        choose("compiled")
        same = LoneEncoder(*encoder).encode(*arguments)
        assert same == made, f"case {case}: {arguments!r}"
        assert list(map(type, same)) == list(map(type, made))
        key, record, row, piece, trx, status = same
        header = decode_header(record, encoder[3])
        assert (key, header.number) == (transaction_key(encoder[4], trx.number), trx.number)
        assert (is_id(trx.raw_id), made_at(trx.raw_id)) == (True, arguments[0])
        assert (header.id, header.frames[0].length, piece.start + piece.length) == (
            trx.raw_id,
            piece.length,
            len(record),
        )
        assert piece.frame in (None, record[piece.start :])
        if status is not None:
            assert astuple(status) == astuple(made[5])
            assert (status.last_sequence, status.trx) == (row.last_sequence, trx)
        (frame,) = decode_transaction("s", 0, 1, record, encoder[3])
        assert (frame[0].segment, len(frame[2])) == (arguments[5].segment, arguments[5].body.count)


def following(random: Random, seed: int) -> tuple[list[tuple[int, bytes | None]], int, bool]:
    """(records that follow transaction 5, how many of the first ones have one frame and nothing else, whether no more
    may be read). One may be damaged, or changed and sealed again."""
    rows: list[tuple[int, bytes | None]] = []
    names, firsts, plain = [name(random) for _ in range(3)], dict[str, int](), list[bool]()
    for at in range(6, 6 + random.randrange(1, 9)):
        parts = []
        for segment in random.sample(list({*names}), random.choice([1, 1, 1, 1, 1, 1, min(2, len({*names}))])):
            made, first = body(random), firsts.get(segment, 1)
            parts.append((segment, first, made))
            firsts[segment] = first + made.count
        more: dict[str, Any] = random.choice([{}] * 15 + [{"fences": {"lease": 3}}, {"lead": b"-"}, {"waiting": 1}])
        numbered = at if random.random() < 0.98 else at + 1
        _, record = encode_transaction(
            number=numbered,
            timestamp=random.choice([3, number(random)]),
            id=random.randbytes(16),
            node=b"node",
            position=number(random),
            parts=parts,
            seed=seed,
            sizes=[(number(random), number(random)) for _ in parts],
            size=number(random),
            **more,
        )
        rows.append((at, record))
        plain.append(len(parts) == 1 and not more and numbered == at)
    at, ends = len(rows), True
    if random.random() < 0.4:
        at = random.randrange(len(rows))
        rows[at], ends = (rows[at][0], changed(random, rows[at][1] or b"", seed)), False
    whole = plain[:at].index(False) if False in plain[:at] else at
    return rows, whole, ends or whole < at


def changed(random: Random, record: bytes, seed: int) -> bytes | None:
    """None, or the record with other bytes in its header. Their checksum is right in most cases."""
    if random.random() < 0.1:
        return None
    data, end = bytearray(record), 24 + int.from_bytes(record[12:16], "little")
    for _ in range(random.choice([1, 1, 2])):
        data[random.randrange(end)] ^= 1 << random.randrange(8)
    data = data[: random.choice([len(data)] * 5 + [random.randrange(len(data))])]
    if random.random() < 0.8:
        data[4:8] = crc32(data[8:end], seed).to_bytes(4, "little")
    return bytes(data)


def test_transactions_of_one_frame_are_read_alike_in_one_step_and_one_by_one() -> None:
    random = Random(SEED)
    for case in range(2 * CASES):
        seed, copied = random.getrandbits(32), random.choice([0, 300, 4096])
        rows, whole, ends = following(random, seed)
        encoder = LoneEncoder("s", 0, Settings(), seed, b"", copied)
        choose("compiled")
        read = encoder.read(rows, 5)
        choose("python")
        done = 0 if read is None else read[0]
        assert (done == whole) if ends else (done >= whole), f"case {case}: {rows!r}"
        if read is None:
            continue
        tail, timestamps, last = Tail(5), list[int](), Header(0, 0, b"", b"", 0, ())
        for at, record in rows[:done]:
            assert record is not None
            last = decode_header(record, seed)
            assert last == Header(at, last.timestamp, last.id, last.node, last.position, last.frames, size=last.size)
            tail.add(last, record, copied)
            if timestamps[-1:] != [last.timestamp]:
                timestamps.append(last.timestamp)
        assert read == (done, tail.pieces, timestamps, last.position + last.count, last.after, last.count), (
            f"case {case}"
        )
        assert list(read[1]) == list(tail.pieces)
        again = Tail(5)
        for _ in range(2):
            again.add_pieces(
                {segment: [*some] for segment, some in read[1].items()},
                {at: record for at, record in rows[:done] if record is not None},
            )
            assert (again.pieces, again.records) == (tail.pieces, tail.records)


def test_a_transaction_that_several_requests_share_is_made_as_a_plan_makes_it() -> None:
    random = Random(SEED)
    for case in range(CASES // 5):
        encoder, (now, drawn, node, timestamp, base, _) = lone_of(random)
        space, partition, settings, seed, prefix, copied = encoder
        parts = [
            Part(f"{at}{name(random)}", body(random), number(random), None)
            for at in range(random.choice([1, 2, 3, 8, 15, 16, 17, 40]))
        ]
        _, before, _, position, size, look = base
        rows = [row_of(random) for _ in parts]
        choose("compiled")
        shared = rows, before, base[2], position, size, look
        made = LoneEncoder(*encoder).encode_shared(now, drawn, node, timestamp, shared, parts)
        assert made is not None, f"case {case}"
        key, record, after, pieces, trx, statuses = made
        choose("python")
        header, same = encode_transaction(
            number=before + 1,
            timestamp=timestamp,
            id=trx.raw_id,
            node=node,
            position=position,
            parts=[(part.segment, row.last_sequence + 1, part.body) for row, part in zip(rows, parts, strict=True)],  # type: ignore[misc]
            seed=seed,
            sizes=[(row.size, part.size) for row, part in zip(rows, parts, strict=True)],
            size=size,
        )
        assert record == same, f"case {case}"
        assert (key, trx.raw_node, trx.number) == (transaction_key(prefix, before + 1), node, before + 1)
        assert (is_id(trx.raw_id), made_at(trx.raw_id)) == (True, now)
        start = len(record) - sum(ref.length for ref in header.frames)
        assert pieces == [piece_of(header, ref, record, start, copied) for ref in header.frames]
        for row, part, ref, then, status in zip(rows, parts, header.frames, after, statuses, strict=True):
            assert then == row.with_entries(before + 1, timestamp, ref.first_sequence, ref.count, row.size + part.size)
            if settings.partitions > 1:
                assert status is None
            else:
                place = Position(partition, 1, timestamp, before + 1, header.count, settings.incarnation)
                first, last = (then.first_sequence, then.first_timestamp), (then.last_sequence, then.last_timestamp)
                assert status == SegmentStatus(space, part.segment, *first, *last, trx, place)


def test_the_values_of_a_transaction_of_one_frame_are_made_without_calls_of_their_classes() -> None:
    from streamkit.log.lone import _CLASSES

    assert speed.twin.LoneEncoder(_CLASSES, "s", 0, b"", True, 0, b"", 0).is_direct
    assert writing._parts.is_direct


NAMES: list[Any] = [
    "a",
    "order-1",
    "é",
    "*",
    "",
    "a" * 255,
    "a" * 256,
    "\x7f",
    "\n",
    " ",
    "~",
    7,
    b"a",
    internal_name("x"),
]


def test_a_write_of_one_record_is_checked_and_encoded_alike_in_one_step_and_in_several() -> None:
    random, taken = Random(SEED), 0
    with streamkit.connect("memory://") as client:
        writer = client.store(UUID(int=1))._writer
        choose("compiled")
        for _ in range(CASES):
            space, segment = (random.choice(random.choice([["a", "b~"], NAMES])) for _ in range(2))
            data = random.randbytes(random.choice([*LENGTHS, 505, 506, 507, 508, 600]))
            payload: Any = random.choice([data] * 8 + ["text", None])
            given: Any = random.choice([()] * 8 + [({"a": "b"},), ({},), (None, 1)])
            records: Any = [Record(payload, *given)]
            records = random.choice([records] * 8 + [tuple(records), records * 2, [], [payload], None])
            expected: Any = random.choice([None] * 40 + [0, 7, 1 << 70, -1, True, "1"])
            part = writer.lone(space, segment, records, expected)
            if part is None:
                continue
            taken += 1
            check_name(space, "space")
            check_name(segment, "segment")
            same = writer.part("a", segment, records, expected, False)
            assert (*astuple(part), type(part.expected)) == (*astuple(same), type(expected))
    assert taken > CASES / 10
    assert writer.lone("s", "a", [Record(b"x" * 300)]) is not None


SHORT = ["", "a", "é", "traceparent", "a" * 31, "a" * 32, "é" * 16, "a" * 255, "a" * 256, "€" * 300]
LONG = ["a" * 65_534, "a" * 65_535, "é" * 32_768, "a" * 65_537, "€" * 21_850]


class Text(str):
    """A text that is not quite a str."""


class Bytes(bytes):
    """Bytes that are not quite bytes."""


def metadata_of(random: Random) -> Any:
    if random.random() < 0.01:
        return random.choice([
            {"a": 1}, {1: "a"}, {"a": None}, {"a": "\ud800"}, {"\udfff": "a"}, {Text("a"): "b"}, {"b": Text("a")},
            {"a": random.choice(LONG)}, {random.choice(LONG): ""}, MappingProxyType({"a": "b"}), [("a", "b")], "a", 7,
        ])  # fmt: skip
    count = random.choice([0, 1, 1, 2, 3, 3, 15, 16, 17]) if random.random() < 0.2 else 2
    return {random.choice(SHORT) + random.choice(["", "x", "é"]): random.choice(SHORT) for _ in range(count)}


def records_of(random: Random) -> Any:
    """Records of one segment; a few are wrong."""
    count = random.choice([0, 1, 2, 15, 16, 17, 300] if random.random() < 0.5 else [3])
    wrong, told = random.choice([0, 0, 0.1]), random.choice([0, 0, 0.5, 1])
    data = [random.randbytes(random.choice(LENGTHS)) for _ in range(count)]
    if random.random() < 0.05:
        data[-1:] = [bytes(size) for size in (255, 256, 65_535, 65_536, 70_000)]
    records: list[Any] = []
    for payload in data:
        given: Any = payload
        if random.random() < wrong:
            given = random.choice([payload, Bytes(payload), bytearray(payload), "text", None])
        sequence = len(records) + random.choice([1, 1, 1, 2]) if random.random() < wrong else None
        record: Any = Record(given, metadata_of(random) if random.random() < told else None, sequence)
        records.append(payload if random.random() < wrong / 10 else record)
    return random.choice([records] * 9 + [tuple(records), dict.fromkeys(range(3)), None, Record(b""), "text"])


def part_of(writer: Any, *arguments: Any) -> tuple[Any, ...] | str:
    """The part of a write, or the error."""
    try:
        part = writer.part("a", "a", *arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ("none",) if part is None else (astuple(part), type(part.body and part.body.data))


def test_the_records_of_a_write_are_checked_and_encoded_alike_in_one_pass_and_in_several() -> None:
    random, taken, refused = Random(SEED), 0, 0
    with streamkit.connect("memory://", max_transaction_bytes=100_000) as client:
        writer = client.store(UUID(int=1))._writer
        for case in range(CASES):
            expected: Any = random.choice([None] * 6 + [0, 1, 7, 1 << 70, -1, True, "1"])
            arguments: Any = records_of(random), expected, random.random() < 0.3
            choose("compiled")
            same = part_of(writer, *arguments)
            taken += writing._parts.encode(arguments[0], 100_000, arguments[2]) is not None
            choose("python")
            assert same == part_of(writer, *arguments), f"case {case}: {arguments!r:.2000}"
            refused += isinstance(same, str)
    assert taken > CASES / 4
    assert refused > CASES / 20


def test_a_record_of_many_frames_has_the_same_bytes_from_both_encoders() -> None:
    random = Random(SEED)
    for case in range(CASES // 4):
        parts = [(name(random), number(random) or 1, body(random)) for _ in range(random.choice([0, 1, 2, 3, 40]))]
        ids = random.randbytes(16), random.choice([random.randbytes(16), b"-"])
        arguments: dict[str, Any] = {
            "number": number(random),
            "timestamp": number(random),
            "id": ids[0],
            "node": ids[1],
            "position": number(random),
            "parts": parts,
            "seed": random.getrandbits(32),
            "size": number(random),
            "sizes": [(number(random), number(random)) for _ in parts] if random.random() < 0.5 else (),
        }
        choose("python")
        header, record = encode_transaction(**arguments)
        choose("compiled")
        assert encode_transaction(**arguments) == (header, record), f"case {case}: {arguments!r}"
        frames = decode_transaction("s", 0, 1, record, arguments["seed"])
        assert [frame[0].segment for frame in frames] == [part[0] for part in parts]


def test_a_row_of_the_local_log_has_the_same_bytes_from_both_encoders() -> None:
    random = Random(SEED)
    sizes = [*LENGTHS, WHOLE - 1, WHOLE, WHOLE + 1, 3 * WHOLE]
    for case in range(CASES):
        key, value = random.randbytes(random.choice(LENGTHS)), random.randbytes(random.choice(sizes))
        arguments = (number(random), random.choice([NEXT_ROW, ROW]), key, value, random.getrandbits(32))
        choose("python")
        row = pack(*arguments)
        choose("compiled")
        assert pack(*arguments) == row, f"case {case}: {arguments!r}"
        if len(value) <= WHOLE:
            found = parse(row, 0, arguments[0], arguments[-1])
            assert not isinstance(found, int)
            assert found[1:4] == (arguments[1], key, len(value))


def test_a_number_that_the_twin_cannot_hold_is_left_to_python() -> None:
    given, made = encode_body([b"x"], None), []
    for codec in CODECS:
        choose(codec)
        encoder = LoneEncoder("s", 0, Settings(1), 1, b"p", 4096)
        for at, size in ((1, -5), (1 << 64, 0)):
            base = SegmentRow(0, 0, 0, 0, size=size), at, 1, 0, 0, Look(None, 0.0, 0)
            arguments = 1, 0, b"n" * 16, 1, base, Part("s", given, 1, None)
            if size:
                made.append(encoder.encode(*arguments))
            else:
                with pytest.raises(OverflowError):
                    encoder.encode(*arguments)
    assert made[0] == made[1]


def index_key(random: Random) -> bytes:
    """A key of any kind; also one that is cut short, or that begins like another kind."""
    segment = name(random)[:40]
    made = random.choice([
        lambda: data_key(segment, number(random)), lambda: segment_key(segment), lambda: fence_key(segment),
        lambda: idempotency_key(random.randbytes(16)), lambda: random.randbytes(random.choice([0, 1, 9, 40])),
    ])()  # fmt: skip
    return made[: random.randrange(len(made) + 1)] if random.random() < 0.1 else made


def section(random: Random, keys: list[bytes]) -> tuple[Any, ...] | str:
    """A section of rows with these keys, a few at a time; or the error."""
    builder, at = SectionBuilder(b"i" * 16, 7, random.choice([0, 100, 50_000])), 0
    try:
        while at < len(keys):
            some = keys[at : at + random.choice([1, 7, 300])]
            at += len(some)
            sizes = [random.choice([0, 3, 60, 60, 60, 300, 9000]) for _ in some]
            if random.random() < 0.02:
                sizes[0] = 70_000
            builder.add(some, [random.randbytes(2) * (size // 2) for size in sizes])
        return builder.finish()
    except ValueError as error:
        return str(error)


def pieces(random: Random) -> list[Piece]:
    """The pieces of a segment, at most a little more than a row takes."""
    made = []
    for _ in range(random.choice((1, 1, 2, 15, 16, 17, 255, 256, 257, 520))):
        numbers = [max(1, number(random)) for _ in range(6)]
        frame = random.choice((None, b"", random.randbytes(random.choice((40, 255, 256, 4000)))))
        if random.random() < 0.02:
            frame = random.randbytes(70_000)
        made.append(Piece(*numbers, frame, number(random), number(random)))
    return made


def test_data_rows_have_the_same_bytes_from_both_encoders() -> None:
    random = Random(8)
    for _ in range(CASES // 30):
        tail = {name(random): pieces(random) for _ in range(random.choice((1, 3, 20)))}
        segments = sorted(tail)
        rows = []
        for codec in CODECS:
            with using(codec):
                rows.append([*index_rows(tail, {}, {}, {})])
        assert rows[0] == rows[1]
        assert speed.twin.data_rows(segments, tail, Piece, b"", (48, 8 << 10, 256)) is not None


@pytest.mark.parametrize(
    "damaged", [{"count": 0, "first_sequence": 0}, {"number": -1}, {"timestamp": 1 << 64}, {"frame": bytearray(3)}]
)
def test_a_piece_that_the_twin_cannot_encode_is_left_to_python(damaged: dict[str, Any]) -> None:
    tail = {"a": [Piece(1, 2, 3, 1, 5, 6), replace(Piece(1, 2, 3, 1, 5, 6), **damaged)]}
    assert speed.twin.data_rows(["a"], tail, Piece, b"", (48, 8 << 10, 256)) is None
    assert speed.twin.data_rows(["a"], {"a": ()}, Piece, b"", (48, 8 << 10, 256)) is None
    assert speed.twin.data_rows(["b"], tail, Piece, b"", (48, 8 << 10, 256)) is None


def test_a_filter_has_the_same_words_from_both_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(9)
    for count in (1, 5, 6, 1000):
        hashes = array("I", [random.getrandbits(32) for _ in range(count)] * 2)
        for once in (True, False):
            words = []
            for codec in CODECS:
                with using(codec), monkeypatch.context() as patch:
                    if codec == "compiled":
                        patch.setattr(subject_filter, "build_filter", None)
                    words.append(filter_of(hashes, once=once))
            assert words[0] == words[1]


def test_a_section_has_the_same_bytes_from_both_encoders() -> None:
    random, refused = Random(SEED), 0
    for case in range(CASES // 10):
        keys = sorted({index_key(random) for _ in range(random.choice([1, 3, 50, 600]))})
        if random.random() < 0.2:
            keys.insert(random.randrange(len(keys)), random.choice(keys))
        results = []
        for codec in CODECS:
            choose(codec)
            results.append(section(Random(case), keys))
        assert results[0] == results[1], f"case {case}"
        if isinstance(results[0], str):
            refused += 1
            continue
        data, file = results[0]
        words = decode_tail(data[-file.tail :], file, 7).words
        asked = sorted({*keys[::2], *(index_key(random) for _ in range(100))})
        found = []
        for codec in CODECS:
            choose(codec)
            found.append(passing(asked, words))
        hashes = [hash_of(subject_of(key)) for key in asked]
        masks = [words[hash % len(words)] & mask_of(hash) == mask_of(hash) for hash in hashes]
        assert found[0] == found[1] == [key for key, passes in zip(asked, masks, strict=True) if passes]
        assert set(keys[::2]) <= set(found[0])
    assert 0 < refused < CASES // 20


def taken_over(data: bytes, file: RunFile, first: int, stop: int, before: int) -> tuple[bytes, RunFile] | str:
    """A section with the blocks first..stop - 1 of another one, as they are, and `before` rows before them."""
    try:
        tail = decode_tail(data[-file.tail :], file, 7)
        blocks = [data[tail.offsets[at] : tail.offsets[at + 1]] for at in range(first, stop)]
        builder = SectionBuilder(b"i" * 16, 7)
        builder.add([data_key("a", at + 1) for at in range(before)], [b"row"] * before)
        builder.add_stored(Stored(file, tail, first, blocks))
        return builder.finish()
    except CorruptData as error:
        return str(error)


def test_blocks_that_are_taken_over_have_the_same_bytes_from_both_encoders_and_damage_is_found() -> None:
    random, damaged = Random(SEED), 0
    for case in range(CASES // 10):
        builder = SectionBuilder(random.randbytes(16), 7)
        rows = random.choice([40, 100])
        values = [random.choice([random.randbytes(900), b"x" * random.randrange(2000)]) for _ in range(rows)]
        builder.add([data_key("s", at + 1) for at in range(rows)], values)
        data, file = builder.finish()
        count = decode_tail(data[-file.tail :], file, 7).blocks
        first = random.randrange(count - 1)
        stop, before = random.randrange(first + 1, count), random.choice([0, 1, 200])
        if random.random() < 0.3:
            place = random.randrange(file.length - file.tail)
            data = data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]
        results = []
        for codec in CODECS:
            choose(codec)
            results.append(taken_over(data, file, first, stop, before))
        assert results[0] == results[1], f"case {case}"
        damaged += isinstance(results[0], str)
        if not isinstance(results[0], str):
            keys, found = decode_section(*results[0], 7)
            low, high = (int.from_bytes(keys[at][-8:]) for at in (before, -1))
            assert keys[before:] == [data_key("s", sequence) for sequence in range(low, high + 1)]
            assert found[before:] == values[low - 1 : high]
    assert 0 < damaged < CASES // 20
