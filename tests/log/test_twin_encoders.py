"""The encoders of the compiled twin and those in Python: the same bytes for the same values."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from fix_covered import EXHAUSTIVE

from harness.codecs import CODECS, choose, using
from streamkit.index.run_format import SectionBuilder, decode_tail
from streamkit.index.subject_filter import hash_of, mask_of, passing, subject_of
from streamkit.log.keys import data_key, fence_key, idempotency_key, segment_key
from streamkit.log.record_format import (
    Body,
    decode_header,
    decode_transaction,
    encode_body,
    encode_lone,
    encode_transaction,
)
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


def test_a_record_of_one_frame_has_the_same_bytes_from_both_encoders() -> None:
    random = Random(SEED)
    for case in range(CASES):
        given = body(random)
        ids = random.randbytes(16), random.choice([random.randbytes(16), b"-", b""])
        segment, first = name(random), number(random) or 1
        arguments = (
            *(number(random), number(random), *ids, number(random), segment, first, given),
            *(number(random), number(random), number(random), random.getrandbits(32)),
        )
        choose("python")
        record, length = encode_lone(*arguments)
        choose("compiled")
        assert encode_lone(*arguments) == (record, length), f"case {case}: {arguments!r}"
        header = decode_header(record, arguments[-1])
        assert (header.number, header.id, header.frames[0].length) == (arguments[0], ids[0], length)
        assert header.frames[0].start + length == len(record) - header_end(record)
        (frame,) = decode_transaction("s", 0, 1, record, arguments[-1])
        assert (frame[0].segment, len(frame[2])) == (segment, given.count)


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


def header_end(record: bytes) -> int:
    return 24 + int.from_bytes(record[12:16], "little")


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
    given, ids = encode_body([b"x"], None), (b"i" * 16, b"n" * 16)
    records = set()
    for codec in CODECS:
        choose(codec)
        records.add(encode_lone(1, 1, *ids, 0, "s", 1, given, -5, 1, 0, 1))
        with pytest.raises(OverflowError):
            encode_lone(1 << 64, 1, *ids, 0, "s", 1, given, 0, 1, 0, 1)
    assert len(records) == 1


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
