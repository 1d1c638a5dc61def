"""Export and import: spaces as text that any program can read, and back again, exactly."""

from __future__ import annotations

from .report import ExportReport, ImportReport
from .target import import_store
from .write import export_store

__all__ = ["ExportReport", "ImportReport", "export_store", "import_store"]
