"""Identify this start of the machine, and tell if two processes share a clock."""

from __future__ import annotations

import errno
import os
import uuid
from functools import lru_cache
from typing import Final

from streamkit.digest import blake2b
from streamkit.errors import PermanentError

from .errors import DENIED, system_fault

__all__ = ["boot_id", "clock_id"]

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_MISSING: Final = {errno.ENOENT, errno.ENOTDIR, *DENIED}
_FIRST_NAMESPACE: Final = 0xEFFFFFFA
"""The number that Linux gives the time namespace that the machine starts with."""


@lru_cache
def boot_id() -> bytes:
    """16 bytes, not all 0, that change when the machine starts. PermanentError if the system does not have them.

    There is no substitute. If two starts had the same bytes, a head that a power cut has made wrong would be trusted.
    If one start had two, a record that another process is writing would be cut off.
    """
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            told = file.read()
    except OSError as error:
        if error.errno not in _MISSING:
            raise system_fault(error, _BOOT_ID) from error  # no descriptor is left: it may tell the next time
        told = _sysctl()
    try:
        found = uuid.UUID(told.strip())
    except ValueError:
        found = uuid.UUID(int=0)
    if not found.int:
        raise PermanentError(
            f"this system does not tell when it was started ({_BOOT_ID}, or on macOS `sysctl kern.bootsessionuuid`), "
            "so file:// stores cannot be used: mount /proc, in a container or chroot too"
        )
    return found.bytes


def _sysctl() -> str:
    import subprocess

    command = ["sysctl", "-n", "kern.bootsessionuuid"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""


@lru_cache
def clock_id() -> bytes:
    """16 bytes that all processes with the same clock have in common."""
    try:
        namespace = os.stat("/proc/self/ns/time").st_ino
    except OSError:
        namespace = _FIRST_NAMESPACE
    if namespace == _FIRST_NAMESPACE:
        return boot_id()
    return blake2b(boot_id() + b"%d" % namespace, digest_size=16).digest()
