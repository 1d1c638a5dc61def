"""Translate errors of the operating system to streamkit's, with a remedy."""

from __future__ import annotations

import errno
import os

from streamkit.backend import owner_of
from streamkit.errors import AccessDenied, CorruptData, PermanentError, StreamkitError, Unavailable, remedy_for

__all__ = ["DENIED", "damage", "of_partition", "system_fault"]

_RESTORE = ": restore the store from a backup"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FILES = {errno.EMFILE, errno.ENFILE}
_OTHER_KIND = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY}
_PASSING = {errno.EIO, errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE}


def damage(path: str, what: str) -> CorruptData:
    """The error for a file that is not as it was written."""
    return CorruptData(f"{path} {what}{_RESTORE}")


def of_partition(error: CorruptData, partition: bytes) -> CorruptData:
    """The error with the space of the partition, and with the way to salvage the space."""
    owner, text = owner_of(partition), str(error)
    if owner is None or not text.endswith(_RESTORE):
        return error
    space, number = owner
    return CorruptData(f"space {space!r}, partition {number}: {text.removesuffix(_RESTORE)}: {remedy_for(space)}")


def system_fault(error: OSError, path: str) -> StreamkitError:
    """Translate an OSError on `path` by its code. Nothing was applied."""
    code = error.errno or 0
    why = os.strerror(code) if code > 0 else str(error)
    if code in _FULL:
        return Unavailable(f"no room to write {path} ({why}), nothing was written: free some space, then try again")
    if code in DENIED:
        return AccessDenied(f"no permission for {path} ({why}): give this user read and write access to the store")
    if code in _FILES:
        return Unavailable(f"too many open files at {path}: raise `ulimit -n`, or close stores that are not needed")
    if code in _OTHER_KIND:
        return PermanentError(f"{path} is not the kind of file that a store has there ({why}): choose another place")
    if code in _PASSING:
        return Unavailable(
            f"{path} could not be used ({why}), nothing was written: the disk is full or fails; "
            "free some space, or check it, then try again"
        )
    return PermanentError(f"{path} could not be used: {why}")
