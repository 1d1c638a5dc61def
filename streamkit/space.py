"""A space as this process knows it: its settings, its partitions and their committers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from os import urandom

import msgspec

from .arguments import check_choice, check_seconds, check_type
from .backend import ABSENT, Backend, Value
from .clock import Clock
from .errors import UNREADABLE, CorruptData, CrossPartition, SpaceExists, Unavailable, repair_for
from .html import Shown
from .importing import IMPORTING
from .log.commit import Committer
from .log.context import Context
from .log.floors import Changed
from .log.index_rows import decode_index_row
from .log.keys import (
    CATALOG,
    EPOCH,
    HEAD,
    SEGMENTS,
    partition_key,
    segment_key,
    segment_name,
    space_key,
    transaction_incarnation,
    transaction_number,
    transaction_prefix,
)
from .log.partition import Partition, seed_of
from .log.rows import Head, SegmentRow, Settings, decode_row, encode_row
from .log.segment_view import status_of
from .log.view import LogView
from .log.visible import has_entries
from .names import partition_of
from .retention import Retention
from .retry import delete_row, put_settled

__all__ = [
    "MOST_PARTITIONS",
    "Space",
    "SpaceSettings",
    "changed_settings",
    "check_change",
    "check_head",
    "create_space",
    "open_space",
    "segments_of",
    "settings_of",
]


MOST_PARTITIONS = 1024
"""Partitions that a space may have."""
_LEAST = 0.1
"""The least share of its created value that a window or a grace may be changed to. Code that relies on a value that
others may have changed relies on much less: `Freshness` on a thirtieth of the grace, routes on a twentieth of the
window."""


class SpaceSettings(Shown, frozen=True):
    """The settings of a space, from `store.space_settings(…)`. Times are in seconds."""

    partitions: int
    durability: str
    idempotency_window: float
    archive_grace: float
    retention: Retention
    trimmed_rows: str = "keep"
    """"keep" or "remove": the fate of trimmed entries' rows in the archive's table."""


class Space:
    """An open space: its partitions, and a committer for each. Shared by all threads of the process."""

    def __init__(self, partitions: list[Partition], node: bytes, most_bytes: int) -> None:
        self.name = partitions[0].space
        self.settings = partitions[0].settings
        self.partitions = partitions
        for partition in partitions:
            partition.join(partitions)
        self.committers = [
            Committer(partition, node, most_bytes, _bring_forward, _merge_some) for partition in partitions
        ]
        self.only = self.committers[0] if len(partitions) == 1 else None
        """The committer, if there is one partition."""

    def described(self) -> SpaceSettings:
        """The settings as of the latest look at the first partition."""
        first = self.partitions[0]
        kept = first.retention
        retention = (
            Retention()
            if kept is None
            else Retention(
                kept.max_age or None, kept.max_entries or None, kept.max_bytes or None, kept.per, kept.when_full
            )
        )
        changed, given = first.changed, self.settings
        return SpaceSettings(
            self.settings.partitions,
            self.settings.durability,
            changed.idempotency_window or given.idempotency_window,
            changed.archive_grace or given.archive_grace,
            retention,
            changed.trimmed_rows or "keep",
        )

    def partition(self, segment: str) -> Partition:
        """Return the segment's partition."""
        return self.partitions[partition_of(segment, len(self.partitions))]

    def committer(self, segment: str) -> Committer:
        """Return the committer of the segment's partition."""
        return self.committers[partition_of(segment, len(self.partitions))]

    def partition_of(self, segments: Sequence[str]) -> Partition:
        """The partition of all of `segments`. CrossPartition if they have several."""
        partition = self.partition(segments[0])
        if len(segments) == 1:
            return partition
        for segment in segments[1:]:
            if self.partition(segment) is not partition:
                raise CrossPartition(
                    f"segments {segments[0]!r} and {segment!r} are on different partitions of space {self.name!r}: a "
                    "transaction stays on one. Give them a common part in braces, as in '{order-42}/items'"
                )
        return partition


def _bring_forward(partition: Partition) -> bool:
    # Most processes end before any upkeep is due.
    with IMPORTING:
        from .index.upkeep import bring_forward
    return bring_forward(partition)


def _merge_some(partition: Partition) -> bool:
    with IMPORTING:
        from .index.upkeep import merge_some
    return merge_some(partition)


def open_space(
    context: Context, space: str, node: bytes, most_bytes: int, segments: tuple[str, ...] | None = ()
) -> Space | None:
    """The space, or None if it does not exist. Its first partition's head holds its settings. The log of that partition
    is read too, unless `segments` are on another one, or None."""
    first = Partition(context, space, 0, Settings())
    first.read_head()
    if first.head_etag is None:
        return None
    settings = first.settings
    if segments is not None and (not segments or partition_of(segments[0], settings.partitions) == 0):
        first.refresh(segments)
    others = [Partition(context, space, number, settings) for number in range(1, settings.partitions)]
    return Space([first, *others], node, most_bytes)


def new_incarnation(backend: Backend, first: bytes) -> bytes:
    """8 bytes that no other space has, greater than those of earlier spaces of the name: so are the keys of its
    transactions, then. `first` is the key of the first partition, which keeps the ends of earlier logs. They may be in
    the future, if the clock was set back."""
    now = time.time_ns() // 1_000_000 - EPOCH
    for ended in _ended_since(backend, first, (now << 23).to_bytes(8, "big")):
        now = max(now, 1 + (int.from_bytes(ended, "big") >> 23))
    return (now << 23 | int.from_bytes(urandom(3)) >> 1).to_bytes(8, "big")


def _ended_since(backend: Backend, first: bytes, incarnation: bytes) -> list[bytes]:
    """The incarnations of earlier spaces, from `incarnation` on, whose ends are in the log of the first partition.

    Empty where a call is a request: there the order of their keys does not matter."""
    if backend.limits.remote:
        return []
    start, end = transaction_prefix(incarnation), transaction_prefix(b"\xff" * 8)
    return [transaction_incarnation(row.key) for row in backend.scan(first, start, end, values=False)]


def catalog_row(backend: Backend, space: str) -> Value | None:
    """The row of the list of spaces, with the space's settings. A deletion removes it before the space's head."""
    return backend.get(bytes(CATALOG), [bytes(space_key(space))])[0]


def check_head(context: Context, space: str) -> None:
    """Raise CorruptData if a space that was not found has lost its head: it is listed, and has transactions or files.

    The space of a process that was stopped while it created it has none. While a store is deleted, the transaction that
    ends the log stays.
    """
    backend = context.backend
    value = catalog_row(backend, space)
    if value is None:
        return
    try:
        settings = decode_row(Settings, space_key(space), value.data)
        first = Partition(context, space, 0, settings)
        rows = backend.scan(first.key, first.transaction_key(0), first.last_key, values=False)
        last = [row.key for row in rows][-1:]
        if last:
            found = backend.get(first.key, last)[0]
            lost = found is not None and not first.decode_header(found.data, transaction_number(last[0])).ended
        else:
            from .index.salvage import had_head

            lost = had_head(backend, first.key, first.seed)
    except UNREADABLE as error:
        raise CorruptData(f"space {space!r} has no head, and cannot be read ({error}): {repair_for(space)}") from error
    # Another process may have created or deleted the space meanwhile.
    if lost and backend.get(first.key, [bytes(HEAD)])[0] is None and catalog_row(backend, space) == value:
        raise CorruptData(f"space {space!r} has lost its head: {repair_for(space)}")


def create_space(backend: Backend, clock: Clock, space: str, settings: Settings, *, exact: bool) -> None:
    """Create the space's rows. With `exact`, SpaceExists if it has other settings.

    If several processes create it at once, one of them chooses the incarnation: the catalog's row holds it, and the
    head repeats it. Unavailable if another process deletes it at the same time.
    """
    key, first = space_key(space), bytes(partition_key(space, 0))
    settings = earlier = msgspec.structs.replace(settings, incarnation=new_incarnation(backend, first))
    etag = put_settled(backend, clock, bytes(CATALOG), key, encode_row(key, settings), ABSENT, "try again")
    if etag is not None and _ended_since(backend, first, settings.incarnation):
        # A space of this name has come and gone since. Its keys are greater, and no transaction could follow them.
        settings = msgspec.structs.replace(settings, incarnation=new_incarnation(backend, first))
        etag = put_settled(backend, clock, bytes(CATALOG), key, encode_row(key, settings), etag, "try again")
    if etag is None:
        value = catalog_row(backend, space)
        if value is None:
            raise Unavailable(f"space {space!r} is being created by another process: try again")
        found = decode_row(Settings, key, value.data)
        settings = msgspec.structs.replace(settings, incarnation=found.incarnation)
        if not exact:
            settings = found
        elif found != settings:
            others = [name for name in settings.__struct_fields__ if getattr(found, name) != getattr(settings, name)]
            changed = ", ".join(
                f"{name} is {getattr(found, name)!r}, not {getattr(settings, name)!r}" for name in others
            )
            fixed = {"partitions", "durability"} & {*others}
            remedy = (
                "these cannot be changed: pass the settings that it has, or choose another name"
                if fixed
                else "change them with change_space(), or pass the settings that it has"
            )
            raise SpaceExists(f"space {space!r} exists with other settings ({changed}); {remedy}")
        if backend.get(first, [bytes(HEAD)])[0] is not None:
            return
        if _had_head(backend, first, settings):
            raise CorruptData(
                f"the head of space {space!r} is missing, and its files exist: run `streamkit repair`; or, if the "
                f"store was being deleted, delete it again"
            )
    made = put_settled(backend, clock, first, bytes(HEAD), encode_row(HEAD, Head(settings)), ABSENT, "try again")
    if made is None and etag is not None and settings != earlier:
        # Another process may have made the head by the first row.
        value = backend.get(first, [bytes(HEAD)])[0]
        if value is not None and decode_row(Head, HEAD, value.data).settings == earlier:
            put_settled(backend, clock, bytes(CATALOG), key, encode_row(key, earlier), etag, "try again")
    elif made is not None and etag is None:
        listed = catalog_row(backend, space)
        if listed is None or listed.data != encode_row(key, settings):
            # The space was deleted since its row was read.
            delete_row(backend, first, bytes(HEAD), made)
            raise Unavailable(f"space {space!r} was deleted while it was created: try again")


def _had_head(backend: Backend, partition: bytes, settings: Settings) -> bool:
    """True if a partition has lost its head. An empty head must not be put in its place."""
    from .index.salvage import had_head

    if not had_head(backend, partition, seed_of(settings, partition)):
        return False
    return (
        backend.get(partition, [bytes(HEAD)])[0] is None
    )  # a process that creates the space now puts it before all else


def settings_of(partitions: int, durability: str, idempotency_window: float, archive_grace: float = 3600.0) -> Settings:
    """Checked settings. TypeError or ValueError."""
    check_type(partitions, int, "partitions is an int")
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise ValueError(f"a space has 1 to {MOST_PARTITIONS} partitions, not {partitions}")
    check_type(durability, str, "durability is 'committed' or 'buffered'")
    check_choice("durability", durability, "committed", "buffered")
    window = check_seconds("idempotency_window", idempotency_window, positive=True, endless=True)
    grace = check_seconds("archive_grace", archive_grace, positive=True)
    return Settings(partitions, durability, window, grace)


def changed_settings(
    idempotency_window: float | None, archive_grace: float | None, trimmed_rows: str | None = None
) -> Changed:
    """Checked settings. TypeError or ValueError."""
    window = grace = 0.0
    if idempotency_window is not None:
        window = check_seconds("idempotency_window", idempotency_window, positive=True, endless=True)
    if archive_grace is not None:
        grace = check_seconds("archive_grace", archive_grace, positive=True)
    if trimmed_rows is not None:
        check_type(trimmed_rows, str, "trimmed_rows is 'keep' or 'remove'")
        check_choice("trimmed_rows", trimmed_rows, "keep", "remove")
    return Changed(window, grace, trimmed_rows or "")


def check_change(space: str, settings: Settings, changed: Changed) -> None:
    """Raise ValueError for a setting that is too small a part of its value at creation."""
    for name in ("idempotency_window", "archive_grace"):
        least, value = getattr(settings, name) * _LEAST, getattr(changed, name)
        if value and value < least:
            raise ValueError(
                f"{name} of space {space!r} must be at least {least:g} seconds, not {value:g}: other processes rely on "
                "a tenth of its value at creation"
            )


def segments_of(partition: Partition, first: str = "") -> Iterator[str]:
    """Indexed names, and those that are only in the tail yet, of segments that have entries; from `first` on."""
    start, end = map(bytes, SEGMENTS.children())
    start = segment_key(first) if first else start

    def walk(view: LogView) -> Iterator[str]:
        nonlocal start
        recent = set(view.tail.segments())
        # Names that come in order were passed already, where it begins again.
        fresh = sorted([name for name in recent if segment_key(name) >= start], key=str.encode, reverse=True)
        for key, value in view.index.scan(start, end) if view.tail.watermark else ():
            name = segment_name(key)
            while fresh and fresh[-1].encode() < name.encode():
                start = segment_key(fresh[-1]) + b"\x00"
                new = fresh.pop()
                if has_entries(view, status_of(view, new)):
                    yield new
            if fresh and fresh[-1] == name:
                fresh.pop()
            start = key + b"\x00"
            row = status_of(view, name) if name in recent else decode_index_row(SegmentRow, key, value)
            if has_entries(view, row):
                yield name
        for new in reversed(fresh):
            if has_entries(view, status_of(view, new)):
                yield new

    yield from partition.walk(walk)
