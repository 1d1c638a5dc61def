"""The judge of a history: the store has kept all its promises, whatever faults came meanwhile.

`judge` opens the store as a stranger, reads it in every way there is, and holds what it finds against what the clients
were told. What it knows by name:

| rule | what is kept |
|---|---|
| acknowledged | a write that was ok is there once, where its answer said, byte for byte |
| failed | a write that failed is nowhere, also after everything that was on its way has landed |
| unknown | a write whose outcome is unknown is there once or not at all, and as `store.outcome` said |
| whole | all records of a write are in one transaction, also for a reader in between |
| dense | transaction numbers and sequences have no gap, timestamps do not go back |
| order | what was acknowledged before something else began is before it |
| expected | a write that stated a sequence got the next one; a refusal told where the segment was during the call |
| idempotent | all attempts with one key got one place, and none is told that it has other content |
| waits | nobody waits for ever while others commit: who is at work is passed by few transactions that began later |
| fenced | once a lease's successor has written, no predecessor does; and none is refused before |
| prefix | every reader saw the beginning of one and the same order, with all that was acknowledged before it began |
| pages | pages by offset give everything once, whoever wrote meanwhile |
| index | status, peek, segments and `store.verify` say what the log says |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from harness.store_checks.agreement import agree
from streamkit.errors import Fenced, SequenceMismatch, TransactionIdMismatch
from streamkit.model import TRX, Entry
from streamkit.store import Store
from streamkit.testing.backend_checks.subject import Broken

from .history import Attempt, History, Look

__all__ = ["Violation", "judge", "violations"]


_NEVER = 1 << 62
"""The moment at which what has no answer has it."""
_PASSED = 40
"""Transactions that begin after an attempt and are acknowledged before it. However many processes write, that is up to
26 of them where one opens the space and competes before it posts (test_waiting.py). A process that is stopped, or gets
no time, asks for little meanwhile: so only who has sent three requests for two of them counts."""


class Violation(Broken):
    """The store broke a promise. `found` names every one that was broken, by rule."""

    def __init__(self, found: Sequence[str]) -> None:
        super().__init__("\n".join(found))
        self.found = tuple(found)


def judge(history: History, open_store: Callable[[], Store]) -> dict[str, list[Entry]]:
    """Check a history by every rule, and return the entries of each space. Violation otherwise.

    `open_store` opens the store anew; no process writes to it meanwhile. Readers of the history are read to their end.
    """
    found = list(history.leaks)
    store = open_store()
    logs: dict[str, list[Entry]] = {}
    for space in sorted({attempt.space for attempt in history.attempts}):
        try:
            logs[space] = agree(store, space)
        except AssertionError as error:
            found.append(f"index: {error}")
            logs[space] = list(store.consume_space(space))
        report = store.verify(space)
        found += [f"index: {finding}" for finding in report.findings]
    for reader in history.readers:
        reader.finish(store)
    found += violations(history, logs)
    if found:
        raise Violation(found)
    return logs


def violations(history: History, logs: dict[str, list[Entry]]) -> list[str]:
    """The promises that `history` shows to be broken, if the spaces' final entries are `logs`."""
    found: list[str] = []
    for space, log in logs.items():
        attempts = [attempt for attempt in history.attempts if attempt.space == space]
        looks = [look for look in history.looks if look.space == space]
        case = _Case(attempts, looks, log)
        found += case.judge()
        for look in looks:
            found += case.judge_look(look)
        for reader in history.readers:
            if reader.space == space:
                found += _same_order("pages", reader.entries, log, complete=True)
    return found


def _by_partition(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    parts: dict[int, list[Entry]] = {}
    for entry in entries:
        parts.setdefault(entry.origin.partition, []).append(entry)
    return parts


def _brief(entry: Entry) -> str:
    return f"{entry.segment!r}#{entry.sequence} (transaction {entry.trx.number}, {entry.payload[:40]!r})"


def _same_order(rule: str, seen: Iterable[Entry], log: Iterable[Entry], *, complete: bool) -> list[str]:
    """`seen` begins as `log` does, in each partition; or is all of it."""
    truth = _by_partition(log)
    read = _by_partition(seen)
    found = []
    for partition, entries in read.items():
        whole = truth.get(partition, [])
        for at, entry in enumerate(entries):
            if at >= len(whole) or entry != whole[at]:
                wanted = _brief(whole[at]) if at < len(whole) else "nothing"
                found.append(f"{rule}: a reader got {_brief(entry)} where the log has {wanted}")
                break
    for partition, whole in truth.items():
        if complete and len(read.get(partition, ())) < len(whole):
            found.append(f"{rule}: {_brief(whole[len(read.get(partition, ()))])} was never read")
    return found


class _Case:
    """The attempts on one space, its readers, and its final log."""

    def __init__(self, attempts: Sequence[Attempt], looks: Sequence[Look], log: Sequence[Entry]) -> None:
        self.attempts = attempts
        self.looks = looks
        self.log = log
        self.at = {(entry.segment, entry.sequence): entry for entry in log}
        self.of: dict[bytes, list[Entry]] = {}
        for entry in log:
            self.of.setdefault(entry.payload, []).append(entry)
        self.keys: dict[str, list[Attempt]] = {}
        for attempt in attempts:
            if attempt.key is not None:
                self.keys.setdefault(attempt.key, []).append(attempt)
        self.found: list[str] = []

    def _say(self, rule: str, what: str) -> None:
        self.found.append(f"{rule}: {what}")

    def places(self, attempt: Attempt) -> list[Entry]:
        return [entry for payloads in attempt.parts.values() for data in payloads for entry in self.of.get(data, ())]

    def judge(self) -> list[str]:
        known = {data for attempt in self.attempts for payloads in attempt.parts.values() for data in payloads}
        for data in self.of.keys() - known:
            self._say("acknowledged", f"nobody wrote {data[:60]!r}")
        for attempt in self.attempts:
            self._judge_attempt(attempt)
        self._dense()
        self._order()
        self._refusals()
        self._waits()
        self._fences()
        return self.found

    def _judge_attempt(self, attempt: Attempt) -> None:
        there = self.places(attempt)
        wanted = sum(map(len, attempt.parts.values()))
        if there and len(there) != wanted:
            self._say("whole", f"{len(there)} of {wanted} entries are there of {attempt}")
        if len({entry.trx for entry in there}) > 1:
            self._say("whole", f"more than one transaction holds {attempt}")
        for segment, payloads in attempt.parts.items():
            found = [entry for entry in there if entry.segment == segment and entry.payload in payloads]
            if [entry.payload for entry in found] != list(payloads)[: len(found)]:
                self._say("acknowledged", f"the records of {segment!r} are in another order in {attempt}")
        others = self.keys.get(attempt.key, []) if attempt.key is not None else []
        if attempt.outcome == "ok":
            self._judge_ok(attempt, there)
        elif attempt.outcome == "failed" and there and all(other.outcome == "failed" for other in others):
            self._say("failed", f"it is there all the same: {attempt}")
        for segment, expected in attempt.expected.items():
            sequence = next((entry.sequence for entry in there if entry.segment == segment), expected + 1)
            if sequence != expected + 1 and attempt.key is None:
                self._say("expected", f"{segment!r} was expected at {expected}, and it got {sequence}: {attempt}")
        if isinstance(attempt.error, TransactionIdMismatch):
            self._say("idempotent", f"a key was refused with what it was used with before: {attempt}")
        if attempt.verdict not in (None, "committed" if there else "absent") and not others[1:]:
            self._say("unknown", f"outcome() said {attempt.verdict}, and {len(there)} entries are there: {attempt}")
        for other in others:
            if other.outcome == attempt.outcome == "ok" and (other.trx, other.last) != (attempt.trx, attempt.last):
                self._say("idempotent", f"one key, two places: {attempt} and {other}")

    def _judge_ok(self, attempt: Attempt, there: Sequence[Entry]) -> None:
        if attempt.trx is None:
            self._say("acknowledged", f"no transaction was told for {attempt}")
            return
        for segment, payloads in attempt.parts.items():
            last = attempt.last.get(segment, 0)
            told = range(last - len(payloads) + 1, last + 1)
            found = [entry for entry in there if entry.segment == segment]
            places = [(entry.sequence, entry.payload, entry.trx) for entry in found]
            if places != [(at, data, attempt.trx) for at, data in zip(told, payloads, strict=True)]:
                self._say(
                    "acknowledged",
                    f"{segment!r} should have {told} in transaction {attempt.trx.number} and has "
                    f"{[_brief(entry) for entry in found]}: {attempt}",
                )

    def _refusals(self) -> None:
        """Check that each refusal was true at some moment between the call and its answer. So an expectation that was
        true all the time is not refused, nor a lease without a successor."""
        fenced = [attempt for attempt in self.attempts if isinstance(attempt.error, Fenced)]
        refused: list[tuple[Attempt, SequenceMismatch, list[str]]] = []
        for attempt in self.attempts:
            error = attempt.error
            if isinstance(error, SequenceMismatch):
                # Which segment it is about it says in words alone.
                names = [name for name, sequence in attempt.expected.items() if sequence == error.expected]
                refused.append((attempt, error, names))
        if not refused and not fenced:
            return
        told = [
            (attempt, self.at.get((names[0], error.actual))) for attempt, error, names in refused if len(names) == 1
        ]
        earliest, latest = self._moments(told)

        def was_true(attempt: Attempt, segment: str, sequence: int) -> bool:
            last, following = self.at.get((segment, sequence)), self.at.get((segment, sequence + 1))
            if sequence and (last is None or earliest[last.trx] > attempt.returned):
                return False  # not yet
            if following is None:
                return True
            return latest[following.trx] >= attempt.invoked and (last is None or last.trx != following.trx)

        for attempt, error, names in refused:
            if error.actual == error.expected or not any(was_true(attempt, name, error.actual) for name in names):
                self._say("expected", f"none of {names} was at {error.actual} then, as {error!r} says: {attempt}")
        for attempt in fenced:
            later = [
                earliest[entry.trx]
                for other in self.attempts
                if attempt.fence and other.fence and other.fence[0] == attempt.fence[0] and other.fence > attempt.fence
                for entry in self.places(other)
            ]
            if not later or min(later) > attempt.returned:
                self._say("fenced", f"nobody had succeeded it then: {attempt}")

    def _moments(self, told: Iterable[tuple[Attempt, Entry | None]]) -> tuple[dict[TRX, int], dict[TRX, int]]:
        """Find the bounds of the time of each commit: not before, and not after. `told`: refused attempts, each with
        the last entry that it was told of."""
        began: dict[bytes, int] = {}
        ended: dict[bytes, int] = {}
        for attempt in self.attempts:
            for data in (data for payloads in attempt.parts.values() for data in payloads):
                began[data] = min(attempt.invoked, began.get(data, _NEVER))
                if attempt.outcome == "ok":
                    ended[data] = min(attempt.returned, ended.get(data, _NEVER))
        known: dict[TRX, int] = {}
        seen = [(attempt.returned, entry) for attempt, entry in told if entry is not None]
        seen += [(look.returned, entry) for look in self.looks for entry in look.entries]
        for moment, entry in seen:
            known[entry.trx] = min(moment, known.get(entry.trx, _NEVER))
        earliest: dict[TRX, int] = {}
        latest: dict[TRX, int] = {}
        for entries in _by_partition(self.log).values():
            moment = 0
            for entry in entries:
                earliest[entry.trx] = moment = max(moment, began.get(entry.payload, 0))
            moment = _NEVER
            for entry in reversed(entries):
                moment = min(moment, ended.get(entry.payload, _NEVER), known.get(entry.trx, _NEVER))
                latest[entry.trx] = moment
        return earliest, latest

    def _dense(self) -> None:
        last: dict[str, int] = {}
        for entry in self.log:
            if entry.sequence != last.get(entry.segment, 0) + 1:
                self._say("dense", f"after {last.get(entry.segment, 0)} comes {_brief(entry)}")
            last[entry.segment] = entry.sequence
        for entries in _by_partition(self.log).values():
            for one, other in pairwise(entries):
                if other.trx.number < one.trx.number or other.timestamp < one.timestamp:
                    self._say("dense", f"number or time goes back from {_brief(one)} to {_brief(other)}")
                if one.space_offset >= other.space_offset:
                    self._say("dense", f"the offset does not grow from {_brief(one)} to {_brief(other)}")

    def _order(self) -> None:
        """Check each partition: a transaction that was acknowledged before another was requested comes before it."""
        numbers: dict[int, list[tuple[int, int, int, Attempt]]] = {}
        for attempt in self.attempts:
            there = self.places(attempt)
            if there:
                tries = self.keys.get(attempt.key, [attempt]) if attempt.key is not None else [attempt]
                began = min(other.invoked for other in tries)
                ended = min(other.returned if other.outcome == "ok" else 1 << 62 for other in tries)
                place = (there[0].trx.number, began, ended, attempt)
                numbers.setdefault(there[0].origin.partition, []).append(place)
        for places in numbers.values():
            places.sort(key=lambda place: place[0])
            latest = 0
            for number, began, ended, attempt in places:
                # A later transaction of the log began before `latest`, so no transaction before it may begin after
                # that.
                if ended < latest:
                    self._say("order", f"it was acknowledged before one that is before it began: {attempt}, {number}")
                latest = max(latest, began)

    def _waits(self) -> None:
        done = [attempt for attempt in self.attempts if attempt.outcome == "ok" and attempt.trx is not None]
        for attempt in self.attempts:
            if 2 * attempt.requests <= 3 * _PASSED or len(done) <= _PASSED:
                continue
            place = 1 << 62 if attempt.trx is None else attempt.trx.number
            before = {
                other.trx
                for other in done
                if attempt.invoked < other.invoked
                and other.returned < attempt.returned < 1 << 62
                and other.trx.number < place  # else it is done, and only its process was slow to see it
            }
            if _PASSED < len(before) < attempt.requests / 1.5:
                size = sum(len(data) for payloads in attempt.parts.values() for data in payloads)
                self._say(
                    "waits",
                    f"{len(before)} transactions that were asked for later came before {attempt}, of {size} bytes: "
                    f"{attempt.requests} requests",
                )

    def _fences(self) -> None:
        highest: dict[tuple[int, str], int] = {}
        of = {data: attempt for attempt in self.attempts for d in attempt.parts.values() for data in d}
        for entry in self.log:
            attempt = of.get(entry.payload)
            if attempt is not None and attempt.fence is not None:
                lease, token = attempt.fence
                if token < highest.get((entry.origin.partition, lease), 0):
                    self._say("fenced", f"a successor had written before {_brief(entry)}: {attempt}")
                highest[entry.origin.partition, lease] = max(token, highest.get((entry.origin.partition, lease), 0))

    def judge_look(self, look: Look) -> list[str]:
        log = [entry for entry in self.log if look.segment in (None, entry.segment)]
        found = _same_order("prefix", look.entries, log, complete=False)
        seen = {entry.payload for entry in look.entries}
        for attempt in self.attempts:
            wanted = [
                data
                for segment, payloads in attempt.parts.items()
                if look.segment in (None, segment)
                for data in payloads
            ]
            count = sum(data in seen for data in wanted)
            if look.whole and 0 < count < len(wanted):
                found.append(f"whole: a reader saw {count} of {len(wanted)} records of {attempt}")
            if look.whole and attempt.outcome == "ok" and attempt.returned < look.invoked and count < len(wanted):
                found.append(f"prefix: acknowledged before the reading began, and not in it: {attempt}")
            if count and attempt.key is None and attempt.invoked > look.returned:
                found.append(f"prefix: it was read before it was written: {attempt}")
        return found
