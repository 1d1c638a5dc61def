"""Writing to one segment: accepted and refused writes. A refusal writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streamkit.errors import InvalidRecord, RecordTooLarge, SequenceMismatch, TransactionTooLarge
from streamkit.lexkey import LexKey
from streamkit.model import Record, SegmentStatus
from streamkit.store import Store
from streamkit.testing.backend_checks.subject import Broken, hold, same

from .subject import StoreSubject, numbered, refusing

__all__ = ["Producing"]

MOST = 64 << 20
"""The most bytes of payload in one transaction, unless connect() says otherwise."""


class Producing(StoreSubject):
    def test_sequences_are_dense_from_1(self) -> None:
        """Sequences did not count 1, 2, 3 … over several batches, or entries came back changed."""
        for space in self.spaces():
            for first, last in ((1, 1), (2, 3), (4, 10), (11, 11)):
                status = self.store.produce(space, "s", [Record(payload) for payload in numbered(first, last)])
                same((status.first_sequence, status.last_sequence), (1, last), "first and last sequence of the status")
            same(self.payloads(space, "s"), numbered(1, 11), "the payloads in order")
            self.agree(space)
            self.agree(space, self.stranger())

    def test_the_status_says_what_was_written(self) -> None:
        """produce returned another status than the segment has, or no transaction."""
        for space in self.spaces():
            first = self.store.produce(space, "s", [Record(b"1")])
            hold(isinstance(first, SegmentStatus), f"produce returned a {type(first).__name__}")
            second = self.store.produce(space, "s", [Record(b"2"), Record(b"3")])
            same((second.space, second.segment), (space, "s"), "the names in the status")
            entries = list(self.stranger().consume_segment(space, "s"))
            same(second.first_timestamp, entries[0].timestamp, "first_timestamp")
            same(second.last_timestamp, entries[2].timestamp, "last_timestamp")
            same([first.trx, second.trx, second.trx], [entry.trx for entry in entries], "the transactions")
            same(self.store.segment_status(space, "s"), second, "the status as it is read")
            same((entries[0].trx.number, entries[1].trx.number), (1, 2), "the transaction numbers")
            hold(entries[0].trx.id != entries[1].trx.id, "two transactions have one id")
            same(entries[0].trx.node, entries[1].trx.node, "the node of two transactions of one store")

    def test_any_payload_and_metadata_come_back(self) -> None:
        """A payload or metadata came back changed."""
        records = [
            Record(b""),
            Record(bytes(range(256)) * 5),
            Record(b"x" * 100_000, {"content-type": "text/plain", "": "", "é🎉": "\0\n'\""}),
            Record(b"\x28\xb5\x2f\xfd", {}),
            Record(b"SKTX" * 2000, {"k" * 1000: "v" * 60_000}),
            Record(b"\xff", None),
            Record(LexKey.encode("a kind of bytes")),
        ]
        for space in self.spaces():
            for index, record in enumerate(records):
                self.store.produce(space, "alone", [record])
                entry = self.store.peek(space, "alone")
                same(entry.payload, record.payload, f"payload {index}")
                same(dict(entry.metadata), dict(record.metadata or {}), f"metadata {index}")
            self.store.produce(space, "together", records)
            for segment in ("alone", "together"):
                found = list(self.stranger().consume_segment(space, segment))
                same([entry.payload for entry in found], [record.payload for record in records], "payloads")
                wanted = [dict(record.metadata or {}) for record in records]
                same([dict(entry.metadata) for entry in found], wanted, "metadata")
            self.agree(space)

    def test_entries_are_immutable(self) -> None:
        """A field of an entry, a record or a status could be changed, or an entry's metadata."""
        status = self.store.produce("space", "s", [Record(b"1", {"k": "v"})])
        for value, field in ((self.store.peek("space", "s"), "sequence"), (status, "space"), (Record(b""), "payload")):
            try:
                setattr(value, field, getattr(value, field))
            except AttributeError:
                continue
            raise Broken(f"{type(value).__name__}.{field} could be set")
        entry = self.store.peek("space", "s")
        hold(hash(entry.trx) == hash(status.trx), "two equal transactions have different hashes")
        for metadata in (entry.metadata, next(self.store.consume_segment("space", "s")).metadata):
            with refusing(TypeError, "a change of an entry's metadata"):
                metadata["k"] = "x"  # type: ignore[index]
        same(dict(self.store.peek("space", "s").metadata), {"k": "v"}, "the metadata as a later reader gets it")

    def test_any_iterable_of_records_is_taken(self) -> None:
        """A generator or tuple of records was not taken as a list is."""

        def generate() -> Iterator[Record]:
            for payload in numbered(1, 3):
                yield Record(payload)

        self.store.produce("space", "s", generate())
        self.store.produce("space", "s", tuple(Record(payload) for payload in numbered(4, 5)))
        self.store.produce("space", "s", {0: Record(b"6")}.values())
        same(self.payloads("space", "s"), numbered(1, 6), "the payloads")

    def test_an_iterator_that_raises_writes_nothing(self) -> None:
        """Records before the one at which their iterator raised were written, or the error was another one."""

        class Stop(Exception):
            pass

        def generate() -> Iterator[Record]:
            yield Record(b"1")
            raise Stop

        self.put("space", "s", [b"0"])
        for segment in ("s", "new"):
            with self.nothing_written("space"), refusing(Stop, "an iterator that raises"):
                self.store.produce("space", segment, generate())

    def test_an_empty_batch_writes_and_creates_nothing(self) -> None:
        """An empty batch wrote something, created something, or returned another status than the present one."""
        status = self.store.produce("space", "s", [])
        same((status.space, status.segment, status.last_sequence), ("space", "s", 0), "the status of no segment")
        same(list(self.stranger().get_spaces()), [], "the spaces after an empty batch")
        hold(self.store_id not in set(self.client.stores()), "an empty batch created the store")
        written = self.store.produce("space", "s", [Record(b"1")])
        same(self.store.produce("space", "s", iter(())), written, "the status that an empty batch returns")
        same(self.store.produce("space", "s", [], expected_sequence=1), written, "an empty batch with expectation")
        with self.store.transaction("space") as trx:
            trx.produce("other", [])
        with self.store.transaction("empty"):
            pass
        same(list(self.stranger().get_segments("space")), ["s"], "the segments after empty batches")
        same(list(self.stranger().get_spaces()), ["space"], "the spaces after empty batches")

    def test_an_expectation_that_holds_is_met(self) -> None:
        """A write with the right expected_sequence, or with the right sequences, was refused or placed elsewhere."""
        for space in self.spaces():
            self.store.produce(space, "s", [Record(b"1")], expected_sequence=0)
            self.store.produce(space, "s", [Record(b"2"), Record(b"3")], expected_sequence=1)
            self.store.produce(space, "s", [Record(b"4", None, 4), Record(b"5", None, 5)])
            self.store.produce(space, "s", [Record(b"6", None, 6), Record(b"7")], expected_sequence=5)
            self.stranger().produce(space, "s", [Record(b"8")], expected_sequence=7)
            self.store.produce(space, "s", [Record(b"9")], expected_sequence=8)
            self.store.produce(space, "t", [Record(b"1", sequence=1)], expected_sequence=0)
            same(self.payloads(space, "s"), numbered(1, 9), "the payloads")
            self.agree(space)

    def test_an_expectation_that_does_not_hold_writes_nothing(self) -> None:
        """A write was made although the segment was elsewhere, or the error did not say where."""
        for space in self.spaces():
            self.put(space, "s", numbered(1, 3))
            cases: list[tuple[str, int | None, list[int | None], int, int]] = [
                ("s", 0, [None], 0, 3),
                ("s", 2, [None, None], 2, 3),
                ("s", 4, [None], 4, 3),
                ("s", 1 << 40, [None], 1 << 40, 3),
                ("new", 1, [None], 1, 0),
                ("s", None, [3], 2, 3),
                ("s", None, [5], 4, 3),
                ("s", None, [3, 4], 2, 3),
                ("new", None, [2], 1, 0),
                ("s", 2, [3], 2, 3),
            ]
            for store in (self.store, self.stranger()):
                with self.nothing_written(space):
                    for segment, expected, sequences, wanted, actual in cases:
                        records = [Record(b"x", sequence=sequence) for sequence in sequences]
                        what = f"expected_sequence={expected}, sequences {sequences}, where the last is {actual}"
                        with refusing(SequenceMismatch, what) as refusal:
                            store.produce(space, segment, records, expected_sequence=expected)
                        found = (refusal.error.expected, refusal.error.actual)
                        same(found, (wanted, actual), f"expected and actual of the mismatch, {what}")

    def test_an_expectation_without_records_is_a_guard(self) -> None:
        """An empty part with an expectation was not checked, alone or in a transaction beside others."""
        for space in self.spaces():
            self.put(space, "{t}s", numbered(1, 3))
            stranger = self.stranger()
            same(stranger.segment_status(space, "{t}s").last_sequence, 3, "the segment, as another process knows it")
            self.put(space, "{t}s", numbered(4, 4))
            for store in (self.store, stranger, self.stranger()):
                for segment, expected, actual in (("{t}s", 3, 4), ("{t}s", 5, 4), ("{t}new", 1, 0)):
                    what = f"expected_sequence={expected} without records, where the last is {actual}"
                    with self.nothing_written(space):
                        with refusing(SequenceMismatch, what) as refusal:
                            store.produce(space, segment, [], expected_sequence=expected)
                        same(
                            (refusal.error.expected, refusal.error.actual), (expected, actual), f"the mismatch, {what}"
                        )
                        for first, second in (("{t}w", segment), (segment, "{t}w")):
                            with refusing(SequenceMismatch, f"{what}, in a transaction") as refusal:
                                self._guarded(store, space, (first, second), segment, expected)
                            found = (refusal.error.expected, refusal.error.actual)
                            same(found, (expected, actual), f"the mismatch, {what}, in a transaction")
                same(store.produce(space, "{t}s", [], expected_sequence=4).last_sequence, 4, "a guard that holds")
            self._guarded(stranger, space, ("{t}s", "{t}w"), "{t}s", 4)
            same(self.payloads(space, "{t}w"), [b"guarded"], "what was written beside a guard that holds")

    def _guarded(self, store: Store, space: str, segments: tuple[str, str], guard: str, expected: int) -> None:
        with store.transaction(space) as trx:
            for segment in segments:
                if segment == guard:
                    trx.produce(segment, [], expected_sequence=expected)
                else:
                    trx.produce(segment, [Record(b"guarded")])

    def test_sequences_that_do_not_follow_write_nothing(self) -> None:
        """Records with gaps, duplicates or steps back in their sequences were written."""
        self.put("space", "s", numbered(1, 3))
        unexpected: list[list[int | None]] = [[4, 4], [4, 6], [5, 4], [4, None, 7], [None, 4, 6], [None, 1]]
        expecting: list[tuple[int, list[int | None]]] = [(3, [5]), (3, [3]), (2, [4]), (3, [4, 6]), (0, [4])]
        cases = [*((None, sequences) for sequences in unexpected), *expecting]
        with self.nothing_written("space"):
            for expected, sequences in cases:
                records = [Record(b"x", sequence=sequence) for sequence in sequences]
                with refusing(SequenceMismatch, f"sequences {sequences} with expected_sequence={expected}"):
                    self.store.produce("space", "s", records, expected_sequence=expected)

    def test_wrong_records_write_nothing(self) -> None:
        """Something that is no record, or a record that cannot be stored, was taken, or ended in another error."""
        self.put("space", "s", [b"1"])
        record: Any = Record
        good = record(b"x")

        class Text(str):
            pass

        cases: list[tuple[type[Exception], Any]] = [
            *((TypeError, wrong) for wrong in (None, 5, b"x", "x", good, {"a": good}, [b"x"], ["x"], [None], [[good]])),
            *((TypeError, [good, wrong]) for wrong in (None, b"x", object(), ("x", {}, 1))),
            *((TypeError, [good, record(wrong)]) for wrong in (None, "x", 5, [1], object())),
            *((TypeError, [record(b"x", wrong)]) for wrong in (5, "k", [("k", "v")], [], "", 0)),
            *((TypeError, [record(b"x", wrong)]) for wrong in ({"k": 1}, {"k": b"v"}, {"k": None}, {1: "v"})),
            *((TypeError, [record(b"x", None, wrong)]) for wrong in ("1", 1.0, True, b"1")),
            *((InvalidRecord, [record(b"x", None, wrong)]) for wrong in (0, -1, -(1 << 70))),
            *((InvalidRecord, [record(b"x", wrong)]) for wrong in ({"k": "\ud800"}, {"\udfff": "v"})),
            (InvalidRecord, [record(b"x", {"k": "v" * (64 << 10)})]),
        ]
        hold(issubclass(InvalidRecord, ValueError), "InvalidRecord is no ValueError")
        with self.nothing_written("space"):
            for error, wrong in cases:
                with refusing(error, f"produce of {str(wrong)[:80]}"):
                    self.store.produce("space", "s", wrong)
        self.store.produce("space", "s", [Record(b"2", {Text("k"): Text("v")})])
        same(dict(self.store.peek("space", "s").metadata), {"k": "v"}, "metadata of a kind of str")

    def test_wrong_arguments_write_nothing(self) -> None:
        """An argument of the wrong type or value was taken, or ended in another error."""
        self.put("space", "s", [b"1"])
        cases: list[tuple[type[Exception], dict[str, Any]]] = [
            *((TypeError, {"expected_sequence": wrong}) for wrong in ("1", 1.0, True, b"1", [1])),
            *((ValueError, {"expected_sequence": wrong}) for wrong in (-1, -(1 << 70))),
            *((TypeError, {"idempotency_key": wrong}) for wrong in (1, b"key", True, ["key"])),
            *((ValueError, {"idempotency_key": wrong}) for wrong in ("", "\ud800")),
            *((TypeError, {"lease": wrong}) for wrong in ("leader", 1, object())),
        ]
        with self.nothing_written("space"):
            for error, wrong in cases:
                for records in ([Record(b"x")], []):
                    with refusing(error, f"produce of {len(records)} records with {wrong}"):
                        self.store.produce("space", "s", records, **wrong)

    def test_what_is_too_large_writes_nothing(self) -> None:
        """A record or transaction above the limit was taken, split, or refused with another error."""
        self.put("space", "s", [b"1"])
        half = Record(bytes(MOST // 2 + 1))
        for error in (RecordTooLarge, TransactionTooLarge):
            hold(issubclass(error, ValueError), f"{error.__name__} is no ValueError")
        with self.nothing_written("space"):
            with refusing(RecordTooLarge, "a record of 64 MiB and 1 byte"):
                self.store.produce("space", "s", [Record(bytes(MOST + 1))])
            with refusing(TransactionTooLarge, "two records above 64 MiB together"):
                self.store.produce("space", "s", [half, half])
            with refusing(TransactionTooLarge, "a transaction above 64 MiB"), self.store.transaction("space") as trx:
                trx.produce("s", [half])
                trx.produce("t", [half])

    def test_timestamps_are_milliseconds_and_never_go_back(self) -> None:
        """Timestamps went back within a partition, or are not those of a transaction."""
        for space in self.spaces():
            for turn in range(5):
                with self.store.transaction(space) as trx:
                    trx.produce("{a}1", [Record(b"x")] * 2)
                    trx.produce("{a}2", [Record(b"x")])
                self.put(space, "{a}3", [b"%d" % turn], self.stranger())
            entries = [entry for entry in self.store.consume_space(space) if entry.segment.startswith("{a}")]
            stamps = [entry.timestamp for entry in entries]
            same(stamps, sorted(stamps), "the timestamps of a partition")
            hold(1.5e12 < stamps[0] < 1e13, f"the timestamp {stamps[0]} is not in milliseconds since 1970")
            by_number = {(entry.trx.number, entry.timestamp) for entry in entries}
            same(len(by_number), len({number for number, _ in by_number}), "timestamps, against transactions")
