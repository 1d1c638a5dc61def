"""Queues: claim, ack, nack and extend, on a group of the queue's segment."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ...groups import DeadLetter, Delivery, Group, Settlement
from ...groups.values import letter_id
from ...model import Record
from .config import TopicConfig
from .errors import Refused
from .topics import META, TAG, Topic, Topics, record_out

__all__ = ["AckIn", "ClaimIn", "ExtendIn", "NackIn", "claim", "counts", "job_out", "settle"]

_MOST = 1_000
_LEASE = "lease_"
_LEASE_BOUNDS = 100, 86_400_000


class ClaimIn(msgspec.Struct):
    """The body of a claim."""

    node: str
    max: int = 1
    lease_ms: int | None = None


class AckIn(msgspec.Struct):
    """The body of an ack."""

    node: str
    seqs: list[int]
    lease_ids: list[str] | None = None


class NackIn(AckIn):
    """The body of a nack."""

    delay_ms: int = 0


class ExtendIn(AckIn, kw_only=True):
    """The body of an extend."""

    lease_ms: int


def counts(group: Group) -> dict[str, int]:
    """The number of jobs by state."""
    status = group.status()
    return {"ready": status.unread + status.ready, "in_flight": status.pending, "dead_lettered": status.dead}


def job_out(delivery: Delivery) -> dict[str, Any]:
    """A job as its worker gets it."""
    found = record_out(delivery.entry, tags=True, meta=True)
    found |= {
        "lease_id": _LEASE + delivery.receipt,
        "deadline": delivery.deadline,
        "deliveries": delivery.attempt,
    }
    return found


def clamped(lease_ms: int | None) -> float | None:
    """Seconds of a lease; None for the queue's own."""
    if lease_ms is None:
        return None
    return min(max(lease_ms, _LEASE_BOUNDS[0]), _LEASE_BOUNDS[1]) / 1000


def leased(group: Group, deliveries: list[Delivery], seconds: float | None) -> list[Delivery]:
    """`deliveries` with leases of so many seconds; those that are over by now are left out."""
    if seconds is None or not deliveries:
        return deliveries
    extended = group.settle([Settlement(receipt=each.receipt, action="extend", seconds=seconds) for each in deliveries])
    return [
        msgspec.structs.replace(delivery, deadline=result.deadline)
        for delivery, result in zip(deliveries, extended, strict=True)
        if not result.lost
    ]


def claim(topics: Topics, topic: Topic, node: str, most: int, seconds: float | None) -> list[Delivery]:
    """Claim at most `most` jobs for a worker, in the order of their sequences."""
    group = topics.group(topic)
    found = group.receive(most, consumer=node)
    bury(topics, topic, group)
    return sorted(leased(group, found, seconds), key=lambda each: each.entry.sequence)


def bury(topics: Topics, topic: Topic, group: Group) -> None:
    """Copy dead letters to the topic for them, each once, also if several processes find them."""
    name = topic.config.dead_letter
    while name is not None:
        ids = {letter_id(lane.number, ticket) for lane in group.core.opened() for ticket in list(lane.chain.state.dead)}
        known, last = topics.buried(topic) if ids else (ids, 0)
        if ids <= known:
            return
        letters = [letter for letter in group.dead_letters(len(ids) + _MOST) if letter.id not in known][:_MOST]
        if not letters:
            return  # their entries were deleted
        dest = topics.find(name) or topics.put(name, TopicConfig())[0]
        try:
            topics.bury(topic, dest, {letter.id: _copy(topic, letter) for letter in letters}, last)
        except Refused:
            return  # the topic for them is full: they stay here until there is room


def _copy(topic: Topic, letter: DeadLetter) -> Record:
    entry = letter.entry
    meta = msgspec.json.decode(entry.metadata.get(META, "{}"))
    meta |= {
        "$dead_letter_from": topic.name,
        "$dead_letter_deliveries": letter.attempt,
        "$dead_letter_src_seq": entry.sequence,
    }
    metadata = {META: msgspec.json.encode(meta).decode()}
    if TAG in entry.metadata:
        metadata[TAG] = entry.metadata[TAG]
    return Record(entry.payload, metadata)


def _wanted(topic: Topic, group: Group, given: AckIn) -> tuple[dict[int, str], list[int]]:
    """The receipts of those that the worker holds, by sequence, and the other sequences."""
    if not len(given.seqs) >= 1:
        raise Refused("invalid_request", "seqs is a list with at least one sequence")
    if len(given.seqs) > _MOST:
        raise Refused("batch_too_large", f"seqs has at most {_MOST} sequences, not {len(given.seqs)}", max=_MOST)
    if given.lease_ids is not None and len(given.lease_ids) != len(given.seqs):
        raise Refused("invalid_request", "lease_ids has one id for each of seqs")
    held = group.receipts(given.node)
    found: dict[int, str] = {}
    skipped: list[int] = []
    for at, sequence in enumerate(given.seqs):
        receipt = held.get((topic.segment, sequence))
        if receipt is None or (given.lease_ids is not None and given.lease_ids[at] != _LEASE + receipt):
            skipped.append(sequence)
        else:
            found[sequence] = receipt
    return found, skipped


def settle(
    topics: Topics, topic: Topic, given: AckIn, action: Literal["ack", "nack", "extend"], seconds: float | None = None
) -> tuple[dict[int, int], list[int], dict[str, int]]:
    """Return (deadline by sequence of those that were settled, the other sequences, the counts after it)"""
    group = topics.group(topic)
    wanted, skipped = _wanted(topic, group, given)
    delay = seconds if action == "nack" else None
    span = seconds if action == "extend" else None
    results = group.settle(
        [Settlement(receipt=receipt, action=action, delay=delay, seconds=span) for receipt in wanted.values()]
    )
    done: dict[int, int] = {}
    for sequence, result in zip(wanted, results, strict=True):
        if result.lost:
            skipped.append(sequence)
        else:
            done[sequence] = result.deadline
    if action == "nack":
        bury(topics, topic, group)
    elif action == "ack":
        topics.trim_done(topic, group)
    return done, skipped, counts(group)
