"""A wrapper that injects faults into every backend, by a plan.

    driver = FaultyDriver(inner, Plan.at(0, Fault.LOST_ANSWER, kind="put"))
    ...                                  # use it as any driver
    driver.faults.trace                  # the calls, with their faults and outcomes
    driver.faults.release()              # apply the late writes now

A FaultyDriver, with all backends that it opens, stands for one process: its calls are counted together, and after a
Crash none of them works any more. Two processes are two FaultyDrivers around drivers of the same root. A write that is
LATE is applied by the inner backend when its time comes, with its original precondition, after everything that others
did in between; the inner backend is closed only after that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from uuid import UUID

from ..backend import (
    ANY,
    Backend,
    Conflict,
    DeletesIf,
    Driver,
    Etag,
    Expect,
    Grant,
    Limits,
    Range,
    RemovesLeftovers,
    Row,
    Scrubs,
    ServiceTime,
    Value,
)
from ..errors import LeaseLost, StoreClosed, StreamkitError, Unavailable
from ..leases import is_held
from .fault_plan import DAMAGE, Fault, Plan
from .injector import Injector, Turn, effect_of, name_of

__all__ = ["FaultyBackend", "FaultyDriver"]


def _describe(expect: Expect | Etag) -> str:
    if expect is ANY:
        return ""
    return f" if {expect.value}" if isinstance(expect, Expect) else " if etag"


class FaultyBackend:
    """A backend around `inner` that follows a plan, or the injector of its driver."""

    def __init__(self, inner: Backend, plan: Plan | Injector) -> None:
        self.inner = inner
        self.faults = plan if isinstance(plan, Injector) else Injector(plan)
        self._closed = False

    def __repr__(self) -> str:
        return f"<FaultyBackend {self.inner!r} {self.faults!r}>"

    @property
    def limits(self) -> Limits:
        """The limits of the inner backend."""
        return self.inner.limits

    @property
    def requests(self) -> Mapping[str, int]:
        """The inner backend's counts of requests."""
        return self.inner.requests

    def service_time(self) -> ServiceTime | None:
        """Return the inner backend's `service_time`. No fault can happen to it."""
        return self.inner.service_time()

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        """Get values, as the plan allows: see `Backend.get`."""
        turn = self._begin("get", f"{partition!r} {[bytes(key) for key in keys]}")
        found = self.faults.perform(turn, lambda: self.inner.get(partition, keys))
        victim = self._victim(turn, [value.data if value else None for value in found])
        value = None if victim is None else found[victim]
        if victim is not None and value is not None:
            found[victim] = value._replace(data=self._damaged(turn, value.data))
        return found

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        """Read parts of values, as the plan allows: see `Backend.read`."""
        what = [f"{bytes(part.key)!r} {part.start}+{part.length}" for part in ranges]
        turn = self._begin("read", f"{partition!r} [{', '.join(what)}]")
        found = self.faults.perform(turn, lambda: self.inner.read(partition, ranges))
        victim = self._victim(turn, found)
        data = None if victim is None else found[victim]
        if victim is not None and data is not None:
            found[victim] = self._damaged(turn, data)
        return found

    def _victim(self, turn: Turn, found: Sequence[bytes | None]) -> int | None:
        """Choose the value to damage; None if the fault damages none."""
        if turn.fault not in DAMAGE:
            return None
        some = [at for at, data in enumerate(found) if data]
        return turn.dice.choice(some) if some else None

    def _damaged(self, turn: Turn, data: bytes) -> bytes:
        self.faults.end(turn, "ok", turn.fault)
        at = turn.dice.randrange(len(data))
        if turn.fault is Fault.TRUNCATED:
            return data[:at]
        return data[:at] + bytes([data[at] ^ 1 << turn.dice.randrange(8)]) + data[at + 1 :]

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        """Scan rows, as the plan allows: see `Backend.scan`."""
        bounds = f"{partition!r} {bytes(start)!r} to {bytes(end)!r}"
        more = (f" limit {limit}" if limit else "") + ("" if values else " keys only")
        turn = self._begin("scan", bounds + more)
        return self._scan(turn, self.inner.scan(partition, start, end, limit=limit, values=values))

    def _scan(self, turn: Turn, rows: Iterator[Row]) -> Iterator[Row]:
        left = 0 if turn.at is None else turn.at.rows
        pending = turn.fault
        try:
            for row in rows:
                self.faults.check()
                if left == 0 and pending in DAMAGE and row.data:
                    row = row._replace(data=self._damaged(turn, row.data))
                    pending = None
                elif left == 0 and pending not in (None, Fault.CRASH_AFTER, *DAMAGE):
                    break
                left = max(0, left - 1)
                yield row
        except StreamkitError as error:
            self.faults.end(turn, name_of(error), None)
            raise
        if pending is not None and pending not in DAMAGE:
            self.faults.perform(turn, lambda: None)

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        """Put a row, as the plan allows: see `Backend.put`."""
        what = f"{partition!r} {bytes(key)!r}{_describe(expect)}" + ("" if durable else " not durable")
        turn = self._begin("put", what, (Fault.CONFLICT,) if expect is ANY else ())
        if turn.fault is Fault.CONFLICT:
            self.faults.end(turn, "Conflict", turn.fault)
            raise Conflict(turn.dice.choice((key, None)))
        return self.faults.perform(turn, lambda: self.inner.put(partition, key, value, expect, durable=durable))

    def delete(self, partition: bytes, keys: Sequence[bytes]) -> None:
        """Delete rows, as the plan allows: see `Backend.delete`."""
        keys = list(keys)
        partial = (Fault.PARTIAL, Fault.CRASH_PARTIAL)
        turn = self._begin("delete", f"{partition!r} {[bytes(key) for key in keys]}", partial if len(keys) < 2 else ())
        if turn.fault in partial:
            some = turn.dice.sample(keys, turn.dice.randint(1, len(keys) - 1))
            effect_of(lambda: self.inner.delete(partition, some))
            effect = f"{len(some)} of {len(keys)}"
            if turn.fault is Fault.CRASH_PARTIAL:
                raise self.faults.crash(turn, effect)
            if turn.dice.random() < 0.5:
                raise self.faults.ambiguous(turn, effect)
            self.faults.end(turn, f"Unavailable after {effect}", turn.fault)
            raise Unavailable("injected: some rows could not be deleted")
        self.faults.perform(turn, lambda: self.inner.delete(partition, keys))

    def delete_if(self, partition: bytes, key: bytes, etag: Etag) -> None:
        """Delete a row with this etag, as the plan allows: see `DeletesIf.delete_if`."""
        inner = self.inner
        turn = self._begin("delete", f"{partition!r} {key!r} {etag}", (Fault.PARTIAL, Fault.CRASH_PARTIAL))
        if isinstance(inner, DeletesIf):
            self.faults.perform(turn, lambda: inner.delete_if(partition, key, etag))
        else:
            self.faults.perform(turn, lambda: inner.delete(partition, [key]))

    def scrub(self, partition: bytes) -> str | None:
        """Remove replaced values, as the plan allows: see `Scrubs.scrub`."""
        inner = self.inner
        if not isinstance(inner, Scrubs):
            return None
        turn = self._begin("scrub", repr(partition))
        return self.faults.perform(turn, lambda: inner.scrub(partition))

    def remove_leftovers(self) -> str | None:
        """Remove the values that no row has, as the plan allows: see `RemovesLeftovers.remove_leftovers`."""
        inner = self.inner
        if not isinstance(inner, RemovesLeftovers):
            return None
        return self.faults.perform(self._begin("remove_leftovers", ""), inner.remove_leftovers)

    def acquire(self, name: str, ttl: float) -> Grant | None:
        """Acquire a lease, as the plan allows: see `Backend.acquire`."""
        turn = self._begin("acquire", repr(name))
        if turn.fault is Fault.CONFLICT:
            self.faults.end(turn, "None", turn.fault)
            return None
        return self.faults.perform(turn, lambda: self.inner.acquire(name, ttl))

    def is_held(self, name: str) -> bool:
        """Tell whether a lease is held, as the plan allows: see `ShowsLeases.is_held`."""
        turn = self._begin("is_held", repr(name))
        return self.faults.perform(turn, lambda: is_held(self.inner, name))

    def renew(self, grant: Grant) -> Grant:
        """Renew a lease, as the plan allows: see `Backend.renew`."""
        turn = self._begin("renew", repr(grant.name))
        if turn.fault is Fault.CONFLICT:
            self.faults.end(turn, "LeaseLost", turn.fault)
            raise LeaseLost(f"injected: the lease {grant.name!r} was taken")
        return self.faults.perform(turn, lambda: self.inner.renew(grant))

    def release(self, grant: Grant) -> None:
        """Release a lease, as the plan allows: see `Backend.release`."""
        turn = self._begin("release", repr(grant.name))
        self.faults.perform(turn, lambda: self.inner.release(grant))

    def close(self) -> None:
        """Close `inner` as soon as all late writes have arrived; a process that has stopped closes nothing."""
        if not self._closed:
            self._closed = True
            self.faults.close(self.inner.close)

    def _begin(self, kind: str, what: str, impossible: Sequence[Fault] = ()) -> Turn:
        self.faults.check()
        if self._closed:
            raise StoreClosed("the store was closed; open it again")
        return self.faults.begin(kind, what, impossible)


class FaultyDriver:
    """A driver around `inner`: one process that follows a plan, over all stores that it opens."""

    def __init__(self, inner: Driver, plan: Plan) -> None:
        self.inner = inner
        self.faults = Injector(plan)

    def __repr__(self) -> str:
        return f"<FaultyDriver {self.inner!r} {self.faults!r}>"

    def stores(self) -> Iterator[UUID]:
        """List stores, as the plan allows: see `Driver.stores`."""
        turn = self.faults.begin("stores", "")
        return self.faults.perform(turn, self.inner.stores)

    def open(self, store: UUID) -> FaultyBackend:
        """Open a store: a FaultyBackend that shares the driver's plan."""
        self.faults.check()
        return FaultyBackend(self.inner.open(store), self.faults)

    def delete(self, store: UUID, keep: Collection[tuple[bytes, bytes]] = ()) -> None:
        """Delete a store, as the plan allows: see `Driver.delete`."""
        turn = self.faults.begin("delete_store", "")
        self.faults.perform(turn, lambda: self.inner.delete(store, keep))

    def close(self) -> None:
        """Close `inner` as soon as all late writes have arrived; a process that has stopped closes nothing."""
        self.faults.close(self.inner.close)
