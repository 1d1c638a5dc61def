"""Sections of an index, made of rows: one section, or the files of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from streamkit.index.merge import FILE_BYTES
from streamkit.index.run_format import SectionBuilder
from streamkit.log.manifest import RunFile

__all__ = ["build_files", "build_section"]

_SLICE = 512
"""Rows that are added between looks at a file's size."""


def build_section(id: bytes, seed: int, keys: Sequence[bytes], values: Sequence[bytes]) -> tuple[bytes, RunFile]:
    """A section of all of these rows, whose keys ascend, and its entry of the manifest without an etag."""
    builder = SectionBuilder(id, seed)
    builder.add(keys, values)
    return builder.finish()


def build_files(
    keys: Sequence[bytes], values: Sequence[bytes], new_id: Callable[[], bytes], seed: int, limit: int = FILE_BYTES
) -> Iterator[tuple[bytes, RunFile]]:
    """Rows, whose keys ascend, as the files of a run, each of about `limit` bytes at most and without its etag."""
    at = 0
    while at < len(keys):
        builder = SectionBuilder(new_id(), seed)
        while at < len(keys) and builder.size < limit:
            builder.add(keys[at : at + _SLICE], values[at : at + _SLICE])
            at += _SLICE
        yield builder.finish()
