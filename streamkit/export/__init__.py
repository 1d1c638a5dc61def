"""Export and import: spaces as text that any program can read, and back again, exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..importing import importer

if TYPE_CHECKING:
    from .report import ExportReport, ImportReport
    from .target import import_store
    from .write import export_store

__all__ = ["ExportReport", "ImportReport", "export_store", "import_store"]

if not TYPE_CHECKING:  # a type checker tells of names that are not there
    __getattr__, __dir__ = importer(
        __name__,
        {
            ".report": ("ExportReport", "ImportReport"),
            ".target": ("import_store",),
            ".write": ("export_store",),
        },
    )
