"""Broken leases."""

from __future__ import annotations

import time
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from streamkit.backend import (
    Backend,
    Grant,
)
from streamkit.errors import LeaseLost

from .sound import Sound

__all__ = [
    "EndlessLease",
    "LeaseForEveryone",
    "LeaseIsARow",
    "LeaseSeenAndTaken",
    "LooksByTaking",
    "ReleasesTheSuccessor",
    "RenewalForgotten",
    "ShortLease",
    "ShownForEver",
    "TokensStartOver",
]


_tokens = count(1)


class LeaseForEveryone(Sound):
    """A lease is granted to every caller."""

    caught_by = "test_a_lease_has_one_holder"

    def acquire(self, name: str, ttl: float) -> Grant | None:
        return self.inner.acquire(f"{name} {uuid4()}", ttl) and Grant(name, next(_tokens), ttl, "")

    def renew(self, grant: Grant) -> Grant:
        return grant

    def release(self, grant: Grant) -> None:
        return


class LeaseSeenAndTaken(Sound):
    """A lease is looked up and then taken, without a precondition between the two."""

    caught_by = "test_only_one_of_many_acquires_a_lease"

    def acquire(self, name: str, ttl: float) -> Grant | None:
        if self.shared.get((self.store, name)):
            return None
        time.sleep(0.02)
        grant = Grant(name, next(_tokens), ttl, "")
        self.shared[self.store, name] = grant
        return grant

    def renew(self, grant: Grant) -> Grant:
        if self.shared.get((self.store, grant.name)) != grant:
            raise LeaseLost("lost")
        return grant

    def release(self, grant: Grant) -> None:
        if self.shared.get((self.store, grant.name)) == grant:
            del self.shared[self.store, grant.name]


class TokensStartOver(Sound):
    """Tokens are counted from 1 by each client."""

    caught_by = "test_tokens_grow"

    def __init__(self, inner: Backend, store: UUID, shared: dict[Any, Any]) -> None:
        super().__init__(inner, store, shared)
        self._count = count(1)
        self._grants: dict[int, Grant] = {}

    def acquire(self, name: str, ttl: float) -> Grant | None:
        grant = self.inner.acquire(name, ttl)
        if grant is None:
            return None
        token = next(self._count)
        self._grants[token] = grant
        return grant._replace(token=token)

    def renew(self, grant: Grant) -> Grant:
        self.inner.renew(self._grants[grant.token])
        return grant

    def release(self, grant: Grant) -> None:
        self.inner.release(self._grants[grant.token])


class ReleasesTheSuccessor(Sound):
    """A lease is released by its name, for any holder."""

    caught_by = "test_a_released_lease_is_free_at_once"

    def acquire(self, name: str, ttl: float) -> Grant | None:
        grant = self.inner.acquire(name, ttl)
        if grant is not None:
            self.shared[self.store, name] = grant
        return grant

    def release(self, grant: Grant) -> None:
        self.inner.release(self.shared[self.store, grant.name])


class EndlessLease(Sound):
    """The ttl is not kept: a holder that dies keeps the lease for ever."""

    caught_by = "test_a_lease_ends_by_itself"

    def acquire(self, name: str, ttl: float) -> Grant | None:
        grant = self.inner.acquire(name, 1e9)
        return grant and grant._replace(ttl=ttl)


class LooksByTaking(Sound):
    """A look at a lease takes it."""

    caught_by = "test_a_look_at_a_lease_tells_whether_it_is_held"

    def is_held(self, name: str) -> bool:
        return self.inner.acquire(name, 60.0) is None


class ShownForEver(Sound):
    """A look at a lease does not know when the lease ends."""

    caught_by = "test_a_look_at_a_lease_tells_whether_it_is_held"

    def acquire(self, name: str, ttl: float) -> Grant | None:
        grant = self.inner.acquire(name, ttl)
        if grant is not None:
            self.shared[self.store, name] = True
        return grant

    def release(self, grant: Grant) -> None:
        self.shared.pop((self.store, grant.name), None)
        self.inner.release(grant)

    def is_held(self, name: str) -> bool:
        return (self.store, name) in self.shared


class ShortLease(Sound):
    """A lease ends before its ttl."""

    caught_by = "test_a_lease_ends_by_itself"

    def acquire(self, name: str, ttl: float) -> Grant | None:
        grant = self.inner.acquire(name, ttl * 0.75)
        return grant and grant._replace(ttl=ttl)


class RenewalForgotten(Sound):
    """renew says yes and does nothing."""

    caught_by = "test_a_renewed_lease_goes_on"

    def renew(self, grant: Grant) -> Grant:
        return grant


class LeaseIsARow(Sound):
    """A lease is kept among the rows."""

    caught_by = "test_leases_are_not_rows"

    def acquire(self, name: str, ttl: float) -> Grant | None:
        self.inner.put(b"leases", name.encode(), b"")
        return self.inner.acquire(name, ttl)
