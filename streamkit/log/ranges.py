"""Reading parts of the files that a head names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backend import Backend, Range
from .manifest import RunGone

__all__ = ["read_ranges"]


def read_ranges(backend: Backend, partition: bytes, ranges: Sequence[Range]) -> list[bytes]:
    """The ranges of files, whose rows are never replaced. RunGone if one is not there.

    The etag is a hint and no more: the rows of a store that was copied have others.
    """
    parts: list[Any] = backend.read(partition, ranges)
    if None in parts:
        parts = [*parts]
        missing = [at for at, part in enumerate(parts) if part is None]
        again = [ranges[at]._replace(etag=None) for at in missing]
        for at, part in zip(missing, backend.read(partition, again), strict=True):
            if part is None:
                raise RunGone(ranges[at].key)
            parts[at] = part
    return parts
