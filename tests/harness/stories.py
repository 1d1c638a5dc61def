"""Any sequence of public operations, by two processes, against a model of a few dicts.

Where they differ, hypothesis shrinks the sequence to a short story.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple
from uuid import uuid4

from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harness.store_checks.agreement import agree
from streamkit import Record
from streamkit.backend import Driver
from streamkit.errors import (
    CrossPartition,
    Fenced,
    LeaseNotAcquired,
    OutcomeUnknown,
    SequenceMismatch,
    TransactionIdMismatch,
    TransientError,
)
from streamkit.index.verify import VerifyReport
from streamkit.leases import Lease
from streamkit.names import partition_of
from streamkit.testing import SURVIVABLE, Plan

from .history import History
from .sweep import Process, StillClock

SPACES = {"one": 1, "three": 3}
SEGMENTS = ["a", "b", "{a}1", "a/\\", "日本"]

Place = tuple[str, str]


class Use(NamedTuple):
    """The use of an idempotency key: the content, and the answer."""

    content: Mapping[str, list[bytes]]
    last: Mapping[str, int]


class Machine(RuleBasedStateMachine):
    """`make_driver` is set by the subclass of each backend."""

    make_driver: ClassVar[Callable[[StillClock], Driver]]
    gaps: ClassVar[Literal["raise", "skip"]] = "raise"
    examples: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).examples += 1
        self.clock = StillClock()
        self.store_id = uuid4()
        self.model: dict[Place, list[bytes]] = {}
        self.keys: dict[tuple[str, int, str], Use] = {}
        """The idempotency keys by space, partition and key, because each partition remembers its own."""
        self.fences: dict[tuple[str, int], int] = {}
        self.tokens: list[Lease] = []
        self.processes: list[Process] = []
        self.count = 0

    @initialize()
    def begin(self) -> None:
        self.processes = [self._process(Plan()), self._process(Plan())]
        for space, partitions in SPACES.items():
            self.processes[0].store.create_space(space, partitions=partitions)

    def _process(self, plan: Plan) -> Process:
        return Process(type(self).make_driver(self.clock), self.store_id, History(), self.clock, plan)

    def teardown(self) -> None:
        for process in self.processes:
            process.faults.release()
        if self.processes:
            self.processes.append(self._process(Plan()))
            self._all_agree(self.processes[-1])
            assert self.processes[-1].store.verify().findings == ()
        for process in self.processes:
            process.close()
        driver = type(self).make_driver(self.clock)
        driver.delete(self.store_id)
        driver.close()

    # -- writing ----------------------------------------------------------------------------------------------------

    def _payloads(self, count: int) -> list[bytes]:
        self.count += 1
        return [b"%d/%d" % (self.count, at) * (1 if self.count % 3 else 90) for at in range(count)]

    def _write(
        self,
        who: int,
        space: str,
        parts: dict[str, list[bytes]],
        *,
        expected: int | None = None,
        key: str | None = None,
        lease: Lease | None = None,
        numbered: bool = False,
    ) -> None:
        """Write through the store; then the model does the same, or is asked why not."""
        store = self.processes[who].store
        last = {segment: len(self.model.get((space, segment), ())) for segment in parts}
        partitions = {partition_of(segment, SPACES[space]) for segment in parts}
        partition = min(partitions)
        use = self.keys.get((space, partition, key)) if key is not None else None
        fence = self.fences.get((space, partition), 0)
        first = next(iter(parts))

        def records(segment: str) -> list[Record]:
            start = last[segment] + 1 if numbered else None
            return [
                Record(payload, {"of": segment} if at % 2 else None, None if start is None else start + at)
                for at, payload in enumerate(parts[segment])
            ]

        found: dict[str, int] = {}
        try:
            if len(parts) == 1:
                status = store.produce(
                    space, first, records(first), expected_sequence=expected, idempotency_key=key, lease=lease
                )
                found = {first: status.last_sequence}
            else:
                with store.transaction(space, idempotency_key=key, lease=lease) as transaction:
                    for segment in parts:
                        transaction.produce(
                            segment, records(segment), expected_sequence=expected if segment == first else None
                        )
                found = {segment: status.last_sequence for segment, status in transaction.statuses.items()}
        except CrossPartition:
            assert len(partitions) > 1
            return
        except TransactionIdMismatch:
            assert use is not None
            assert use.content != parts
            return
        except Fenced:
            assert lease is not None
            assert lease.token < fence
            return
        except SequenceMismatch as error:
            told = (error.expected, error.actual)
            self._is(told == (expected, last[first]) and expected != last[first], f"{told}, {expected}, {last}")
            return
        except OutcomeUnknown as error:
            if self._settle(error) == "absent":
                return
            found = {segment: last[segment] + len(payloads) for segment, payloads in parts.items()}
        except TransientError:
            return
        if use is not None:
            assert use.content == parts
            assert found == use.last
            return
        assert len(partitions) == 1
        assert expected is None or expected == last[first]
        assert lease is None or lease.token >= fence
        for segment, payloads in parts.items():
            self.model.setdefault((space, segment), []).extend(payloads)
            assert found[segment] == len(self.model[space, segment])
        if key is not None:
            self.keys[space, partition, key] = Use(parts, found)
        if lease is not None:
            self.fences[space, partition] = max(fence, lease.token)

    def _is(self, holds: bool, what: str) -> None:
        assert holds, what

    def _settle(self, error: OutcomeUnknown) -> str:
        process = self._process(Plan())
        self.processes.append(process)
        answer = process.store.outcome(error.transaction_id)
        assert answer in ("committed", "absent")
        return answer

    whose = strategies.integers(0, 1)
    spaces = strategies.sampled_from(sorted(SPACES))
    segments = strategies.sampled_from(SEGMENTS)
    counts = strategies.integers(1, 4)

    @rule(who=whose, space=spaces, segment=segments, count=counts, numbered=strategies.booleans())
    def produce(self, who: int, space: str, segment: str, count: int, numbered: bool) -> None:
        self._write(who, space, {segment: self._payloads(count)}, numbered=numbered and self._calm(who))

    def _calm(self, who: int) -> bool:
        return not self.processes[who].faults.plan.rate

    @rule(who=whose, space=spaces, segment=segments, off=strategies.sampled_from([0, 0, -1, 1, 5]))
    def produce_expecting(self, who: int, space: str, segment: str, off: int) -> None:
        expected = max(0, len(self.model.get((space, segment), ())) + off)
        self._write(who, space, {segment: self._payloads(1)}, expected=expected)

    @rule(who=whose, space=spaces, names=strategies.lists(segments, min_size=2, max_size=3, unique=True), count=counts)
    def transact(self, who: int, space: str, names: list[str], count: int) -> None:
        self._write(who, space, {name: self._payloads(count) for name in names})

    @rule(who=whose, space=spaces, segment=segments, key=strategies.sampled_from("xyz"), again=strategies.booleans())
    def produce_once(self, who: int, space: str, segment: str, key: str, again: bool) -> None:
        use = self.keys.get((space, partition_of(segment, SPACES[space]), key))
        parts = dict(use.content) if use is not None and again else {segment: self._payloads(2)}
        self._write(who, space, parts, key=key)

    @rule(who=whose)
    def lead(self, who: int) -> None:
        try:
            with self.processes[who].store.lease("leader") as lease:
                self.tokens.append(lease)
        except (LeaseNotAcquired, TransientError):
            return
        assert [lease.token for lease in self.tokens] == sorted({lease.token for lease in self.tokens})

    @precondition(lambda self: self.tokens)
    @rule(who=whose, space=spaces, segment=segments, which=strategies.integers(0, 9))
    def produce_leading(self, who: int, space: str, segment: str, which: int) -> None:
        lease = self.tokens[-1 - which % min(3, len(self.tokens))]
        self._write(who, space, {segment: self._payloads(1)}, lease=lease)

    # -- reading ----------------------------------------------------------------------------------------------------

    @rule(who=whose, space=spaces, segment=segments, low=strategies.integers(0, 6), limit=strategies.integers(0, 5))
    def read_segment(self, who: int, space: str, segment: str, low: int, limit: int) -> None:
        store, truth = self.processes[who].store, self.model.get((space, segment), [])
        try:
            entries = list(store.consume_segment(space, segment, min_sequence=low, limit=limit))
            status, peeked = store.segment_status(space, segment), store.peek(space, segment)
        except TransientError:
            return
        wanted = list(enumerate(truth, 1))[max(0, low - 1) :]
        assert [(entry.sequence, entry.payload) for entry in entries] == wanted[: limit or None]
        assert (status.first_sequence, status.last_sequence) == (min(1, len(truth)), len(truth))
        assert (peeked.sequence, peeked.payload) == (len(truth), truth[-1] if truth else b"")

    @rule(who=whose, space=spaces, page=strategies.integers(1, 7))
    def read_in_pages(self, who: int, space: str, page: int) -> None:
        store, found, offset = self.processes[who].store, [], None
        for _ in range(sum(map(len, self.model.values())) + 1):
            try:
                entries = list(store.consume_space(space, offset=offset, limit=page, gaps=self.gaps))
            except TransientError:
                return
            if not entries:
                break
            found += entries
            offset = entries[-1].space_offset
        self._is_all(space, found)

    def _is_all(self, space: str, entries: list[Any]) -> None:
        logs: dict[Place, list[bytes]] = {}
        for entry in entries:
            logs.setdefault((space, entry.segment), []).append(entry.payload)
        assert logs == {place: log for place, log in self.model.items() if place[0] == space}

    def _all_agree(self, process: Process) -> None:
        for space in SPACES:
            self._is_all(space, agree(process.store, space))

    # -- the store itself -------------------------------------------------------------------------------------------

    @rule(who=whose, seed=strategies.integers(0, 1 << 20), rate=strategies.sampled_from([0.0, 0.0, 0.1, 0.3]))
    def reopen(self, who: int, seed: int, rate: float) -> None:
        """Replace a process by a new one, with or without faults. The requests that the old one has sent arrive."""
        old, self.processes[who] = self.processes[who], self._process(Plan.random(seed, rate, SURVIVABLE))
        old.faults.release()
        old.close()

    @rule(who=whose)
    def maintain(self, who: int) -> None:
        try:
            self.processes[who].store.maintain()
        except TransientError:
            return

    @rule()
    def repair(self) -> None:
        process = self._process(Plan())
        process.store.repair()
        assert process.store.repair() == 0
        assert process.store.verify().findings == ()
        process.close()

    @invariant()
    def verified(self) -> None:
        if self.processes and self.count % 7 == 0:
            process = self._process(Plan())
            self._is_verified(process.store.verify())
            process.close()

    def _is_verified(self, report: VerifyReport) -> None:
        assert report.findings == ()
        assert report.entries == sum(map(len, self.model.values()))


def run_machine(machine: type[Machine], make_driver: Callable[[StillClock], Driver], examples: int) -> int:
    class Subject(machine):  # type: ignore[misc, valid-type]
        pass

    Subject.make_driver = staticmethod(make_driver)  # type: ignore[assignment]
    case = Subject.TestCase
    case.settings = settings(
        max_examples=examples,
        stateful_step_count=30,
        suppress_health_check=list(HealthCheck),
    )
    case("runTest").runTest()
    return int(Subject.examples)
