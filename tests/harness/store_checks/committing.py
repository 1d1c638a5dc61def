"""Transactions over several segments, and the promises of an idempotency key."""

from __future__ import annotations

import gc
import warnings

from streamkit.errors import CrossPartition, SequenceMismatch, StoreClosed, TransactionIdMismatch
from streamkit.lexkey import LexKey
from streamkit.model import Record
from streamkit.retention import Retention
from streamkit.space import SpaceSettings
from streamkit.testing.backend_checks.subject import hold, same

from .subject import StoreSubject, numbered, refusing

__all__ = ["Committing"]


class Committing(StoreSubject):
    def test_a_transaction_writes_all_its_segments(self) -> None:
        """A part of a transaction was missing, misplaced, or not of the one transaction."""
        for space in self.spaces():
            self.put(space, "{t}b", numbered(1, 2))
            with self.store.transaction(space) as trx:
                trx.produce("{t}a", [Record(b"1", {"k": "a"})])
                trx.produce("{t}b", [Record(b"3"), Record(b"4")], expected_sequence=2)
                trx.produce("{t}c", [Record(b"1", sequence=1)], expected_sequence=0)
                trx.produce("{t}a", [Record(b"2"), Record(b"3")])
            for store in (self.store, self.stranger()):
                same(self.payloads(space, "{t}a", store), numbered(1, 3), "a segment that was given two parts")
                same(self.payloads(space, "{t}b", store), numbered(1, 4), "a segment that was there before")
                same(self.payloads(space, "{t}c", store), numbered(1, 1), "a new segment")
            entries = [entry for entry in self.agree(space) if entry.trx.number == 2]
            same(len(entries), 6, "the entries of the transaction")
            same({entry.trx for entry in entries}, {trx.trx}, "the transaction of its entries")
            wanted = [("{t}a", 1), ("{t}b", 3), ("{t}b", 4), ("{t}c", 1), ("{t}a", 2), ("{t}a", 3)]
            same([(entry.segment, entry.sequence) for entry in entries], wanted, "the order within the transaction")
            same(set(trx.statuses), {"{t}a", "{t}b", "{t}c"}, "the segments of the transaction's statuses")
            for segment, status in trx.statuses.items():
                same(status, self.store.segment_status(space, segment), f"the status of {segment}")

    def test_a_transaction_that_is_refused_writes_nothing(self) -> None:
        """One part's expectation did not hold, and another part was written."""
        for space in self.spaces():
            self.put(space, "{t}a", numbered(1, 2))
            with (
                self.nothing_written(space),
                refusing(SequenceMismatch, "a transaction with an expectation that does not hold") as refusal,
                self.store.transaction(space) as trx,
            ):
                trx.produce("{t}b", [Record(b"1")])
                trx.produce("{t}a", [Record(b"3")], expected_sequence=1)
                trx.produce("{t}c", [Record(b"1")])
            same((refusal.error.expected, refusal.error.actual), (1, 2), "expected and actual of the mismatch")

    def test_expectations_within_a_transaction_count_its_own_parts(self) -> None:
        """A transaction's second part for a segment was not placed after the first."""
        with self.store.transaction("space") as trx:
            trx.produce("a", [Record(b"1")], expected_sequence=0)
            trx.produce("a", [Record(b"2")], expected_sequence=1)
            trx.produce("a", [Record(b"3", sequence=3)])
        same(self.payloads("space", "a"), numbered(1, 3), "three parts of one transaction")
        with (
            self.nothing_written("space"),
            refusing(SequenceMismatch, "the same expectation twice"),
            self.store.transaction("space") as trx,
        ):
            trx.produce("a", [Record(b"4")], expected_sequence=3)
            trx.produce("a", [Record(b"5")], expected_sequence=3)

    def test_a_block_that_raises_writes_nothing(self) -> None:
        """A transaction was committed although its block raised, or the error was another one."""

        class Stop(Exception):
            pass

        with (
            self.nothing_written("space"),
            refusing(Stop, "a block that raises"),
            self.store.transaction("space") as trx,
        ):
            trx.produce("s", [Record(b"1")])
            raise Stop
        with self.store.transaction("space") as trx:
            trx.produce("s", [Record(b"1")])
        with refusing(StoreClosed, "produce after the end of the transaction"):
            trx.produce("s", [Record(b"2")])
        same(self.payloads("space", "s"), [b"1"], "the segment after the transaction")

    def test_a_transaction_stays_on_one_partition(self) -> None:
        """A transaction over two partitions was taken, or one with a common part in braces was refused."""
        self.store.create_space("space", partitions=4)
        with self.store.transaction("space") as trx:
            for number in range(10):
                trx.produce(f"{{order-42}}/{number}", [Record(b"x")])
        same(len({entry.trx for entry in self.store.consume_space("space")}), 1, "transactions")
        hold(issubclass(CrossPartition, ValueError), "CrossPartition is no ValueError")
        with (
            self.nothing_written("space"),
            refusing(CrossPartition, "ten segments of four partitions"),
            self.store.transaction("space") as trx,
        ):
            for number in range(10):
                trx.produce(f"order-42/{number}", [Record(b"x")])

    def test_many_segments_commit_together(self) -> None:
        """A transaction over many segments was torn, or an entry of it got lost."""
        for space in self.spaces():
            for turn in range(2):
                with self.store.transaction(space) as trx:
                    for number in range(120):
                        trx.produce(f"{{t}}{number}", [Record(b"%d" % turn)])
            entries = self.agree(space)
            same(len(entries), 240, "the entries")
            same({entry.trx.number for entry in entries}, {1, 2}, "the transactions")

    def test_an_idempotency_key_gives_the_first_result_again(self) -> None:
        """The same key with the same records wrote twice, or gave another result."""
        for space in self.spaces():
            records = [Record(b"1", {"k": "v"}), Record(b"2")]
            first = self.store.produce(space, "s", records, idempotency_key="key")
            self.put(space, "s", [b"3"])
            self.put(space, "t", [b"1"])
            for store in (self.store, self.stranger()):
                again = store.produce(space, "s", list(records), idempotency_key="key")
                same(again, first, "the status of the repetition")
                same(again.trx, first.trx, "the transaction of the repetition")
            other = self.store.produce(space, "s", records, idempotency_key="other key")
            same((other.first_sequence, other.last_sequence), (1, 5), "the status after another key")
            self.put(space, "s", [b"6"], self.stranger())
            self.stranger().maintain()
            again = self.stranger().produce(space, "s", records, idempotency_key="key")
            same((again, again.trx), (first, first.trx), "the repetition after maintain()")
            same(self.payloads(space, "s"), [b"1", b"2", b"3", b"1", b"2", b"6"], "the segment")
            self.agree(space)

    def test_an_idempotency_key_is_for_one_content(self) -> None:
        """A key that was used before was taken for other records, or refused with another error."""
        for space in self.spaces():
            self.store.produce(space, "s", [Record(b"1", {"k": "v"}), Record(b"2")], idempotency_key="key")
            others = (
                [Record(b"1", {"k": "v"})],
                [Record(b"1", {"k": "w"}), Record(b"2")],
                [Record(b"1"), Record(b"2")],
                [Record(b"1", {"k": "v"}), Record(b"2"), Record(b"3")],
                [Record(b"2"), Record(b"1", {"k": "v"})],
            )
            with self.nothing_written(space):
                for store in (self.store, self.stranger()):
                    for records in others:
                        with refusing(TransactionIdMismatch, f"the key of other records, with {records}"):
                            store.produce(space, "s", records, idempotency_key="key")

    def test_an_idempotency_key_covers_a_whole_transaction(self) -> None:
        """A transaction with a key was committed twice, or its repetition gave another result."""
        results = []
        for space in self.spaces():
            for store in (self.store, self.stranger(), self.store):
                with store.transaction(space, idempotency_key="key") as trx:
                    trx.produce("{t}a", [Record(b"1"), Record(b"2")])
                    trx.produce("{t}b", [Record(b"1")])
                results.append((trx.trx, trx.statuses))
            same(results[1:], results[:1] * 2, "the results of the repetitions")
            results.clear()
            same(len(self.agree(space)), 3, "the entries")
            with (
                self.nothing_written(space),
                refusing(TransactionIdMismatch, "the key with another segment"),
                self.store.transaction(space, idempotency_key="key") as trx,
            ):
                trx.produce("{t}a", [Record(b"1"), Record(b"2")])
                trx.produce("{t}c", [Record(b"1")])

    def test_an_idempotency_key_holds_whatever_was_expected(self) -> None:
        """A repetition with expected_sequence was refused, although the first try had written."""
        first = self.store.produce("space", "s", [Record(b"1")], expected_sequence=0, idempotency_key="key")
        for store in (self.store, self.stranger()):
            again = store.produce("space", "s", [Record(b"1")], expected_sequence=0, idempotency_key="key")
            same((again, again.trx), (first, first.trx), "the repetition")
        with refusing(SequenceMismatch, "a new key with an expectation that does not hold"):
            self.store.produce("space", "s", [Record(b"1")], expected_sequence=0, idempotency_key="new")
        self.store.produce("space", "s", [Record(b"2")], expected_sequence=1, idempotency_key="new")
        same(self.payloads("space", "s"), numbered(1, 2), "the segment")

    def test_keys_are_kept_apart_by_space(self) -> None:
        """A key of one space was known in another."""
        for space in ("a", "b"):
            self.store.produce(space, "s", [Record(space.encode())], idempotency_key="key")
        same(self.payloads("b", "s"), [b"b"], "the second space")

    def test_outcome_tells_what_is_committed(self) -> None:
        """outcome() of a transaction that is committed, or of one that never was, was wrong."""
        for space in self.spaces():
            trxs = [self.store.produce(space, "s", [Record(b"x")]).trx for _ in range(5)]
            for store in (self.store, self.stranger()):
                for trx in trxs[::2]:
                    hold(trx is not None, "the status has no transaction")
                    assert trx is not None
                    same(store.outcome(trx.id), "committed", "the outcome of a committed transaction")
                    same(store.outcome(str(trx.id)), "committed", "the outcome by text")
        same(self.store.outcome("00000000-0000-7000-8000-000000000000"), "absent", "the outcome of no transaction")
        with refusing(TypeError, "outcome(5)"):
            self.store.outcome(5)  # type: ignore[arg-type]
        with refusing(ValueError, "outcome('x')"):
            self.store.outcome("x")

    def test_a_transaction_tells_whether_it_was_replayed(self) -> None:
        """A transaction whose key was used before did not tell so, or another one did."""
        for space in self.spaces():
            told = []
            for store, key in ((self.store, "k"), (self.store, "k"), (self.stranger(), "k"), (self.store, None)):
                with store.transaction(space, idempotency_key=key) as trx:
                    trx.produce("s", [Record(b"1")])
                told.append(trx.replayed)
            same(told, [False, True, True, False], "what transactions tell of being replayed")

    def test_the_settings_of_a_space_can_be_read(self) -> None:
        """The settings of a space were not those that it was given last."""
        same(self.store.space_settings("s"), None, "the settings of a space that does not exist")
        self.store.create_space("s", durability="committed", idempotency_window=100.0, archive_grace=50.0)
        for store in (self.store, self.stranger()):
            told = store.space_settings("s")
            same(told, SpaceSettings(1, "committed", 100.0, 50.0, Retention()), "the settings of a new space")
        self.store.set_retention("s", Retention(max_entries=7, per="space"))
        self.store.change_space("s", idempotency_window=200.0)
        self.store.maintain()
        for store in (self.store, self.stranger()):
            told = store.space_settings("s")
            wanted = SpaceSettings(1, "committed", 200.0, 50.0, Retention(max_entries=7, per="space"))
            same(told, wanted, "the settings of a space that was changed")

    def test_a_keys_first_result_can_be_looked_up(self) -> None:
        """`lookup` did not return the first write's result, or returned it for another key; or the error about other
        content lacks it."""
        same(self.store.lookup("unknown", "key"), None, "a key in a space that does not exist")
        for space in self.spaces():
            self.put(space, "{t}a", [b"before"])
            with self.store.transaction(space, idempotency_key="both") as trx:
                trx.produce("{t}a", [Record(b"1"), Record(b"2")])
                trx.produce("{t}b", [Record(b"3")])
            alone = self.store.produce(space, "s", [Record(b"4")], idempotency_key="alone")
            self.put(space, "{t}a", [b"after"])
            self.put(space, "s", [b"after"])
            for brought_forward in (False, True):
                if brought_forward:
                    self.stranger().maintain(space)
                for store in (self.store, self.stranger()):
                    for segment in (None, "{t}a", "{t}b"):
                        found = store.lookup(space, "both", segment)
                        same(found, trx.statuses, f"the first result, by segment {segment!r}")
                        hold(found is not None and all(s.trx == trx.trx for s in found.values()), "its transaction")
                    found = store.lookup(space, "alone", segment="s")
                    same(found, {"s": alone}, "the first result of one segment")
                    if space == "one partition":  # of several, each process knows the others as far as it has seen them
                        hold(found is not None and found["s"].space_offset == alone.space_offset, "its offset")
                    same(store.lookup(space, "another"), None, "a key that nobody used")
                    with refusing(TransactionIdMismatch, "other content") as refused:
                        store.produce(space, "s", [Record(b"other")], idempotency_key="alone")
                    same(dict(refused.error.statuses), {"s": alone}, "the statuses of the error")
        for wrong in (None, 5, b"key"):
            with refusing(TypeError, f"lookup of {wrong!r}"):
                self.store.lookup("space", wrong)  # type: ignore[arg-type]
        with refusing(ValueError, "lookup of an empty key"):
            self.store.lookup("space", "")

    def test_the_offset_of_a_write_is_after_what_it_wrote(self) -> None:
        """A reader up to the offset of a write's status had not seen the write, or read it again after it."""
        for space in self.spaces():
            self.put(space, "other", [b"0"])
            with self.store.transaction(space) as trx:
                trx.produce("{t}a", [Record(b"1")] * 3)
                trx.produce("{t}b", [Record(b"2")])
            offsets = [status.space_offset for status in trx.statuses.values()]
            status = self.store.produce(space, "{t}a", [Record(b"3")] * 2)
            offsets.append(status.space_offset)
            hold(all(isinstance(offset, LexKey) for offset in offsets), "an offset is no LexKey")
            last = list(self.store.consume_segment(space, "{t}a"))[-1]
            same(last.space_offset, status.space_offset, "the offset of the write, and of the last entry it wrote")
            self.put(space, "{t}a", [b"later"])
            for store in (self.store, self.stranger()):
                for offset, after in zip(offsets, (3, 3, 1), strict=True):
                    there = [e for e in store.consume_space(space, offset=offset) if e.segment.startswith("{t}")]
                    same(len(there), after, "the entries of the partition that follow on the offset")
                present = store.segment_status(space, "{t}a")
                there = [e for e in store.consume_space(space, offset=present.space_offset) if e.segment == "{t}a"]
                same(there, [], "what follows on the offset of the segment's present status")
        nowhere = self.store.segment_status("unknown", "s").space_offset
        self.put("unknown", "s", [b"1"])
        same(len(list(self.store.consume_space("unknown", offset=nowhere))), 1, "after that of an unknown space")

    def test_one_segment_twice_in_a_transaction(self) -> None:
        """Expectations within one transaction were not those that its own parts lead to, or the error blamed others."""
        for space in self.spaces():
            with self.store.transaction(space) as trx:
                trx.produce("s", numbered_records(1, 2), expected_sequence=0)
                trx.produce("s", numbered_records(3, 3), expected_sequence=2)
                trx.produce("s", numbered_records(4, 4))
                with refusing(SequenceMismatch, "the expectation of before this transaction") as refused:
                    trx.produce("s", numbered_records(5, 5), expected_sequence=0)
                same((refused.error.expected, refused.error.actual), (0, 4), "expected and actual")
                hold("this transaction itself" in str(refused.error), f"the error says {refused.error}")
            same(self.payloads(space, "s"), [b"%d" % at for at in range(1, 5)], "the segment")
            refused = refusing(SequenceMismatch, "what cannot be known before the commit")
            with refused, self.store.transaction(space) as trx:
                trx.produce("s", numbered_records(5, 6))
                trx.produce("s", numbered_records(7, 7), expected_sequence=4)
            same((refused.error.expected, refused.error.actual), (4, 6), "expected and actual at the commit")
            hold("this transaction itself" in str(refused.error), f"the error says {refused.error}")

    def test_a_transaction_that_is_dropped_warns(self) -> None:
        """Records of an uncommitted transaction were dropped without a warning."""
        gc.collect()
        for entered, records in ((False, True), (False, False), (True, True)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                trx = self.store.transaction("space")
                if entered:
                    trx.__enter__()
                if records:
                    trx.produce("s", [Record(b"1")])
                del trx
                gc.collect()
            # Warnings may also concern objects that other tests have left open, which are freed now.
            told = [one for one in caught if one.category is ResourceWarning and "was dropped with" in str(one.message)]
            same(len(told), 1, f"the warnings about a transaction, entered: {entered}, with records: {records}")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with self.store.transaction("space") as trx:
                pass
            with self.store.transaction("space") as trx:
                trx.produce("s", [Record(b"1")])
            del trx
            gc.collect()
        same(self.payloads("space", "s"), [b"1"], "what was committed")


def numbered_records(first: int, last: int) -> list[Record]:
    return [Record(b"%d" % at) for at in range(first, last + 1)]
