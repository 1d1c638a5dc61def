"""The rows of a partition that can be read where others are damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backend import Backend, Salvaged, Salvages
from ..errors import CorruptData

__all__ = ["readable_rows"]

_ALL = b"", b"\xff" * 301


def readable_rows(backend: Backend, partition: bytes) -> Salvaged:
    """Yield the rows of a partition in key order, each with a function that reads its value. The function raises
    CorruptData if the value is damaged.

    If one damaged row hides others in a backend, as in a local log, the others are found too.
    """
    if isinstance(backend, Salvages):
        found = backend.salvage(partition)
        return found._replace(rows=dict(sorted(found.rows.items())))

    def reader(key: bytes) -> Callable[[], bytes]:
        def read() -> bytes:
            value = backend.get(partition, [key])[0]
            if value is None:
                raise CorruptData(f"the row {key!r} is missing: does another process write to the space?")
            return value.data

        return read

    rows: Any = backend.scan(partition, *_ALL, values=False)
    return Salvaged({row.key: reader(row.key) for row in rows})
