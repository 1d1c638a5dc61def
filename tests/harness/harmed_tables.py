"""Tables of an archive that someone else wrote or changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from streamkit.errors import CorruptData, PermanentError, UnsupportedVersion


def foreign(path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    shutil.rmtree(path, ignore_errors=True)
    write_deltalake(str(path), pa.table({"x": [1, 2]}))


def missing_file(path: Path) -> None:
    next(path.glob("*.parquet")).unlink()


def damaged_file(path: Path) -> None:
    file = next(path.glob("*.parquet"))
    data = bytearray(file.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 100] = bytes(100)
    file.write_bytes(data)


def deleted_rows(path: Path) -> None:
    from deltalake import DeltaTable

    DeltaTable(str(path)).delete("sequence = 1")


def doubled_rows(path: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    table = DeltaTable(str(path))
    write_deltalake(table, table.to_pyarrow_table(), mode="append")


def gone(path: Path) -> None:
    shutil.rmtree(path)


def future(path: Path) -> None:
    log = next(path.glob("_delta_log/*0000.json"))
    log.write_text(log.read_text().replace('"streamkit.format":"1"', '"streamkit.format":"7"'))


def newer_protocol(path: Path) -> None:
    log = next(path.glob("_delta_log/*0000.json"))
    log.write_text(log.read_text().replace('"minReaderVersion":1', '"minReaderVersion":2'))


def lost_column(path: Path) -> None:
    log = next(path.glob("_delta_log/*0000.json"))
    log.write_text(log.read_text().replace('\\"name\\":\\"position\\"', '\\"name\\":\\"place\\"'))


HARMS: list[tuple[Callable[[Path], None], type[Exception], str]] = [
    (foreign, CorruptData, "did not write"),
    (missing_file, CorruptData, "missing"),
    (damaged_file, CorruptData, "cannot be read"),
    (deleted_rows, CorruptData, "changed by something else"),
    (doubled_rows, CorruptData, "changed by something else"),
    (gone, PermanentError, "restore the table"),
    (future, UnsupportedVersion, "Upgrade streamkit"),
    (newer_protocol, UnsupportedVersion, "Delta protocol"),
    (lost_column, CorruptData, "lacks the columns position"),
]
"""Kinds of damage, each with its error and the text of the error."""
