"""Views: SQLite databases that follow spaces, and ready-made kinds of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..run.reading import SpacePosition
from .open_view import OpenView
from .view import View, ViewFailure, ViewStatus

if TYPE_CHECKING:
    from .index import Index
    from .latest import Latest
    from .links import Links
    from .query import Query
    from .reduce import Reduce
    from .search import Search
    from .vectors import Vectors

__all__ = [
    "Index",
    "Latest",
    "Links",
    "OpenView",
    "Query",
    "Reduce",
    "Search",
    "SpacePosition",
    "Vectors",
    "View",
    "ViewFailure",
    "ViewStatus",
]

_KINDS = ("Index", "Latest", "Links", "Query", "Reduce", "Search", "Vectors")


def __getattr__(name: str) -> Any:
    if name in _KINDS:
        return getattr(import_module(f".{name.lower()}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
