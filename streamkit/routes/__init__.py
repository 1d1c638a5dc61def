"""Routes: they copy entries of one space into another, exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..importing import importer

if TYPE_CHECKING:
    from .control import RouteControl
    from .route import Route
    from .state import RouteFailure, RouteStatus

__all__ = ["Route", "RouteControl", "RouteFailure", "RouteStatus"]

if not TYPE_CHECKING:  # a type checker tells of names that are not there
    __getattr__, __dir__ = importer(
        __name__,
        {
            ".control": ("RouteControl",),
            ".route": ("Route",),
            ".state": ("RouteFailure", "RouteStatus"),
        },
    )
