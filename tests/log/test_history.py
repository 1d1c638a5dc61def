"""The oracle must notice: a sound history passes, and every way in which a log can be wrong is named by its rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import msgspec
import pytest

import streamkit
from benchmarks.cost_services import services
from harness import oracle
from harness.combining import posting
from harness.cramped import cramped
from harness.history import History
from harness.oracle import Violation, judge, violations
from harness.sweep import Sweep, hurried, insists
from harness.turns import every_interleaving
from harness.virtual_crowd import SPACE, virtual_crowd
from streamkit import errors
from streamkit.backend import ABSENT, NEXT, Ambiguous, Conflict
from streamkit.index import head_change, upkeep
from streamkit.index.cursor import Chunk
from streamkit.log import commit, plan, read_space
from streamkit.log.keys import HEAD, run_key
from streamkit.log.pack_format import EncodedPack
from streamkit.log.packs import Packs
from streamkit.log.partition import Partition
from streamkit.log.rows import Head, encode_row
from streamkit.model import Entry
from streamkit.store import Store
from streamkit.testing import Fault, ManualClock, Plan
from streamkit_memory.driver import MemoryDriver

Log = list[Entry]


@pytest.fixture
def store() -> Iterator[Store]:
    with streamkit.connect(f"memory://{uuid4()}") as client:
        yield client.store(uuid4())


@pytest.fixture
def history(store: Store) -> History:
    """Two plain writes, one over two segments, one with a key, two by leaders, one refused, and readers."""
    history = History()
    reader = history.reader("s", 2)
    history.write(store, "s", {"a": 2})
    history.write(store, "s", {"a": 1, "b": 2}, expected={"a": 2})
    history.page(store, reader)
    history.look(store, "s")
    history.write(store, "s", {"b": 1}, key="k")
    history.write(store, "s", {"b": 1}, key="k")
    history.write(store, "s", {"a": 1}, expected={"a": 1})
    for _ in range(2):
        with store.lease("leader") as lease:
            history.write(store, "s", {"a": 1}, lease=lease)
    reader.finish(store)
    history.look(store, "s", "a")
    return history


def rules(found: list[str]) -> set[str]:
    return {line.partition(":")[0] for line in found}


def test_a_sound_history_passes(history: History, store: Store) -> None:
    logs = judge(history, lambda: store)
    assert len(logs["s"]) == 8
    assert violations(history, logs) == []


def without(at: int) -> Callable[[Log], Log]:
    return lambda log: log[:at] + log[at + 1 :]


def with_changed(at: int, **fields: object) -> Callable[[Log], Log]:
    return lambda log: [*log[:at], msgspec.structs.replace(log[at], **fields), *log[at + 1 :]]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda log: log[:-1], "acknowledged"),
        (without(0), "dense"),
        (without(3), "whole"),
        (lambda log: [*log, log[-1]], "acknowledged"),
        (with_changed(0, payload=b"something else"), "acknowledged"),
        (with_changed(7, sequence=9), "dense"),
        (with_changed(2, timestamp=1), "dense"),
        (with_changed(3, trx=streamkit.TRX(bytes(16), bytes(16), 3)), "whole"),
        (lambda log: [*log[:6], log[7], log[6]], "fenced"),
        (lambda log: [log[5], *log[:5], *log[6:]], "prefix"),
        (lambda log: [log[1], log[0], *log[2:]], "pages"),
    ],
)
def test_a_wrong_log_is_noticed(history: History, store: Store, change: Callable[[Log], Log], rule: str) -> None:
    log = change(list(store.consume_space("s")))
    assert rule in rules(violations(history, {"s": log}))


def test_who_waits_while_others_commit_is_noticed(
    history: History, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = {"s": list(store.consume_space("s"))}
    monkeypatch.setattr(oracle, "_PASSED", 2)
    assert violations(history, log) == []
    first, last = history.attempts[0], history.attempts[-1]
    last.invoked, last.requests = 0, 3
    assert violations(history, log) == [], "it was asleep"
    last.requests = 30
    assert rules(violations(history, log)) == {"waits"}
    last.requests, first.requests, first.returned = 0, 30, last.returned + 1
    assert violations(history, log) == [], "it was done, and slow to see it"


def test_wrong_answers_are_noticed(history: History, store: Store) -> None:
    log = {"s": list(store.consume_space("s"))}

    def noticed(rule: str) -> bool:
        return rule in rules(violations(history, log))

    plain, _, first, again, refused, *_ = history.attempts
    plain.outcome = "failed"
    assert noticed("failed")
    plain.outcome, plain.verdict = "unknown", "absent"
    assert noticed("unknown")
    plain.outcome, plain.verdict = "ok", None
    assert not noticed("failed")
    again.last = {"b": 4}
    assert noticed("idempotent")
    again.last = first.last
    refused.error = errors.SequenceMismatch("", 1, 2)
    assert noticed("expected")
    refused.error = None
    plain.invoked, plain.returned = 1000, 1001
    assert noticed("order")
    plain.invoked, plain.returned = 1, 2
    history.readers[0].entries.pop()
    assert noticed("pages")


def test_a_refusal_is_held_against_where_the_segment_was_during_the_call(history: History, store: Store) -> None:
    log = {"s": list(store.consume_space("s"))}
    plain, both, first, again, refused, *_ = history.attempts

    def is_noticed(actual: int, expected: int = 1) -> bool:
        refused.expected, refused.error = {"a": expected}, errors.SequenceMismatch("", expected, actual)
        found = rules(violations(history, log))
        assert found <= {"expected"}
        return found != set()

    assert [actual for actual in range(8) if not is_noticed(actual)] == [3], "it was there all the time"
    assert all(is_noticed(actual, 3) for actual in range(8)), "what was expected held all the time"
    refused.returned = 1000
    assert [actual for actual in range(8) if not is_noticed(actual)] == [3, 4, 5], "others wrote meanwhile"
    refused.invoked = 0
    assert [actual for actual in range(8) if not is_noticed(actual, 7)] == [0, 2, 3, 4, 5], "1 is within a transaction"

    refused.invoked, refused.returned = again.returned, again.returned + 1
    both.outcome = "unknown"
    assert is_noticed(2), "what is behind it in the log was acknowledged"
    first.outcome = again.outcome = "unknown"
    assert is_noticed(2), "a reader had seen it"
    history.looks.clear()
    assert not is_noticed(2), "nobody knew of it"
    plain.error, plain.expected, plain.outcome = errors.SequenceMismatch("", 9, 3), {"a": 9}, "unknown"
    assert is_noticed(2), "somebody had been refused because of it"


def test_a_refusal_of_a_lease_or_a_key_is_held_against_what_was_written(history: History, store: Store) -> None:
    log = {"s": list(store.consume_space("s"))}
    with store.lease("leader") as lease:
        refused = history.write(store, "s", {"a": 1}, expected={"a": 0}, lease=lease)
    *_, last, _ = history.attempts
    assert refused.error is not None
    assert violations(history, log) == []
    refused.error = errors.Fenced("")
    assert rules(violations(history, log)) == {"fenced"}, "nobody has a later token"
    assert last.fence is not None
    refused.fence = (last.fence[0], last.fence[1] - 1)
    assert violations(history, log) == []
    refused.returned = last.invoked - 1
    assert rules(violations(history, log)) == {"fenced"}, "it has not written yet"
    refused.error = errors.TransactionIdMismatch("", {})
    assert rules(violations(history, log)) == {"idempotent"}


def test_a_write_of_unknown_outcome_that_came_in_spite_of_its_expectation_is_noticed(
    history: History, store: Store
) -> None:
    plain = history.attempts[0]
    plain.outcome, plain.expected = "unknown", {"a": 1}
    assert rules(violations(history, {"s": list(store.consume_space("s"))})) == {"expected"}


def test_an_error_of_the_seam_is_noticed(history: History, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object, **__: object) -> None:
        raise Ambiguous("lost")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "produce", lose)
        history.write(store, "s", {"a": 1})
    with pytest.raises(Violation, match="belongs between engine and backend"):
        judge(history, lambda: store)


# -- an engine that is broken on purpose ----------------------------------------------------------------------------


def _put(self: commit.Committer, flight: commit.Flight, cause: errors.StreamkitError | None) -> None:
    if cause is not None:
        raise cause
    self.partition.backend.put(self.partition.key, flight.key, flight.record, NEXT)


def _believes_a_lost_answer(patch: pytest.MonkeyPatch) -> None:
    """A lost answer is taken for a yes."""

    def settle(self: commit.Committer, flight: commit.Flight, *, cause: errors.StreamkitError | None = None) -> bool:
        try:
            _put(self, flight, cause)
        except Ambiguous:
            return True
        except Conflict:
            return False
        return True

    patch.setattr(commit.Committer, "_settle", settle)


def _forgets_a_lost_answer(patch: pytest.MonkeyPatch) -> None:
    """A lost answer is taken for a no."""

    def settle(self: commit.Committer, flight: commit.Flight, *, cause: errors.StreamkitError | None = None) -> bool:
        try:
            _put(self, flight, cause)
        except (Ambiguous, Conflict):
            return False
        return True

    patch.setattr(commit.Committer, "_settle", settle)


def _forgets_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan.Plan, "_answer", lambda *_: False)


def _forgets_fences(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "fence", lambda *_: 0)


def _moves_the_head_too_far(patch: pytest.MonkeyPatch) -> None:
    """The watermark is ahead of the index."""
    original = upkeep.index_rows

    def index_rows(*tail: Any) -> Iterator[Chunk]:
        rows = original(*tail)
        keys, values = next(rows, ([], []))
        yield keys[1:], values[1:]
        yield from rows

    patch.setattr(upkeep, "index_rows", index_rows)


def _packs_too_little(patch: pytest.MonkeyPatch) -> None:
    """Clear the transactions that the head calls packed; one record is in no pack."""
    original = upkeep.encode

    def encode(partition: Partition, first: int, last: int, records: Iterable[tuple[int, bytes]]) -> EncodedPack:
        return original(partition, first, last, list(records)[1:])

    patch.setattr(upkeep, "encode", encode)
    patch.setattr(Packs, "holds", lambda packs, number: number <= packs.last)


def _believes_that_a_file_is_there(patch: pytest.MonkeyPatch) -> None:
    def store_file(partition: Partition, id: bytes, data: bytes) -> str:
        try:
            return partition.backend.put(partition.key, run_key(id), data, ABSENT)
        except Ambiguous:
            return ""

    patch.setattr(upkeep, "store_file", store_file)


def _removes_what_a_lost_head_may_name(patch: pytest.MonkeyPatch) -> None:
    """A head whose answer was lost is taken for refused, and its files are removed."""

    def put(partition: Partition, after: Head, etag: str | None, made: Sequence[bytes]) -> bool:
        try:
            new = partition.backend.put(partition.key, bytes(HEAD), encode_row(HEAD, after), etag or ABSENT)
        except (Ambiguous, Conflict):
            partition.read_head()
            head_change.remove_files(partition, made)
            return False
        partition.indexed(after, new, etag)
        return True

    patch.setattr(head_change, "_put", put)


def _removes_files_too_early(patch: pytest.MonkeyPatch) -> None:
    """Delete the replaced rows before the head moves."""
    original = upkeep._move

    def move(partition: Partition, head: Head, etag: str | None, after: Head, made: Sequence[bytes]) -> bool:
        head_change.remove_files(partition, head_change.ids_of(head) - head_change.ids_of(after))
        return original(partition, head, etag, after, made)

    patch.setattr(upkeep, "_move", move)


def _loses_the_rest_of_a_transaction(patch: pytest.MonkeyPatch) -> None:
    """A page that ends within a transaction is followed by one from the next."""
    original = read_space.partition_batches

    def batches(partition: Partition, start: tuple[int, int], *rest: Any, **options: Any) -> Iterator[object]:
        number, skip = start
        return original(partition, (number + 1, 0) if skip == 1 else start, *rest, **options)

    patch.setattr(read_space, "partition_batches", batches)


def broken(sweep: Sweep, plan: Plan) -> bool:
    try:
        sweep.run(plan)
    except (AssertionError, errors.CorruptData):
        return True
    return False


def make_driver(clock: ManualClock) -> MemoryDriver:
    return MemoryDriver("sabotage", remote=True, clock=clock, sleep=clock.sleep)


@pytest.mark.parametrize(
    "sabotage",
    [
        _believes_a_lost_answer,
        _forgets_a_lost_answer,
        _forgets_keys,
        _forgets_fences,
        _moves_the_head_too_far,
        _loses_the_rest_of_a_transaction,
    ],
)
def test_a_sweep_finds_an_engine_that_is_broken(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = list(Sweep(make_driver).plans())
    sabotage(monkeypatch)
    sweep = Sweep(make_driver)
    assert any(broken(sweep, plan) for plan in plans)


@pytest.mark.parametrize(
    ("sabotage", "fault", "row"),
    [
        (_packs_too_little, Fault.LOST_REQUEST, "RUN"),
        (_believes_that_a_file_is_there, Fault.LOST_REQUEST, "RUN"),
        (_removes_what_a_lost_head_may_name, Fault.LATE, "PARTITIONS"),
        (_removes_files_too_early, Fault.CRASH_BEFORE, "PARTITIONS"),
    ],
)
def test_a_sweep_finds_an_upkeep_that_is_broken(
    sabotage: Callable[[pytest.MonkeyPatch], None], fault: Fault, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cramped():
        puts = [call.what for call in Sweep(make_driver, hurried).trace if call.kind == "put"]
        plans = [Plan.at(nth, fault, kind="put", delay=3) for nth, what in enumerate(puts) if row in what]
        sabotage(monkeypatch)
        sweep = Sweep(make_driver, hurried)
        assert any(broken(sweep, plan) for plan in plans)


@pytest.mark.parametrize("losses", [0, 2])
def test_an_interleaving_finds_an_engine_that_refuses_by_what_is_known(
    losses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan.Plan, "is_current", lambda _: True)
    with posting(losses), pytest.raises(Violation, match="expected: none of"):
        every_interleaving(make_driver, [insists] * 3, preemptions=1, before=insists, together=2, most=30)


def test_a_crowd_finds_an_engine_that_refuses_by_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, azure = services()
    with monkeypatch.context() as patch:
        patch.setattr(plan.Plan, "is_current", lambda _: True)
        crowds = [virtual_crowd(azure, 8, 8, seed, insisting=True) for seed in range(3)]
    found = [violations(crowd.history, {SPACE: list(crowd.store.consume_space(SPACE))}) for crowd in crowds]
    assert rules([line for lines in found for line in lines]) == {"expected"}
