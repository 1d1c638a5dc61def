"""Cloud storage as the cost model sees it: latencies, limits and prices around a store in memory."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import streamkit_azure
import streamkit_memory
import streamkit_s3
from streamkit.backend import ANY, Backend, Etag, Expect, Grant, Limits, Range, Row, ServiceTime, Value
from streamkit.client import Client
from streamkit.errors import Throttled

from .simulation import Simulation

__all__ = ["PRICED", "Bill", "Service", "SimulatedDriver", "services", "simulated_clients"]

PRICED = "2026-11-21"
"""The date of the list prices below."""


@dataclass(frozen=True)
class Service:
    """Latencies are medians in seconds, log-normal; `spread` is the sigma: p99 is exp(2.33 sigma) times the median."""

    name: str
    limits: Limits
    write: float
    read: float
    spread: float
    writes_per_second: float
    """Writes a second above which it throttles, for each subject that `each` names."""
    reads_per_second: float
    unit: str
    each: str
    priced_by: str
    write_price: float
    """US$ per million requests."""
    read_price: float
    upload_price: float = 0.0
    """US$ per GB."""
    download_price: float = 0.0


def services() -> tuple[Service, ...]:
    s3 = streamkit_s3.connect("s3://model", timeout=30).open(uuid4()).limits
    azure = streamkit_azure.connect("azurite:///model", timeout=30).open(uuid4()).limits
    aws, azure_prices = "aws.amazon.com/s3/pricing", "azure.microsoft.com/pricing/details/storage/tables"
    return (
        Service("S3 Standard", s3, 0.030, 0.015, 0.5, 3500, 5500, "requests", "prefix", aws, 5.0, 0.4),
        Service(
            "S3 Express One Zone",
            s3,
            0.005,
            0.004,
            0.35,
            100_000,
            200_000,
            "requests",
            "bucket",
            aws,
            1.13,
            0.03,
            0.0032,
            0.0006,
        ),
        Service(
            "Azure Tables", azure, 0.008, 0.006, 0.5, 2000, 2000, "entities", "partition", azure_prices, 0.036, 0.036
        ),
    )


class _Budget:
    """A limit of `rate` a second. The requests of one second may come at once."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.left = rate
        self.at = 0.0

    def take(self, count: int, now: float) -> bool:
        self.left = min(self.rate, self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left < min(count, self.rate):
            return False
        self.left -= count
        return True


@dataclass
class Bill:
    writes: int = 0
    reads: int = 0
    uploaded: int = 0
    downloaded: int = 0
    throttled: int = 0
    budgets: dict[tuple[bytes, str], _Budget] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        return self.writes + self.reads


class SimulatedBackend:
    """A store in memory that answers as late, throttles as soon, and counts as the service would."""

    def __init__(self, service: Service, simulation: Simulation, inner: Backend, bill: Bill) -> None:
        self._service = service
        self._simulation = simulation
        self._inner = inner
        self._bill = bill
        self.limits = service.limits
        self._objects = service.unit == "requests"
        """A list brings no values, and deletes are free, many in one request. Otherwise rows are entities."""
        self._requests: Counter[str] = Counter()

    @property
    def requests(self) -> Mapping[str, int]:
        return dict(self._requests)

    def service_time(self) -> ServiceTime:
        now = self._simulation.monotonic()
        return ServiceTime(now, now)

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        rest = self._go(partition, "read", len(keys), len(keys))
        found = self._inner.get(partition, keys)
        self._bill.downloaded += sum(len(value.data) for value in found if value is not None)
        self._simulation.sleep(rest)
        return found

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        rest = self._go(partition, "read", len(ranges), len(ranges))
        found = self._inner.read(partition, ranges)
        self._bill.downloaded += sum(len(data) for data in found if data is not None)
        self._simulation.sleep(rest)
        return found

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        # A list is billed as a write on S3.
        rest = self._go(partition, "list", 1, 1)
        rows = list(self._inner.scan(partition, start, end, limit=limit, values=values))
        self._simulation.sleep(rest)
        if values and self._objects and rows:
            self._simulation.sleep(self._go(partition, "read", len(rows), len(rows)))
        yield from rows

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        rest = self._go(partition, "write", 1, 1)
        self._bill.uploaded += len(value)
        try:
            return self._inner.put(partition, key, value, expect, durable=durable)
        finally:
            self._simulation.sleep(rest)

    def delete(self, partition: bytes, keys: Sequence[bytes]) -> None:
        count = 1 if self._objects else len(keys)
        rest = self._go(partition, "write", count, count, billed=not self._objects)
        self._inner.delete(partition, keys)
        self._simulation.sleep(rest)

    def _go(self, partition: bytes, kind: str, requests: int, units: int, *, billed: bool = True) -> float:
        """Send the requests at once; the seconds that the last answer takes back. Throttled where it is too much."""
        service, bill = self._service, self._bill
        self._requests[kind] += requests
        median = service.write if kind == "write" else service.read
        scope, name = (partition, "entities") if service.each == "partition" else (b"", kind)
        rate = service.writes_per_second if kind == "write" else service.reads_per_second
        budget = bill.budgets.setdefault((scope, name), _Budget(rate))
        latency = max(median * math.exp(random.gauss(0, service.spread)) for _ in range(min(requests, 64)))
        self._simulation.sleep(latency / 2)
        if not budget.take(units, self._simulation.monotonic()):
            bill.throttled += requests
            self._simulation.sleep(latency / 2)
            raise Throttled(f"{service.name}: more than {rate:g} a second")
        if billed:
            if kind == "read":
                bill.reads += requests
            else:
                bill.writes += requests
        return latency / 2

    def acquire(self, name: str, ttl: float) -> Grant | None:
        return self._inner.acquire(name, ttl)

    def renew(self, grant: Grant) -> Grant:
        return self._inner.renew(grant)

    def release(self, grant: Grant) -> None:
        self._inner.release(grant)

    def close(self) -> None:
        self._inner.close()


class SimulatedDriver:
    def __init__(self, service: Service, simulation: Simulation, name: str, bill: Bill) -> None:
        self._inner = streamkit_memory.MemoryDriver(name, remote=True)
        self._made = (service, simulation, bill)

    def stores(self) -> Iterator[UUID]:
        return self._inner.stores()

    def open(self, store: UUID) -> SimulatedBackend:
        service, simulation, bill = self._made
        return SimulatedBackend(service, simulation, self._inner.open(store), bill)

    def delete(self, store: UUID, keep: Collection[tuple[bytes, bytes]] = ()) -> None:
        self._inner.delete(store, keep)

    def close(self) -> None:
        self._inner.close()


def simulated_clients(
    service: Service, simulation: Simulation, bill: Bill, processes: int, most_bytes: int
) -> list[Client]:
    """Clients of one storage, each as a process of its own has it."""
    name = f"simulated-{uuid4()}"
    drivers = [SimulatedDriver(service, simulation, name, bill) for _ in range(processes)]
    return [Client("memory://", driver, 30.0, None, most_bytes, simulation) for driver in drivers]
