"""Any sequence of writes, trims, erasures and deletions, by two processes, on good days and bad, against a model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from fix_covered import EXHAUSTIVE
from hypothesis import strategies
from hypothesis.stateful import rule

from harness.drivers import MEMORY
from harness.stories import SPACES, Machine, Place, run_machine
from streamkit import Gap
from streamkit.errors import EntriesRemoved, OutcomeUnknown, TransientError
from streamkit.testing import Plan
from streamkit_local.driver import LocalDriver


class Removing(Machine):
    """A model of the written entries, which stays whole, and of the removed ones beside it."""

    gaps = "skip"
    whose, spaces, segments = Machine.whose, Machine.spaces, Machine.segments

    def __init__(self) -> None:
        super().__init__()
        self.floors: dict[Place, int] = {}
        """The first sequence that was not trimmed or deleted, of those that are not at 1."""
        self.trimmed = False
        """True if a space was trimmed, or may have been."""
        self.erased: dict[Place, set[int]] = {}

    def left(self, place: Place) -> dict[int, bytes]:
        """The remaining payloads by sequence."""
        floor, erased = self.floors.get(place, 1), self.erased.get(place, set())
        truth = enumerate(self.model.get(place, ()), 1)
        return {sequence: payload for sequence, payload in truth if sequence >= floor and sequence not in erased}

    def _attempt(self, work: Callable[[], object], is_done: Callable[[], bool]) -> bool:
        """True if the removal was done. A failed one may be in the log."""
        try:
            work()
        except OutcomeUnknown as error:
            self._settle(error)
            return is_done()
        except TransientError:
            return is_done()
        assert is_done()
        return True

    def _settle(self, error: OutcomeUnknown) -> str:
        """The outcome of a transaction. Only its writer knows its place, if its entries may have been trimmed."""
        process = self._process(Plan())
        self.processes.append(process)
        answer = process.store.outcome(error.transaction_id)
        if answer == "unknown":
            assert self.trimmed
            answers = (writer.store.outcome(error.transaction_id) for _ in range(1000) for writer in self.processes[:2])
            answer = next(answer for answer in answers if answer != "unknown")
        assert answer in ("committed", "absent")
        return answer

    def _calm_store(self) -> Any:
        process = self._process(Plan())
        self.processes.append(process)
        return process.store

    # -- removing ---------------------------------------------------------------------------------------------------

    @rule(who=whose, space=spaces, segment=segments, count=strategies.integers(0, 6), keep=strategies.booleans())
    def trim_segment(self, who: int, space: str, segment: str, count: int, keep: bool) -> None:
        place = space, segment
        last, floor = len(self.model.get(place, ())), self.floors.get(place, 1)
        before = max(1, last - count + 1) if keep else floor + count
        store = self.processes[who].store
        wanted = max(floor, min(before, last + 1))
        bound = {"keep_entries": count} if keep else {"before": before}
        self._lower(place, wanted, lambda: store.trim(space, segment, **bound))

    @rule(who=whose, space=spaces, segment=segments)
    def delete_segment(self, who: int, space: str, segment: str) -> None:
        place = space, segment
        store = self.processes[who].store
        self._lower(place, len(self.model.get(place, ())) + 1, lambda: store.delete_segment(space, segment))

    def _lower(self, place: Place, wanted: int, work: Callable[[], object]) -> None:
        floor = self.floors.get(place, 1)
        if not self.model.get(place):
            wanted = floor

        def is_done() -> bool:
            first = self._calm_store().segment_status(*place).first_sequence or 1
            assert first in (floor, wanted), f"it begins at {first} instead of {floor} or {wanted}"
            return bool(first == wanted)

        if self._attempt(work, is_done):
            self.floors[place] = wanted

    @rule(who=whose, which=strategies.integers(0, 30))
    def trim_space(self, who: int, which: int) -> None:
        """Trim one partition up to an entry."""
        entries = list(self._calm_store().consume_space("one", gaps="skip"))
        if not entries:
            return
        at = which % len(entries)
        offset, number = entries[at].space_offset, entries[at].trx.number
        whole = at + 1 == len(entries) or entries[at + 1].trx.number > number
        before = [entry for entry in entries if entry.trx.number >= number]
        # Of its transaction something that was removed may follow on the entry: then that is not passed, and stays.
        after = [entry for entry in before if entry.trx.number > number] if whole else before
        removed = any(place[0] == "one" for place in (*self.floors, *self.erased))
        store = self.processes[who].store

        def is_done() -> bool:
            found = list(self._calm_store().consume_space("one", gaps="skip"))
            assert found in ((entries, after, before) if removed else (entries, after))
            for entry in entries[: len(entries) - len(found)]:
                place = "one", entry.segment
                self.floors[place] = max(self.floors.get(place, 1), entry.sequence + 1)
            self._pass_erased()
            return found != entries or entries in (before, after)

        self.trimmed = True
        self._attempt(lambda: store.trim("one", before=offset), is_done)

    def _pass_erased(self) -> None:
        """A trim of a transaction removes its erased entries too."""
        store = self._calm_store()
        for place, erased in self.erased.items():
            first, floor = store.segment_status(*place).first_sequence, self.floors.get(place, 1)
            if place[0] == "one" and first > floor:
                assert erased >= {*range(floor, first)}
                self.floors[place] = first

    @rule(
        who=whose,
        space=spaces,
        segment=segments,
        first=strategies.integers(1, 8),
        count=strategies.integers(0, 4),
    )
    def erase(self, who: int, space: str, segment: str, first: int, count: int) -> None:
        place = space, segment
        last = first + count
        range_ = set(range(first, min(last, len(self.model.get(place, ()))) + 1))
        left = self.left(place)
        stays = {sequence: payload for sequence, payload in left.items() if sequence not in range_}

        def is_done() -> bool:
            found = self._calm_store().consume_segment(space, segment, gaps="skip")
            there = {entry.sequence: entry.payload for entry in found}
            assert there in (left, stays)
            return there == stays

        store = self.processes[who].store
        if self._attempt(lambda: store.erase(space, segment, first=first, last=last), is_done):
            self.erased.setdefault(place, set()).update(range_)

    # -- reading ----------------------------------------------------------------------------------------------------

    @rule(who=whose, space=spaces, segment=segments, low=strategies.integers(0, 6), limit=strategies.integers(0, 5))
    def read_segment(self, who: int, space: str, segment: str, low: int, limit: int) -> None:
        place, store = (space, segment), self.processes[who].store
        floor, last, left = self.floors.get(place, 1), len(self.model.get(place, ())), self.left(place)
        wanted = [(sequence, payload) for sequence, payload in left.items() if sequence >= low]
        try:
            entries = list(store.consume_segment(space, segment, min_sequence=low, limit=limit, gaps="skip"))
            told = list(store.consume_segment(space, segment, min_sequence=low, gaps="yield"))
            status, peeked = store.segment_status(space, segment), store.peek(space, segment)
        except TransientError:
            return
        assert [(entry.sequence, entry.payload) for entry in entries] == wanted[: limit or None]
        assert (status.first_sequence, status.last_sequence) == ((floor, last) if last else (0, 0))
        if last in left:
            assert (peeked.sequence, peeked.payload) == (last, left[last])
        reached = low or floor
        for one in told:
            first, after = (
                (one.first_sequence, one.last_sequence + 1)
                if isinstance(one, Gap)
                else (one.sequence, one.sequence + 1)
            )
            assert first == reached, f"{one} follows on {reached - 1}"
            assert isinstance(one, Gap) or left[first] == one.payload
            reached = after
        assert reached == max(last + 1, low or floor)

    @rule(who=whose, space=spaces, segment=segments, low=strategies.integers(1, 8))
    def read_what_may_be_trimmed(self, who: int, space: str, segment: str, low: int) -> None:
        place, store = (space, segment), self.processes[who].store
        try:
            entries = list(store.consume_segment(space, segment, min_sequence=low))
        except TransientError:
            return
        except EntriesRemoved as error:
            self._is(low < self.floors.get(place, 1), f"{error}, read from {low}")
            return
        assert {entry.sequence for entry in entries} == {sequence for sequence in self.left(place) if sequence >= low}

    def _is_all(self, space: str, entries: list[Any]) -> None:
        logs: dict[Place, dict[int, bytes]] = {}
        for entry in entries:
            logs.setdefault((space, entry.segment), {})[entry.sequence] = entry.payload
        assert logs == {place: left for place in self.model if place[0] == space and (left := self.left(place))}

    def _all_agree(self, process: Any) -> None:
        store = process.store
        for space in SPACES:
            entries = list(store.consume_space(space))
            self._is_all(space, entries)
            self._is_all(space, list(store.follow_space(space, timeout=0)))
            by_segment: dict[str, list[Any]] = {}
            for entry in entries:
                by_segment.setdefault(entry.segment, []).append(entry)
            for name, found in by_segment.items():
                assert list(store.consume_segment(space, name, gaps="skip")) == found
                assert list(store.consume_segment(space, name, reverse=True, gaps="skip")) == found[::-1]

    def _is_verified(self, report: Any) -> None:
        assert report.findings == ()


def _run(make_driver: Callable[[Any], Any], examples: int) -> int:
    return run_machine(Removing, make_driver, examples)


@pytest.mark.parametrize("backend", ["memory", "remote"])
def test_a_store_in_memory_removes_what_the_model_removes(backend: str, covered: Callable[[str, int], None]) -> None:
    covered(f"stories of removing, memory ({backend})", _run(MEMORY[backend], 1000 if EXHAUSTIVE else 12))


def test_a_local_store_removes_what_the_model_removes(covered: Callable[[str, int], None]) -> None:
    root = mkdtemp(prefix="stories-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    try:
        covered("stories of removing, local", _run(lambda clock: LocalDriver(root, 5.0), 300 if EXHAUSTIVE else 6))
    finally:
        shutil.rmtree(root)
