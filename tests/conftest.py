"""Fixtures are plug-ins: one file for each server that tests need."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

MEMORY = Path("/dev/shm")


def _in_memory() -> str | None:
    """Where temporary files go, made anew: nothing here proves what a disk does when the power goes, so nobody has to
    wait for one. None if somebody has said where, or if there it is small, as in many containers, or not executable."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return None
    if os.statvfs(MEMORY).f_flag & os.ST_NOEXEC or shutil.disk_usage(MEMORY).free < 4 << 30:
        return None
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="streamkit-tests-", dir=MEMORY)
    os.chmod(tempfile.tempdir, 0o711)  # another user reads a store in it
    return tempfile.tempdir


_made = _in_memory()


def pytest_sessionfinish(exitstatus: int) -> None:
    """What killed processes left goes too; what failed is there to be looked at."""
    if _made is not None and not exitstatus:
        atexit.register(shutil.rmtree, _made, ignore_errors=True)


pytest_plugins = [
    "fix_aio",
    "fix_arrow",
    "fix_azurite",
    "fix_covered",
    "fix_local",
    "fix_proxy",
    "fix_s3",
    "fix_spark",
    "fix_stores",
    "fix_workers",
    "fix_archiving",  # after what it imports
]
