"""Answers that the log has for posted requests."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import Unavailable
from .answers import WINDOW
from .partition import Partition
from .record_format import VOID, Header
from .request import Request
from .rows import SegmentRow

__all__ = ["replay_answers", "settle", "upkeep_owner"]


def settle(partition: Partition, request: Request, header: Header, frame: int) -> None:
    """Give `request` its result: its first frame in the transaction is `frame`, or it is in none."""
    if frame == VOID:
        request.fail(Unavailable("store.outcome was asked for the request, and gave it up: nothing was written"))
    else:
        request.succeed(_rows(partition, request, header, frame), header.trx, header.count)
        request.chosen = upkeep_owner(header) == request.id


def upkeep_owner(header: Header) -> bytes | None:
    """The request whose process brings the index forward; None if there is none. The leading process is busy."""
    return next((id for id, frame in reversed(header.answers) if frame != VOID), None)


def replay_answers(partition: Partition, requests: Sequence[Request]) -> None:
    """Read the answers to posted requests that came while this process did not listen, once for all of them.
    Unavailable if they have left the log."""
    since = partition.answers.since
    behind = {request.id: request for request in requests if request.id is not None and _is_behind(request, since)}
    if behind:
        first = min(request.checked for request in behind.values()) + 1
        last = min(since, max(request.since for request in behind.values()) + WINDOW)
        for number, record in partition.records(first, last):
            header = partition.decode_header(record, number)
            for id, frame in header.answers:
                if (request := behind.pop(id, None)) is not None:
                    settle(partition, request, header, frame)
            for request in behind.values():
                request.checked = max(request.checked, number)
    for request in behind.values():
        if _is_behind(request, since):
            raise Unavailable(
                f"{partition.where(request.checked + 1)} was removed from the log before it was read; try again"
            )
    for request in requests:
        request.checked = max(request.checked, since)


def _is_behind(request: Request, since: int) -> bool:
    return not request.done and request.checked < min(since, request.since + WINDOW)


def _rows(partition: Partition, request: Request, header: Header, frame: int) -> dict[str, SegmentRow]:
    """The result of a request whose first frame in the transaction is `frame`."""
    now = partition.load_statuses([part.segment for part in request.parts])
    rows: dict[str, SegmentRow] = {}
    for part in request.parts:
        row = rows.get(part.segment) or now[part.segment]
        first, since = row.first_sequence, row.first_timestamp
        if part.body is None:
            rows[part.segment] = SegmentRow(first, since, part.expected or 0, row.last_timestamp)
        else:
            ref = header.frames[frame]
            frame += 1
            rows[part.segment] = SegmentRow(
                first or ref.first_sequence,
                since or header.timestamp,
                ref.first_sequence + ref.count - 1,
                header.timestamp,
            )
    return rows
