"""Erases from the archive: files with erased entries are rewritten, and the old files are deleted.

An erased entry keeps its row, without payload, metadata and columns that others added, so every other row stays at its
place. Older versions of the table lose their files too, and so do files that no version names.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from ..errors import Unavailable
from .columns import as_ours, check_rows
from .compact import part_file, sort_foreign
from .delta_actions import actions_of, column_types
from .delta_log import DIRECTORY, LogState, listed, replay
from .log_cleanup import forget_versions
from .parquet import write_file
from .schema import schema
from .snapshot import File, Gone, Snapshot, is_own_name

if TYPE_CHECKING:
    import pyarrow as pa

    from .read import Archive
    from .table import Table

__all__ = ["erase_archived", "is_left_behind", "remove_unnamed", "stored_files"]

_TRIES = 20
_DATA = re.compile(r"\.parquet(#\d+)?$")
"""The end of a data file's name. With a number: delta-rs, as another engine, writes a local file under this name, and
renames it. A process that is killed leaves it."""
_ERASED = {"payload", "metadata"}
"""The own columns that an erased row loses. It loses all columns that other engines have added."""
_FOOTER = b"PAR1"
"""The last bytes of a complete Parquet file."""
_LEFT = 60.0
"""Seconds after which a file without a footer is taken for abandoned."""

Spans = Mapping[str, Sequence[tuple[int, int]]]
"""The erased ranges of each segment, as (first sequence, last sequence)."""


def erase_archived(archive: Archive, partition: int, spans: Spans) -> int | None:
    """Erase from a partition's files; return how many files were rewritten, None if there is no table.

    A compaction that runs meanwhile may make some of the work necessary again.
    """
    table, count = archive.table, 0
    clean: set[str] = set()
    """Files that hold no erased entry."""
    made: dict[str, File] = {}
    """The replacement of each file that held erased entries, by the path of the old file."""
    fence = 0
    """The last version of this erasure, 0 before there is one. From the first on, an archiver whose lease has ended
    cannot add entries that it read before the erasure."""
    for _ in range(_TRIES):
        table.forget()
        snapshot = table.snapshot()
        if snapshot is None:
            _delete_old(archive, set(), spans)
            return None
        try:
            foreign, old, shared = False, list[File](), list[File]()
            for file in _candidates(snapshot, partition, spans):
                if file.path in clean:
                    continue
                if file.path not in made and not _holds(archive, file.path, spans):
                    clean.add(file.path)
                elif not file.ours:
                    foreign = True
                    sort_foreign(archive, snapshot, file)
                    break
                elif file.shared:
                    shared.append(file)
                else:
                    if file.path not in made:
                        made[file.path] = _written(archive, snapshot, file, spans)
                    old.append(file)
            for file in shared:
                part_file(archive, snapshot, file)
            if foreign or shared:
                continue
            has_others = _has_others(table, snapshot.state)
            if not old and fence:
                _delete_old(archive, snapshot.paths, spans)
                if has_others:  # the log has the least and the greatest values of such columns
                    forget_versions(table, fence)
                return count
            # All in one version, so that each is one more however many files there are.
            if table.replace(snapshot.state, old, [made[file.path] for file in old], has_checkpoint=has_others):
                fence = snapshot.state.version + 1
                count += len(old)
                clean.update(made[file.path].path for file in old)
        except Gone:
            continue
    raise Unavailable(f"{table.url} is compacted by others all the time; erase again later")


def remove_unnamed(archive: Archive, spans: Spans) -> str | None:
    """Delete the files that no version names and that hold erased entries: an archiver or a compaction had read them
    before an erasure, and was killed after it. A sentence if a file that is half written may be one of these."""
    table = archive.table
    table.forget()
    snapshot = table.snapshot()
    try:
        _delete_old(archive, snapshot.paths if snapshot is not None else set(), spans)
    except Unavailable as error:
        return str(error)
    return None


def _candidates(snapshot: Snapshot, partition: int, spans: Spans) -> Iterator[File]:
    for file in snapshot.files:
        if file.partition == partition and any(
            file.segments[0] <= segment <= file.segments[1]
            and any(first <= file.sequences[1] and file.sequences[0] <= last for first, last in parts)
            for segment, parts in spans.items()
        ):
            yield file


def _written(archive: Archive, snapshot: Snapshot, file: File, spans: Spans) -> File:
    """A new file with the remaining rows of `file`."""
    rows = archive.files.read(file, list(snapshot.state.types))
    return write_file(archive.table, _without(rows, spans))


def _marked(rows: pa.Table, spans: Spans) -> Any:
    """A mask of the rows that are to be erased."""
    import numpy as np

    sequence = rows["sequence"].to_numpy()
    segments = rows["segment"].combine_chunks()
    segments = segments.chunk(0) if hasattr(segments, "chunks") else segments
    if not hasattr(segments, "dictionary"):
        segments = segments.dictionary_encode()
    names, codes = segments.dictionary.to_pylist(), segments.indices.to_numpy()
    mask = np.zeros(len(sequence), bool)
    for code, name in enumerate(names):
        parts = spans.get(name, ())
        if parts:
            own = codes == code
            for first, last in parts:
                mask |= own & (sequence >= first) & (sequence <= last)
    return mask


def _own_names() -> set[str]:
    return set(schema().names)


def _has_others(table: Table, state: LogState) -> bool:
    """True if the table, or a version of it that is in the log, has columns that other engines have added."""
    own = _own_names()
    if not own.issuperset(state.types):
        return True
    if not state.is_foreign:
        return False
    with table.mapped():
        commits, checkpoints = listed(table.log_sizes())
        first = replay(table, min(checkpoints)) if checkpoints else None
        if first is not None and not own.issuperset(first.types):
            return True
        actions = (action for version in commits for action in actions_of(table.log_of(version) or ""))
        changes = (action.metadata for action in actions if action.metadata is not None)
        return any(not own.issuperset(column_types(change.schema_string)) for change in changes)


def _without(rows: pa.Table, spans: Spans) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    mask, kept_names = pa.array(_marked(rows, spans)), _own_names() - _ERASED
    for at, field in enumerate(rows.schema):
        if field.name not in kept_names:
            column = rows.column(at)
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            kept = pc.if_else(mask, pa.scalar(None, column.type), column)
            rows = rows.set_column(at, pa.field(field.name, column.type, True), kept)
    return rows


def _holds(archive: Archive, path: str, spans: Spans) -> bool:
    """True if a file holds payloads of erased entries."""
    import numpy as np

    table = archive.table
    with table.open(path, read_dictionary=["segment"], pre_buffer=True) as source, table.reading(path):
        others = [name for name in source.schema_arrow.names if name not in _own_names()]
        for group in _groups_with(source, path, spans):
            rows = source.read_row_group(group, columns=["segment", "sequence"])
            rows = check_rows(rows) if is_own_name(path) else as_ours(rows)
            mask = _marked(rows, spans)
            if mask.any():
                values = source.read_row_group(group, columns=[*others, "payload"])
                if any((mask & ~np.asarray(column.is_null())).any() for column in values.columns):
                    return True
    return False


def _groups_with(source: Any, path: str, spans: Spans) -> Iterator[int]:
    """The row groups that may have rows of the segments. Statistics of other engines do not count."""
    metadata, names = source.metadata, sorted(spans)
    columns = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    for group in range(metadata.num_row_groups):
        known = metadata.row_group(group).column(columns["segment"]).statistics if is_own_name(path) else None
        if known is not None and known.has_min_max:
            at = bisect_left(names, known.min)
            if at == len(names) or names[at] > known.max:
                continue
        yield group


def _delete_old(archive: Archive, named: Set[str], spans: Spans) -> None:
    """Delete files that hold erased entries and are not `named` by the present version.

    No later version can name one: its commit would replace a file with the same rows, which is replaced already, or
    build on an earlier version.
    """
    table, paths = archive.table, [""]
    for info in stored_files(table):
        path = info.path
        if path in named:
            continue
        try:
            if is_left_behind(table, info) or _holds(archive, path, spans):
                with table.mapped():
                    table.filesystem.delete_file(path)
                paths.append(path)
        except Gone:
            continue
    table.keep_deletions(paths)


def stored_files(table: Table) -> list[Any]:
    """The pyarrow file info of each data file in the table's directory, named by a version or not.

    Checkpoints are Parquet files too. They are in the table's log, and in a copy of it that a killed process has left.
    """
    import pyarrow.fs as fs

    with table.mapped():
        found = table.filesystem.get_file_info(fs.FileSelector("", allow_not_found=True, recursive=True))
    return [
        info
        for info in found
        if info.type == fs.FileType.File and _DATA.search(info.path) and DIRECTORY not in info.path.split("/")
    ]


def is_left_behind(table: Table, info: Any) -> bool:
    """True if a killed process left the file half written: its content is unknown.

    Unavailable if that process may still be writing it.
    """
    with table.reading(info.path), table.filesystem.open_input_file(info.path) as source:
        size = source.size()
        if size >= len(_FOOTER) and source.read_at(len(_FOOTER), size - len(_FOOTER)) == _FOOTER:
            return False
    if time.time() - (info.mtime_ns or 0) / 1e9 < _LEFT:
        raise Unavailable(
            f"{table.url}: {info.path} is being written, or was until a process was killed: erase again in a minute"
        )
    return True
