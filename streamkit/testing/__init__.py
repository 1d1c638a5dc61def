"""The testing kit: for authors of backends, and for tests of programs that use streamkit."""

from __future__ import annotations

from .backend_checks.subject import Broken
from .backend_conformance import BackendConformance, run_conformance
from .clock import ManualClock
from .fault_plan import CRASHES, DAMAGE, FAULTS, SURVIVABLE, At, Call, Fault, Plan, every_fault
from .faults import FaultyBackend, FaultyDriver
from .injector import Crash, Injector
from .named_faults import NamedFaults
from .report import Report, Result
from .scenario import Happened, given, happened

__all__ = [
    "CRASHES",
    "DAMAGE",
    "FAULTS",
    "SURVIVABLE",
    "At",
    "BackendConformance",
    "Broken",
    "Call",
    "Crash",
    "Fault",
    "FaultyBackend",
    "FaultyDriver",
    "Happened",
    "Injector",
    "ManualClock",
    "NamedFaults",
    "Plan",
    "Report",
    "Result",
    "every_fault",
    "given",
    "happened",
    "run_conformance",
]
