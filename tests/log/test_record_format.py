"""The transaction record and the rows beside it: decoding gives the encoded values or CorruptData, and nothing else."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkit import CorruptData, StreamkitError, UnsupportedVersion
from streamkit.log import rows
from streamkit.log.index_rows import decode_index_row, encode_index_row, join_data, piece_count
from streamkit.log.manifest import Manifest, Merge, Run, RunFile
from streamkit.log.packs import PackFile
from streamkit.log.record_format import (
    KeyUse,
    decode_body,
    decode_entries,
    decode_frames,
    decode_header,
    decode_transaction,
    encode_body,
    encode_transaction,
    frames_start,
    split_frames,
)
from streamkit.log.rows import decode_row, encode_row

pytestmark = pytest.mark.usefixtures("codec")

SEED = 0xC0FFEE
REFUSED = (CorruptData, UnsupportedVersion)


def record_of(*parts: tuple[str, int, list[bytes], list[dict[str, str] | None] | None], **more: Any) -> bytes:
    encoded = [(segment, first, encode_body(payloads, metadata)) for segment, first, payloads, metadata in parts]
    _, record = encode_transaction(
        number=7,
        timestamp=1_700_000_000_000,
        id=bytes(range(16)),
        node=bytes(range(16, 32)),
        position=41,
        parts=encoded,
        seed=SEED,
        **more,
    )
    return record


NOISE = random.Random(1).randbytes(700)
RECORDS = {
    "one small": record_of(("s", 1, [b"1"], None)),
    "an empty payload": record_of(("s", 1, [b""], None)),
    "several segments": record_of(("a", 1, [b"1", b"2"], None), ("é🎉", 9, [b"3"], [{"k": "v"}])),
    "metadata": record_of(("s", 5, [b"1", b"2"], [None, {"k": "v", "": ""}])),
    "compressed": record_of(("s", 5, [b"x" * 300] * 4, [None, {"k": "v"}, None, None])),
    "cannot be compressed": record_of(("s", 5, [NOISE], None)),
    "keys and fences": record_of(
        ("s", 3, [b"1"], None),
        keys=(KeyUse(b"k" * 16, b"c" * 16, (("s", 3),)),),
        fences={"leader": 5},
    ),
}


def read_all(record: bytes) -> list[Any]:
    """All that can be learned from a record, each way of reading it."""
    header = decode_header(record, SEED)
    whole = decode_transaction("space", 0, 1, record, SEED)
    alone = [decode_entries("space", 0, 1, frame, SEED) for frame in split_frames(record, SEED)]
    at = frames_start(record)
    placed = [record[at + ref.start : at + ref.start + ref.length] for ref in header.frames]
    assert [decode_entries("space", 0, 1, frame, SEED)[2] for frame in placed] == [entries for _, _, entries in alone]
    return [header, *((head, entries) for head, _, entries in whole), *((head, entries) for head, _, entries in alone)]


def damaged(data: bytes) -> Iterator[bytes]:
    """Damage of bytes: each bit flipped, each tail and front cut off, bytes behind them, and zeros for a part."""
    for bit in range(len(data) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        yield bytes(broken)
    for cut in range(len(data)):
        yield data[:cut]
        yield data[cut + 1 :]
        yield data[:cut] + bytes(len(data) - cut)
    yield data + b"\0"
    yield data + data


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_damaged_record_is_never_taken_for_another_one(record: bytes) -> None:
    wanted = read_all(record)
    ways: list[Callable[[bytes], Any]] = [
        lambda data: decode_header(data, SEED),
        lambda data: decode_transaction("space", 0, 1, data, SEED),
        lambda data: [decode_entries("space", 0, 1, frame, SEED) for frame in split_frames(data, SEED)],
    ]
    right = [way(record) for way in ways]
    taken = 0
    for broken in damaged(record):
        if broken == record:
            continue
        for at, way in enumerate(ways):
            try:
                found = way(broken)
            except REFUSED:
                continue
            # The header is read without the frames. A read of the frames finds damage in them.
            assert at == 0
            assert found == right[0]
            taken += 1
    assert read_all(record) == wanted
    assert taken < len(record) * 12


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_damaged_frame_is_never_taken_for_another_one(record: bytes) -> None:
    for frame in map(bytes, split_frames(record, SEED)):
        for broken in damaged(frame):
            if broken != frame:
                with pytest.raises(REFUSED):
                    decode_entries("space", 0, 1, broken, SEED)
                with pytest.raises(REFUSED):
                    list(decode_frames("space", 0, 1, "s", [(7, 1, broken)], SEED, b"", with_location))


def with_location(error: StreamkitError, number: int) -> StreamkitError:
    return type(error)(f"transaction {number}: {error}")


def frame_of(number: int, first: int, payloads: list[bytes], segment: str = "s") -> tuple[int, int, bytes]:
    body = encode_body(payloads, None)
    _, record = encode_transaction(
        number=number, timestamp=5, id=bytes(16), node=bytes(16), position=0, parts=[(segment, first, body)], seed=SEED
    )
    return number, first, bytes(split_frames(record, SEED)[0])


def test_a_segments_small_frames_are_handed_out_together_and_a_large_one_alone() -> None:
    frames = [frame_of(at, at, [b"%d" % at]) for at in range(1, 4)] + [frame_of(9, 4, [b"4", b"5"])]
    found = list(decode_frames("space", 0, 1, "s", frames, SEED, b"", with_location))
    assert [(number, [entry.payload for entry in entries]) for number, entries in found] == [
        (3, [b"1", b"2", b"3"]),
        (9, [b"4", b"5"]),
    ]
    one_by_one = [entry for _, _, frame in frames for entry in decode_entries("space", 0, 1, frame, SEED)[2]]
    assert [entry for _, entries in found for entry in entries] == one_by_one
    assert [entry.space_offset for _, entries in found for entry in entries] == [
        entry.space_offset for entry in one_by_one
    ]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ((2, 2, frame_of(2, 2, [b"2"])[2][:-1] + b"x"), "transaction 2: .*damaged"),
        ((2, 2, b""), "transaction 2: .*damaged"),
        ((2, 2, frame_of(2, 2, [b"2"], "another")[2]), "transaction 2: .*'another' instead of 's'"),
        ((2, 2, frame_of(3, 2, [b"2"])[2]), "transaction 2: .*points at"),
        ((2, 2, frame_of(2, 3, [b"2"])[2]), "transaction 2: .*points at"),
    ],
)
def test_what_is_before_a_wrong_frame_of_a_segment_comes_first(wrong: tuple[int, int, bytes], told: str) -> None:
    found = decode_frames("space", 0, 1, "s", [frame_of(1, 1, [b"1"]), wrong], SEED, b"", with_location)
    number, entries = next(found)
    assert (number, [entry.payload for entry in entries]) == (1, [b"1"])
    with pytest.raises(CorruptData, match=told):
        next(found)


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_record_of_another_partition_is_refused(record: bytes) -> None:
    for seed in (0, SEED + 1):
        with pytest.raises(CorruptData):
            decode_header(record, seed)
        with pytest.raises(CorruptData):
            decode_transaction("space", 0, 1, record, seed)
        for frame in split_frames(record, SEED):
            with pytest.raises(CorruptData):
                decode_entries("space", 0, 1, frame, seed)


def test_the_record_of_a_later_format_is_refused_with_the_fix() -> None:
    record = bytearray(RECORDS["one small"])
    end = frames_start(bytes(record))
    record[8] = 3
    record[4:8] = struct.pack("<I", zlib.crc32(record[8:end], SEED))
    for read in (decode_header, split_frames):
        with pytest.raises(UnsupportedVersion, match=r"format version 3; this release reads 2\. Upgrade streamkit"):
            read(bytes(record), SEED)


METADATA = st.one_of(st.none(), st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), st.just("v")))
PAYLOADS = st.one_of(st.binary(max_size=40), st.integers(0, 3000).map(bytes))


@settings(max_examples=50)
@given(st.lists(st.tuples(PAYLOADS, METADATA), min_size=1, max_size=8), st.booleans())
def test_any_records_come_back(records: list[tuple[bytes, dict[str, str] | None]], plain: bool) -> None:
    payloads = [payload for payload, _ in records]
    metadata = None if plain else [metadata for _, metadata in records]
    body = encode_body(payloads, metadata, digest=True)
    assert decode_body(body) == (payloads, metadata)
    record = record_of(("s", 3, payloads, metadata))
    ((_, _, entries),) = decode_transaction("space", 2, 4, record, SEED)
    assert [entry.payload for entry in entries] == payloads
    assert [entry.metadata for entry in entries] == [one or {} for one in metadata or [None] * len(payloads)]
    assert [entry.sequence for entry in entries] == list(range(3, 3 + len(payloads)))
    assert {(entry.origin.partition, entry.trx.number) for entry in entries} == {(2, 7)}
    with pytest.raises(ValueError):
        decode_body(msgspec.structs.replace(body, count=body.count + 1))


def test_a_body_is_compressed_only_where_that_shrinks_it() -> None:
    text = b'{"origin": "EWR", "dest": "IAH", "delay": 11}'
    many = encode_body([text] * 1000, None)
    assert len(many.data) < many.raw / 20
    noise = encode_body([random.Random(2).randbytes(5000)], None)
    assert len(noise.data) == noise.raw
    small = encode_body([text], None)
    assert len(small.data) == small.raw


def test_a_body_that_claims_to_be_huge_is_refused_without_being_made() -> None:
    body = encode_body([bytes(100_000)], None)
    assert len(body.data) < 1000
    for raw in (99_999, 100_001, 1 << 33):
        with pytest.raises(ValueError):
            decode_body(msgspec.structs.replace(body, raw=raw))


# -- rows -------------------------------------------------------------------------------------------------------------

FILE = RunFile(b"i" * 16, "etag", 7, 900, 60, b"first", b"last", 12)
PACK = PackFile(b"p" * 16, "etag", 900, 4000, 80, 1, 40, 1_600_000_000_000)
ROWS: dict[str, Any] = {
    "settings": rows.Settings(4, "buffered", 60.0),
    "head": rows.Head(
        rows.Settings(),
        47,
        1_700_000_000_000,
        41,
        5,
        Manifest(b"inline", 41, 47, (Run(1, 40, 1, (FILE,)),), (Merge(1, 40, (FILE,), b"resume"),)),
        (PACK,),
        b"pack",
        30,
        ((40, 1_700_000_000_000),),
    ),
    "archive": rows.ArchiveRow(3, ((4, 1_700_000_000_000), (9, 1_700_000_000_001))),
    "grace": rows.GraceRow(b"i" * 16, (rows.ArchiveRow(), rows.ArchiveRow(3, ((4, 1_700_000_000_000),)))),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_damaged_row_is_refused_and_the_message_names_it(row: Any) -> None:
    data = encode_row(b"the key", row)
    assert decode_row(type(row), b"the key", data) == row
    for broken in damaged(data):
        if broken != data:
            with pytest.raises(CorruptData, match="the key"):
                decode_row(type(row), b"the key", broken)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_row_of_another_key_is_refused(row: Any) -> None:
    with pytest.raises(CorruptData):
        decode_row(type(row), b"another key", encode_row(b"the key", row))


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_of_another_kind_is_refused(row: Any) -> None:
    data = encode_row(b"the key", row)
    other = rows.ArchiveRow if not isinstance(row, rows.ArchiveRow) else rows.Head
    with pytest.raises(CorruptData):
        decode_row(other, b"the key", data)


@pytest.mark.parametrize(
    ("version", "told"),
    [(5, r"format version 5; this release reads 4\. Upgrade"), (2, r"format version 2, of a release before the first")],
)
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_row_of_another_format_is_refused_with_the_fix(row: Any, version: int, told: str) -> None:
    data = bytearray(encode_row(b"the key", row))
    data[4] = version
    data[:4] = struct.pack("<I", zlib.crc32(data[4:], zlib.crc32(b"the key")))
    with pytest.raises(UnsupportedVersion, match=f"the key.*{told}"):
        decode_row(type(row), b"the key", bytes(data))


PIECE = rows.Piece(7, 1_700_000_000_000, 3, 2, 120, 80)
INDEX_ROWS: dict[str, Any] = {
    "segment": rows.SegmentRow(1, 1_600_000_000_000, 9, 1_700_000_000_000),
    "data": rows.DataRow([PIECE, msgspec.structs.replace(PIECE, first_sequence=5, frame=b"frame" * 9)]),
    "key": rows.KeyRow(7, 1_700_000_000_000, b"i" * 16, b"n" * 16, b"c" * 16, (("s", 9), ("é", 1)), 3),
}


@pytest.mark.parametrize("row", INDEX_ROWS.values(), ids=INDEX_ROWS)
def test_an_index_row_comes_back_and_a_part_of_one_does_not(row: Any) -> None:
    """Checksums are those of the blocks that hold them."""
    data = encode_index_row(row)
    assert decode_index_row(type(row), b"the key", data) == row
    for cut in range(len(data)):
        with pytest.raises(CorruptData, match="the key"):
            decode_index_row(type(row), b"the key", data[:cut])
    for other in INDEX_ROWS.values():
        if type(other) is not type(row):
            with pytest.raises(CorruptData, match="the key"):
                decode_index_row(type(other), b"the key", data)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 40, 300])
def test_rows_of_pieces_are_joined_without_being_decoded(count: int) -> None:
    pieces = [msgspec.structs.replace(PIECE, first_sequence=3 + 2 * at) for at in range(count)]
    for at in {1, count // 2, count}:
        parts = [encode_index_row(rows.DataRow(part)) for part in (pieces[:at], pieces[at:]) if part]
        joined = join_data(parts)
        assert decode_index_row(rows.DataRow, b"", joined).pieces == pieces
        assert piece_count(joined) == count
