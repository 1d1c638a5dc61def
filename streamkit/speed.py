"""The compiled twin of the format functions: the distribution `streamkit-speed`, where it is installed.

The Python functions are the reference. A function of the twin returns the same result, or None for input that it does
not handle; then the Python function decides, also about errors. `STREAMKIT_PURE=1` leaves everything to Python.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["INTERFACE", "codec", "twin"]

INTERFACE = 9
"""The version of the calls. A twin with another one is not used."""


def _load() -> Any:
    if os.environ.get("STREAMKIT_PURE", "0") not in ("", "0"):
        return None
    try:
        import streamkit_speed
    except ImportError:
        return None
    return streamkit_speed


_found = _load()
twin: Any = _found if getattr(_found, "INTERFACE", None) == INTERFACE else None
"""The module, or None."""


def codec() -> str:
    """The codec in use, in words: for `streamkit doctor`."""
    if twin is not None:
        return f"compiled (streamkit-speed {twin.__version__})"
    if _found is not None:
        return (
            f"Python (streamkit-speed {getattr(_found, '__version__', '?')} is of another release: "
            "pip install --upgrade 'streamkit-store[speed]')"
        )
    return "Python"
