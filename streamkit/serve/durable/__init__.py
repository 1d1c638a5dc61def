"""The Durable Streams protocol: `/v1/stream/<path>` of the server's own store, `/v1/stores/{st}/stream/<path>`."""

from __future__ import annotations

from ..routing import Router

__all__ = ["register"]


def register(router: Router) -> None:
    """Add the routes of the protocol."""
