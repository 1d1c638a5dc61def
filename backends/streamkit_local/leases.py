"""Leases as rows of the index, judged by the machine's own clock since it started: nobody's wall clock matters.

A deadline is compared only with the clock that it was told by: that of one start of one machine, and of one time
namespace, since containers may have clocks of their own. Whoever has another clock waits for the whole ttl, by its own,
from when it first saw the lease as it is, and notes that in the row, for the next process that has its clock.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
import time
from functools import lru_cache
from typing import Final, NamedTuple

import lmdb

from streamkit.backend import Grant
from streamkit.errors import LeaseLost

from .environment import Environment
from .head import boot_id
from .index import checksummed, content, look_up

__all__ = ["acquire", "release", "renew"]

_LEASE: Final = struct.Struct("<QQ16s16sQ16sQ")
_EARLIER: Final = 48
"""Bytes of a row of an earlier release, which ends with the holder."""
_UNKNOWN_TTL: Final = 60 * 10**9
_FIRST_NAMESPACE: Final = 0xEFFFFFFA
"""The number that Linux gives the time namespace that the machine starts with."""
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class _Lease(NamedTuple):
    token: int
    deadline: int
    """Nanoseconds by `clock`; 0: released."""
    clock: bytes
    holder: bytes
    ttl: int = _UNKNOWN_TTL
    observer: bytes = bytes(16)
    """Another clock, by which it is held until `observed`."""
    observed: int = 0


_seen: dict[tuple[str, bytes], tuple[_Lease, int]] = {}
"""What this process saw of leases by other clocks, and since when: there may be several observers."""


@lru_cache
def clock_id() -> bytes:
    """16 bytes that all processes have in common whose clocks tell the same."""
    try:
        namespace = os.stat("/proc/self/ns/time").st_ino
    except OSError:
        namespace = _FIRST_NAMESPACE
    if namespace == _FIRST_NAMESPACE:
        return boot_id()
    return hashlib.blake2b(boot_id() + b"%d" % namespace, digest_size=16).digest()


def _now() -> int:
    return time.clock_gettime_ns(_CLOCK)


def _row(name: str) -> bytes:
    return b"z" + hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _get(txn: lmdb.Transaction[bytes], row: bytes) -> _Lease | None:
    stored = look_up(txn, row)
    if stored is None:
        return None
    body = content(row, stored)
    return _Lease(*_LEASE.unpack(body)) if len(body) > _EARLIER else _Lease(*struct.unpack("<QQ16s16s", body))


def _put(txn: lmdb.Transaction[bytes], row: bytes, lease: _Lease) -> None:
    txn.put(row, checksummed(row, _LEASE.pack(*lease)))


def acquire(env: Environment, name: str, ttl: float) -> Grant | None:
    row, holder, mine = _row(name), secrets.token_bytes(16), clock_id()

    def work(txn: lmdb.Transaction[bytes]) -> Grant | None:
        now, lease = _now(), _get(txn, row)
        if lease is not None and lease.deadline and lease.clock == mine and now < lease.deadline:
            return None
        if lease is not None and lease.deadline and lease.clock != mine:
            as_it_is = lease._replace(observer=b"", observed=0)
            before, since = _seen.get((env.path, row), (None, now))
            if before != as_it_is:
                since = now
                _seen[env.path, row] = as_it_is, since
            if lease.observer != mine and now < since + lease.ttl:
                _put(txn, row, lease._replace(observer=mine, observed=since + lease.ttl))
                return None
            if lease.observer == mine and now < lease.observed:
                return None
        _seen.pop((env.path, row), None)
        token = lease.token + 1 if lease is not None else 1
        _put(txn, row, _Lease(token, now + int(ttl * 1e9), mine, holder, int(ttl * 1e9)))
        return Grant(name, token, ttl, holder.hex())

    return env.write(work)


def renew(env: Environment, grant: Grant) -> Grant:
    row, ttl = _row(grant.name), int(grant.ttl * 1e9)

    def work(txn: lmdb.Transaction[bytes]) -> Grant:
        lease = _get(txn, row)
        if lease is None or lease.holder.hex() != grant.handle or lease.deadline == 0:
            raise LeaseLost(f"the lease {grant.name!r} was taken or released: acquire it again")
        _put(txn, row, _Lease(lease.token, _now() + ttl, clock_id(), lease.holder, ttl))
        return grant

    return env.write(work)


def release(env: Environment, grant: Grant) -> None:
    row = _row(grant.name)

    def work(txn: lmdb.Transaction[bytes]) -> None:
        lease = _get(txn, row)
        if lease is not None and lease.holder.hex() == grant.handle:
            _put(txn, row, lease._replace(deadline=0))

    env.write(work)
