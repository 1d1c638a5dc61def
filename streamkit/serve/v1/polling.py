"""Long-polls: a read that waits until there is something, by the rings of its spaces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TypeVar

from ...aio import AsyncStore
from ...store import Store
from ..request import Request
from .pages import Found

__all__ = ["poll"]

T = TypeVar("T")


async def poll(
    request: Request,
    store: AsyncStore,
    spaces: Collection[str],
    segment: str | None,
    wait: float,
    read: Callable[[Store], tuple[T, Found]],
) -> tuple[T, Found]:
    """Call read(store) in a thread. If it finds nothing, call it again after new entries, for up to `wait` seconds."""
    if not wait:
        return await store.calls.call(read, store.sync)
    end = asyncio.get_running_loop().time() + wait
    rings = [await request.service.rings.of(store, space, request.access) for space in spaces]
    waiter = await request.waiter()
    for ring in rings:
        ring.listen(waiter, segment)
    try:
        while True:
            result = await store.calls.call(read, store.sync)
            if result[1].items or request.service.is_draining:
                return result
            for ring in rings:
                if ring.error is not None:
                    raise ring.error
            if not await waiter.wait_until(end):
                return result
    finally:
        for ring in rings:
            ring.unlisten(waiter, segment)
