"""Blobs that no row refers to: a process was stopped between a blob and its row, or a write was refused."""

from __future__ import annotations

from collections.abc import Callable

from azure.core.exceptions import ResourceNotFoundError

from .blobs import Blobs
from .errors import foreign
from .read import Reader
from .service import Clients

__all__ = ["WRITING", "remove_leftovers"]

WRITING = 3600.0
"""Seconds after which a blob without a row is not being written any more. A writer that took longer than half of that
puts its blob again."""


def remove_leftovers(clients: Clients, blobs: Blobs, reader: Reader, where: str) -> str | None:
    """Remove them, and say how many are too young to be removed; None if none is."""
    stored = blobs.stored()  # before the rows, so that it has no blob that is written meanwhile
    if not stored:
        return None
    named = reader.all_blobs()
    leftovers = {name: written for name, written in stored.items() if name not in named}
    told = clients.clock.time
    until = (told.latest if told is not None else 0.0) - WRITING

    def remove(name: str) -> None:
        with foreign(where, writing=True):
            try:
                clients.container.delete_blob(blobs.path_of(name), delete_snapshots="include")
            except ResourceNotFoundError:
                return

    old = [name for name, written in leftovers.items() if written < until]
    _each(clients, remove, old)
    young = len(leftovers) - len(old)
    if not young:
        return None
    return (
        f"{where} holds {young} blobs that no row refers to: large values that are being written, or that a stopped "
        f"process has left. They may hold erased entries. maintain() in an hour, or later, removes them"
    )


def _each(clients: Clients, function: Callable[[str], None], names: list[str]) -> None:
    if len(names) > 1:
        clients.threads.each(function, names)
    elif names:
        function(names[0])
