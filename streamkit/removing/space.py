"""Deleting a space: its logs end, so that who has it open is told, and its rows go. Made again it is another one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..backend import Backend, Scrubs
from ..log.cleared_inbox import drop_inbox
from ..log.ended import end_log
from ..log.keys import CATALOG, HEAD, space_key
from ..log.partition import Partition
from ..retry import delete_rows

__all__ = ["delete_space"]

_KEYS = 1000
_LATER = 0.002
"""Seconds, so that a space of the same name gets a later incarnation."""


def delete_space(
    backend: Backend, space: str, partitions: Sequence[Partition], delete_archive: Callable[[], None]
) -> None:
    """Interrupted, it is completed by the next call: the space is there until the end, and refuses to be written to."""
    kept = [set(end_log(partition)) for partition in partitions]
    delete_archive()
    for partition, ends in reversed(list(zip(partitions, kept, strict=True))):
        keys: list[bytes] = []
        for row in list(backend.scan(partition.key, b"\x00", b"\xff" * 300, values=False)):
            if row.key != bytes(HEAD) and row.key not in ends:
                keys.append(row.key)
        for at in range(0, len(keys), _KEYS):
            delete_rows(backend, partition.key, keys[at : at + _KEYS])
        if backend.limits.remote:
            drop_inbox(backend, space, partition.partition)
        if isinstance(backend, Scrubs):
            backend.scrub(partition.key)
        if partition.partition:
            delete_rows(backend, partition.key, [bytes(HEAD)])
    if partitions:
        delete_rows(backend, bytes(CATALOG), [bytes(space_key(space))])
        delete_archive()  # an archiver may have been at work until now
        delete_rows(backend, partitions[0].key, [bytes(HEAD)])
        time.sleep(_LATER)
