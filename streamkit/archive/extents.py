"""The extents of a file that lacks our statistics: another engine may write none, or mix partitions in one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .columns import as_ours
from .parquet import parts_of
from .snapshot import File, is_own_name

if TYPE_CHECKING:
    import pyarrow as pa

    from .table import Table

__all__ = ["measure"]

_COLUMNS = ["partition", "number", "position", "segment", "sequence", "timestamp"]
_ROWS = 65_536


def measure(table: Table, path: str, size: int) -> tuple[File, ...]:
    """The file as one of each partition that it has rows of. A file that streamkit wrote says so itself; of others the
    narrow columns are read, a batch at a time."""
    extents: dict[int, dict[str, Any]] = {}
    source = table.open(path, buffer_size=1 << 20, pre_buffer=False)
    if is_own_name(path) and (parts := parts_of(path, size, source.metadata)):
        return tuple(file for file, _ in parts)
    with table.reading(path):
        for batch in source.iter_batches(_ROWS, columns=_COLUMNS):
            _take(extents, batch)
    return tuple(
        File(
            path,
            size,
            part["rows"],
            partition,
            part["number"],
            part["position"],
            part["segment"],
            part["sequence"],
            (part["timestamp"][0] // 1000, part["timestamp"][1] // 1000),
            len(extents) if len(extents) > 1 else 0,
        )
        for partition, part in sorted(extents.items())
    )


def _take(extents: dict[int, dict[str, Any]], batch: pa.RecordBatch) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = as_ours(pa.Table.from_batches([batch]))
    for partition in np.unique(rows["partition"].to_numpy()).tolist():
        some = rows.filter(pc.equal(rows["partition"], partition))
        part = extents.setdefault(partition, {"rows": 0})
        part["rows"] += some.num_rows
        for name in _COLUMNS[1:]:
            values = some[name].cast("int64") if name == "timestamp" else some[name]
            ends = pc.min_max(values)
            least, most = ends["min"].as_py(), ends["max"].as_py()
            before = part.get(name, (least, most))
            part[name] = (min(before[0], least), max(before[1], most))
