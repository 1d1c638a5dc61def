"""Routes: what of one space is copied into another, exactly once."""

from __future__ import annotations

from .route import Route
from .state import RouteFailure, RouteStatus

__all__ = ["Route", "RouteFailure", "RouteStatus"]
