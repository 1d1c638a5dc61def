"""The end of a log: empty transactions that are left when the store is deleted.

No head guards a commit. So a process that still has the store open must meet one of these transactions: its next
transaction has the same number. One is after the last transaction. The others replace the latest transactions, for
a process that has not seen them. Its look at the log counts for a while (see freshness.py). If the numbers were free,
it would believe that it had committed.
"""

from __future__ import annotations

from ..backend import ANY, NEXT, Ambiguous, Conflict, Expect
from ..errors import StoreClosed, Unavailable
from ..retry import attempts, send_until_answered
from .commit import new_id
from .keys import transaction_number
from .outcome import tag_of
from .partition import Partition
from .record_format import ENDED, encode_transaction
from .watermarks import reached

__all__ = ["end_log"]

_TRIES = 200
_AT_ONCE = 16
"""Records that are written at the same time."""


def end_log(partition: Partition) -> list[bytes]:
    """End the log, unless it has ended. Returns the keys of the transactions that must stay.

    It competes with the remaining writers for the next number.
    """
    first = _first_unseen(partition) if partition.remote else 1 << 62
    last = _end(partition)
    numbers = range(min(first, last), last)
    if numbers:
        # They are empty already where an earlier deletion was interrupted; again is fine.
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(len(numbers), _AT_ONCE)) as threads:
            list(threads.map(lambda number: _replace(partition, number), numbers))
    return [partition.transaction_key(number) for number in (*numbers, last)]


def _first_unseen(partition: Partition) -> int:
    """The first transaction that a process with a valid look at the log may not have seen."""
    partition.read_head()
    head, now = partition.head, partition.freshness.now()
    if now is None:
        return head.cleared + 1
    since = now - partition.freshness.limit(partition.grace)
    return 1 + max(head.cleared, reached(head.packed, since), reached(head.seen, since))


def _end(partition: Partition) -> int:
    """Write the empty transaction after the last one, if it is not there. Returns its number."""
    for _ in attempts(partition.clock, _TRIES):
        try:
            number = partition.refresh() + 1
        except StoreClosed:
            return _last(partition)
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


def _replace(partition: Partition, number: int) -> None:
    remedy = f"delete space {partition.space!r}, or the store, again"
    send_until_answered(partition.clock, lambda: _put_end(partition, number, ANY), remedy)


def _put_end(partition: Partition, number: int, expect: Expect) -> None:
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
