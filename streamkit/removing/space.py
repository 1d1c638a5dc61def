"""Deleting a space: its logs end, which tells its open processes, and its rows go. Made again, it is another space."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from ..backend import Backend, Discards, Scrubs
from ..errors import UNREADABLE, StoreClosed, Unavailable
from ..index.upkeep import move_head
from ..index.verify import is_lost
from ..log.inbox_cleanup import drop_inbox
from ..log.keys import ARCHIVE, CATALOG, GRACE, HEAD, partition_key, space_key
from ..log.log_end import earlier_ends, end_log
from ..log.partition import Partition
from ..log.rows import Head, Settings, decode_row
from ..retry import attempts, delete_all, delete_row
from ..space import catalog_row
from ..warn import warn

__all__ = ["delete_space", "has_remains"]

_LATER = 0.002
"""Seconds, so that a space of the same name gets a later incarnation."""


class _Replaced(Exception):
    """Another process has deleted the space meanwhile, and may have made it again."""


def delete_space(
    backend: Backend,
    space: str,
    partitions: Sequence[Partition],
    delete_rest: Callable[[], None],
    is_over: Callable[[], bool] | None = None,
) -> None:
    """The next call completes an interrupted one: the space exists until the end, and refuses writes.

    A damaged partition is removed too. Its log may get no end: then a process that has it open does not notice. Nothing
    is removed of a space of the same name that another process makes meanwhile.

    `delete_rest` deletes what belongs to the space and is not in it. It is called when the space refuses writes, and
    again before the space is gone. `is_over`: the space is deleted only if this is true of its first log's last
    transaction. It is called after a look at the log.
    """

    def check() -> None:
        if is_over is not None and not is_over():
            raise _Replaced

    with suppress(_Replaced):
        _delete(backend, space, partitions, delete_rest, check)
    time.sleep(_LATER)


def _delete(
    backend: Backend,
    space: str,
    partitions: Sequence[Partition],
    delete_rest: Callable[[], None],
    check: Callable[[], None],
) -> None:
    first = partitions[0]
    kept = [_end(first, check), *(_end(partition) for partition in partitions[1:])]
    _check_own(first)
    delete_rest()
    for partition, ends in reversed(list(zip(partitions, kept, strict=True))):
        damaged = ends is None or not _remove_rows(backend, first, partition, ends)
        if backend.limits.remote:
            drop_inbox(backend, space, partition.partition, first.settings.incarnation)
        if not partition.partition:
            # The catalog goes before the first head: a listed space without a head would read as a new one.
            _delete_row(backend, first, bytes(CATALOG), bytes(space_key(space)))
            _check_own(first)
            delete_rest()  # an archiver may have been at work until now
        if damaged:
            _discard(backend, first, partition)
        else:
            _delete_row(backend, first, partition.key, bytes(HEAD))


def _check_own(first: Partition) -> None:
    """Raise _Replaced if the first partition's head is gone, or belongs to a later space. What was read before belongs
    to this one otherwise, because a process that makes a space puts the head before all else."""
    with suppress(*UNREADABLE):  # a damaged one is this space's
        value = first.backend.get(first.key, [bytes(HEAD)])[0]
        if value is None:
            replaced = first.head_etag is not None
        else:
            replaced = decode_row(Head, HEAD, value.data).settings.incarnation != first.settings.incarnation
        if replaced:
            raise _Replaced


def _delete_row(backend: Backend, first: Partition, partition: bytes, key: bytes) -> None:
    """Delete a row, but not one that another process has put for a later space."""
    for _ in attempts(first.clock):
        value = backend.get(partition, [key])[0]
        if value is None:
            return
        _check_own(first)
        if partition == bytes(CATALOG):
            # The row of a later space comes before its head.
            with suppress(*UNREADABLE):
                if decode_row(Settings, key, value.data).incarnation > first.settings.incarnation:
                    return
        if delete_row(backend, partition, key, value.etag):
            return
    raise Unavailable(f"space {first.space!r}: other processes write to it all the time; delete it again")


def has_remains(backend: Backend, space: str) -> bool:
    """True if the catalog lists a space without a head, and no process is creating it just now."""
    if catalog_row(backend, space) is None:
        return False
    first = bytes(partition_key(space, 0))
    try:
        rows = backend.scan(first, b"\x00", b"\xff" * 300, limit=1, values=False)
        return next(rows, None) is not None or is_lost(backend, space)
    except UNREADABLE:
        return True


def _end(partition: Partition, check: Callable[[], None] | None = None) -> set[bytes] | None:
    """End the log; the keys of the transactions that stay. None if the log cannot be read. `check`: see `end_log`."""
    backend = partition.backend
    try:
        if not backend.limits.remote and isinstance(backend, Scrubs):
            backend.scrub(partition.key)  # the end comes into a new file, and keeps no large one
        if not partition.partition and partition.head_etag is None:
            partition.read_head()
        known = partition.partition or partition.head_etag is not None
        if known and partition.settings.incarnation:
            return set(end_log(partition, check))
        warn("space %r has no head and is deleted, and processes that have it open may not notice", partition.space)
        return None
    except (StoreClosed, *UNREADABLE) as error:  # StoreClosed: another process deletes it at the same time
        warn("space %r is deleted, and processes that have it open may not notice: %s", partition.space, error)
        return None


def _remove_rows(backend: Backend, first: Partition, partition: Partition, ends: set[bytes]) -> bool:
    """Remove all rows but the head and `ends`. False if the storage cannot read them."""
    try:
        _delete_all(backend, first, partition, {bytes(HEAD), *ends})
        if not backend.limits.remote:
            _clear_head(partition)
        if isinstance(backend, Scrubs):
            backend.scrub(partition.key)
    except UNREADABLE:
        return False
    return True


def _clear_head(partition: Partition) -> None:
    """Remove entries from the head. It is deleted after the scrub, which would leave its bytes in a local file."""
    with suppress(StoreClosed):  # another process deletes it at the same time
        for _ in attempts(partition.clock):
            partition.read_head()
            head = partition.head
            if not head.manifest.inline and not head.pack:
                return
            manifest = replace(head.manifest, inline=b"", inline_first=0, inline_last=0)
            if move_head(partition, head, replace(head, manifest=manifest, pack=b""), []):
                return


def _discard(backend: Backend, first: Partition, partition: Partition) -> None:
    """Remove the rows of a damaged partition, its head included."""
    _check_own(first)
    if isinstance(backend, Discards):
        backend.discard(partition.key)
    else:
        _delete_all(backend, first, partition, set())


def _delete_all(backend: Backend, first: Partition, partition: Partition, kept: set[bytes]) -> None:
    kept = kept | earlier_ends(partition)
    keys = {row.key for row in backend.scan(partition.key, b"\x00", b"\xff" * 300, values=False)} - kept
    _check_own(first)
    # A later space has these keys too.
    again = keys & {bytes(HEAD), bytes(ARCHIVE), bytes(GRACE)}
    delete_all(backend, partition.key, sorted(keys - again))
    for key in again:
        _delete_row(backend, first, partition.key, key)
