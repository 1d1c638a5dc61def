"""Stores in the memory of this process: for tests, and for streams that need not outlive it.

`memory://name` is shared by all clients of the process that use that name; `memory://` belongs to one client.

| option | means |
|---|---|
| `remote=1` | like a network service: requests are few, the service tells the time, a deleted store can be written to |
| `latency=5` | every request takes this many milliseconds; implies `remote=1` |
| `page=100` | rows that one request of a scan brings |
"""

from __future__ import annotations

from .driver import MemoryDriver, connect

__all__ = ["MemoryDriver", "connect"]
