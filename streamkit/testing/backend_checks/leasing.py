"""Leases: one holder, a growing token, an end."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

from ...backend import Grant, ShowsLeases
from ...errors import LeaseLost
from .subject import Subject, hold, refuses, same

__all__ = ["Leasing"]

LONG = 60.0
_TRIES = 10
NAMES = ["leader", "leader2", "lead", "a/b", "a b", "é", "🎉", "%2F", "..", "archive/" + "x" * 200 + "/0"]


class Leasing(Subject):
    def taken(self, name: str, ttl: float = LONG) -> Grant:
        """Return a grant of a lease that must be free. Broken if it is refused."""
        grant = self.backend.acquire(name, ttl)
        hold(grant is not None, f"the lease {name!r}, which nobody holds, was not granted")
        assert grant is not None
        return grant

    def test_a_lease_has_one_holder(self) -> None:
        """A lease that was held was granted again."""
        grant = self.taken("leader")
        same((grant.name, grant.ttl), ("leader", LONG), "name and ttl of the grant")
        for backend in (self.backend, self.stranger()):
            same(backend.acquire("leader", LONG), None, "a lease that is held")
        self.backend.release(grant)

    def test_leases_of_other_names_and_stores_are_independent(self) -> None:
        """A lease was held because one of another name, or of another store, was."""
        grants = [self.taken(name) for name in NAMES]
        same([grant.name for grant in grants], NAMES, "the names of the grants")
        for name in NAMES:
            same(self.stranger().acquire(name, LONG), None, f"the lease {name!r}, which is held")
        neighbour = self.open(uuid4())
        grant = neighbour.acquire("leader", LONG)
        hold(grant is not None, "a lease was held in a store where nobody asked for it")
        for held in grants:
            self.backend.renew(held)
            self.backend.release(held)
        assert grant is not None
        same(neighbour.acquire("leader", LONG), None, "the other store's lease, which is still held")
        neighbour.release(grant)

    def test_tokens_grow(self) -> None:
        """A later grant had a token that was not greater: a former leader could not be told from the present one."""
        last = -1
        for backend in (self.backend, self.backend, self.stranger(), self.stranger(), self.backend):
            grant = backend.acquire("leader", LONG)
            hold(grant is not None, "a lease that was released was not granted")
            assert grant is not None
            hold(grant.token > last, f"the token {grant.token} is not greater than the earlier {last}")
            last = grant.token
            same(backend.renew(grant).token, last, "the token after renewing")
            backend.release(grant)

    def test_a_released_lease_is_free_at_once(self) -> None:
        """A released lease could not be acquired, or releasing it again failed or hurt the next holder."""
        first = self.taken("leader")
        self.backend.release(first)
        self.backend.release(first)
        other = self.stranger()
        second = other.acquire("leader", LONG)
        hold(second is not None, "a lease that was released was not granted")
        assert second is not None
        self.backend.release(first)
        same(self.backend.acquire("leader", LONG), None, "the second holder's lease, after the first let go again")
        refuses(LeaseLost, lambda: self.backend.renew(first), "renewing a lease that was released and taken")
        other.renew(second)
        other.release(second)

    def test_a_released_lease_cannot_be_renewed(self) -> None:
        """A lease that was given up was renewed."""
        grant = self.taken("leader")
        self.backend.release(grant)
        refuses(LeaseLost, lambda: self.backend.renew(grant), "renewing a lease that was released")
        self.backend.release(self.taken("leader"))

    def test_a_lease_ends_by_itself(self) -> None:
        """A lease ended before its ttl, or its holder was gone and no other one could take over in time."""
        asked = self.clock()
        first = self.taken("leader", self.lease_ttl)
        granted = again = self.clock()
        other = self.stranger()
        while (second := other.acquire("leader", LONG)) is None:
            # By when it was asked again: how long the answer took is not the lease's fault.
            late = again - granted - self.lease_ttl
            hold(late < self.lease_grace, f"the lease is still held {late:.2f} s after its end")
            self.sleep(self.lease_ttl / 10)
            again = self.clock()
        passed = self.clock() - asked
        hold(passed >= self.lease_ttl, f"a lease of {self.lease_ttl} s was granted again after {passed:.3f} s")
        hold(second.token > first.token, f"the token {second.token} is not greater than {first.token}")
        refuses(LeaseLost, lambda: self.backend.renew(first), "renewing a lease that someone else has taken")
        self.backend.release(first)
        same(self.backend.acquire("leader", LONG), None, "the lease of the second holder")
        other.release(other.renew(second))

    def test_a_look_at_a_lease_tells_whether_it_is_held(self) -> None:
        """A look at a lease was wrong, or it changed the lease. A backend without `is_held` passes."""
        other = self.stranger()
        if not isinstance(other, ShowsLeases):
            return
        same(other.is_held("leader"), False, "a look at a lease that nobody has had")
        grant = self.backend.renew(self.taken("leader"))
        same([other.is_held("leader"), other.is_held("lead")], [True, False], "looks at a lease and at a free one")
        self.backend.release(self.backend.renew(grant))
        same(other.is_held("leader"), False, "a look at a lease that was released")
        self.backend.release(self.taken("leader"))
        asked = self.clock()
        self.taken("leader", self.lease_ttl)
        granted = again = self.clock()
        while other.is_held("leader"):
            late = again - granted - self.lease_ttl
            hold(late < self.lease_grace, f"the lease is still shown as held {late:.2f} s after its end")
            self.sleep(self.lease_ttl / 10)
            again = self.clock()
        passed = self.clock() - asked
        hold(passed >= self.lease_ttl, f"a lease of {self.lease_ttl} s is shown as free after {passed:.3f} s")
        self.backend.release(self.taken("leader"))

    def test_a_renewed_lease_goes_on(self) -> None:
        """A lease that was renewed in time ended at its first ttl."""
        hold(
            any(self._goes_on(f"leader {at}") for at in range(_TRIES)),
            f"of {_TRIES} leases of {self.lease_ttl} s none could be renewed four times in time",
        )

    def _goes_on(self, name: str) -> bool:
        """False if the calls took so long that the lease may have ended between two renewals."""
        asked = self.clock()
        grant, other = self.taken(name, self.lease_ttl), self.stranger()
        for _ in range(4):
            self.sleep(self.lease_ttl * 0.4)
            before, asked = asked, self.clock()
            try:
                grant = self.backend.renew(grant)
            except LeaseLost:
                if self.clock() - before < self.lease_ttl:
                    raise
                return False
            found = other.acquire(name, LONG)
            if self.clock() - asked >= self.lease_ttl:
                return False
            same(found, None, "a lease that was renewed in time")
        self.backend.release(grant)
        return True

    def test_only_one_of_many_acquires_a_lease(self) -> None:
        """Several callers were granted the same lease at once."""
        backends = [self.backend] * 4 + [self.stranger() for _ in range(4)]
        last = -1
        for _ in range(max(2, self.rounds // 4)):
            grants = self.together(*(partial(backend.acquire, "leader", LONG) for backend in backends))
            held = [grant for grant in grants if grant is not None]
            same(len(held), 1, "grants to 8 callers at the same time")
            hold(held[0].token > last, f"the token {held[0].token} is not greater than the earlier {last}")
            last = held[0].token
            self.backend.release(held[0])

    def test_leases_are_not_rows(self) -> None:
        """A lease showed up among the rows."""
        grant = self.taken("leader")
        for partition in (b"", b"leader", b"lease", b"leases"):
            same(list(self.backend.scan(partition, b"", b"\xff" * 9)), [], f"the rows of {partition!r}")
        self.backend.release(grant)
