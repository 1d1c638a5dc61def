"""Leases as rows of the index, judged by the machine's own clock since it started: nobody's wall clock matters."""

from __future__ import annotations

import hashlib
import secrets
import struct
import time
from typing import Final, NamedTuple

import lmdb

from streamkit.backend import Grant
from streamkit.errors import LeaseLost

from .environment import Environment
from .head import boot_id
from .index import checksummed, content, look_up

__all__ = ["acquire", "release", "renew"]

_LEASE: Final = struct.Struct("<QQ16s16s")
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class _Lease(NamedTuple):
    token: int
    deadline: int
    """Nanoseconds since the boot; 0: released."""
    boot: bytes
    holder: bytes

    def held(self, now: int) -> bool:
        return self.boot == boot_id() and now < self.deadline


def _now() -> int:
    return time.clock_gettime_ns(_CLOCK)


def _row(name: str) -> bytes:
    return b"z" + hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _get(txn: lmdb.Transaction[bytes], row: bytes) -> _Lease | None:
    stored = look_up(txn, row)
    return None if stored is None else _Lease(*_LEASE.unpack(content(row, stored)))


def _put(txn: lmdb.Transaction[bytes], row: bytes, lease: _Lease) -> None:
    txn.put(row, checksummed(row, _LEASE.pack(*lease)))


def acquire(env: Environment, name: str, ttl: float) -> Grant | None:
    row, holder = _row(name), secrets.token_bytes(16)

    def work(txn: lmdb.Transaction[bytes]) -> Grant | None:
        now, lease = _now(), _get(txn, row)
        if lease is not None and lease.held(now):
            return None
        token = lease.token + 1 if lease is not None else 1
        _put(txn, row, _Lease(token, now + int(ttl * 1e9), boot_id(), holder))
        return Grant(name, token, ttl, holder.hex())

    return env.write(work)


def renew(env: Environment, grant: Grant) -> Grant:
    row = _row(grant.name)

    def work(txn: lmdb.Transaction[bytes]) -> Grant:
        lease = _get(txn, row)
        if lease is None or lease.holder.hex() != grant.handle or lease.deadline == 0:
            raise LeaseLost(f"the lease {grant.name!r} was taken or released: acquire it again")
        _put(txn, row, lease._replace(deadline=_now() + int(grant.ttl * 1e9), boot=boot_id()))
        return grant

    return env.write(work)


def release(env: Environment, grant: Grant) -> None:
    row = _row(grant.name)

    def work(txn: lmdb.Transaction[bytes]) -> None:
        lease = _get(txn, row)
        if lease is not None and lease.holder.hex() == grant.handle:
            _put(txn, row, lease._replace(deadline=0))

    env.write(work)
