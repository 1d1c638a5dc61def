"""Work that runs all the time: rounds of views and routes, and programs that are made of them."""

from __future__ import annotations

from .over_stores import ProgramOverStores
from .program import Program, Runnable, run
from .worker import Worker

__all__ = ["Program", "ProgramOverStores", "Runnable", "Worker", "run"]
