"""Copying the Delta table of an archived space, and writing it to another place.

A version of a table is a list of files that never change. The copy has these files and that list, without the versions
before. The written table has one version.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec

from ..archive.durable import keep, make_directories
from ..archive.errors import Damaged
from ..archive.location import ArchiveLocation
from ..archive.snapshot import Gone
from ..archive.table import Table
from ..errors import CorruptData
from ..store import Store, inner
from .format import TableCopy, TableFile, table_key
from .repository import Repository

__all__ = ["copy_table", "write_table"]

_PART = 8 << 20
_TRIES = 20
_CHECKED = "streamkit/checked"
_MARK = "streamkit/"


def _table(store: Store, space: str) -> Table:
    return Table(ArchiveLocation(*inner(store).archive_root()), store.id, space)


def copy_table(store: Store, repository: Repository, space: str) -> tuple[TableCopy, dict[int, int]]:
    """The newest version of a space's table, copied; and for each partition the last transaction that it holds."""
    there = repository.data_keys(space, 0)
    for _ in range(_TRIES):
        table = _table(store, space)
        state = table.state()
        if state is None:
            raise CorruptData(
                f"the space {space!r} is archived, and there is no table at {table.url}: say where archives are kept, "
                "with connect(archive=URL), --archive URL or STREAMKIT_ARCHIVE"
            )
        try:
            files = [
                TableFile(file.path, file.size, file.stats, _copy_file(table, repository, space, file, there))
                for file in state.added.values()
            ]
        except Gone:
            continue  # another process has compacted the table
        marks = dict(state.marks)
        archived = {
            int(name.removeprefix(_MARK)): mark for name, mark in marks.items() if name.removeprefix(_MARK).isdecimal()
        }
        return TableCopy(
            msgspec.to_builtins(state.protocol), msgspec.to_builtins(state.metadata), marks, files
        ), archived
    raise Damaged(f"{table.url}: files of its newest version are missing; restore the table")


def _copy_file(table: Table, repository: Repository, space: str, file: Any, there: set[bytes]) -> int:
    """Copy a file in parts, unless they exist, and return the number of its parts."""
    count: int = max(1, -(-file.size // _PART))
    if all(table_key(file.path, part) in there for part in range(count)):
        return count
    with table.reading(file.path), table.filesystem.open_input_stream(table.path_of(file.path)) as source:
        for part in range(count):
            data = source.read(_PART)
            if len(data) != min(_PART, file.size - part * _PART):
                raise CorruptData(f"{table.url}/{file.path} has another size than the {file.size} bytes of its log")
            if table_key(file.path, part) not in there:
                repository.put_table_part(space, file.path, part, data)
    return count


def write_table(store: Store, repository: Repository, space: str, copy: TableCopy) -> None:
    """Write the copy of a table as that of `store`. Existing files are not written again."""
    table = _table(store, space)
    for file in copy.files:
        path = table.path_of(file.path)
        if _size(table, path) != file.size:
            _write(table, path, (repository.table_part(space, file.path, part) for part in range(file.parts)))
    _write(table, f"_delta_log/{0:020}.json", iter([_commit(store, copy)]))


def _commit(store: Store, copy: TableCopy) -> bytes:
    configuration = {**copy.metadata.get("configuration", {}), "streamkit.store": str(store.id)}
    metadata = {
        **copy.metadata,
        "configuration": configuration,
        "format": {"provider": "parquet", "options": {}},
        "partitionColumns": [],
    }
    marks = {**copy.marks, _CHECKED: 0}
    now = inner(store).clock.now()
    actions: list[dict[str, Any]] = [{"protocol": copy.protocol}, {"metaData": metadata}]
    actions += [{"txn": {"appId": name, "version": mark, "lastUpdated": now}} for name, mark in marks.items()]
    for file in copy.files:
        add = {"path": file.path, "partitionValues": {}, "size": file.size, "modificationTime": now, "dataChange": True}
        actions.append({"add": add if file.stats is None else {**add, "stats": file.stats}})
    return b"\n".join(msgspec.json.encode(action) for action in actions) + b"\n"


def _size(table: Table, path: str) -> int | None:
    with table.mapped():
        size: int | None = table.filesystem.get_file_info(path).size
    return size


def _write(table: Table, path: str, parts: Iterator[bytes]) -> None:
    """A file of the table, on stable storage when this returns."""
    place = None if table.directory is None else os.path.join(table.directory, path)
    with table.mapped():
        if place is not None:
            make_directories(os.path.dirname(place))
        with table.filesystem.open_output_stream(path, compression=None, buffer_size=_PART) as target:
            for part in parts:
                target.write(part)
        if place is not None:
            keep(place)
