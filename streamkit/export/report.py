"""The reports of an export and of an import."""

from __future__ import annotations

from ..html import Shown

__all__ = ["ExportReport", "ImportReport"]


class ExportReport(Shown, frozen=True):
    """Report of an export: the size of the file and its digest."""

    spaces: int
    entries: int
    """All entries of the file."""
    resumed: int
    """Entries that an earlier, stopped call had written."""
    bytes: int
    sha256: str
    """The digest of all lines but the last one, which holds it."""


class ImportReport(Shown, frozen=True):
    """Report of an import: the entries that were written, and those that existed already."""

    spaces: int
    entries: int
    """All entries of the file."""
    present: int
    """Entries that were in the store already: an earlier call had written them."""
    renewed: tuple[str, ...] = ()
    """Spaces in which offsets of the exported store are not valid: this store had them before, and deleted them."""
