"""Records that an attacker made to exhaust a reader's memory: refused by the limits of a transaction."""

from __future__ import annotations

import msgspec
import pytest

from streamkit import CorruptData
from streamkit.compression import compress
from streamkit.log import pack_format, record_format
from streamkit.log.pack_format import PackBlock, open_block
from streamkit.log.record_format import Body, decode_body, decode_transaction, encode_body, encode_transaction

pytestmark = pytest.mark.usefixtures("codec")

MIB = 1 << 20


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit of bytes of payload in a transaction, which a test can afford."""
    monkeypatch.setattr(record_format, "_MOST_PAYLOAD", 4 * MIB)
    return 4 * MIB


def body_of(size: int) -> Body:
    return encode_body([bytes(size)], None)


def record_of(sizes: list[int]) -> bytes:
    parts = [(f"s{at}", 1, body_of(size)) for at, size in enumerate(sizes)]
    return encode_transaction(number=1, timestamp=1, id=bytes(16), node=bytes(16), position=0, parts=parts)[1]


def test_a_body_is_as_large_as_a_transaction_may_be_and_no_larger(most: int) -> None:
    assert decode_body(body_of(most))[0] == [bytes(most)]
    hostile = body_of(8 * MIB)
    assert len(hostile.data) < 64 << 10
    with pytest.raises(ValueError, match=r"the body claims .* bytes; it has at most"):
        decode_body(hostile)


@pytest.mark.parametrize("flags", [record_format._HOLES, record_format._HOLES | record_format._APART])
def test_a_body_with_erased_entries_is_no_larger_either(most: int, flags: int) -> None:
    data = compress(msgspec.msgpack.encode([[bytes(8 * MIB)], None]))[4:]
    with pytest.raises(ValueError):
        decode_body(Body(data, len(data), flags | record_format._ZSTD, 1))


def test_a_body_without_payloads_claims_no_more_entries_than_a_process_could_write() -> None:
    with pytest.raises(ValueError, match="its frame claims 4294967296 entries"):
        decode_body(Body(b"", 0, record_format._GONE, 1 << 32))
    assert len(decode_body(Body(b"", 0, record_format._GONE, 1000))[0]) == 1000


def test_the_frames_of_a_record_share_the_limit(most: int) -> None:
    record = record_of([3 * MIB] * 40)
    assert len(record) < 64 << 10
    with pytest.raises(CorruptData, match="more bytes than a transaction holds"):
        decode_transaction("space", 0, 1, record, 0)
    assert len(decode_transaction("space", 0, 1, record_of([3 * MIB]), 0)) == 1


def test_a_block_of_a_pack_is_no_larger_than_a_record_that_is_packed() -> None:
    data = compress(bytes(64 * MIB))
    block = PackBlock(1, 0, 0, len(data), 64 * MIB, pack_format._ZSTD, pack_format._block_crc(data, 1, 0))
    with pytest.raises(CorruptData, match=r"claims .* bytes; a block has at most"):
        open_block(block, data, 0)
