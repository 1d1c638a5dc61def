"""The interface of topics, `/v0`: logs and queues of JSON records, for programs that were written for topics."""

from __future__ import annotations

from ..routing import Router
from ..service import Service
from .routes import TopicRoutes

__all__ = ["register"]


def register(router: Router, service: Service) -> None:
    """Add the routes of `/v0`."""
    routes = TopicRoutes()
    routes.register(router)
    service.priorities.of_topic = lambda access, name: routes.priority(access.stores, service.own_store, name)
