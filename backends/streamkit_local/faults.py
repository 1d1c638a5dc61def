"""Foreign errors to streamkit's, with what to do."""

from __future__ import annotations

import errno
import os

import lmdb

from streamkit.backend import Ambiguous
from streamkit.errors import (
    AccessDenied,
    CorruptData,
    PermanentError,
    StreamkitError,
    Unavailable,
    UnsupportedVersion,
)

__all__ = ["DENIED", "index_fault", "system_fault"]

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FILES = {errno.EMFILE, errno.ENFILE}
_OTHER_KIND = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY}
_PASSING = {errno.EIO, errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE}

_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.BadTxnError,
)


def system_fault(error: OSError, path: str) -> StreamkitError:
    """What an OSError on `path` means, by its code. Nothing was applied."""
    return _fault(error.errno or 0, path) or PermanentError(f"{path} could not be used: {error.strerror}")


def index_fault(error: lmdb.Error, path: str, *, committing: bool = False) -> StreamkitError:
    """What an LMDB error on the environment at `path` means. `committing`: a commit may have been applied."""
    if isinstance(error, lmdb.VersionMismatchError):
        return UnsupportedVersion(f"{path} was written in another LMDB format: update streamkit ({error})")
    if isinstance(error, lmdb.ReadersFullError):
        return Unavailable(f"too many processes read {path} at once: close some, then try again")
    if isinstance(error, lmdb.LockError) and error.code in (errno.EAGAIN, errno.EACCES):
        return Unavailable(
            f"another process with the number of this one ({os.getpid()}) has {path} open, in another container, and "
            "LMDB tells processes by their numbers: give the containers that share this volume one process namespace "
            "(docker run --pid, shareProcessNamespace), or let only one of them have the store open"
        )
    if isinstance(error, _DAMAGE):
        return CorruptData(f"the index {path} is damaged ({error}): restore the store from a backup")
    if committing:
        return Ambiguous(f"a commit to {path} failed and may have been applied: {error}")
    return _fault(error.code, path) or Unavailable(f"{path} could not be used, try again: {error}")


def _fault(code: int, path: str) -> StreamkitError | None:
    why = os.strerror(code) if code > 0 else ""
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
    return None
