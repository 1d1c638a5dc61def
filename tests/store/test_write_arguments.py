"""Wrong arguments of writes: the right error, a message that helps, and nothing written.

The conformance suite tries the same on every kind of store; this is every line of the contract, value by value.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject

import streamkit
from streamkit import (
    CrossPartition,
    InvalidName,
    InvalidRecord,
    Record,
    RecordTooLarge,
    SequenceMismatch,
    Store,
    StoreClosed,
    TransactionIdMismatch,
    TransactionTooLarge,
)
from streamkit.dcb import Event, EventStore
from streamkit.eventsourcing import Aggregate, Repository, event

GOOD = Record(b"good")
ANY: Any = None


@pytest.fixture
def filled(in_memory: Subject) -> Subject:
    """A store with three entries in segment s of the space."""
    in_memory.store.produce("space", "s", [Record(b"1"), Record(b"2"), Record(b"3")], idempotency_key="used")
    return in_memory


def transact(store: Store, space: Any, *parts: tuple[Any, Any], **options: Any) -> None:
    """One transaction of (segment, records); `options` are those of the last part."""
    with store.transaction(space) as trx:
        for segment, records in parts[:-1]:
            trx.produce(segment, records)
        trx.produce(*parts[-1], **options)


# -- names ------------------------------------------------------------------------------------------------------------

ILLEGAL = {
    "empty": "",
    "star": "*",
    "NUL": "a\0b",
    "newline": "a\n",
    "tab": "\ta",
    "delete": "a\x7f",
    "C1": "\x80",
    "high surrogate": "\ud800",
    "low surrogate": "a\udfff",
    "256 bytes": "x" * 256,
    "256 bytes of two": "é" * 128,
    "256 bytes of four": "🎉" * 64,
}


@pytest.mark.parametrize("name", ILLEGAL.values(), ids=ILLEGAL)
def test_an_illegal_name_is_refused_before_anything_is_written(filled: Subject, name: str) -> None:
    store = filled.store
    with filled.nothing_written():
        for space, segment in ((name, "s"), ("space", name), (name, name)):
            with pytest.raises(InvalidName, match=r"is not legal: (it|'\*') "):
                store.produce(space, segment, [GOOD])
            with pytest.raises(InvalidName):
                store.produce(space, segment, [])
            with pytest.raises(InvalidName):
                transact(store, space, ("t", [GOOD]), (segment, [GOOD]))
            for read in (store.peek, store.segment_status, store.consume_segment, store.follow_segment):
                with pytest.raises(InvalidName):
                    read(space, segment)
            with pytest.raises(InvalidName):
                store.subscribe_to_segment(space, segment)
        calls: list[Callable[[str], object]] = [
            store.create_space,
            store.get_segments,
            store.consume_space,
            store.follow_space,
            store.subscribe_to_space,
            store.maintain,
            lambda name: store.consume({"space": None, name: None}),
        ]
        for call in calls:
            with pytest.raises(InvalidName):
                call(name)
        with pytest.raises(InvalidName, match="lease name"):
            store.lease(name)


@pytest.mark.parametrize("name", [None, b"bytes", 5, 1.5, True, ("a",)], ids=repr)
def test_a_name_that_is_no_text_is_a_type_error(filled: Subject, name: Any) -> None:
    store = filled.store
    with filled.nothing_written():
        with pytest.raises(TypeError, match="the space name must be str, not"):
            store.produce(name, "s", [GOOD])
        with pytest.raises(TypeError, match="the segment name must be str, not"):
            store.produce("space", name, [GOOD])
        with pytest.raises(TypeError, match="the segment name"):
            transact(store, "space", ("t", [GOOD]), (name, [GOOD]))
        for read in (store.get_segments, store.consume_space, store.create_space, store.follow_space):
            with pytest.raises(TypeError, match="the space name must be str, not"):
                read(name)
        with pytest.raises(TypeError):
            store.consume({name: None})


# -- records ----------------------------------------------------------------------------------------------------------


class Color(str, Enum):  # noqa: UP042 - its str() is not its text
    RED = "red"


class Kind(StrEnum):
    ORDER = "order"


@pytest.mark.parametrize(
    ("records", "says"),
    [
        (None, "iterable"),
        (5, "iterable"),
        (GOOD, "put it into a list"),
        (b"payload", "put it into a list"),
        ("payload", "put it into a list"),
        ({"a": GOOD}, "put it into a list"),
        ([b"payload"], r"streamkit.Record, not bytes: write Record\(payload\)"),
        (["payload"], "streamkit.Record, not str"),
        ([GOOD, None], "streamkit.Record, not NoneType"),
        ([GOOD, (b"x", None, None)], "streamkit.Record, not tuple"),
        ([[GOOD]], "streamkit.Record, not list"),
        ([Record("text")], "a payload is bytes, not str; encode text"),  # type: ignore[arg-type]
        ([GOOD, Record(None)], "a payload is bytes, not NoneType"),  # type: ignore[arg-type]
        ([Record(5)], "a payload is bytes, not int"),  # type: ignore[arg-type]
        ([Record({"a": 1})], r"a payload is bytes, not dict; encode it, as json\.dumps"),  # type: ignore[arg-type]
        ([Record(GOOD)], r"a payload is bytes, not Record; pass its \.payload"),  # type: ignore[arg-type]
        ([Record(bytearray(b"x"))], r"a payload is bytes, not bytearray; copy it with bytes"),  # type: ignore[arg-type]
        ([Record(memoryview(b"x"))], "a payload is bytes, not memoryview"),  # type: ignore[arg-type]
        ([Record(b"x", "text")], "metadata is a mapping of str to str, not str"),  # type: ignore[arg-type]
        ([Record(b"x", 5)], "metadata is a mapping of str to str, not int"),  # type: ignore[arg-type]
        ([Record(b"x", [("k", "v")])], "metadata is a mapping of str to str, not list"),  # type: ignore[arg-type]
        ([Record(b"x", [])], "metadata is a mapping of str to str, not list"),  # type: ignore[arg-type]
        ([Record(b"x", "")], "metadata is a mapping of str to str, not str"),  # type: ignore[arg-type]
        ([Record(b"x", {"k": 5})], "maps str to str; 'k' has a value of type int"),  # type: ignore[dict-item]
        ([Record(b"x", {"k": b"v"})], "value of type bytes"),  # type: ignore[dict-item]
        ([Record(b"x", {"k": None})], "value of type NoneType"),  # type: ignore[dict-item]
        ([Record(b"x", {"k": ["v"]})], "value of type list"),  # type: ignore[dict-item]
        ([GOOD, Record(b"x", {5: "v"})], "maps str to str; 5 "),  # type: ignore[dict-item]
        ([Record(b"x", {b"k": "v"})], "maps str to str"),  # type: ignore[dict-item]
        ([Record(b"x", None, "4")], "sequence is an int or None, not str"),  # type: ignore[arg-type]
        ([Record(b"x", None, 4.0)], "sequence is an int or None, not float"),  # type: ignore[arg-type]
        ([Record(b"x", None, True)], "sequence is an int or None, not bool"),
    ],
)
def test_what_is_no_record_is_a_type_error(filled: Subject, records: Any, says: str) -> None:
    with filled.nothing_written():
        with pytest.raises(TypeError, match=says):
            filled.store.produce("space", "s", records)
        with pytest.raises(TypeError, match=says):
            filled.store.produce("other space", "s", records)
        with pytest.raises(TypeError, match=says):
            transact(filled.store, "space", ("t", [GOOD]), ("s", records))


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (Record(b"x", None, 0), "counts from 1; it cannot be 0"),
        (Record(b"x", None, -1), "counts from 1; it cannot be -1"),
        (Record(b"x", None, -(1 << 64)), "counts from 1"),
        (Record(b"x", {"k": "\ud800"}), "lone surrogate"),
        (Record(b"x", {"\udc00": "v"}), "lone surrogate"),
        (Record(b"x", {"k": "v" * (64 << 10)}), "a record has at most 65536"),
        (Record(b"x", {str(number): "v" * 100 for number in range(1000)}), "a record has at most 65536"),
    ],
)
def test_a_record_that_cannot_be_stored_is_invalid(filled: Subject, record: Record, says: str) -> None:
    with filled.nothing_written():
        for records in ([record], [GOOD, record]):
            with pytest.raises(InvalidRecord, match=says) as caught:
                filled.store.produce("space", "s", records)
            assert isinstance(caught.value, ValueError)
            with pytest.raises(InvalidRecord, match=says):
                transact(filled.store, "space", ("t", [GOOD]), ("s", records))


def test_a_sequence_beyond_64_bits_is_refused(filled: Subject) -> None:
    with filled.nothing_written():
        for sequence in (1 << 63, 1 << 64, 1 << 100):
            with pytest.raises((SequenceMismatch, InvalidRecord)):
                filled.store.produce("space", "s", [Record(b"x", None, sequence)])
            with pytest.raises((SequenceMismatch, ValueError)):
                filled.store.produce("space", "s", [GOOD], expected_sequence=sequence)


def test_metadata_may_be_any_mapping_of_any_text(filled: Subject) -> None:
    class Lazy(Mapping[str, str]):
        def __getitem__(self, key: str) -> str:
            return key.upper()

        def __iter__(self) -> Iterator[str]:
            return iter("ab")

        def __len__(self) -> int:
            return 2

    for metadata, wanted in (
        (MappingProxyType({"k": "v"}), {"k": "v"}),
        (Lazy(), {"a": "A", "b": "B"}),
        ({Kind.ORDER: Color.RED}, {"order": "red"}),
        ({"": "", "\0": "\x7f", "é": "🎉"}, {"": "", "\0": "\x7f", "é": "🎉"}),
        ({}, {}),
    ):
        filled.store.produce("space", "s", [Record(b"x", metadata)])
        entry = filled.stranger().peek("space", "s")
        assert entry.metadata == wanted
        assert {type(text) for pair in entry.metadata.items() for text in pair} <= {str}


@pytest.mark.parametrize("at", [0, 63, 64, 199])
def test_the_metadata_of_one_of_many_is_as_that_of_one_alone(filled: Subject, at: int) -> None:
    store, name = filled.store, f"many {at}"
    for odd, wanted in (
        ({}, {}),
        (None, {}),
        ({"größe": "ein Meter"}, {"größe": "ein Meter"}),
        (MappingProxyType({"k": "v"}), {"k": "v"}),
        ({"long": "x" * 60_000}, {"long": "x" * 60_000}),
    ):
        given: list[Any] = [{"n": str(number)} for number in range(200)]
        given[at] = odd
        store.produce("space", name, [Record(b"x", metadata) for metadata in given])
        given[at] = wanted
        assert [entry.metadata for entry in store.consume_segment("space", name)][-200:] == given
    before = store.segment_status("space", name)
    for wrong, error in (({"k": 5}, TypeError), ("text", TypeError), ({"k": "x" * 70_000}, InvalidRecord)):
        given[at] = wrong
        with pytest.raises(error):
            store.produce("space", name, [Record(b"x", metadata) for metadata in given])
    assert store.segment_status("space", name) == before


def test_changing_metadata_after_it_was_produced_changes_nothing(filled: Subject) -> None:
    metadata = {"k": "v"}
    with filled.store.transaction("space") as trx:
        trx.produce("s", [Record(b"x", metadata)])
        metadata["k"] = "changed"
    assert filled.store.peek("space", "s").metadata == {"k": "v"}


class Stop(Exception):
    pass


def test_an_iterator_that_raises_half_way_writes_nothing(filled: Subject) -> None:
    def records() -> Iterator[Record]:
        yield Record(b"4")
        yield Record(b"5")
        raise Stop("half-way")

    with filled.nothing_written():
        for space, segment in (("space", "s"), ("space", "new"), ("new", "new")):
            with pytest.raises(Stop, match="half-way"):
                filled.store.produce(space, segment, records())
        with pytest.raises(Stop):
            transact(filled.store, "space", ("t", [GOOD]), ("s", records()))
    filled.store.produce("space", "s", [Record(b"4")], expected_sequence=3)


def test_a_mapping_that_raises_writes_nothing(filled: Subject) -> None:
    class Broken(dict[str, str]):
        def items(self) -> Any:
            raise Stop

        def __iter__(self) -> Any:
            raise Stop

    with filled.nothing_written(), pytest.raises(Stop):
        filled.store.produce("space", "s", [GOOD, Record(b"x", Broken(k="v"))])


# -- sequences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequences", "expected", "actual"),
    [
        ([1], 0, 3),
        ([3], 2, 3),
        ([5], 4, 3),
        ([1 << 40], (1 << 40) - 1, 3),
        ([2, 3], 1, 3),
        ([3, 4], 2, 3),
        ([None, 4], 2, 3),
        ([None, None, 7], 4, 3),
    ],
)
def test_sequences_that_are_elsewhere_are_a_mismatch(
    filled: Subject, sequences: list[int | None], expected: int, actual: int
) -> None:
    """`expected` is the last sequence that the segment would have had, `actual` the one that it has."""
    with filled.nothing_written():
        for store in (filled.store, filled.stranger()):
            with pytest.raises(SequenceMismatch, match=r"nothing was written|is at 3") as caught:
                store.produce("space", "s", [Record(b"x", None, sequence) for sequence in sequences])
            assert (caught.value.expected, caught.value.actual) == (expected, actual)


@pytest.mark.parametrize("sequences", [[4, 6], [4, 4], [5, 4], [4, 5, 7], [4, None, 5], [4, None, 7], [None, 1]])
def test_gaps_and_duplicates_are_a_mismatch(filled: Subject, sequences: list[int | None]) -> None:
    with filled.nothing_written():
        for segment in ("s", "new"):
            with pytest.raises(SequenceMismatch):
                filled.store.produce("space", segment, [Record(b"x", None, sequence) for sequence in sequences])


@pytest.mark.parametrize("expected", [0, 1, 2, 4, 5, 1 << 62])
def test_a_wrong_expectation_is_a_mismatch(filled: Subject, expected: int) -> None:
    with filled.nothing_written():
        for store in (filled.store, filled.stranger()):
            with pytest.raises(SequenceMismatch, match=f"expected at sequence {expected} and is at 3") as caught:
                store.produce("space", "s", [GOOD], expected_sequence=expected)
            assert (caught.value.expected, caught.value.actual) == (expected, 3)
            with pytest.raises(SequenceMismatch):
                transact(store, "space", ("t", [GOOD]), ("s", [GOOD]), expected_sequence=expected)


@pytest.mark.parametrize("expected", ["3", 3.0, True, b"3", [3], ...], ids=repr)
def test_an_expectation_of_another_type_is_a_type_error(filled: Subject, expected: Any) -> None:
    with filled.nothing_written():
        for records in ([GOOD], []):
            with pytest.raises(TypeError, match="expected_sequence is an int or None, not"):
                filled.store.produce("space", "s", records, expected_sequence=expected)
            with pytest.raises(TypeError, match="expected_sequence is an int or None, not"):
                transact(filled.store, "space", ("s", records), expected_sequence=expected)


def test_a_negative_expectation_is_a_value_error(filled: Subject) -> None:
    with filled.nothing_written(), pytest.raises(ValueError, match="from 0, not -1"):
        filled.store.produce("space", "s", [GOOD], expected_sequence=-1)


def test_an_expectation_and_sequences_must_agree(filled: Subject) -> None:
    with filled.nothing_written():
        for expected, sequence in ((3, 5), (2, 4), (3, 3), (0, 4), (4, 4)):
            with pytest.raises(SequenceMismatch):
                filled.store.produce("space", "s", [Record(b"x", None, sequence)], expected_sequence=expected)


# -- size -------------------------------------------------------------------------------------------------------------


def test_what_is_larger_than_the_setting_is_refused_before_it_is_sent(filled: Subject) -> None:
    store = filled.stranger(max_transaction_bytes=1000)
    with filled.nothing_written():
        with pytest.raises(RecordTooLarge, match="a record of 1001 bytes; one record holds at most 1000") as caught:
            store.produce("space", "s", [Record(bytes(1001))])
        assert isinstance(caught.value, ValueError)
        for records in ([Record(bytes(501))] * 2, [Record(bytes(1))] * 1001):
            with pytest.raises(TransactionTooLarge, match=r"100[12] bytes of payload; one holds at most 1000") as large:
                store.produce("space", "s", records)
            assert isinstance(large.value, ValueError)
        with pytest.raises(TransactionTooLarge, match="1002 bytes"):
            transact(store, "space", ("s", [Record(bytes(501))]), ("t", [Record(bytes(501))]))
    store.produce("space", "s", [Record(bytes(500)), Record(bytes(500))])
    with store.transaction("space") as trx:
        trx.produce("s", [Record(bytes(999))])
        trx.produce("t", [Record(bytes(1))])
    assert len(list(filled.stranger().consume_segment("space", "s"))) == 6


def test_the_largest_transaction_is_taken_and_one_byte_more_is_not(filled: Subject) -> None:
    most = 64 << 20
    half = bytes(range(256)) * (most // 512)
    with filled.nothing_written():
        with pytest.raises(RecordTooLarge):
            filled.store.produce("space", "s", [Record(half + half + b"x")])
        with pytest.raises(TransactionTooLarge):
            filled.store.produce("space", "s", [Record(half), Record(half), Record(b"x")])
    filled.store.produce("space", "s", [Record(half), Record(half)])
    assert [entry.payload for entry in filled.stranger().consume_segment("space", "s", min_sequence=4)] == [half, half]


APPENDS: dict[str, Callable[[Store, list[Record]], object]] = {
    "produce": lambda store, records: store.produce("space", "s", records),
    "with-key": lambda store, records: store.produce("space", "s", records, idempotency_key="key"),
    "transaction": lambda store, records: transact(store, "space", ("s", records)),
    "segments": lambda store, records: transact(store, "space", *((f"s{at}", [one]) for at, one in enumerate(records))),
    "queue": lambda store, records: [
        store.queue("space").put(record.payload, metadata=record.metadata) for record in records
    ],
    "dcb": lambda store, records: EventStore(store, "space").append(
        [Event("type", record.payload, metadata=record.metadata or {}) for record in records]
    ),
}


@pytest.mark.parametrize("append", APPENDS)
def test_metadata_does_not_count_as_payload(filled: Subject, append: str) -> None:
    store = filled.stranger(max_transaction_bytes=1000)
    metadata = {"n": "v" * 60_000}
    many = 1 if append == "queue" else 2  # one put is one transaction
    with pytest.raises((RecordTooLarge, TransactionTooLarge)):
        APPENDS[append](store, [Record(bytes(1001 // many + many - 1), metadata)] * many)
    APPENDS[append](store, [Record(bytes(1000 // many), metadata)] * many)


def test_the_setting_is_for_callers_records_and_not_for_internal_state(
    filled: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    class Total(Aggregate):
        def __init__(self) -> None:
            super().__init__()
            self.texts: list[str] = []

        @event
        def add(self, text: str) -> None:
            self.texts.append(text)

    store = filled.stranger(max_transaction_bytes=100)
    for at in range(300):
        store.produce("source", "s", [Record(b"%d" % at)])
    group = store.group("source", "g", max_pending=500)
    with group.consumer("c") as consumer:
        while received := consumer.receive(limit=50, wait=0):
            for delivery in received:
                consumer.ack(delivery)
    assert store.route("r", source="source", target="copy").catch_up().copied == 300
    repository = Repository(store, "totals", Total, snapshot_every=3)
    for _ in range(6):
        total = repository.load("t")
        total.add("text" * 10)
        repository.save(total)
    assert filled.stranger().group("source", "g", max_pending=500).status().lag == 0
    assert "could not be written" not in caplog.text


@pytest.mark.parametrize(("wrong", "error"), [("1", TypeError), (1.5, TypeError), (True, TypeError), (0, ValueError)])
def test_the_setting_itself_is_checked(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_transaction_bytes is"):
        streamkit.connect("memory://", max_transaction_bytes=wrong)


# -- transactions, keys, leases, spaces -------------------------------------------------------------------------------


def test_a_transaction_over_two_partitions_is_refused_before_it_is_sent(in_memory: Subject) -> None:
    in_memory.store.create_space("space", partitions=4)
    with in_memory.nothing_written(), pytest.raises(CrossPartition, match="common part in braces") as caught:
        transact(in_memory.store, "space", *((f"s{number}", [GOOD]) for number in range(10)))
    assert isinstance(caught.value, ValueError)


def test_an_ended_transaction_takes_no_more(filled: Subject) -> None:
    with filled.store.transaction("space") as trx:
        trx.produce("t", [GOOD])
    with filled.nothing_written(), pytest.raises(StoreClosed, match="the transaction has ended: begin another one"):
        trx.produce("t", [GOOD])


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (5, TypeError),
        (b"key", TypeError),
        (True, TypeError),
        (["key"], TypeError),
        ("", ValueError),
        ("\ud800", ValueError),
    ],
)
def test_a_wrong_idempotency_key_is_refused(filled: Subject, key: Any, error: type[Exception]) -> None:
    with filled.nothing_written():
        for records in ([GOOD], []):
            with pytest.raises(error, match="an idempotency key"):
                filled.store.produce("space", "s", records, idempotency_key=key)
        with pytest.raises(error, match="an idempotency key"):
            filled.store.transaction("space", idempotency_key=key)


def test_a_key_that_was_used_with_other_content_is_refused(filled: Subject) -> None:
    with filled.nothing_written():
        for store in (filled.store, filled.stranger()):
            for records in (
                [Record(b"1")],
                [Record(b"1"), Record(b"2"), Record(b"4")],
                [Record(b"1\0002"), Record(b"3")],
            ):
                with pytest.raises(TransactionIdMismatch, match="a key names one transaction"):
                    store.produce("space", "s", records, idempotency_key="used")
            with pytest.raises(TransactionIdMismatch):
                store.produce("space", "t", [Record(b"1"), Record(b"2"), Record(b"3")], idempotency_key="used")
        again = filled.store.produce("space", "s", [Record(b"1"), Record(b"2"), Record(b"3")], idempotency_key="used")
    assert again.last_sequence == 3


@pytest.mark.parametrize("lease", ["leader", 5, object(), ("leader", 1)], ids=lambda lease: type(lease).__name__)
def test_a_lease_is_what_the_store_gave(filled: Subject, lease: Any) -> None:
    with filled.nothing_written():
        for records in ([GOOD], []):
            with pytest.raises(TypeError, match=r"lease is what `store\.lease"):
                filled.store.produce("space", "s", records, lease=lease)
        with pytest.raises(TypeError, match=r"lease is what `store\.lease"):
            filled.store.transaction("space", lease=lease)


def test_a_lease_that_was_never_held_writes_nothing(filled: Subject) -> None:
    with filled.nothing_written(), pytest.raises(streamkit.LeaseLost, match="is not held"):
        filled.store.produce("space", "s", [GOOD], lease=filled.store.lease("leader"))


def test_a_lease_of_another_store_is_refused(filled: Subject) -> None:
    store, other = filled.store, filled.client.store(uuid4())
    with other.lease("leader") as lease, filled.nothing_written():
        for records in ([GOOD], []):
            with pytest.raises(ValueError, match=f"of the store {other.id}, and the write is to the store {store.id}"):
                store.produce("space", "s", records, lease=lease)
        with pytest.raises(ValueError, match="take a lease of the store that you write to"):
            store.transaction("space", lease=lease)
    with store.lease("leader") as lease:
        assert filled.stranger().produce("space", "s", [GOOD], lease=lease).last_sequence == 4


def test_a_lease_that_was_never_held_says_so() -> None:
    store = streamkit.connect("memory://never-held").store(uuid4())
    with pytest.raises(streamkit.LeaseLost, match="is not held: use it inside"):
        store.lease("leader").check()


def test_a_transaction_that_the_end_of_the_program_drops_is_named(tmp_path: Path) -> None:
    program = f"""
import streamkit
store = streamkit.connect("file://{tmp_path}").store("7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55")
trx = store.transaction("orders")
trx.produce("order-42", [streamkit.Record(b"placed")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "a transaction on the space 'orders' was dropped with 1 part, and nothing was written" in done.stderr
    assert "Traceback" not in done.stderr
