"""The directory of a partition. It is made whole or not at all. A mark in it tells open processes of its deletion."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import time
from typing import Final

from streamkit.checksum import crc32

from .errors import damage
from .files import OpenFile, create_file, lock_file, make_directory, remove_tree, sync_directory, write_all
from .head import DELETED, HEAD_WORDS, Head, unseal
from .reading import log_name
from .recovery import begin_file
from .state import Ranges, State, StateView

__all__ = [
    "ABANDONED",
    "DRAFT",
    "create_log",
    "draft_in",
    "is_lost",
    "mark_log_deleted",
    "mark_made",
    "remove_drafts",
    "unmark_made",
]

DRAFT: Final = ".new-"
"""Prefix of the name of a directory that will become a partition's."""
ABANDONED: Final = 3600
"""Seconds after which a draft belongs to no process any more."""
_MADE: Final = ".made"
"""The suffix of an empty file beside the directory of a partition. The file says that the directory was made once."""


def draft_in(parent: str) -> str:
    """A new path for a directory that is no partition. It is removed some time after its process was killed."""
    return os.path.join(parent, f"{DRAFT}{os.urandom(8).hex()}")


def create_log(path: str, partition: bytes) -> None:
    """Make the directory of a partition that is not there; another process may do the same at the same time."""
    parent = os.path.dirname(path)
    draft = draft_in(parent)
    identity = os.urandom(4).hex().encode()
    try:
        make_directory(draft)
        state = State(0)
        state.view = StateView((), Ranges())
        log = begin_file(state, 0, crc32(identity))
        for name, data in ((log_name(0), log), ("head", Head.blank(partition, identity, 0, len(log)))):
            file = OpenFile(create_file(os.path.join(draft, name)))
            write_all(file.fd, data, 0)
            os.fsync(file.fd)
        sync_directory(draft)
        os.rename(draft, path)
    except OSError:
        remove_tree(draft, ignore_errors=True)
        if not os.path.exists(os.path.join(path, "head")):
            raise
    sync_directory(parent)


def mark_made(path: str) -> None:
    """Record that the directory at `path` was made, so that its loss is noticed. Again is fine.

    The directory is durable before this call. The mark need not be, and a full disk may refuse it: the next process
    that opens the directory marks it again.
    """
    if os.path.exists(path + _MADE):
        return
    with contextlib.suppress(OSError):
        os.close(create_file(path + _MADE))
    if not os.path.exists(path):  # another process has discarded the partition meanwhile
        unmark_made(path)


def unmark_made(path: str) -> None:
    """Forget that there was a directory at `path`."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path + _MADE)


def is_lost(path: str) -> bool:
    """True if the directory at `path` was made once and is gone."""
    return os.path.exists(path + _MADE) and not os.path.exists(path)


def remove_drafts(parent: str) -> None:
    """Remove the half-made partitions of killed processes."""
    for name in os.listdir(parent):
        if name.startswith(DRAFT):
            draft = os.path.join(parent, name)
            with contextlib.suppress(OSError):
                if time.time() - os.stat(draft).st_mtime > ABANDONED:
                    remove_tree(draft)


def mark_log_deleted(path: str, timeout: float) -> None:
    """Mark a partition as deleted for all processes that have it open. Its directory has another path by now."""
    with open(os.path.join(path, "head"), "r+b") as head:
        while True:
            head.seek(HEAD_WORDS)
            words = head.read(16)
            if len(words) < 16:
                raise damage(head.name, "is cut short")
            _, base = struct.unpack("=QQ", words)
            file = OpenFile(os.open(os.path.join(path, log_name(unseal(base))), os.O_RDWR))
            lock_file(file.fd, timeout, path)  # no writer is about to publish its own end
            head.seek(HEAD_WORDS)
            if head.read(16)[8:] == base.to_bytes(8, sys.byteorder):
                os.pwrite(head.fileno(), DELETED.to_bytes(8, sys.byteorder), HEAD_WORDS)
                return
