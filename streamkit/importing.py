"""Work of a first use within calls: loading a module, or making a decoder, that few processes need."""

from __future__ import annotations

import os
import threading

__all__ = ["IMPORTING"]

IMPORTING = threading.RLock()
"""Held by a first use on the path of a commit, and by a fork. Otherwise a child that is forked in the middle of another
thread's import would wait for that thread for ever."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=IMPORTING.acquire, after_in_parent=IMPORTING.release, after_in_child=IMPORTING.release)
