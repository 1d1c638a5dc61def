"""The interface of topics, `/v0`: logs and queues of JSON records, for programs that were written for topics."""

from __future__ import annotations

from ..routing import Router
from .routes import TopicRoutes

__all__ = ["register"]


def register(router: Router) -> None:
    """Add the routes of `/v0`."""
    TopicRoutes().register(router)
