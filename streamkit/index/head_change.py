"""Changing a partition's head: one compare-and-set, which settles lost answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec.structs import replace

from ..backend import ABSENT, Ambiguous, Conflict, Etag, Scrubs
from ..errors import CorruptData, StoreClosed, TransientError, Unavailable
from ..log.keys import HEAD, run_key
from ..log.partition import Partition
from ..log.rows import Head, encode_row
from ..retry import attempts

__all__ = ["change_head", "ids_of", "put_head", "remove_files", "remove_made", "scrub"]

_TRIES = 5


def change_head(partition: Partition, change: Callable[[Head], Head]) -> None:
    """Replace the head by `change(head)`; again with the new head if another process was faster.

    Nothing is written if `change` returns its argument. Unavailable if other processes are faster every time.
    """
    for _ in attempts(partition.clock):
        head, etag = partition.known_head()
        if etag is None:
            raise partition.missing_head()
        after = change(head)
        if after is head or put_head(partition, head, etag, after):
            return
    raise Unavailable(f"space {partition.space!r}: other processes write its head all the time; try again later")


def put_head(partition: Partition, head: Head, etag: Etag | None, after: Head, made: Sequence[bytes] = ()) -> bool:
    """Replace `head`, whose etag is `etag`, by `after`; the files that only `head` names are removed.

    False if another process was faster: then the files `made` for `after` are removed. Unavailable if no answer comes.
    """
    after = replace(after, version=head.version + 1)
    if not _put(partition, after, etag, made):
        _scrub_made(partition, head, made)
        return False
    remove_files(partition, ids_of(head) - ids_of(after))
    return True


def ids_of(head: Head) -> set[bytes]:
    """The ids of all files that a head names."""
    return {file.id for file in head.manifest.files()} | {file.id for file in head.packs}


def remove_files(partition: Partition, ids: Iterable[bytes]) -> None:
    """Remove files that no head names. A sweep removes later what remains if this fails."""
    keys = [run_key(id) for id in ids]
    try:
        if keys:
            partition.backend.delete(partition.key, keys)
    except (TransientError, Ambiguous):
        return


def remove_made(partition: Partition, before: Head, ids: Collection[bytes]) -> None:
    """Remove files that were made for a head after `before`, and lost. They may hold entries that were erased since."""
    remove_files(partition, ids)
    _scrub_made(partition, before, ids)


def _scrub_made(partition: Partition, before: Head, ids: Collection[bytes]) -> None:
    head = partition.head
    if ids and (head.erased != before.erased or head.erasing or before.erasing):
        scrub(partition)


def scrub(partition: Partition) -> str | None:
    """Remove the bytes of deleted rows. A sentence for the user if some may be left."""
    backend = partition.backend
    return backend.scrub(partition.key) if isinstance(backend, Scrubs) else None


def _put(partition: Partition, after: Head, etag: Etag | None, made: Sequence[bytes]) -> bool:
    expect = etag or partition.foreign_head or ABSENT
    data = encode_row(HEAD, after)
    lost = False
    for attempt in range(_TRIES):
        try:
            new = partition.backend.put(partition.key, bytes(HEAD), data, expect)
        except Conflict:
            # The other head may be this same one, delivered twice, or a successor of it. If the head has not moved, an
            # earlier try can still land, and needs its files.
            looked = _read_head(partition, made)
            if looked and partition.head != after and (not lost or partition.head_etag != etag):
                remove_files(partition, set(made) - ids_of(partition.head))
            return partition.head == after
        except Ambiguous:
            lost = True
            # It can still land, so its files must stay. Sending it again does no harm.
            if _read_head(partition, ()) and (partition.head == after or partition.head_etag != etag):
                return partition.head == after
            partition.clock.sleep(0.05 * 2**attempt)
        else:
            partition.indexed(after, new, etag)
            return True
    raise Unavailable(f"space {partition.space!r}: the storage's answers are lost one after the other; try again")


def _read_head(partition: Partition, made: Sequence[bytes]) -> bool:
    """True if the head could be read. If the store was deleted, the files `made` go, and the error is raised."""
    try:
        partition.read_head()
    except (TransientError, Ambiguous):
        return False
    except (CorruptData, StoreClosed):
        if made:
            remove_files(partition, made)
            scrub(partition)
        raise
    return True
