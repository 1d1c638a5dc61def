"""The search of all files of the archive, of every table version. It also finds entries that readers cannot get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .batches import have_texts
from .columns import as_ours
from .erase import is_left_behind, stored_files
from .snapshot import Gone

if TYPE_CHECKING:
    from .read import Archive

__all__ = ["archived_with"]

_ROWS = 65536


def archived_with(archive: Archive, partition: int, wanted: Mapping[str, str], last: int) -> Iterator[tuple[str, int]]:
    """Yield (segment, sequence) of a partition's rows that have all pairs of `wanted`, and others beside them.

    Files that hold only transactions after `last` are skipped if their descriptions show it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    table = archive.table
    table.forget()
    snapshot = table.snapshot()
    later = {file.path for file in snapshot.files if file.numbers[0] > last} if snapshot is not None else set()
    texts = [text for pair in wanted.items() for text in pair]
    columns = ["partition", "segment", "sequence", "metadata"]
    for info in stored_files(table):
        if info.path in later:
            continue
        try:
            if is_left_behind(table, info):
                continue
            with table.open(info.path, pre_buffer=True) as source, table.reading(info.path):
                for batch in source.iter_batches(_ROWS, columns=columns):
                    rows = as_ours(pa.Table.from_batches([batch]))
                    rows = rows.filter(pc.equal(rows["partition"], partition))
                    rows = rows.filter(pa.array(have_texts(rows["metadata"], texts)))
                    for row in rows.select(columns[1:]).to_pylist():
                        pairs = dict(row["metadata"] or ())
                        if all(pairs.get(name) == value for name, value in wanted.items()):
                            yield row["segment"], row["sequence"]
        except Gone:
            continue
