"""Work of a first use within calls: loading a module, or making a decoder, that few processes need."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["DECODERS", "IMPORTING", "importer"]

IMPORTING = threading.RLock()
"""Held by a first use on the path of `connect` and of a commit, and by a fork. Otherwise a child that is forked in the
middle of another thread's import would wait for that thread for ever."""
DECODERS = threading.RLock()
"""Held while a decoder is made, and by a fork. Its holder does not ask for IMPORTING and does not import: a
thread that holds the lock of the module may make the module's decoders."""

_PATIENCE = 10.0
"""The most seconds for which a fork waits for the imports of other threads."""
_module_locks: Mapping[str, Callable[[], object]] = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})
"""Weak references to Python's locks of the modules that are imported now."""


def importer(package: str, names: Mapping[str, Iterable[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__`, which imports a public name from its module on the first use, and `__dir__`.

    `names`: the public names of each module.

    The package itself imports none of its modules. Otherwise a thread that imports the package, and another thread that
    imports one of its modules, would wait for each other, and Python would raise an error in one of them.
    """
    modules = {name: module for module, each in names.items() for name in each}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(modules[name], package), name)
        setattr(sys.modules[package], name, found)
        return found

    return get, lambda: sorted({*vars(sys.modules[package]), *modules})


def _acquire() -> None:
    """Take the locks when no other thread imports a module of streamkit, because the child would wait for it for ever.

    The locks are free during the wait, because the import may need them. The wait ends after a while, because the
    import may need something else that this thread holds.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        IMPORTING.acquire()
        DECODERS.acquire()
        if not _is_importing() or time.monotonic() > deadline:
            return
        _release()
        time.sleep(0.001)


def _is_importing() -> bool:
    """True if another thread holds Python's lock of one of streamkit's modules."""
    locks = [ref() for name, ref in list(_module_locks.items()) if name.partition(".")[0].startswith("streamkit")]
    return any(getattr(lock, "owner", None) not in (None, threading.get_ident()) for lock in locks)


def _release() -> None:
    DECODERS.release()
    IMPORTING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire, after_in_parent=_release, after_in_child=_release)
