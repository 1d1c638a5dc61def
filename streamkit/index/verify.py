"""Verifying a space: log and archive are undamaged, and the index agrees with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from ..backend import Backend, Range
from ..errors import UNREADABLE, StreamkitError
from ..html import Shown
from ..log.keys import CATALOG, HEAD, SPACES, created_at, partition_key, run_key, segment_name, space_key
from ..log.manifest import RunFile, RunGone
from ..log.pack_format import START, check_start
from ..log.packs import PackFile
from ..log.partition import Partition
from ..log.ranges import read_ranges
from ..log.rows import Head, Settings, decode_row
from ..names import InternalName
from .check import Rows, check_index, rows_of
from .log_walk import Finding, LogWalk, Progress
from .readable import readable_rows
from .run_format import decode_section
from .salvage import had_head

__all__ = [
    "LOST",
    "Finding",
    "MakePartition",
    "VerifyReport",
    "examine",
    "find_settings",
    "is_lost",
    "read_index",
    "verify_space",
    "verify_spaces",
]

MakePartition = Callable[[int, Settings], Partition]
_TRIES = 20
_CREATING = 60.0
"""Seconds. A space is created in less."""
LOST = (
    "the catalog names the space, and its partition is missing. Its entries are lost if it had any: delete the space, "
    "and restore it from a backup. If its creation was stopped, create it again"
)

HALF_DELETED = (
    "its deletion was interrupted, or is under way: `streamkit rm` or `streamkit maintain` completes an interrupted one"
)
LIST = "`streamkit repair` writes it again from its intact rows, and `streamkit repair SPACE` adds a space to it"


class Spaces(Protocol):
    """The spaces of a store."""

    def space_names(self) -> list[str]:
        """Return the names of all spaces."""
        ...

    def unread(self, space: str) -> MakePartition:
        """Return a function that makes the unread partitions of a space."""
        ...


class VerifyReport(Shown, frozen=True):
    """Report of `store.verify`: the findings, and the amounts that were checked."""

    findings: tuple[Finding, ...]
    transactions: int
    entries: int
    segments: int

    @property
    def ok(self) -> bool:
        """True if nothing was found."""
        return not self.findings


def verify_spaces(
    backend: Backend, names: Iterable[str] | None, store: Spaces, progress: Progress | None
) -> VerifyReport:
    """The findings in the spaces `names`, or in all. Only users' spaces are counted."""
    findings: list[Finding] = []
    if names is None:
        names, found = _listed(backend, store)
        findings += found
    transactions = entries = segments = 0
    for name in names:
        report = verify_space(backend, name, store.unread(name), progress)
        findings += report.findings
        if not isinstance(name, InternalName):
            transactions, entries = transactions + report.transactions, entries + report.entries
            segments += report.segments
    return VerifyReport(tuple(findings), transactions, entries, segments)


def _listed(backend: Backend, store: Spaces) -> tuple[list[str], list[Finding]]:
    """The names in the catalog, and its findings. A damaged catalog gives its readable names."""
    try:
        return store.space_names(), []
    except UNREADABLE as error:
        names = [
            segment_name(key) for key in readable_rows(backend, bytes(CATALOG)).rows if key.startswith(bytes(SPACES))
        ]
        listed = [InternalName(name) if name < " " else name for name in sorted(names)]
        return listed, [Finding("", 0, bytes(CATALOG), f"the list of the spaces cannot be read ({error}): {LIST}")]


def verify_space(backend: Backend, space: str, make: MakePartition, progress: Progress | None) -> VerifyReport:
    """The findings in a space's rows. `make` makes its partitions, which have read nothing yet.

    A space that cannot be read at all is a finding.
    """
    transactions = entries = segments = 0
    settings: Settings | None = None
    try:
        settings, findings = find_settings(backend, space)
        if findings:  # another process may have made the space again between the two rows
            settings, findings = find_settings(backend, space)
    except UNREADABLE as error:
        findings = [Finding(space, 0, bytes(HEAD), str(error))]
    if settings is not None and not findings and is_lost(backend, space):
        findings = [Finding(space, 0, bytes(HEAD), LOST)]
    for number in range(settings.partitions if settings else 0):
        assert settings is not None
        try:
            log = examine(make(number, settings), progress)
        except UNREADABLE as error:
            findings.append(Finding(space, number, bytes(HEAD), str(error)))
            continue
        findings += log.findings
        transactions, entries = transactions + log.transactions, entries + log.entries
        segments += len(log.pieces.keys() | (log.cold or {}).keys())
    if findings and settings is not None:
        if _was_deleted(backend, space, settings):
            return VerifyReport((), 0, 0, 0)
        if _has_ended(make(0, settings)):
            return VerifyReport((Finding(space, 0, bytes(HEAD), HALF_DELETED),), 0, 0, 0)
    return VerifyReport(tuple(findings), transactions, entries, segments)


def _was_deleted(backend: Backend, space: str, settings: Settings) -> bool:
    """True if another process has deleted the space meanwhile. It may have made it again."""
    try:
        found, _ = find_settings(backend, space)
    except UNREADABLE:
        return False
    return found is None or found.incarnation != settings.incarnation


def _has_ended(first: Partition) -> bool:
    """True if the log of a space's first partition has ended; False too if it cannot be read."""
    with suppress(*UNREADABLE):
        return first.look_for_end()
    return False


def find_settings(backend: Backend, space: str) -> tuple[Settings | None, list[Finding]]:
    """A space's settings, from the catalog or from its first head, and the faults of the catalog."""
    key = bytes(space_key(space))
    findings: list[Finding] = []
    listed = head = None
    value = backend.get(bytes(CATALOG), [key])[0]
    first = backend.get(bytes(partition_key(space, 0)), [bytes(HEAD)])[0]
    try:
        listed = None if value is None else decode_row(Settings, key, value.data)
    except StreamkitError as error:
        findings.append(Finding(space, 0, key, str(error)))
    try:
        head = None if first is None else decode_row(Head, HEAD, first.data).settings
    except StreamkitError as error:
        if listed is None:
            findings.append(Finding(space, 0, bytes(HEAD), str(error)))
    if value is None and first is not None:
        findings.append(Finding(space, 0, key, "the catalog does not list the space"))
    elif listed is not None and head is not None and listed != head:
        findings.append(Finding(space, 0, key, f"the catalog says {listed}, the space itself {head}"))
    return head or listed, findings


def is_lost(backend: Backend, space: str) -> bool:
    """True if the catalog lists a space whose first partition has no row, and that no process is creating just now.

    `create_space` writes the catalog first, so a process that was killed between the two rows leaves the same.
    """
    key = bytes(space_key(space))
    value = backend.get(bytes(CATALOG), [key])[0]
    first = bytes(partition_key(space, 0))
    if value is None or next(backend.scan(first, b"\x00", b"\xff" * 300, limit=1, values=False), None) is not None:
        return False
    created = created_at(decode_row(Settings, key, value.data).incarnation)
    return time.time() - created > _CREATING


def examine(partition: Partition, progress: Progress | None = None) -> LogWalk:
    """Walk a partition's log and archive, and compare its index with them.

    An archiver may remove the next transactions meanwhile: then the walk is repeated.
    """
    for _ in range(_TRIES):
        log = _examine(partition, progress)
        if not log.findings:
            break
        again = LogWalk(partition)
        if not again.read_head() or again.head.released == log.released:
            break
    return log


def _examine(partition: Partition, progress: Progress | None) -> LogWalk:
    """Read the index between two walks over the log, because a transaction is in the log before it is in the index."""
    log = LogWalk(partition)
    there = log.read_head()
    log.released = log.head.released
    head, damaged = log.head, bool(log.findings)
    if there and head.settings != partition.settings:
        log.found(HEAD, f"the head has the settings {head.settings}, the space {partition.settings}")
    if head.archived > head.watermark:
        log.found(HEAD, f"the head's watermark is {head.watermark}, and that of the archive {head.archived}")
    if head.archived:
        contents = partition.archive().examine(partition.partition, head.archived)
        for path, problem in contents.problems:
            log.found(f"archive/{path}".encode(), problem)
        log.begin_after_archive(head.archived, contents)
        log.transactions, log.entries = head.archived, contents.entries
    log.begin_at_floor()
    total = 0
    if progress is not None:
        start, end = partition.transaction_key(log.last + 1), partition.transaction_key(1 << 64)
        keys = partition.backend.scan(partition.key, start, end, values=False)
        total = log.transactions + sum(1 for _ in keys)
    log.walk(progress, total)
    if head.watermark > log.last:
        log.gap(head.watermark + 1)
    rows = read_index(log) if there else None
    log.walk()
    if not there and not damaged and _lacks_head(log):
        log.found(HEAD, "the head is missing")
    if rows is not None:
        check_index(log, rows)
    return log


def _lacks_head(log: LogWalk) -> bool:
    """True if there was a head. The first partition has one before it has a transaction, the others get it later."""
    partition = log.partition
    if log.last:
        return partition.partition == 0
    return had_head(partition.backend, partition.key, partition.seed)


def _check_files(partition: Partition, head: Head) -> None:
    """Check every byte of the runs, and the beginnings of the packs: the walk has read the rest of the packs."""
    for file in head.manifest.files():
        decode_section(_read(partition, file, file.length), file, partition.seed)
    for pack in head.packs:
        check_start(_read(partition, pack, START))
    if head.pack:
        check_start(head.pack)


def _read(partition: Partition, file: RunFile | PackFile, length: int) -> bytes:
    wanted = Range(run_key(file.id), file.start, length, file.etag or None)
    return read_ranges(partition.backend, partition.key, [wanted])[0]


def read_index(log: LogWalk) -> Rows | None:
    """The rows of the index; None after saying why they cannot be read."""
    partition = log.partition
    for _ in range(_TRIES):
        manifest = log.head.manifest
        try:
            _check_files(partition, log.head)
            return rows_of(partition.open_index(log.head))
        except RunGone as error:
            gone: StreamkitError = error
        except StreamkitError as error:
            log.found(HEAD, f"the index cannot be read: {error}")
            return None
        # Others may be merging runs.
        if not log.read_head() or log.head.manifest == manifest:
            break
    log.found(HEAD, f"the index cannot be read: {gone}")
    return None
