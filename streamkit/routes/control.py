"""Control of a route that some process runs, without the functions that it is made of."""

from __future__ import annotations

from ..names import check_name
from ..store import Store
from .route import Route
from .state import Register, RouteStatus

__all__ = ["RouteControl", "find_route"]


class RouteControl:
    """The control of a route, from `store.find_route(name)`: it looks at a route, pauses and resumes it. It copies
    nothing."""

    def __init__(self, route: Route) -> None:
        self.name = route.name
        self._route = route

    def status(self) -> RouteStatus:
        """See `Route.status`."""
        return self._route.status()

    def pause(self) -> None:
        """See `Route.pause`."""
        self._route.pause()

    def resume(self, *, skip: bool = False) -> None:
        """See `Route.resume`."""
        self._route.resume(skip=skip)

    def delete(self) -> None:
        """See `Route.delete`."""
        self._route.delete()


def find_route(store: Store, name: str) -> RouteControl | None:
    """The route if it exists."""
    state = Register(store, check_name(name, "route")).read()
    if state is None:
        return None
    # Nothing but its register is used, so the target's store and the functions do not matter.
    return RouteControl(Route(store, name, state.source, store, state.target, None, None, None, "beginning"))
