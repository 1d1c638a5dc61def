"""streamkit for asyncio: the same names with `await`, `async for` and `async with`.

    async with streamkit.aio.connect("s3://bucket") as client:
        store = client.store("7d9f2c1e-…")
        await store.produce("orders", "order-42", [Record(b"…")])
        async for entry in store.follow_space("orders"):
            …

Writes that are under way at the same time share commits, and none of them has a thread. A cancelled write that was
still queued is never written. One that was on its way may be committed: the CancelledError of `produce` has its
`transaction_id` (else None), and `await store.outcome(transaction_id)` returns "committed" or "absent".

A client belongs to one event loop, and to the process that made it. Nothing here is safe to use from other threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..importing import importer

if TYPE_CHECKING:
    from .client import AsyncClient, connect
    from .leases import AsyncLease
    from .store import AsyncStore
    from .transaction import AsyncTransaction

__all__ = ["AsyncClient", "AsyncLease", "AsyncStore", "AsyncTransaction", "connect"]

if not TYPE_CHECKING:  # a type checker tells of names that are not there
    __getattr__, __dir__ = importer(
        __name__,
        {
            ".client": ("AsyncClient", "connect"),
            ".leases": ("AsyncLease",),
            ".store": ("AsyncStore",),
            ".transaction": ("AsyncTransaction",),
        },
    )
