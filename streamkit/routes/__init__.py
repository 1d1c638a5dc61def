"""Routes: they copy entries of one space into another, exactly once."""

from __future__ import annotations

from .control import RouteControl
from .route import Route
from .state import RouteFailure, RouteStatus

__all__ = ["Route", "RouteControl", "RouteFailure", "RouteStatus"]
