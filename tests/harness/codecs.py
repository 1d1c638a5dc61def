"""The choice between the codecs within one process, and the same input for both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from streamkit import speed
from streamkit.index import run_format
from streamkit.log import record_format

__all__ = ["CODECS", "using"]

CODECS = ["python"] if speed.twin is None else ["python", "compiled"]
_MODULES: tuple[Any, ...] = (record_format, run_format)
_TWINS = [module._twin for module in _MODULES]


@contextmanager
def using(codec: str) -> Iterator[None]:
    """Make the codec, one of CODECS, the one that this process uses."""
    kept = [module._twin for module in _MODULES]
    try:
        for module, twin in zip(_MODULES, _TWINS, strict=True):
            module._twin = None if codec == "python" else twin
        yield
    finally:
        for module, twin in zip(_MODULES, kept, strict=True):
            module._twin = twin
