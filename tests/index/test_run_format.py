"""Sections of sorted rows as bytes: whole, or refused with an error that names the fault and its place."""

from __future__ import annotations

import random
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.run_rows import SEED, data_row, key_row, segment_row
from harness.sections import build_section
from streamkit.errors import CorruptData, UnsupportedVersion
from streamkit.index import subject_filter
from streamkit.index.run_format import (
    BLOCK_BYTES,
    SectionBuilder,
    decode_block,
    decode_inline,
    decode_section,
    decode_tail,
    encode_inline,
    renew_section,
)
from streamkit.index.subject_filter import build_filter, hash_of, hashes_of, mask_of, read_filter, subject_of
from streamkit.log.keys import run_key

pytestmark = pytest.mark.usefixtures("codec")

ID = b"the id of a run!"
ROWS = st.dictionaries(st.binary(max_size=300), st.binary(max_size=3000), min_size=1, max_size=40)


def sample(count: int = 300) -> dict[bytes, bytes]:
    chance = random.Random(count)
    rows: dict[bytes, bytes] = {}
    for n in range(count):
        rows.update([data_row(f"s{n}", n, 1, frame=chance.randrange(200)), segment_row(f"s{n}", n, 1)])
        rows.update([key_row(chance.randbytes(16), n)])
    return rows


def built(rows: dict[bytes, bytes], id: bytes = ID, seed: int = SEED):  # type: ignore[no-untyped-def]
    keys = sorted(rows)
    return build_section(id, seed, keys, [rows[key] for key in keys])


@given(ROWS, st.lists(st.binary(max_size=8), max_size=5))
@settings(max_examples=200, deadline=None)
def test_rows_come_back_as_they_were(rows: dict[bytes, bytes], others: list[bytes]) -> None:
    data, file = built(rows)
    keys, values = decode_section(data, file, SEED)
    assert dict(zip(keys, values, strict=True)) == rows
    assert keys == sorted(rows)
    assert (file.first_key, file.last_key, file.rows) == (keys[0], keys[-1], len(rows))
    inline = decode_inline(encode_inline(keys, values, SEED), SEED)
    for key in [*keys, *others]:
        assert inline.get(key) == rows.get(key)
        assert inline.seek(key) == sum(other < key for other in keys)


def test_a_section_that_is_built_in_pieces_is_the_same() -> None:
    rows = sample(1000)
    keys = sorted(rows)
    builder = SectionBuilder(ID, SEED)
    for at in range(0, len(keys), 77):
        part = keys[at : at + 77]
        builder.add(part, [rows[key] for key in part])
    assert builder.finish() == built(rows)


def test_blocks_are_of_about_their_size_and_values_of_any() -> None:
    rows = sample(2000) | {b"large": b"x" * 200_000, b"none": b""}
    data, file = built(rows)
    tail = decode_tail(data[-file.tail :], file, SEED)
    blocks = [
        decode_block(data[start:end], file, start, SEED)
        for start, end in zip(tail.offsets, tail.offsets[1:], strict=False)
    ]
    sizes = [sum(map(len, block.keys(0, block.rows) + block.values(0, block.rows))) for block in blocks]
    assert all(BLOCK_BYTES <= size < BLOCK_BYTES + 1000 or size > 200_000 for size in sizes[:-1])
    assert max(sizes) > 200_000
    assert dict(zip(*decode_section(data, file, SEED), strict=True)) == rows


def test_keys_that_do_not_ascend_are_refused() -> None:
    builder = SectionBuilder(ID, SEED)
    builder.add([b"b"], [b""])
    for keys in ([b"b"], [b"a"], [b"c", b"c"], [b"d", b"c"]):
        with pytest.raises(ValueError, match="ascend"):
            builder.add(keys, [b""] * len(keys))
    with pytest.raises(ValueError, match="has rows"):
        SectionBuilder(ID, SEED).finish()


def test_every_flipped_bit_is_found() -> None:
    rows = sample(60)
    data, file = built(rows)
    assert len(decode_tail(data[-file.tail :], file, SEED).offsets) > 2
    for at in range(len(data)):
        harmed = bytearray(data)
        harmed[at] ^= 1 << at % 8
        with pytest.raises(CorruptData) as raised:
            decode_section(bytes(harmed), file, SEED)
        assert repr(run_key(ID)) in str(raised.value)


OTHER = b"another run's id"


def renewed(data: bytes, file, spans: list[tuple[bytes, bytes]], seen: list[int]):  # type: ignore[no-untyped-def]
    """The section with short values in the place of those in `spans`. `seen` gets the rows of each decoded block."""

    def renew(keys: list[bytes], values: list[bytes]) -> list[bytes]:
        seen.append(len(keys))
        inside = [any(low <= key < high for low, high in spans) for key in keys]
        return [b"new" if one else value for one, value in zip(inside, values, strict=True)]

    return renew_section(data, file, SEED, OTHER, spans, renew)


@pytest.mark.parametrize("count", [0, 1, 7, 5000])
def test_a_section_with_other_values_has_all_else_as_it_was(count: int) -> None:
    rows = sample(2000) | {b"large": b"x" * 200_000, b"none": b""}
    keys, chance = sorted(rows), random.Random(count)
    starts = [chance.randrange(len(keys)) for _ in range(count)]
    spans = [(keys[at], keys[min(at + 3, len(keys) - 1)]) for at in starts]
    data, file = built(rows)
    seen: list[int] = []
    new, entry = renewed(data, file, spans, seen)
    wanted = {key: b"new" if any(low <= key < high for low, high in spans) else rows[key] for key in keys}
    assert dict(zip(*decode_section(new, entry, SEED), strict=True)) == wanted
    assert (entry.id, entry.first_key, entry.last_key, entry.rows) == (OTHER, keys[0], keys[-1], len(keys))
    before, after = decode_tail(data[-file.tail :], file, SEED), decode_tail(new[-entry.tail :], entry, SEED)
    assert after.words == before.words
    assert after.blocks == before.blocks
    assert len(seen) <= 2 * count, "blocks were decoded that hold none of it"


def test_a_section_that_is_damaged_is_not_copied() -> None:
    rows = sample(60)
    data, file = built(rows)
    spans = [(file.first_key, file.first_key + b"\x00")]
    for at in range(len(data)):
        harmed = bytearray(data)
        harmed[at] ^= 1 << at % 8
        with pytest.raises(CorruptData):
            renewed(bytes(harmed), file, spans, [])


def test_every_cut_is_found() -> None:
    data, file = built(sample(20))
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            decode_section(data[:size], file, SEED)
        if size < file.tail:
            with pytest.raises(CorruptData):
                decode_tail(data[len(data) - size :], file, SEED)
        with pytest.raises(CorruptData):
            decode_tail(data[-file.tail :][:size], file, SEED) if size < file.tail else decode_section(
                data + b"x", file, SEED
            )


def test_every_flipped_bit_of_an_inline_run_is_found() -> None:
    rows = dict(sorted(sample(10).items()))
    data = encode_inline(list(rows), list(rows.values()), SEED)
    for at in range(len(data)):
        harmed = bytearray(data)
        harmed[at] ^= 1 << at % 8
        with pytest.raises(CorruptData, match="inline"):
            decode_inline(bytes(harmed), SEED)
        with pytest.raises(CorruptData, match="inline"):
            decode_inline(data[:at], SEED)
    with pytest.raises(CorruptData):
        decode_inline(data, SEED + 1)
    assert encode_inline([], [], SEED) == b""


def test_a_block_of_another_place_run_or_partition_is_refused() -> None:
    rows = {b"%08d" % n: b"x" * 100 for n in range(400)}
    data, file = built(rows)
    offsets = decode_tail(data[-file.tail :], file, SEED).offsets
    first, second = data[offsets[0] : offsets[1]], data[offsets[1] : offsets[2]]
    decode_block(second, file, offsets[1], SEED)
    with pytest.raises(CorruptData, match=f"byte {offsets[0]}"):
        decode_block(second, file, offsets[0], SEED)
    for other, seed in ((built(rows, b"another id of 16")[1], SEED), (file, SEED + 1)):
        with pytest.raises(CorruptData):
            decode_block(first, other, offsets[0], seed)
        with pytest.raises(CorruptData):
            decode_tail(data[-file.tail :], other, seed)


def test_a_future_version_is_named() -> None:
    data, file = built(sample(20))
    tail = bytearray(data[-file.tail :])
    tail[-12] = 9
    start = zlib.crc32(ID, SEED) ^ (file.length - file.tail)
    tail[-8:-4] = struct.pack("<I", zlib.crc32(tail[:-8], start))
    with pytest.raises(UnsupportedVersion, match=r"RUN.*version 9; this release reads 1"):
        decode_tail(bytes(tail), file, SEED)
    inline = bytearray(encode_inline([b"a"], [b"b"], SEED))
    inline[4] = 9
    inline[:4] = struct.pack("<I", zlib.crc32(inline[4:], zlib.crc32(b"", SEED)))
    with pytest.raises(UnsupportedVersion, match=r"inline run.*version 9"):
        decode_inline(bytes(inline), SEED)


def test_the_subject_of_each_kind_of_row() -> None:
    assert subject_of(data_row("a/ü", 1, 1)[0]) == "a/ü".encode()
    assert subject_of(segment_row("a/ü", 1, 1)[0]) == "a/ü".encode()
    assert subject_of(key_row(b"\x00" * 16, 1)[0]) == b"\x00" * 16
    assert subject_of(b"something else") == b"something else"
    rows = sample(50)
    keys = sorted([*rows, b"", b"E", b"INV\x00A", b"z"])
    assert hashes_of(keys) == {hash_of(subject_of(key)) for key in keys}


@pytest.mark.parametrize("name", ["{}", "order-{}", "{:09d}", "tenant-{}/device-7/temperature"])
@pytest.mark.parametrize("count", [3, 100, 20_000])
def test_filters_hold_all_of_theirs_and_few_strangers(name: str, count: int) -> None:
    words = read_filter(build_filter([hash_of(name.format(n).encode()) for n in range(count)]))
    assert len(words) * 64 <= count * 12 + 64

    def passes(n: int) -> bool:
        hash = hash_of(name.format(n).encode())
        mask = mask_of(hash)
        return words[hash % len(words)] & mask == mask

    assert all(passes(n) for n in range(count))
    assert sum(passes(n) for n in range(count, count + 20_000)) <= 20_000 * 0.02


def test_the_patterns_of_a_filter_never_change() -> None:
    masks = struct.pack("<4096Q", *subject_filter._masks())
    assert zlib.crc32(masks) == 525714080
    assert hash_of(b"order-42") == 297577854
