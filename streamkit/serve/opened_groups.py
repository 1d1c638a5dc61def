"""Groups and queues that requests have used, so that a request does not look for its group again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

from ..aio import AsyncStore
from ..aio.groups import AsyncGroup
from ..errors import StreamkitError
from .problems import Problem

__all__ = ["OpenedGroups"]

T = TypeVar("T")
_MOST = 10_000


class OpenedGroups:
    """Holds the groups of open stores. A queue is known by its name, and by None for the group."""

    def __init__(self) -> None:
        self._groups: OrderedDict[tuple[UUID, str, str | None], AsyncGroup] = OrderedDict()

    async def find(self, store: AsyncStore, space: str, name: str | None) -> AsyncGroup | None:
        """The group `name` of a space, or the queue `space` if `name` is None; None if it does not exist."""
        key = store.id, space, name
        group = self._groups.get(key)
        if group is not None and group.calls is store.calls and not group.sync.core.is_stale():
            self._groups.move_to_end(key)
            return group
        self._groups.pop(key, None)
        if name is None:
            queue = await store.find_queue(space)
            group = None if queue is None else queue.group
        else:
            group = await store.find_group(space, name)
        if group is not None:
            self._groups[key] = group
            if len(self._groups) > _MOST:
                self._groups.popitem(last=False)
        return group

    async def use(
        self, store: AsyncStore, space: str, name: str | None, work: Callable[[AsyncGroup], Awaitable[T]]
    ) -> T:
        """await work(group). A Problem if there is no such group, or another process deletes it meanwhile."""
        group = await self.find(store, space, name)
        if group is None:
            raise missing(space, name)
        try:
            return await work(group)
        except StreamkitError:
            if not group.calls.closed and group.sync.core.is_stale():
                raise missing(space, name) from None
            raise


def missing(space: str, name: str | None) -> Problem:
    """The problem of a request about a group or queue that does not exist."""
    if name is None:
        return Problem("not-found", f"there is no queue {space!r}; PUT creates it")
    return Problem("not-found", f"the space {space!r} has no group {name!r}; PUT creates it")
