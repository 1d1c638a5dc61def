"""Leases as a program uses them: one holder, a growing token, and no write by one that was succeeded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from uuid import uuid4

from streamkit.errors import Fenced, InvalidName, LeaseLost, LeaseNotAcquired
from streamkit.leases import Lease, LeaseGrant
from streamkit.model import Record
from streamkit.testing.backend_checks.subject import hold, same, together

from .subject import StoreSubject, refusing

__all__ = ["Leading"]


class Leading(StoreSubject):
    def test_a_lease_has_one_holder(self) -> None:
        """A lease that was held was granted again, or was not free after it was released."""
        other = self.stranger()
        with self.store.lease("leader", ttl=30) as lease:
            hold(0 < lease.remaining() <= 30, f"{lease.remaining()} seconds remain of a lease for 30")
            lease.check()
            hold(not lease.lost.is_set(), "a lease that is held is lost")
            for store in (self.store, other):
                with refusing(LeaseNotAcquired, "a lease that is held"):
                    store.with_lease("leader", _nothing)
                same(store.with_lease("other", lambda held: held.key), "other", "a lease of another name")
        hold(lease.lost.is_set(), "a lease that was released is not lost")
        same(lease.remaining(), 0, "what remains of a lease that was released")
        with refusing(LeaseLost, "check() of a lease that was released"):
            lease.check()
        for store in (other, self.store):
            same(store.with_lease("leader", lambda held: held.remaining() > 0), True, "a lease that was released")

    def test_the_token_grows(self) -> None:
        """A later holder's token was not greater than an earlier one's."""
        tokens = [
            store.with_lease("leader", lambda lease: lease.token)
            for store in (self.store, self.store, self.stranger(), self.store)
        ]
        hold(all(a < b for a, b in pairwise(tokens)), f"the tokens are {tokens}")

    def test_a_lease_without_a_thread_is_held_by_its_grant(self) -> None:
        """A grant did not hold its lease, was not renewed or released elsewhere, or its token did not grow."""
        other = self.stranger()
        grant = self.store.acquire_lease("leader", ttl=30)
        with refusing(LeaseNotAcquired, "a lease that a grant holds"):
            other.acquire_lease("leader", ttl=30)
        with refusing(LeaseNotAcquired, "a lease that a grant holds"):
            other.with_lease("leader", _nothing)
        hold("handle" not in repr(grant), "the repr of a grant shows its secret")
        passed_on = LeaseGrant.decode(grant.encode())
        same(passed_on, grant, "a grant that was made text and back")
        renewed = other.renew_lease(passed_on)
        same(renewed.token, grant.token, "the token after a renewal")
        same(other.renew_lease(passed_on).token, grant.token, "the token after a renewal by an older grant")
        other.release_lease(passed_on)
        other.release_lease(passed_on)
        with refusing(LeaseLost, "the renewal of a lease that was released"):
            self.store.renew_lease(renewed)
        following = other.acquire_lease("leader", ttl=30)
        hold(following.token > grant.token, f"the token is {following.token} after {grant.token}")
        self.store.release_lease(grant)  # of an earlier holder: the lease stays held
        with refusing(LeaseNotAcquired, "a lease that an earlier holder released"):
            self.store.acquire_lease("leader", ttl=30)
        with refusing(LeaseLost, "the renewal of a lease that someone else holds"):
            self.store.renew_lease(renewed)
        other.release_lease(following)

    def test_a_grant_fences_its_predecessors(self) -> None:
        """A write under a grant was refused, or one under the grant of an earlier holder was not."""
        for space in self.spaces():
            old = self.store.acquire_lease("grants", ttl=30)
            self.store.produce(space, "s", [Record(b"1")], lease=old)
            self.store.release_lease(old)
            new = self.stranger().acquire_lease("grants", ttl=30)
            with self.store.transaction(space, lease=new) as trx:
                trx.produce("s", [Record(b"2")])
            with self.nothing_written(space), refusing(Fenced, "a write under a grant that was succeeded"):
                self.store.produce(space, "s", [Record(b"x")], lease=old)
            self.store.release_lease(new)
            same(self.payloads(space, "s"), [b"1", b"2"], "the segment")

    def test_wrong_grants_are_refused(self) -> None:
        """A grant that is none was taken, or ended in another error."""
        store: Any = self.store
        for wrong in (None, "leader", 5, self.store.lease("leader")):
            with refusing(TypeError, f"renew_lease({wrong!r})"):
                store.renew_lease(wrong)
            with refusing(TypeError, f"release_lease({wrong!r})"):
                store.release_lease(wrong)
        damaged = (LeaseGrant("a\0", 1, 5.0, "").encode(), LeaseGrant("a", 0, 5.0, "").encode())
        for text in ("", "x", "é", "WzFd", *damaged):
            with refusing(ValueError, f"the grant of {text!r}"):
                LeaseGrant.decode(text)

    def test_a_lease_is_released_by_an_exception(self) -> None:
        """An exception in the block was swallowed or changed, or left the lease held."""

        class Stop(Exception):
            pass

        def stop(lease: Lease) -> None:
            raise Stop

        with refusing(Stop, "with_lease of a function that raises"):
            self.store.with_lease("leader", stop)
        same(self.store.with_lease("leader", lambda lease: 7), 7, "with_lease after an exception")

    def test_leases_of_stores_are_independent(self) -> None:
        """A lease was held because one of the same name in another store was."""
        neighbour_id = uuid4()
        try:
            with self.store.lease("leader"):
                neighbour = self.client.store(neighbour_id)
                same(neighbour.with_lease("leader", lambda lease: 7), 7, "the same lease of another store")
        finally:
            self.client.delete_store(neighbour_id)

    def test_waiting_for_a_lease_gets_it(self) -> None:
        """A caller that waited for a lease did not get it after it was released, or got it before."""
        order: list[str] = []
        other = self.stranger()
        held = self.store.lease("leader", ttl=30)
        held.__enter__()

        def wait() -> None:
            with other.lease("leader", ttl=30, wait=self.patience / 2):
                order.append("taken")

        def release() -> None:
            order.append("released")
            held.__exit__(None, None, None)

        together(wait, release, timeout=self.patience)
        same(order, ["released", "taken"], "the order of releasing and taking")

    def test_a_lease_is_not_re_entrant(self) -> None:
        """A lease that is held could be entered again, or its token read before it was held."""
        lease = self.store.lease("leader", ttl=30)
        with refusing(LeaseLost, "the token of a lease that was not acquired"):
            _ = lease.token
        with lease:
            with refusing(LeaseNotAcquired, "entering a lease that is held"):
                lease.__enter__()
            with refusing(LeaseNotAcquired, "the same lease in the same thread"):
                self.store.with_lease("leader", _nothing)
            lease.check()

    def test_wrong_arguments_are_refused(self) -> None:
        """An argument of the wrong type or value was taken, or ended in another error."""
        store: Any = self.store
        cases: list[tuple[type[Exception], Any, dict[str, Any]]] = [
            *((TypeError, wrong, {}) for wrong in (None, 5, b"leader")),
            *((InvalidName, wrong, {}) for wrong in ("", "*", "a\0", "x" * 256)),
            *((TypeError, "leader", {"ttl": wrong}) for wrong in ("30", None, True)),
            *((ValueError, "leader", {"ttl": wrong}) for wrong in (0, -1, float("nan"), 1e9)),
            *((TypeError, "leader", {"wait": wrong}) for wrong in ("5", True, [1])),
            *((ValueError, "leader", {"wait": wrong}) for wrong in (-1, float("nan"))),
        ]
        for error, name, options in cases:
            with refusing(error, f"lease({name!r}, {options})"):
                store.lease(name, **options)
        with refusing(TypeError, "with_lease without a function"):
            store.with_lease("leader", None)

    def test_a_successor_fences_its_predecessor(self) -> None:
        """A holder wrote after its successor had, or the successor or a stranger to the lease could not write."""
        for space in self.spaces():
            old = self.store.lease("leader", ttl=30)
            old.__enter__()
            self.store.produce(space, "s", [Record(b"1")], lease=old)
            old.__exit__(None, None, None)
            self.store.produce(space, "s", [Record(b"2")], lease=old)  # nobody has written since
            with self.stranger().lease("leader", ttl=30) as new:
                self.stranger().produce(space, "s", [Record(b"3")], lease=new)
                for store in (self.store, self.stranger()):
                    with self.nothing_written(space), refusing(Fenced, "a write under a lease that was succeeded"):
                        store.produce(space, "s", [Record(b"x")], lease=old)
                    self.stranger().maintain()
                self.store.produce(space, "s", [Record(b"4")], lease=new)
                with self.store.transaction(space, lease=new) as trx:
                    trx.produce("s", [Record(b"5")])
                self.store.produce(space, "s", [Record(b"6")])
                with self.store.lease("other", ttl=30) as other:
                    self.store.produce(space, "s", [Record(b"7")], lease=other)
            same(self.payloads(space, "s"), [b"%d" % number for number in range(1, 8)], "the segment")


def _nothing(lease: Lease) -> None:
    pass
