"""Imports within calls: a module that few processes need is loaded with its first use."""

from __future__ import annotations

import os
import threading

__all__ = ["IMPORTING"]

IMPORTING = threading.RLock()
"""Held by an import on the path of a commit, and by a fork. Otherwise a child that is forked in the middle of another
thread's import would wait for that thread for ever."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=IMPORTING.acquire, after_in_parent=IMPORTING.release, after_in_child=IMPORTING.release)
