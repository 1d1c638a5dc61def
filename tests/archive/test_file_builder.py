"""The way from transaction records to sorted rows: rows of a part equal the same rows of the whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from streamkit.archive.file_builder import FileBuilder
from streamkit.errors import CorruptData
from streamkit.log.record_format import encode_body, encode_transaction

NODE = UUID(int=9).bytes


def record(number: int, position: int, parts: dict[str, tuple[int, list[bytes], Any]], timestamp: int = 1000) -> bytes:
    bodies = [(name, first, encode_body(payloads, metadata)) for name, (first, payloads, metadata) in parts.items()]
    _, data = encode_transaction(
        number=number,
        timestamp=timestamp + number,
        id=UUID(int=number).bytes,
        node=NODE,
        position=position,
        parts=bodies,
        seed=5,
    )
    return data


def draft() -> FileBuilder:
    partition: Any = SimpleNamespace(space="s", partition=3, settings=SimpleNamespace(partitions=4), seed=5)
    return FileBuilder(partition)


RECORDS = [
    record(1, 0, {"b": (1, [b"b1", b"b2", b"b3"], None), "é": (1, [b"e1"], [{"k": "v"}])}),
    record(2, 4, {}),
    record(3, 4, {"a": (1, [b"a1"], None), "b": (4, [b"b4"], None)}),
    record(4, 6, {"é": (2, [b"e2", b""], [None, {"x": "y", "z": ""}])}),
    record(5, 8, {"a": (2, [b"a2", b"a3"], None)}),
]
SORTED = [b"a1", b"a2", b"a3", b"b1", b"b2", b"b3", b"b4", b"e1", b"e2", b""]


def test_rows_are_sorted_by_segment_and_sequence_and_know_their_transaction() -> None:
    made = draft()
    assert all(made.add(number, data, 2000) for number, data in enumerate(RECORDS, 1))
    assert (made.rows, made.bytes) == (10, sum(map(len, SORTED)))
    rows = made.sorted()
    assert rows.numbers == (1, 5)
    found = rows.slice(0, 100).to_pylist()
    assert [row["payload"] for row in found] == SORTED
    assert [row["sequence"] for row in found] == [1, 2, 3, 1, 2, 3, 4, 1, 2, 3]
    assert [row["number"] for row in found] == [3, 5, 5, 1, 1, 1, 3, 1, 4, 4]
    assert [row["position"] for row in found] == [4, 8, 9, 0, 1, 2, 5, 3, 6, 7]
    assert [row["index"] for row in found] == [0, 0, 1, 0, 1, 2, 1, 3, 0, 1]
    assert [row["trx_id"] for row in found] == [str(UUID(int=row["number"])) for row in found]
    assert {row["trx_node"] for row in found} == {str(UUID(bytes=NODE))}
    assert [row["metadata"] for row in found[7:]] == [[("k", "v")], None, [("x", "y"), ("z", "")]]
    assert {row["partition"] for row in found} == {3}


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7])
def test_any_part_of_the_rows_is_what_the_whole_has_there(length: int) -> None:
    made = draft()
    for number, data in enumerate(RECORDS, 1):
        made.add(number, data, 2000)
    rows = made.sorted()
    whole = rows.slice(0, rows.num_rows).to_pylist()
    for begin in range(rows.num_rows):
        assert rows.slice(begin, length).to_pylist() == whole[begin : begin + length]


def test_what_is_younger_is_not_taken_in_also_if_it_has_no_entries() -> None:
    made = draft()
    assert made.add(1, RECORDS[0], 1001)
    assert not made.add(2, RECORDS[1], 1001)
    assert not made.add(3, RECORDS[2], 1002)
    assert made.rows == 4


def test_a_transaction_in_the_place_of_another_is_refused() -> None:
    with pytest.raises(CorruptData, match="a frame of transaction 3 is in its place"):
        draft().add(2, RECORDS[2], 2000)
