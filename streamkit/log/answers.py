"""The log's answers to posted requests (see inbox.py): the settled requests, and the process that leads. Built from
headers."""

from __future__ import annotations

from collections import deque

from .record_format import NOBODY, Header
from .rows import Lead

__all__ = ["WINDOW", "Answers"]

WINDOW = 128
"""A request that was posted when transaction n was the last one is committed by n + WINDOW at the latest, or never."""


class Answers:
    """Kept by a partition, under its lock."""

    def __init__(self) -> None:
        self.lead = Lead()
        self.since = 0
        """The number above which every header was seen, and is remembered."""
        self.taken = 0
        """The last transaction that the named lead did not write."""
        self.round = (0, 0.0)
        """(number, seconds): the last transaction that the lead wrote after one of its own, and the time between the
        two."""
        self._last: Header | None = None
        self._found: dict[bytes, tuple[Header, int]] = {}
        self._headers: deque[Header] = deque()

    def get(self, id: bytes) -> tuple[Header, int] | None:
        """Return (the header of the transaction that settles a request, its first frame there or VOID)."""
        return self._found.get(id)

    def apply(self, header: Header) -> None:
        """Apply the next header of the log. Twice is the same as once."""
        lead, last = self.lead.name, self._last
        if lead and lead != header.node and all(id != lead for id, _ in header.answers):
            self.taken = header.number
        elif last and (last.number, last.node) == (header.number - 1, header.node):
            took = header.timestamp - last.timestamp
            if took > 0:  # else a writer's clock was ahead
                self.round = header.number, took / 1000
        self._last = header
        if header.lead:
            name = b"" if header.lead == NOBODY else header.lead
            self.lead = Lead(name, header.waiting, header.number, header.timestamp)
        if not header.answers:
            return
        for id, frame in header.answers:
            self._found.setdefault(id, (header, frame))  # of two the first one counts
        headers = self._headers
        headers.append(header)
        while headers[0].number <= header.number - WINDOW:
            old = headers.popleft()
            self.since = max(self.since, old.number)
            for id, _ in old.answers:
                self._found.pop(id, None)

    def restart(self, number: int, lead: Lead) -> None:
        """Continue after transaction `number`, where `lead` leads. Earlier answers are forgotten."""
        self.lead, self.since = lead, number
        self._found.clear()
        self._headers.clear()
