"""Making a log durable, and saying in the log itself how far it is."""

from __future__ import annotations

import os
from typing import Final

from .files import OpenFile, lock_file, sync_data, write_all
from .head import BASE, END, SUSPECT, SYNCED, Head, seal, unseal
from .reading import log_name

__all__ = ["CLAIM", "claim_end", "claim_end_of", "sync_log"]

CLAIM: Final = 8
"""Offset in a file of the field that says, as a sealed position, how far the file is known to be durable."""
_PIECE: Final = 1 << 20


def sync_log(head: Head, file: OpenFile, base: int, end: int) -> None:
    """Make all bytes of the file that begins at `base` durable; older files are durable already.

    After a failed sync, all bytes up to `end` that are not known to be durable are written again first: the system may
    have dropped them, and the next sync would not report it.
    """
    words = head.words
    if words[SUSPECT]:
        at = max(head.position(words[SYNCED]), base)
        while at < end:
            piece = os.pread(file.fd, min(_PIECE, end - at), at - base)
            write_all(file.fd, piece, at - base)
            at += len(piece)
    try:
        sync_data(file.fd)
    except OSError:
        words[SUSPECT] = 1
        raise
    if words[SUSPECT]:
        words[SUSPECT] = 0


def claim_end(head: Head, file: OpenFile, base: int) -> None:
    """Sync buffered records, and note the durable end in the log: a record that is missing before it is damage.

    The lock of the file, which begins at `base`, is held. If other processes have begun another file, this one is
    complete. If a copy is in the store's place by now, and no process has opened it yet, its words mean nothing.
    """
    words = head.words
    end = unseal(words[END])
    if words[BASE] != seal(base) or end < 0 or not head.settled:
        return
    if words[SYNCED] != words[END]:
        sync_log(head, file, base, end)
        words[SYNCED] = words[END]
    write_all(file.fd, words[SYNCED].to_bytes(8, "little"), CLAIM)


def claim_end_of(path: str, partition: bytes, timeout: float) -> None:
    """Claim the end of a partition that is not open."""
    head = Head(os.path.join(path, "head"), partition)
    base = head.position(head.words[BASE])
    file = OpenFile(os.open(os.path.join(path, log_name(base)), os.O_RDWR))
    try:
        lock_file(file.fd, timeout, path)
        claim_end(head, file, base)
    finally:
        file.close()
        head.release()
