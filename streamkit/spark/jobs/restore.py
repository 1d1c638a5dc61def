"""Restore spaces into a new store: from both tiers, or from the archive alone where the log is lost; up to a time.

python -m streamkit.spark.jobs.restore --url s3://bucket/prefix --store ID --into NEW-ID --until 2026-01-31T00:00:00

Transactions stay whole and in their order, segments keep their sequences; timestamps and transaction ids are new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from ...archive.restore import archived_spaces, read_archived
from ...client import connect
from ...errors import CorruptData
from ...log.read import Batch, Bounds, partition_batches
from ...model import Record
from ...store import Store, inner
from ..options import bound
from .command import arguments, existing, main, on_executors, say, start, targets

__all__ = ["job", "restore_space"]


def restore_space(source: Store, target: Store, space: str, until: int = 0, cold: bool = False) -> int:
    """Copy a space, up to timestamp `until` (ms; 0: all); the number of transactions that were copied.

    What is there already is skipped, so that it may be called again. CorruptData if the target has something else.
    """
    bounds = Bounds(max_timestamp=until)
    if cold:
        logs = read_archived(inner(source).archive(space), bounds)
    else:
        known = inner(source).look_up(space)[0]
        partitions = known.partitions if known else []
        logs = [partition_batches(one, (1, 0), one.refresh(), bounds) for one in partitions]
    if not logs:
        return 0
    target.create_space(space, len(logs))
    return sum(_copy(target, space, log) for log in logs)


def _copy(target: Store, space: str, log: Iterator[Batch]) -> int:
    count = 0
    for transaction in _transactions(log):
        ends = {batch.entries[-1].segment: batch.entries[-1].sequence for batch in transaction}
        there = [target.segment_status(space, segment).last_sequence >= last for segment, last in ends.items()]
        if all(there):
            continue
        if any(there):
            raise CorruptData(f"the target's space {space!r} holds a part of transaction {transaction[0].number} only")
        with target.transaction(space) as trx:
            for batch in transaction:
                records = [Record(entry.payload, entry.metadata or None, entry.sequence) for entry in batch.entries]
                trx.produce(batch.entries[0].segment, records)
        count += 1
    return count


def _transactions(log: Iterator[Batch]) -> Iterator[list[Batch]]:
    gathered: list[Batch] = []
    for batch in log:
        if gathered and batch.number != gathered[0].number:
            yield gathered
            gathered = []
        gathered.append(batch)
    if gathered:
        yield gathered


def job(given: Sequence[str] | None = None) -> int:
    parser = arguments("restore", "Copy a store's spaces into another store.")
    parser.add_argument("--into", required=True, type=UUID, help="the UUID of the store to restore into")
    parser.add_argument("--into-url", help="where that store is, if elsewhere")
    parser.add_argument("--until", default="", help="the last timestamp: milliseconds or ISO 8601")
    parser.add_argument("--cold", action="store_true", help="from the archive alone: the log is lost")
    options = parser.parse_args(given)
    until = bound("until", options.until)
    if isinstance(until, str):
        raise ValueError("until is a timestamp here, not an offset")
    url, place, into_url, into, cold = (
        options.url,
        options.archive,
        options.into_url or options.url,
        options.into,
        options.cold,
    )
    if cold:
        with connect(url, archive=place) as client:
            store = client.store(options.store)
            work = [(str(store.id), space) for space in archived_spaces(client, store.id)]
        work = [pair for pair in work if options.space in ("*", pair[1])]
    else:
        work = targets(options)
    if len({store for store, _ in work}) != 1:
        raise ValueError("restore takes one store at a time: --store ID")
    if str(into) == work[0][0] and into_url == url:
        raise ValueError("a store is not restored into itself")

    def task(store: str, space: str) -> str:
        with connect(url, archive=place) as client, connect(into_url) as other:
            source = client.store(store) if cold else existing(client, store, space)
            count = restore_space(source, other.store(into), space, until, cold)
        return f"{count} transactions copied"

    say(f"into the store {into}" + (f", up to {options.until}" if until else ""))
    found = on_executors(start("restore"), work, task, "restoring")
    return 1 if any(error for *_, error in found) else 0


if __name__ == "__main__":
    main(job)
