"""A view whose `apply` gets objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..arguments import check_type
from ..model import Entry
from ..views.view import View
from .registry import Policy, Registry, Typed

if TYPE_CHECKING:
    import sqlite3

__all__ = ["TypedView", "applied"]

R = TypeVar("R")


class TypedView(Generic[R]):
    """A view for `typed.view`: as `streamkit.View`, but `apply` gets objects beside their entries.

    Raise `version` if a change of an upcaster changes what `apply` would have made of earlier entries.
    """

    version: int = 1

    def setup(self, db: sqlite3.Connection) -> None:
        """Make the tables, in a new database."""

    def apply(self, db: sqlite3.Connection, events: Sequence[Typed[R]]) -> None:
        """Apply `events`, at least one. If it raises, nothing of the batch stays."""
        raise NotImplementedError(f"{type(self).__name__} has no apply(self, db, events)")

    def load(self, db: sqlite3.Connection) -> None:
        """See `streamkit.View.load`."""

    def attach(self, view: Any) -> None:
        """See `streamkit.View.attach`."""


class _Applied(View):
    """Hands objects to a TypedView."""

    def __init__(self, view: TypedView[Any], registry: Registry[Any], policy: Policy) -> None:
        self.version = view.version
        self._view = view
        self._registry = registry
        self._policy = policy
        for name in ("setup", "load", "attach", "erase"):
            if hasattr(view, name):
                setattr(self, name, getattr(view, name))

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        events = list(self._registry.reading(entries, self._policy))
        if events:
            self._view.apply(db, events)


def applied(view: TypedView[Any], registry: Registry[Any], policy: Policy) -> View:
    """The view for the store. TypeError for another one than a TypedView."""
    check_type(view, TypedView, "a view of a typed store is a streamkit.types.TypedView")
    return _Applied(view, registry, policy)
