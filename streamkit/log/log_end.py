"""The end of a log: empty transactions that are left when the store is deleted.

No head guards a commit. So a process that still has the store open must meet one of these transactions: its next
transaction has the same number. One is after the last transaction. The others replace the latest transactions, for
a process that has not seen them. Its look at the log counts for a while (see freshness.py). If the numbers were free,
it would believe that it had committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise

from ..backend import ANY, NEXT, Ambiguous, Conflict, Etag, Expect
from ..errors import CorruptData, StoreClosed, Unavailable, UnsupportedVersion
from ..retry import attempts, send_until_answered
from .ids import new_id
from .keys import created_at, transaction_incarnation, transaction_number, transaction_prefix
from .outcome import tag_of
from .partition import Partition, seed_of
from .record_format import ENDED, decode_header, encode_transaction
from .rows import Settings
from .watermarks import reached

__all__ = ["earlier_ends", "end_log", "has_earlier"]

_TRIES = 200
_AT_ONCE = 16
"""Records that are written at the same time."""
_MARGIN = 600.0
"""Seconds by which the clock of a process that made a space may be wrong."""


def end_log(partition: Partition, check: Callable[[], None] | None = None) -> list[bytes]:
    """End the log, unless it has ended. Returns the keys of the transactions that must stay.

    It competes with the remaining writers for the next number. `check` is called before each attempt. It raises if the
    log, as it is, must not end: then nothing is written.
    """
    first = _first_unseen(partition) if partition.remote else 1 << 62
    last = _end(partition, check)
    numbers = range(min(first, last), last)
    if numbers:
        # They are empty already where an earlier deletion was interrupted; again is fine.
        from concurrent.futures import ThreadPoolExecutor

        keys = partition.transaction_key(numbers[0]), partition.transaction_key(last)
        etags = {row.key: row.etag for row in partition.backend.scan(partition.key, *keys, values=False)}
        with ThreadPoolExecutor(min(len(numbers), _AT_ONCE)) as threads:
            list(threads.map(lambda number: _replace(partition, number, etags), numbers))
    return [partition.transaction_key(number) for number in (*numbers, last)]


def earlier_ends(partition: Partition) -> set[bytes]:
    """The keys of the transactions that ended earlier spaces of the partition's name not long ago.

    A process that has such a space open must still meet one of them: its look at the log may count yet.
    """
    incarnation = partition.settings.incarnation
    by_incarnation: dict[bytes, list[bytes]] = {incarnation: []}
    start, end = transaction_prefix(b""), partition.transaction_key(0)
    for row in partition.backend.scan(partition.key, start, end, values=False):
        by_incarnation.setdefault(transaction_incarnation(row.key), []).append(row.key)
    now = partition.freshness.now()
    oldest = None if now is None else now - partition.freshness.limit(partition.grace) - _MARGIN
    ends: set[bytes] = set()
    # An earlier space had ended when the next one was made.
    for earlier, following in pairwise(sorted(by_incarnation)):
        if oldest is None or created_at(following) > oldest:
            seed = seed_of(Settings(incarnation=earlier), partition.key)
            some = by_incarnation[earlier]
            for key, value in zip(some, partition.backend.get(partition.key, some), strict=True):
                with suppress(CorruptData, UnsupportedVersion):
                    if value is not None and decode_header(value.data, seed).ended:
                        ends.add(key)
    return ends


def has_earlier(partition: Partition) -> bool:
    """True if a space of the partition's name was deleted before this one was made: the end of its log is stored."""
    start, end = transaction_prefix(b""), partition.transaction_key(0)
    return any(partition.backend.scan(partition.key, start, end, limit=1, values=False))


def _first_unseen(partition: Partition) -> int:
    """The first transaction that a process with a valid look at the log may not have seen."""
    partition.read_head()
    head, now = partition.head, partition.freshness.now()
    if now is None:
        return head.cleared + 1
    since = now - partition.freshness.limit(partition.grace)
    return 1 + max(head.cleared, reached(head.packed, since), reached(head.seen, since))


def _end(partition: Partition, check: Callable[[], None] | None) -> int:
    """Write the empty transaction after the last one, if it is not there. Returns its number."""
    for _ in attempts(partition.clock, _TRIES):
        try:
            number = partition.refresh() + 1
        except StoreClosed:
            return _last(partition)
        if check is not None:
            check()
        try:
            _put_end(partition, number, NEXT)
            return number
        except (Conflict, Ambiguous):
            continue
    where = partition.where(partition.number)
    raise Unavailable(f"{where}: others write to the store; stop them, and delete it again")


def _last(partition: Partition) -> int:
    """The last transaction of a log that has ended. The known state may end at an earlier empty transaction."""
    start, end = partition.transaction_key(partition.number + 1), partition.transaction_key(1 << 64)
    *_, row = partition.backend.scan(partition.key, start, end, values=False)
    return transaction_number(row.key)


def _replace(partition: Partition, number: int, etags: Mapping[bytes, Etag]) -> None:
    """Replace a transaction, by its etag if that is known: then a backend also removes a value beside the row."""
    remedy = f"delete space {partition.space!r}, or the store, again"
    etag = etags.get(partition.transaction_key(number))
    try:
        send_until_answered(partition.clock, lambda: _put_end(partition, number, etag or ANY), remedy)
    except Conflict:  # another process has replaced or removed it, or this one has and did not get the answer
        send_until_answered(partition.clock, lambda: _put_end(partition, number, ANY), remedy)


def _put_end(partition: Partition, number: int, expect: Expect | Etag) -> None:
    now = partition.clock.now()
    _, record = encode_transaction(
        number=number,
        timestamp=max(now, partition.timestamp),
        id=new_id(now, tag_of(partition)),
        node=ENDED,
        position=partition.position,
        parts=(),
        keys=(),
        fences={},
        seed=partition.seed,
    )
    partition.backend.put(partition.key, partition.transaction_key(number), record, expect)
