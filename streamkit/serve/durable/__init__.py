"""The Durable Streams protocol: `/v1/stream/<path>` of the server's own store, `/v1/stores/{st}/stream/<path>`."""

from __future__ import annotations

from ...clock import Clock
from ..routing import Router
from ..service import Service
from .routes import StreamRoutes

__all__ = ["register"]


def register(router: Router, service: Service, clock: Clock) -> None:
    """Add the routes of the protocol, and its background work for the server's own store."""
    routes = StreamRoutes(clock, service.limits)
    routes.register(router)
    service.on_start.append(routes.start)
    service.on_close.append(routes.close)
