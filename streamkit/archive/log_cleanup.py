"""Cleaning the log of a Delta table: versions that are older than the table's log retention leave it.

Delta's own rule applies: the versions within the retention stay readable. So the newest checkpoint that is not younger
than the oldest of them stays, with all later files of the log. Earlier files are deleted.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .delta_log import DIRECTORY, SIDECARS, LogState, listed, sidecars_of

if TYPE_CHECKING:
    from .files import TableFiles

__all__ = ["LOG_RETENTION", "clean_log", "forget_versions"]

LOG_RETENTION = "interval 7 days"
"""The log retention of new tables. `compact` keeps the files of old versions for as long."""
_DEFAULT = 30 * 86_400.0
"""Delta's default retention, in seconds."""
_UNITS = {
    "millisecond": 0.001,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86_400.0,
    "week": 604_800.0,
}
_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+([a-z]+?)s?", re.IGNORECASE)
_VERSION = re.compile(r"(\d{20})\.(?:\d{20}\.compacted\.json|json|crc|checkpoint\..+)")


def clean_log(table: TableFiles, state: LogState) -> int:
    """Delete log files of versions outside the retention; return their number."""
    import pyarrow.fs as fs

    retention = _retention(state)
    if retention is None:
        return 0
    oldest = time.time() - retention
    with table.mapped():
        found = table.filesystem.get_file_info(fs.FileSelector(DIRECTORY, allow_not_found=True))
    times = {info.base_name: (info.mtime_ns or 1 << 62) / 1e9 for info in found if info.type == fs.FileType.File}
    sizes = {info.base_name: int(info.size or 0) for info in found}
    commits, checkpoints = listed(times)
    # A version is in the retention if it, or an earlier one, was written in it, by any clock.
    retained = next((version for version in sorted(commits) if times[f"{version:020}.json"] > oldest), state.version)
    first = max((version for version in checkpoints if version <= retained), default=0)
    return _delete_before(table, first, sizes)


def forget_versions(table: TableFiles, first: int) -> None:
    """Delete the log files of versions before `first`, which has a checkpoint."""
    _delete_before(table, first, table.log_sizes())
    table.keep_deletions([f"{DIRECTORY}/", f"{DIRECTORY}/{SIDECARS}/"])


def _delete_before(table: TableFiles, first: int, sizes: Mapping[str, int]) -> int:
    """Delete the files of versions before `first` among those of the log, `sizes`; return their number."""
    versions = {name: int(match[1]) for name in sorted(sizes) if (match := _VERSION.fullmatch(name))}
    old = [name for name, version in versions.items() if version < first]
    # First the parts of checkpoints: later nothing would name them.
    sidecars, kept = set[str](), set[str]()
    for name in versions if SIDECARS in sizes else ():
        if ".checkpoint." in name:
            (sidecars if versions[name] < first else kept).update(sidecars_of(table, name, sizes[name]))
    count = 0
    for name in (*sorted(sidecars - kept), *old):
        with table.mapped(), contextlib.suppress(FileNotFoundError):
            table.filesystem.delete_file(f"{DIRECTORY}/{name}")
            count += 1
    return count


def _retention(state: LogState) -> float | None:
    """The table's retention in seconds; None if its log must not be cleaned, or its setting is not understood."""
    if state.configuration.get("delta.enableExpiredLogCleanup", "true").lower() == "false":
        return None
    text = state.configuration.get("delta.logRetentionDuration")
    if text is None:
        return _DEFAULT
    match = _INTERVAL.fullmatch(text.strip())
    unit = _UNITS.get(match[2].lower()) if match is not None else None
    return int(match[1]) * unit if match is not None and unit is not None else None
