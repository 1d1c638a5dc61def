"""Leases as objects: taken and renewed by conditional writes, judged by the service's clock alone."""

from __future__ import annotations

from typing import NamedTuple
from uuid import uuid4

import msgspec

from streamkit.backend import Ambiguous, Conflict, Grant, first_token
from streamkit.decoders import json_decoder
from streamkit.errors import CorruptData, LeaseLost, Unavailable

from .bucket import Bucket
from .layout import label
from .marker import Marker

__all__ = ["Leases"]

_TRIES = 3


class _Lease(msgspec.Struct, frozen=True):
    """The content of a lease's object. The object stays after the release, because its token must only grow."""

    token: int
    holder: str
    """The holder; "" if there is none."""
    ttl: float
    """Seconds from the object's Last-Modified."""
    write: str
    """Another one in each write, so that each has its own etag and knows itself again."""


class _Found(NamedTuple):
    lease: _Lease
    etag: str
    age: float

    @property
    def live(self) -> bool:
        # Last-Modified is cut to the second, so the write may be as much as one younger than its age says.
        return bool(self.lease.holder) and self.age < self.lease.ttl + 1.0


class Leases:
    """The leases of the store at `path`. A lost answer is settled here; if that fails too, Unavailable."""

    def __init__(self, bucket: Bucket, path: str, marker: Marker) -> None:
        self._bucket = bucket
        self._path = path
        self._marker = marker

    def acquire(self, name: str, ttl: float) -> Grant | None:
        if not ttl > 0:
            raise ValueError(f"ttl is more than 0 seconds, not {ttl}")
        with self._marker.while_reading():
            found = self._read(name)
        if found is not None and found.live:
            return None
        self._marker.ensure()
        holder = uuid4().hex
        token = found.lease.token + 1 if found is not None else first_token(self._bucket.connection.now())
        etag = self._swap(name, found.etag if found is not None else None, _Lease(token, holder, ttl, uuid4().hex))
        return None if etag is None else Grant(name, token, ttl, f"{holder} {etag}")

    def renew(self, grant: Grant) -> Grant:
        holder = grant.handle.partition(" ")[0]
        etag = self._replace(grant, _Lease(grant.token, holder, grant.ttl, uuid4().hex))
        if etag is None:
            raise LeaseLost(f"the lease {grant.name!r} was taken or released; acquire it again")
        return grant._replace(handle=f"{holder} {etag}")

    def release(self, grant: Grant) -> None:
        self._replace(grant, _Lease(grant.token, "", 0.0, uuid4().hex))

    def is_held(self, name: str) -> bool:
        found = self._read(name)
        return found is not None and found.live

    def _replace(self, grant: Grant, lease: _Lease) -> str | None:
        """Write `lease` over the grant's; None if it is no longer the grant's."""
        holder, _, etag = grant.handle.partition(" ")
        written = self._swap(grant.name, etag, lease)
        if written is None:
            # An earlier renewal may have been applied although its caller got an error.
            found = self._read(grant.name)
            if found is not None and found.lease.holder == holder:
                written = self._swap(grant.name, found.etag, lease)
        return written

    def _swap(self, name: str, etag: str | None, lease: _Lease) -> str | None:
        """Write `lease` over the object that has `etag` (None: over nothing). Its new etag; None if that is gone."""
        data = msgspec.json.encode(lease)
        for _ in range(_TRIES):
            try:
                return self._bucket.put(self._name(name), data, absent=etag is None, etag=etag)
            except (Conflict, Ambiguous):
                # Either may be the answer to a copy of this very write.
                found = self._read(name)
            if found is not None and found.lease.write == lease.write:
                return found.etag
            if etag != (None if found is None else found.etag):
                return None
            # Nothing happened yet. Should the lost write still arrive, then as the same bytes.
        raise Unavailable(f"the answers about the lease {name!r} were lost: try again, after its ttl at the latest")

    def _read(self, name: str) -> _Found | None:
        found = self._bucket.get(self._name(name))
        if found is None:
            return None
        try:
            lease = json_decoder(_Lease).decode(found.data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise CorruptData(
                f"the object {self._name(name)} is no lease; remove it if no process holds the lease"
            ) from None
        return _Found(lease, found.etag, found.age)

    def _name(self, name: str) -> str:
        return f"{self._path}leases/{label(name.encode())}"
