"""Leases. A lease gives liveness: someone leads. Safety comes from its token, which a commit writes into the log."""

from __future__ import annotations

import contextlib
import random
import threading
from types import TracebackType
from typing import Any
from uuid import UUID

import msgspec

from .backend import Ambiguous, Backend, Grant, ShowsLeases
from .clock import Clock
from .decoders import json_decoder
from .errors import LeaseLost, LeaseNotAcquired, TransientError, Unavailable
from .names import check_name
from .warn import warn

__all__ = ["Lease", "LeaseGrant", "acquire", "check_grant", "check_store", "is_held", "release", "renew"]

_LONGEST_PAUSE = 0.5
_EARLY = 0.05
"""The share of the ttl before its end at which `lost` is set. A thread that wakes up late is then still in time."""


class LeaseGrant(msgspec.Struct, frozen=True, array_like=True):
    """The right to a lease, from `store.acquire_lease(…)`. No thread renews it.

    `key` is its name. `token` is a number greater than the token of every earlier holder. `ttl` is the number of
    seconds that it lasts without a renewal. `encode` returns it as text, for another process or a client of a server.
    The text is enough to renew and release the lease.
    """

    key: str
    token: int
    ttl: float
    handle: str
    """The holder's id in the storage: a secret, like a password."""

    def encode(self) -> str:
        """The grant as text of letters, digits, `-` and `_`."""
        from .base64url import encode_base64url

        return encode_base64url(msgspec.json.encode(self))

    @classmethod
    def decode(cls, text: str) -> LeaseGrant:
        """Decode a text of `encode`. ValueError for any other text."""
        from .base64url import decode_base64url

        if not isinstance(text, str):
            raise TypeError(f"the text of a grant is str, not {type(text).__name__}")
        try:
            return check_grant(json_decoder(cls).decode(decode_base64url(text)))
        except (ValueError, TypeError):
            raise ValueError("the text is no grant of a lease; pass the result of LeaseGrant.encode()") from None

    def __repr__(self) -> str:
        return f"LeaseGrant(key={self.key!r}, token={self.token}, ttl={self.ttl:g})"


def check_grant(grant: Any) -> LeaseGrant:
    """`grant`, which must be a LeaseGrant. TypeError or ValueError."""
    if not isinstance(grant, LeaseGrant):
        raise TypeError(f"a grant is a LeaseGrant of `store.acquire_lease(…)`, not {type(grant).__name__}")
    check_name(grant.key, "lease")
    if not (0 < grant.token < 1 << 63 and 1 <= grant.ttl <= 3600):
        raise ValueError(f"{grant!r} is not a grant of a lease: pass the one that `store.acquire_lease(…)` returned")
    return grant


def acquire(backend: Backend, key: str, ttl: float) -> LeaseGrant:
    """Try once to acquire the lease. LeaseNotAcquired if another holder has it."""
    try:
        grant = backend.acquire(key, ttl)
    except Ambiguous as error:
        raise _lost_answer(key, ttl) from error
    if grant is None:
        raise LeaseNotAcquired(f"another holder has the lease {key!r}: try again later")
    return LeaseGrant(grant.name, grant.token, grant.ttl, grant.handle)


def renew(backend: Backend, grant: LeaseGrant) -> LeaseGrant:
    """Renew the lease for another ttl."""
    try:
        renewed = backend.renew(Grant(grant.key, grant.token, grant.ttl, grant.handle))
    except Ambiguous as error:
        raise Unavailable(f"the answer to the renewal of the lease {grant.key!r} was lost; renew it again") from error
    return LeaseGrant(renewed.name, renewed.token, renewed.ttl, renewed.handle)


def release(backend: Backend, grant: LeaseGrant) -> None:
    """Release the lease."""
    try:
        backend.release(Grant(grant.key, grant.token, grant.ttl, grant.handle))
    except LeaseLost:
        return
    except Ambiguous as error:
        raise Unavailable(f"the answer to the release of the lease {grant.key!r} was lost; release it again") from error


def is_held(backend: Backend, key: str) -> bool:
    """True if the lease is held now. If the backend cannot tell, the lease is acquired and released at once.

    TransientError if the storage does not answer.
    """
    if isinstance(backend, ShowsLeases):
        return backend.is_held(key)
    try:
        release(backend, acquire(backend, key, 1.0))
    except LeaseNotAcquired:
        return True
    return False


def _lost_answer(key: str, ttl: float) -> Unavailable:
    return Unavailable(
        f"the answer to the request for the lease {key!r} was lost: try again, in {ttl:g} seconds if it was granted"
    )


class Lease:
    """A lease that is held, from `with store.lease(…)`. A thread renews it, and sets `lost` if that fails.

    `key` is its name. `token` is a number greater than the token of every earlier holder.
    """

    def __init__(self, store: UUID, backend: Backend, clock: Clock, key: str, ttl: float, wait: float | None) -> None:
        self.key = key
        self.ttl = ttl
        self.lost = threading.Event()
        """Set no later than ttl seconds after the last renewal that succeeded, and when a write is Fenced."""
        self._store = store
        self._backend = backend
        self._clock = clock
        self._wait = wait
        self._grant: Grant | None = None
        self._deadline = 0.0
        self._wall_deadline = 0
        self._released = threading.Event()

    @property
    def token(self) -> int:
        """The token of the lease, which grows with each holder. LeaseLost while the lease is not held."""
        if self._grant is None:
            raise self._not_held()
        return self._grant.token

    def _not_held(self) -> LeaseLost:
        return LeaseLost(f"the lease {self.key!r} is not held: use it inside `with store.lease(…) as lease:`")

    def remaining(self) -> float:
        """Return the seconds for which the lease is certainly held without another renewal; 0 if it is lost."""
        if self.lost.is_set() or self._grant is None:
            return 0.0
        # The monotonic clock may stand still while a function is frozen; the wall clock may be set back.
        wall = (self._wall_deadline - self._clock.now()) / 1000
        rest = min(self._deadline - self._clock.monotonic(), wall, self.ttl)
        if rest <= 0:
            self.lost.set()
            return 0.0
        return rest

    def check(self) -> None:
        """Raise LeaseLost unless it is held."""
        if self._grant is None:
            raise self._not_held()
        if self.remaining() <= 0:
            raise LeaseLost(f"the lease {self.key!r} was lost: stop, someone else may be the leader")

    def __enter__(self) -> Lease:
        if self._grant is not None:
            raise LeaseNotAcquired(f"the lease {self.key!r} is not re-entrant: ask the store for another one")
        self._acquire()
        for work in (self._renew, self._watch):
            threading.Thread(target=work, name=f"streamkit-lease-{work.__name__}", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._released.set()
        grant, held = self._grant, self.remaining() > 0
        self.lost.set()
        if grant is not None and held:
            self._release(grant)

    def _release(self, grant: Grant) -> None:
        # Not being able to release is not being unable to finish: it runs out by itself.
        with contextlib.suppress(TransientError, Ambiguous, LeaseLost):
            self._backend.release(grant)

    def _acquire(self) -> None:
        end = self._clock.monotonic() + (self._wait or 0.0)
        pause = min(0.05, self.ttl / 10)
        while True:
            asked, asked_wall = self._clock.monotonic(), self._clock.now()
            try:
                grant = self._backend.acquire(self.key, self.ttl)
            except TransientError:
                if self._clock.monotonic() >= end:
                    raise
                grant = None
            except Ambiguous as error:
                if self._clock.monotonic() >= end:
                    raise _lost_answer(self.key, self.ttl) from error
                grant = None
            if grant is not None:
                self._take(grant, asked, asked_wall)
                return
            rest = end - self._clock.monotonic()
            if rest <= 0:
                raise LeaseNotAcquired(
                    f"another holder has the lease {self.key!r}: try again later, or wait longer for it"
                )
            self._clock.sleep(min(pause * (0.5 + random.random()), rest))
            pause = min(pause * 1.5, self.ttl / 4, _LONGEST_PAUSE)

    def _take(self, grant: Grant, asked: float, asked_wall: int) -> None:
        """Keep the grant. The ttl counts from the request: the service cannot have granted it earlier."""
        self._grant = grant
        self._deadline = asked + self.ttl
        self._wall_deadline = asked_wall + int(self.ttl * 1000)

    def _renew(self) -> None:
        pause = self.ttl / 3
        while not self._released.wait(pause):
            grant = self._grant
            if grant is None or self.lost.is_set():
                return
            asked, asked_wall = self._clock.monotonic(), self._clock.now()
            try:
                renewed = self._backend.renew(grant)
            except (TransientError, Ambiguous) as error:
                warn("the lease %r could not be renewed, trying again: %s", self.key, error)
                pause = self.ttl / 10
                continue
            except Exception as error:
                warn("the lease %r is lost: %s", self.key, error)
                self.lost.set()
                return
            if self.lost.is_set():
                # It came too late for this holder, and must not keep a successor waiting.
                self._release(renewed)
                return
            self._take(renewed, asked, asked_wall)
            pause = self.ttl / 3

    def _watch(self) -> None:
        """Sets `lost` in time, also when a renewal hangs."""
        early = min(self.ttl * _EARLY, 0.5)
        while not self._released.wait(max(self.remaining() - early, 0.001)):
            if self.remaining() <= early:
                self.lost.set()
                return

    def __repr__(self) -> str:
        state = "lost" if self.lost.is_set() else f"held, token {self._grant.token}" if self._grant else "not acquired"
        return f"<Lease {self.key!r} {state}>"


def check_store(lease: Lease, store: UUID) -> None:
    """Raise ValueError if the lease is of another store, whose tokens mean nothing in this one."""
    if store != lease._store:
        raise ValueError(
            f"the lease {lease.key!r} is of the store {lease._store}, and the write is to the store {store}: take a "
            "lease of the store that you write to"
        )
