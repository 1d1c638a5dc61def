"""The definition of a view, and its status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..model import Entry
from ..run.reading import SpacePosition

if TYPE_CHECKING:
    import sqlite3

__all__ = ["SpacePosition", "View", "ViewFailure", "ViewStatus"]


class View:
    """A SQLite database that follows spaces: subclass it, and hand an instance to `store.view`.

    `apply` gets the entries in the space's order, in batches of any size, each entry once. Its writes through `db` and
    the view's position are one SQLite transaction, so it must not commit. It builds state in memory in `load`. It must
    depend on the entries and the database alone: then the data at a position is the fold of the entries before it. A
    method `erase(db, gap)` may remove the traces of erased entries; it may be called again for the same gap. Without
    that method, an erasure builds the view anew.
    """

    version: int = 1
    """The version of the view, from 0. Raise it when `setup` or `apply` change: a new database is built beside the old
    one."""

    def setup(self, db: sqlite3.Connection) -> None:
        """Make the tables, in a new database."""

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        """Apply `entries`, at least one. If it raises, nothing of the batch stays."""
        raise NotImplementedError(f"{type(self).__name__} has no apply(self, db, entries)")

    def load(self, db: sqlite3.Connection) -> None:
        """Build state in memory. Called before the first `apply` on a database, and again if memory may differ from
        it."""

    def attach(self, view: Any) -> None:
        """Take note of the open view: `store.view` calls it with its result."""


class ViewFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry that a view could not take."""

    space: str
    segment: str
    sequence: int
    timestamp: int
    """The entry's timestamp, in ms."""
    offset: str
    """The offset after the entry, as hex text."""
    error: str
    """The class and message of the exception that `apply` raised."""


class ViewStatus(msgspec.Struct, frozen=True):
    """Status of a view. It costs one look at the storage for each space."""

    name: str
    version: int
    state: Literal["new", "building", "behind", "current", "paused"]
    """"building": a first or another version is built, and readers do not see it yet."""
    positions: dict[str, SpacePosition]
    """The position of the data that readers see, by space."""
    entries: int
    timestamp: int
    """Timestamp of the newest entry that was applied, in ms."""
    behind: float
    """Seconds from then, or if nothing was applied from the first entry, until the newest there is; 0 at the end."""
    complete: bool
    """False if entries were gone before the view came by: trimmed, or expired."""
    error: ViewFailure | None
    """Why it is paused."""
    skipped: int
    """Entries that were passed over with on_error="skip"; table `streamkit_skipped` lists them."""
    building: int | None
    """Entries in the database that is built beside, None if there is none."""
    path: str
    bytes: int
    """On disk."""
