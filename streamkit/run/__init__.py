"""Programs: views, routes, process managers and workers that run all the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..importing import importer

if TYPE_CHECKING:
    from .over_stores import ProgramOverStores
    from .program import Program, Runnable, run
    from .worker import Worker

__all__ = ["Program", "ProgramOverStores", "Runnable", "Worker", "run"]

if not TYPE_CHECKING:  # a type checker tells of names that are not there
    __getattr__, __dir__ = importer(
        __name__,
        {
            ".over_stores": ("ProgramOverStores",),
            ".program": ("Program", "Runnable", "run"),
            ".worker": ("Worker",),
        },
    )
