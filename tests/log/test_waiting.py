"""No process waits for ever while others commit: the lead of a crowd commits the requests of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fix_covered import EXHAUSTIVE

from benchmarks.cost_services import services
from harness.oracle import judge, violations
from harness.virtual_crowd import SPACE, virtual_crowd
from streamkit.log.inbox import Inbox
from streamkit.log.inbox_message import InboxMessage
from streamkit.log.plan import Plan
from streamkit.log.request import Request

S3, _, AZURE = services()
SEEDS = range(50 if EXHAUSTIVE else 1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("service", "processes"), [(S3, 4), (S3, 16), (AZURE, 16), (AZURE, 48)])
def test_in_a_crowd_nobody_is_passed_by(
    service: Any, processes: int, seed: int, covered: Callable[[str, int], None]
) -> None:
    crowd = virtual_crowd(service, processes, 8, seed)
    log = judge(crowd.history, lambda: crowd.store)[SPACE]
    assert len(log) == 8 * processes
    if processes > 4:
        assert crowd.counts["combined"] > 4 * processes
    covered("appends of crowds in which nobody waits for ever", len(log))


@pytest.mark.parametrize("seed", range(200 if EXHAUSTIVE else 5))
@pytest.mark.parametrize(("service", "processes"), [(S3, 16), (AZURE, 8)])
def test_in_a_crowd_nobody_is_refused_by_what_was_known_before_the_call(
    service: Any, processes: int, seed: int, covered: Callable[[str, int], None]
) -> None:
    """Each process has a second thread, which expects the sequence that another process just got."""
    crowd = virtual_crowd(service, processes, 8, seed, insisting=True)
    judge(crowd.history, lambda: crowd.store)
    assert crowd.counts["combined"]
    covered("calls of crowds whose threads rely on what others were told", len(crowd.history.attempts))


def _takes_nobody_along(patch: pytest.MonkeyPatch) -> None:
    """The combiner reads the inbox, names the next one, and commits only its own requests."""
    patch.setattr(Plan, "add_posted", lambda plan, requests: True)


def _looks_into_no_inbox(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Inbox, "_read", lambda inbox: [])


def _is_even(request: Request) -> bool:
    return int(request.parts[0].segment[1:]) % 2 == 0


def _passes_half_of_them_by(patch: pytest.MonkeyPatch) -> None:
    """Have the lead commit some requests, and never the others."""
    original = Inbox._read

    def read(inbox: Inbox) -> list[InboxMessage]:
        return [letter for letter in original(inbox) if not letter.requests or _is_even(letter.requests[0])]

    patch.setattr(Inbox, "_read", read)


@pytest.mark.parametrize("broken", [_takes_nobody_along, _looks_into_no_inbox, _passes_half_of_them_by])
def test_a_combiner_that_does_not_take_all_along_is_noticed(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        broken(patch)
        crowd = virtual_crowd(S3, 16, 8, 1)
    found = violations(crowd.history, {SPACE: list(crowd.store.consume_space(SPACE))})
    assert {line.partition(":")[0] for line in found} == {"waits"}
