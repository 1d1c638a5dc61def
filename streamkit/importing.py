"""Work of a first use within calls: loading a module, or making a decoder, that few processes need."""

from __future__ import annotations

import os
import threading

__all__ = ["DECODERS", "IMPORTING"]

IMPORTING = threading.RLock()
"""Held by a first use on the path of a commit, and by a fork. Otherwise a child that is forked in the middle of another
thread's import would wait for that thread for ever."""
DECODERS = threading.RLock()
"""Held while a decoder is made, and by a fork. Its holder does not ask for IMPORTING."""


def _acquire() -> None:
    IMPORTING.acquire()
    DECODERS.acquire()


def _release() -> None:
    DECODERS.release()
    IMPORTING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire, after_in_parent=_release, after_in_child=_release)
