"""The choice between the codecs within one process, and the same input for both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from streamkit import compression, speed, writing
from streamkit.index import block_cache, run_format, runs, subject_filter, upkeep
from streamkit.log import lone, pack_format, record_format, segment_rows
from streamkit_local import backend, files, log, reading, record, rowfile, state

__all__ = ["CODECS", "choose", "using"]

CODECS = ["python"] if speed.twin is None else ["python", "compiled"]
_MODULES: tuple[Any, ...] = (
    backend,
    block_cache,
    compression,
    files,
    log,
    lone,
    pack_format,
    reading,
    record,
    record_format,
    rowfile,
    run_format,
    runs,
    segment_rows,
    state,
    subject_filter,
    upkeep,
    writing,
)
_TWINS = [module._twin for module in _MODULES]


def choose(codec: str) -> None:
    """Make the codec, one of CODECS, the one that this process uses."""
    for module, twin in zip(_MODULES, _TWINS, strict=True):
        module._twin = None if codec == "python" else twin


@contextmanager
def using(codec: str) -> Iterator[None]:
    """Use the codec, and then again the one that was used before."""
    kept = [module._twin for module in _MODULES]
    try:
        choose(codec)
        yield
    finally:
        for module, twin in zip(_MODULES, kept, strict=True):
            module._twin = twin
