"""Work that runs all the time: rounds of views and routes, and programs that are made of them."""

from __future__ import annotations

from .program import Program, Runnable, run
from .worker import Worker

__all__ = ["Program", "Runnable", "Worker", "run"]
