"""The pace of a contended log, as a waiting process sees it, and the time to take over from a lead that is silent.

The log is the clock. Each process judges for itself, and a wrong judgement costs requests and nothing else.
"""

from __future__ import annotations

import random

from .partition import Partition

__all__ = ["LONGEST", "Pace"]

LONGEST = 2.0
_ROUND = (0.01, 0.06, LONGEST)
"""Seconds between two transactions: at least, at first, and at most."""
_EACH = 1.5
"""Requests of each waiting process from one transaction to the next. Transactions are far enough apart that all
requests stay below the service's rate."""
_PHASE = (0.5, 0.8, 1.5)
"""Rounds after a transaction until the next one is looked for: at least, at first, and at most."""
_EARLIER = 0.01
_LATER = 0.05
"""Rounds by which that changes: earlier after a look that found the transaction, more with each in a row; later after
one that did not. So about one look in six is in vain, and transactions are found soon."""
_PAUSE = 0.25
"""Rounds between two looks after one in vain."""
_STANDS = 2.0
"""Rounds without a transaction of the lead after which another process takes over."""
_OLD = 1.0
"""Seconds, in addition to twice that time, after which the named lead no longer matters."""
_RECENT = 2000
"""Milliseconds, by the writers' clocks. A new process assumes that a lead with a younger transaction is alive. A wrong
clock makes it compete with the lead once, or wait in vain once."""


class Pace:
    """The pace that one process sees. Only its leading thread uses it."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.round = _ROUND[1]
        """Seconds between two transactions."""
        self.moved = float("-inf")
        """The time when the log was seen to move."""
        self._led = float("-inf")
        """The time when the lead was seen to have written."""
        self._number = self._named_by = 0
        self._lot = 0.0
        self._phase = _PHASE[1]
        self._found = 0
        """Looks in a row that found a transaction."""
        self._vain = 0
        """Take-overs since this process last had an answer, at most 4."""
        self._retries = 0
        self._strain = 1.0
        """More than 1 while requests are throttled."""

    def observe(self, moves: bool = True) -> None:
        """Note new transactions since the last call. `moves`: the log has just moved, and was not only read late."""
        partition, lead = self._partition, self._partition.answers.lead
        number, now = partition.number, partition.clock.monotonic()
        if number == self._number:
            return
        known = self._number > 0 and not self.is_old()
        answers = partition.answers
        if known and answers.taken <= self._number:  # else the log stood still until another process wrote
            least, _, most = _ROUND
            timed, took = answers.round
            if timed <= self._number:
                took = (now - self.moved) / (number - self._number)
            self.round += (min(max(took, least), most, 2 * self.round) - self.round) / 8  # it may have stood still
        recent = abs(partition.clock.now() - lead.timestamp) < _RECENT
        if moves or known or recent:
            self.moved = now
        if lead.named_by != self._named_by and (known or recent):
            self._led = now
        self._number, self._named_by = number, lead.named_by

    def is_old(self) -> bool:
        """True if there was no lead for so long that the named one no longer matters."""
        return self._partition.clock.monotonic() - self._led > self._oldest()

    def _oldest(self) -> float:
        return _OLD + 2 * _STANDS * self.between()

    def stands(self) -> bool:
        """True if the log stands still for so long that every waiting process has posted."""
        return self._partition.clock.monotonic() - self.moved > _STANDS * self.between()

    def rest(self) -> float:
        """Seconds until this process is to take over, or to go on by itself; 0 or less: now."""
        waiting = self._partition.answers.lead.waiting
        # Among many, about one takes over in each round, and the first one ends it for all.
        patience = (_STANDS * self.between() + self._lot * max(2, waiting) * self.round) * (1 << self._vain)
        # No other process may be left.
        return self._led + min(patience, self._oldest()) - self._partition.clock.monotonic()

    def draw(self) -> None:
        """Draw a new lot, so that waiting processes do not all take over at once."""
        self._lot = random.random()

    def is_passed(self, passes: int, most: int) -> bool:
        """True if `passes` transactions that left this process out are too many. More are allowed where many wait."""
        return passes > most + self._lot * self._partition.answers.lead.waiting / 4

    def take_over(self) -> None:
        self._led = self._partition.clock.monotonic()
        self._vain = min(self._vain + 1, 4)

    def arrive(self) -> None:
        """Note that this process has its answers."""
        self._vain = 0

    def due(self) -> float:
        """The time of the next look."""
        return self.moved + self._phase * self.round

    def pause(self) -> float:
        """Seconds until the next look, after one in vain."""
        return max(_PAUSE * self.round, self.share() / 2)

    def looked(self, found: bool) -> None:
        """Note the result of a look that was due: the next one is a little earlier, or a little later."""
        least, _, most = _PHASE
        if found:
            self._found += 1
            self._phase = max(self._phase - _EARLIER * self._found, least)
        else:
            self._found = 0
            self._phase = min(self._phase + _LATER, most)

    def share(self) -> float:
        """Seconds in which each waiting process may send a request without exceeding the service's rate."""
        retries = self._partition.counters["retries"]
        self._strain = min(2 * self._strain, 8.0) if retries > self._retries else max(0.9 * self._strain, 1.0)
        self._retries = retries
        return self._strain * self._partition.answers.lead.waiting / self._partition.backend.limits.rate

    def between(self) -> float:
        """Seconds between two transactions, as they are and as they should be."""
        return max(self.round, _EACH * self._partition.answers.lead.waiting / self._partition.backend.limits.rate)

    def hold(self, takes: float) -> float:
        """Seconds until the next transaction, which takes `takes` seconds, may begin."""
        return min(self.moved + _EACH * self.share() - takes - self._partition.clock.monotonic(), LONGEST)
