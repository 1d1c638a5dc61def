"""The handler of a group or a queue, as a part of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..arguments import check_function
from ..store import Store

__all__ = ["Handled", "Worker"]


class Handled(Protocol):
    """A group, or a queue."""

    @property
    def name(self) -> str: ...

    @property
    def store(self) -> Store: ...

    @property
    def run(self) -> Callable[..., Any]: ...

    @property
    def status(self) -> Callable[[], Any]: ...

    @property
    def consumer(self) -> Callable[..., Any]: ...


class Worker:
    """A worker calls `handler(delivery)` for each delivery of a group or a queue: `Program(store, [Worker(group,
    handler)])`.

    It works like `group.run(handler, None, concurrency, batch)`, which describes the outcomes. `name`: of the part, the
    group's if None. Any number of processes may run it at once.
    """

    def __init__(
        self,
        group: Handled,
        handler: Callable[[Any], Any],
        *,
        name: str | None = None,
        concurrency: int = 1,
        batch: int = 10,
    ) -> None:
        if not hasattr(group, "consumer"):
            raise TypeError(f"a Worker is of a group or a queue, not of {group!r:.60}")
        check_function("handler", handler, "a delivery")
        self.name = name or group.name
        self._group = group
        self._handler = handler
        self._concurrency = concurrency
        self._batch = batch

    @property
    def store(self) -> Store:
        """The store of the group or queue."""
        return self._group.store

    @property
    def group(self) -> Handled:
        """The group or the queue."""
        return self._group

    def catch_up(self, *, seconds: float | None = None, stop: Any = None) -> Any:
        """Handle all entries that can be delivered now, for `seconds` at most. Returns the report of `group.run`."""
        options: dict[str, Any] = {"drain": True, "seconds": seconds, "stop": stop}
        return self._group.run(self._handler, None, self._concurrency, self._batch, **options)

    def run(self, stop: Any = None, *, seconds: float | None = None) -> None:
        """Handle entries until `stop` is set, or `seconds` are over."""
        self._group.run(self._handler, None, self._concurrency, self._batch, seconds=seconds, stop=stop)

    def status(self) -> Any:
        """The group's."""
        return self._group.status()

    def __repr__(self) -> str:
        return f"<Worker {self.name!r}>"
