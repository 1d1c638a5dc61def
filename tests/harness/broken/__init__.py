"""Backends that are broken on purpose, each in one way. The conformance suite must catch them.

Each is memory with one promise taken back, and names the check that finds it. `broken_driver` makes them:

    report = run_conformance(broken_driver(NoPrecondition))
    assert NoPrecondition.caught_by in report.failed
"""

from __future__ import annotations

from . import leases, reads, scans, stores, writes
from .sound import Sound, broken_driver

__all__ = ["BROKEN", "Sound", "broken_driver"]

BROKEN: tuple[type[Sound], ...] = tuple(
    getattr(subject, name) for subject in (writes, reads, scans, stores, leases) for name in subject.__all__
)
"""All of them."""
