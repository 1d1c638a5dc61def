"""The console: pages in the browser over `/v1`, from files of this package, and the sessions of their viewers."""

from __future__ import annotations

from ..routing import Router
from . import pages, sessions

__all__ = ["register"]


def register(router: Router) -> None:
    """Add the routes of the console."""
    pages.register(router)
    sessions.register(router)
