"""Remains of imports and restores that were not completed: their spaces are missing, and their rows are stored."""

from __future__ import annotations

from ..backend import Backend, Scrubs
from ..log.keys import HEAD, IMPORT, RESTORE, partition_key
from ..retry import delete_all, delete_rows

__all__ = ["has_import", "incomplete_writes", "remove_import"]


def has_import(backend: Backend, space: str) -> bool:
    """True if an import of a space was begun, and was not completed."""
    return backend.get(bytes(partition_key(space, 0)), [IMPORT])[0] is not None


def remove_import(backend: Backend, space: str) -> None:
    """Remove the rows of an import. The heads of a space that a writer creates at the same time stay."""
    first = bytes(partition_key(space, 0))
    row = backend.get(first, [IMPORT])[0]
    # The row of the import goes last: it tells that the rest is of an import.
    number = 0
    while True:
        partition = bytes(partition_key(space, number))
        rows = [row.key for row in backend.scan(partition, b"\x00", b"\xff" * 300, values=False)]
        if not rows and number:
            break
        kept = {IMPORT, bytes(HEAD)} if backend.get(first, [bytes(HEAD)])[0] is not None else {IMPORT}
        delete_all(backend, partition, [key for key in rows if key not in kept])
        if isinstance(backend, Scrubs):
            backend.scrub(partition)  # the bytes of deleted rows are still on disk
        number += 1
    if row is not None:
        delete_rows(backend, first, [IMPORT])


def incomplete_writes(backend: Backend, space: str) -> list[str]:
    """A sentence for each import of a missing space, and restore, that may have stored entries of it."""
    found = []
    if has_import(backend, space):
        found.append(
            f"an import of space {space!r} was begun and not completed, and its rows may hold entries: complete it and "
            "erase again, or remove the rows with delete_space"
        )
    if backend.get(RESTORE[0], [RESTORE[1]])[0] is not None:
        found.append(
            "a restore of a backup into this store was begun and not completed, and its rows may hold entries: repeat "
            "that call and erase again, or delete the store"
        )
    return found
