"""Views: SQLite databases that follow spaces, and ready-made kinds of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..importing import importer

if TYPE_CHECKING:
    from ..run.reading import SpacePosition
    from .index import Index
    from .latest import Latest
    from .links import Links
    from .open_view import OpenView
    from .query import Query
    from .reduce import Reduce
    from .search import Search
    from .vectors import Vectors
    from .view import View, ViewFailure, ViewStatus

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

if not TYPE_CHECKING:  # a type checker tells of names that are not there
    __getattr__, __dir__ = importer(
        __name__,
        {
            "..run.reading": ("SpacePosition",),
            ".open_view": ("OpenView",),
            ".view": ("View", "ViewFailure", "ViewStatus"),
            ".index": ("Index",),
            ".latest": ("Latest",),
            ".links": ("Links",),
            ".query": ("Query",),
            ".reduce": ("Reduce",),
            ".search": ("Search",),
            ".vectors": ("Vectors",),
        },
    )
