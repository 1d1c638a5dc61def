"""Leases as rows of a partition of their own, judged by the machine's clock since it started, never by a wall clock.

A deadline is compared only with the clock that it was told by: that of one start of one machine, and of one time
namespace, since containers may have clocks of their own. A process with another clock waits for the whole ttl by its
own clock, from its first look at the lease. It notes that look in the row, for the next process with its clock.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from os import urandom
from typing import Final, NamedTuple

from streamkit.backend import Grant, Value, first_token
from streamkit.digest import blake2b
from streamkit.errors import LeaseLost

from .clock import clock_id
from .log import PartitionLog

__all__ = ["acquire", "is_held", "release", "renew"]

_LEASE: Final = struct.Struct("<QQ16s16sQ16sQ")
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class _Lease(NamedTuple):
    token: int
    deadline: int
    """Nanoseconds by `clock`; 0: released."""
    clock: bytes
    holder: bytes
    ttl: int
    observer: bytes = bytes(16)
    """Another clock, by which it is held until `observed`."""
    observed: int = 0


_seen: dict[tuple[str, bytes], tuple[_Lease, int]] = {}
"""Leases of other clocks as this process saw them, with the time of that look. Several observers may share it."""


def _now() -> int:
    return time.clock_gettime_ns(_CLOCK)


def _key(name: str) -> bytes:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _unpack(row: bytes | None) -> _Lease | None:
    return _Lease(*_LEASE.unpack(row)) if row is not None else None


def acquire(log: PartitionLog, name: str, ttl: float) -> Grant | None:
    """Durable, since a token that was granted is never granted again."""
    key, holder, mine, length = _key(name), urandom(16), clock_id(), int(ttl * 1e9)

    def work(row: bytes | None) -> tuple[bytes | None, Grant | None]:
        now, lease = _now(), _unpack(row)
        if lease is not None and now < (end := _end(log, key, lease, now)):
            is_noted = mine in (lease.clock, lease.observer)
            return None if is_noted else _LEASE.pack(*lease._replace(observer=mine, observed=end)), None
        _seen.pop((log.path, key), None)
        token = lease.token + 1 if lease is not None else first_token(time.time())
        return _LEASE.pack(*_Lease(token, now + length, mine, holder, length)), Grant(name, token, ttl, holder.hex())

    return log.update(key, work, durable=True)


def _end(log: PartitionLog, key: bytes, lease: _Lease, now: int) -> int:
    """The time at which a lease ends, by this process's clock."""
    mine = clock_id()
    if not lease.deadline or lease.clock == mine:
        return lease.deadline
    if lease.observer == mine:
        return lease.observed
    as_it_is = lease._replace(observer=b"", observed=0)
    before, since = _seen.get((log.path, key), (None, now))
    if before != as_it_is:
        since = now
        _seen[log.path, key] = as_it_is, since
    return since + lease.ttl


def is_held(log: PartitionLog, name: str, read: Callable[[bytes], Value | None]) -> bool:
    """True if a holder has the lease now. `read` gives a row."""
    key = _key(name)
    row = read(key)
    lease = _unpack(None if row is None else row.data)
    return lease is not None and (now := _now()) < _end(log, key, lease, now)


def renew(log: PartitionLog, grant: Grant) -> Grant:
    """Renew the lease. A power cut may undo it, but then the holder is gone too."""
    ttl = int(grant.ttl * 1e9)

    def work(row: bytes | None) -> tuple[bytes | None, Grant]:
        lease = _unpack(row)
        if lease is None or lease.holder.hex() != grant.handle or lease.deadline == 0:
            raise LeaseLost(f"the lease {grant.name!r} was taken or released: acquire it again")
        return _LEASE.pack(*_Lease(lease.token, _now() + ttl, clock_id(), lease.holder, ttl)), grant

    return log.update(_key(grant.name), work, durable=False)


def release(log: PartitionLog, grant: Grant) -> None:
    def work(row: bytes | None) -> tuple[bytes | None, None]:
        lease = _unpack(row)
        if lease is None or lease.holder.hex() != grant.handle:
            return None, None
        return _LEASE.pack(*lease._replace(deadline=0)), None

    log.update(_key(grant.name), work, durable=False)
