"""A caller's handle of an open store: it can be closed, and its store too."""

from __future__ import annotations

from .errors import StoreClosed
from .open_store import OpenStore
from .space import Space

__all__ = ["Handle"]


class Handle:
    """A handle that the parts of a `Store` share. The store sets `closed` once."""

    def __init__(self, shared: OpenStore) -> None:
        self.shared = shared
        self.closed = False

    def check_open(self) -> None:
        """Raise StoreClosed if the handle or its store is closed."""
        if self.closed or self.shared.closed:
            raise StoreClosed(f"the store {self.shared.id} is closed; open it again with client.store(…)")

    def look_up(self, space: str, segments: tuple[str, ...] = ()) -> tuple[Space | None, int | None]:
        """See OpenStore.look_up."""
        shared = self.shared
        if self.closed or shared.closed:
            self.check_open()
        found = shared.spaces.get(space)
        return shared.look_up(space, segments) if found is None else (found, None)

    def space(self, space: str) -> Space | None:
        """The space, opened if it is not yet; None if it does not exist."""
        return self.look_up(space)[0]
