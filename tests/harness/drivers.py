"""Drivers of memory stores for sweeps and schedules: like a disk of this machine, or like a network service."""

from __future__ import annotations

from collections.abc import Callable

from streamkit.backend import Driver
from streamkit.testing import ManualClock
from streamkit_memory.driver import MemoryDriver

__all__ = ["MEMORY", "MakeDriver", "in_memory"]

MakeDriver = Callable[[ManualClock], Driver]


def in_memory(kind: str, *, page: int = 1000, latency: float = 0.0) -> MakeDriver:
    """`kind`: "memory", or "remote" for one that is like a service."""
    remote = {"memory": False, "remote": True}[kind]
    name = f"sweep-{kind}-{page}-{latency}"
    return lambda clock: MemoryDriver(name, remote=remote, page=page, latency=latency, clock=clock, sleep=clock.sleep)


MEMORY: dict[str, MakeDriver] = {
    "memory": in_memory("memory"),
    "remote": in_memory("remote"),
    "remote, small pages": in_memory("remote", latency=0.001, page=1),
}
