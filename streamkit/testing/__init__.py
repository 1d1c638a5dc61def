"""For authors of backends, and for tests of programs that use streamkit."""

from __future__ import annotations

from .backend_checks.subject import Broken
from .backend_conformance import BackendConformance, Report, Result, run_conformance
from .clock import ManualClock

__all__ = ["BackendConformance", "Broken", "ManualClock", "Report", "Result", "run_conformance"]
