"""Reads a topic from a sequence on, with a tombstone for records that a cap or a ttl removed."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...gaps import Gap
from .topics import NODE, Topic, Topics, record_out, size_of

__all__ = ["Part", "Wanted", "read_part"]


class Wanted(NamedTuple):
    """The records that a reader wants, and in which form."""

    limit: int = 256
    max_bytes: int = 1 << 20
    nodes: frozenset[str] = frozenset()
    tags: bool = False
    meta: bool = True
    data: bool = True


class Part(NamedTuple):
    """The answer to one read of a topic."""

    records: list[dict[str, Any]]
    next: int
    head: int
    earliest: int
    tombstone: dict[str, Any] | None


def read_part(topics: Topics, topic: Topic, after: int, wanted: Wanted) -> Part:
    """The records after a sequence, at most one part."""
    head = topics.head(topic)
    lost: list[Gap] = []
    is_other = after > head
    """The cursor is of an earlier topic of this name, or of none."""
    start = after if not is_other else head if topic.stored.generation == 1 else 0
    next_, size = start, 0
    first_live = 0
    records: list[dict[str, Any]] = []
    nodes = wanted.nodes if topic.config.dedupe_node else frozenset()
    for found in topics.read(topic, start):
        if isinstance(found, Gap):
            if found.reason in ("trimmed", "expired"):
                lost.append(found)
            next_ = max(next_, found.last_sequence)
            continue
        if len(records) >= wanted.limit or (records and size + size_of(found) > wanted.max_bytes):
            break
        first_live = first_live or found.sequence
        next_ = found.sequence
        if found.metadata.get(NODE) not in nodes:
            records.append(record_out(found, tags=wanted.tags, meta=wanted.meta, data=wanted.data))
            size += size_of(found)
    else:
        next_ = max(next_, head)  # the records up to the head were deleted or completed
    head = max(head, next_)
    earliest = topics.extent(topic).earliest if start or not first_live else first_live
    tombstone = None
    if is_other and topic.stored.generation > 1:
        tombstone = _tombstone(1, max(earliest - 1, 0), "recreated", earliest, head)
    elif lost and not topic.is_queue:
        config = topic.config
        caps = bool(config.cap_records or config.cap_bytes)
        reason = "mixed" if caps and config.ttl_ms else "ttl" if config.ttl_ms else "cap"
        tombstone = _tombstone(lost[0].first_sequence, lost[-1].last_sequence, reason, earliest, head)
    return Part(records, next_, head, earliest, tombstone)


def _tombstone(first: int, last: int, reason: str, earliest: int, head: int) -> dict[str, Any]:
    return {
        "gap_from": first,
        "gap_to": last,
        "reason": reason,
        "missed_estimate": max(last - first + 1, 0),
        "earliest_seq": earliest,
        "head_seq": head,
    }
