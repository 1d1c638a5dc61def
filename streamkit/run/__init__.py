"""Programs: views, routes, process managers and workers that run all the time."""

from __future__ import annotations

from .over_stores import ProgramOverStores
from .program import Program, Runnable, run
from .worker import Worker

__all__ = ["Program", "ProgramOverStores", "Runnable", "Worker", "run"]
