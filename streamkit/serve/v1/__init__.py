"""The native interface, `/v1`."""

from __future__ import annotations

from ..routing import Router
from . import entries

__all__ = ["register"]

_STORE = "/v1/stores/{st}"
_SEGMENT = _STORE + "/spaces/{sp}/segments/{sg}"


def register(router: Router) -> None:
    """Add the routes of the native interface."""
    router.add("POST", _SEGMENT + "/entries", entries.append, "write")
    router.add("GET", _SEGMENT + "/entries", entries.read_segment, "read")
