"""Sweeping: files that no head names are removed, and found again where the head is lost."""

from __future__ import annotations

from bisect import bisect_left

from msgspec.structs import replace

from ..backend import Ambiguous, Conflict
from ..errors import StreamkitError
from ..log.keys import HEAD, RUNS
from ..log.pack_format import read_table, table_bytes
from ..log.packs import PackFile, Packs, TableCache
from ..log.partition import Partition
from ..log.rows import encode_row
from .head_change import ids_of, scrub

__all__ = ["found_packs", "sweep"]

_ID = 16
_KEYS = 1000


def _files(partition: Partition) -> list[bytes]:
    return [row.key for row in partition.backend.scan(partition.key, *RUNS.children(), values=False)]


def sweep(partition: Partition) -> int | None:
    """Remove the files of upkeeps that lost or were stopped. Returns their number; None, without removing any, if
    another process has moved the head.

    An upkeep under way has a file that no head names yet. So the head is moved after the files were listed: an upkeep
    that builds on the earlier head comes too late.
    """
    partition.read_head()
    head, etag = partition.known_head()
    if etag is None:
        return 0
    stale = [key for key in _files(partition) if key[-_ID:] not in ids_of(head)]
    if not stale:
        return 0
    # Two sweeps of one head put equal heads. So an equal head does not prove that this put came first. If the other
    # one came first, `stale` may hold a new file, whose upkeep builds on the other's head.
    after = replace(head, version=head.version + 1)
    try:
        new = partition.backend.put(partition.key, bytes(HEAD), encode_row(HEAD, after), etag)
    except (Conflict, Ambiguous):
        return None
    partition.indexed(after, new, etag)
    for at in range(0, len(stale), _KEYS):
        partition.backend.delete(partition.key, stale[at : at + _KEYS])
    if head.erased:
        scrub(partition)  # a stopped upkeep may have read entries that were erased before it wrote its file
    return len(stale)


def found_packs(partition: Partition) -> Packs:
    """The packs in the files that exist, if no head names them.

    Some packs repeat others: a merge replaced them, or a stopped upkeep made them. The real ones hold every transaction
    exactly once. So the packs are chosen that together hold the most transactions without holding one twice.
    """
    files: list[PackFile] = []
    for key in _files(partition):
        try:
            file = _pack_in(partition, key)
        except StreamkitError:
            continue  # its transactions are then reported as missing
        if file is not None:
            files.append(file)
    return Packs(partition.backend, partition.key, partition.seed, _most_of(files), b"", TableCache())


def _most_of(files_by_end: list[PackFile]) -> list[PackFile]:
    """The fewest packs that cover the most transactions, each once, in order."""
    files_by_end = sorted(files_by_end, key=lambda file: (file.last, file.first))
    lasts = [file.last for file in files_by_end]
    # The best choice among the first n files: (transactions, minus files), and whether it includes the last of them.
    best, taken = [(0, 0)], [False]
    for at, file in enumerate(files_by_end):
        covered, files = best[bisect_left(lasts, file.first, hi=at)]
        with_it = (covered + file.last - file.first + 1, files - 1)
        best.append(max(best[-1], with_it))
        taken.append(with_it > best[at])
    chosen: list[PackFile] = []
    count = len(files_by_end)
    while count:
        if taken[count]:
            chosen.append(files_by_end[count - 1])
            count = bisect_left(lasts, chosen[-1].first, hi=count - 1)
        else:
            count -= 1
    return chosen[::-1]


def _pack_in(partition: Partition, key: bytes) -> PackFile | None:
    """The pack at the end of a file, if there is one."""
    value = partition.backend.get(partition.key, [key])[0]
    if value is None:
        return None
    size = table_bytes(value.data)
    table = read_table(value.data[-size:], partition.seed) if size else None
    if table is None or not table.blocks:
        return None
    length = table.blocks[-1].place + table.blocks[-1].stored + size
    start = len(value.data) - length
    return PackFile(key[-_ID:], value.etag, start, length, size, table.first, table.last, table.blocks[0].timestamp)
