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

__all__ = ["index_fault", "system_fault"]

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_BUSY = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO}


def system_fault(error: OSError, path: str) -> StreamkitError:
    """What an OSError on `path` means. Nothing was applied."""
    code, why = error.errno or 0, os.strerror(error.errno or 0)
    if code in _FULL:
        return Unavailable(f"no room to write {path} ({why}): nothing was written; free some space and try again")
    if code in _DENIED:
        return AccessDenied(f"no permission for {path} ({why}): give this user read and write access to the store")
    if code in (errno.EMFILE, errno.ENFILE):
        return Unavailable(f"too many open files at {path}: raise `ulimit -n`, or close stores that are not needed")
    if code in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return PermanentError(f"{path} is not the kind of file that a store has there ({why}): choose another path")
    if code in _BUSY:
        return Unavailable(f"{path} could not be used ({why}): check the disk, then try again")
    return PermanentError(f"{path} could not be used ({why})")


def index_fault(error: lmdb.Error, path: str, *, committing: bool = False) -> StreamkitError:
    """What an LMDB error on the environment at `path` means. `committing`: a commit may have been applied."""
    code = getattr(error, "code", 0)
    if code in _FULL:
        return Unavailable(f"no room to write {path}: nothing was written; free some space and try again")
    if code in _DENIED:
        return AccessDenied(f"no permission for {path}: give this user read and write access to the store")
    if isinstance(error, lmdb.VersionMismatchError):
        return UnsupportedVersion(f"{path} was written by another LMDB format: {error}")
    if isinstance(error, lmdb.ReadersFullError):
        return Unavailable(f"too many readers at once in {path}: close some, then try again")
    if isinstance(error, _DAMAGE):
        return CorruptData(f"the index {path} is damaged ({error}): restore the store from a backup")
    if committing:
        return Ambiguous(f"a commit to {path} failed and may have been applied: {error}")
    if code == errno.EIO:
        return Unavailable(
            f"{path} could not be written ({error}), nothing was: the disk is full or fails; "
            "free some space, or check it, and try again"
        )
    return Unavailable(f"{path} could not be used ({error}): check the disk, then try again")


_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.BadTxnError,
)
