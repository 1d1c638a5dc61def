"""Stores in the memory of this process: for tests, and for streams that need not outlive it.

`memory://name` is shared by all clients of the process that use that name; `memory://` belongs to one client.

| option | means |
|---|---|
| `atomic=batch` | the default: a write is applied as a whole, with the limits of a table service |
| `atomic=rows` | like a local store: a write that appends nothing is applied as a whole; deleted, it is closed |
| `atomic=key` | only single rows are atomic, with the limits of an object store |
| `latency=5` | every request takes this many milliseconds |
| `page=100` | rows that one request of a scan brings |
"""

from __future__ import annotations

from .driver import MemoryDriver, connect

__all__ = ["MemoryDriver", "connect"]
