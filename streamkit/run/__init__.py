"""What runs all the time: rounds of views and routers, and programs that are made of them."""

from __future__ import annotations

from .program import Program, Runnable, run

__all__ = ["Program", "Runnable", "run"]
