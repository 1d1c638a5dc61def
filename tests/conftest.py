"""The plug-ins with the fixtures, one for each server that tests need; and the choice of the cases that run."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent / "examples" / "spark"))

MEMORY = Path("/dev/shm")


def _in_memory() -> str | None:
    """Make a folder for temporary files in memory: no test depends on a real disk in a power cut.

    None if the caller has chosen a folder, or if the folder in memory is small, as in many containers, or not
    executable.
    """
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return None
    if os.statvfs(MEMORY).f_flag & os.ST_NOEXEC or shutil.disk_usage(MEMORY).free < 4 << 30:
        return None
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="streamkit-tests-", dir=MEMORY)
    os.chmod(tempfile.tempdir, 0o711)  # another user reads a store in it
    return tempfile.tempdir


_made = _in_memory()


_SERVICES = ("s3", "azure")


def _is_exhaustive(mark: pytest.Mark, params: dict[str, Any]) -> bool:
    """True if `exhaustive_only(kind, name=value)` names a kind of store or a parameter of the case, or nothing."""
    if not mark.args and not mark.kwargs:
        return True
    kinds = [value for value in params.values() if isinstance(value, str)]
    named = any(params.get(name) == value for name, value in mark.kwargs.items())
    return named or any(kind in kinds for kind in mark.args)


def _is_chosen(item: pytest.Item, seen: Counter[tuple[str, str]]) -> bool:
    """True if the case runs: `sampled(n)` leaves one case in n to S3 and another one to Azure."""
    from fix_covered import EXHAUSTIVE

    if EXHAUSTIVE:
        return True
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    if any(_is_exhaustive(mark, params) for mark in item.iter_markers("exhaustive_only")):
        return False
    mark = item.get_closest_marker("sampled")
    service = next((name for name in _SERVICES if name in params.values() or item.get_closest_marker(name)), None)
    if mark is None or service is None:
        return True
    case = item.nodeid.partition("::")[0], service
    seen[case] += 1
    return bool(seen[case] % mark.args[0] == _SERVICES.index(service))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seen = Counter[tuple[str, str]]()
    runs = [_is_chosen(item, seen) for item in items]
    config.hook.pytest_deselected(items=[item for item, run in zip(items, runs, strict=True) if not run])
    items[:] = [item for item, run in zip(items, runs, strict=True) if run]


def pytest_sessionfinish(exitstatus: int) -> None:
    """Remove the files of killed processes too, if no test failed."""
    if _made is not None and not exitstatus:
        atexit.register(shutil.rmtree, _made, ignore_errors=True)


pytest_plugins = [
    "streamkit.pytest_plugin",  # the fixtures for users
    "fix_covered",  # before what imports it
    "fix_aio",
    "fix_arrow",
    "fix_azurite",
    "fix_browser",
    "fix_codecs",
    "fix_local",
    "fix_pages",
    "fix_proxy",
    "fix_s3",
    "fix_serve",
    "fix_spark",
    "fix_stores",
    "fix_workers",
    "fix_worlds",
    "fix_archiving",  # after what it imports
]
