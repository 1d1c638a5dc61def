"""The end of a log: an empty transaction that is left when the store is deleted.

Where no head guards a commit, it is what a process meets that still has the store open: its next transaction has the
same number.
"""

from __future__ import annotations

from ..backend import Ambiguous, Append, Conflict
from ..errors import StoreClosed, Unavailable
from .commit import new_id
from .outcome import tag_of
from .partition import Partition
from .record_format import ENDED, encode_transaction

__all__ = ["end_log"]

_TRIES = 1000


def end_log(partition: Partition) -> bytes:
    """End it, unless it has ended. Returns the key of its last transaction.

    It competes with the writers that are still there, as they do with each other.
    """
    for _ in range(_TRIES):
        try:
            number = partition.refresh() + 1
        except StoreClosed:
            return partition.transaction_key(partition.number + 1)
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
        key = partition.transaction_key(number)
        try:
            partition.backend.write(partition.key, [Append(key, record)])
            return key
        except (Conflict, Ambiguous):
            continue
    where = partition.where(partition.number)
    raise Unavailable(f"{where}: others write to the store; stop them, and delete it again")
