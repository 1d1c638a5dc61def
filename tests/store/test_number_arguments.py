"""Wrong values for every number of the public API: infinite, None, huge, negative, True, text."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record, SequenceMismatch, Store

HUGE = 1 << 80
SECONDS: dict[str, Callable[[Store, Any], object]] = {
    "min_age": lambda store, value: store.archive("space", min_age=value),
    "timeout of follow": lambda store, value: list(store.follow_space("space", timeout=value)),
    "timeout of subscribe": lambda store, value: list(store.subscribe_to_segment("space", "s", timeout=value)),
    "ttl": lambda store, value: store.lease("leader", ttl=value),
    "wait": lambda store, value: store.lease("leader", wait=value),
    "idempotency_window": lambda store, value: store.create_space("other", idempotency_window=value),
    "archive_grace": lambda store, value: store.create_space("other", archive_grace=value),
    "timeout of connect": lambda store, value: streamkit.connect("memory://", timeout=value),
    "poll": lambda store, value: streamkit.connect("memory://", poll=(value, 1.0)),
    "longest poll": lambda store, value: streamkit.connect("memory://", poll=(0.1, value)),
}
COUNTS: dict[str, Callable[[Store, Any], object]] = {
    **{
        name: lambda store, value, name=name: list(store.consume_segment("space", "s", **{name: value}))
        for name in ("min_sequence", "max_sequence", "min_timestamp", "max_timestamp", "limit")
    },
    "limit of consume_space": lambda store, value: list(store.consume_space("space", limit=value)),
    "backwards": lambda store, value: list(store.consume_space("space", min_timestamp=value, reverse=True)),
    "after": lambda store, value: list(store.follow_segment("space", "s", after=value, timeout=0)),
    "expected_sequence": lambda store, value: store.produce("space", "s", [Record(b"")], expected_sequence=value),
    "sequence": lambda store, value: store.produce("space", "s", [Record(b"", sequence=value)]),
    "partitions": lambda store, value: store.create_space("other", partitions=value),
    "until": lambda store, value: store.archive("space", until=value),
    "target_file_bytes": lambda store, value: store.archive("space", target_file_bytes=value),
}


@pytest.fixture
def store() -> Any:
    with streamkit.connect("memory://") as client:
        store = client.store(uuid4())
        store.produce("space", "s", [Record(b"1"), Record(b"2")])
        yield store


@pytest.mark.parametrize("call", SECONDS)
def test_seconds_that_are_none_are_refused(store: Store, call: str) -> None:
    for wrong in (True, "1", b"1", [1], {}):
        with pytest.raises(TypeError):
            SECONDS[call](store, wrong)
    for bad in (math.nan, -1, -math.inf, -HUGE):
        with pytest.raises(ValueError):
            SECONDS[call](store, bad)
    if call not in ("wait", "idempotency_window") and "timeout" not in call:
        for endless in (math.inf, 10**400):
            with pytest.raises(ValueError):
                SECONDS[call](store, endless)


def test_a_poll_is_two_pauses_of_which_the_first_is_shorter() -> None:
    for wrong in (1.0, (1.0,), (1.0, 2.0, 3.0), "ab", {1.0, 2.0}):
        with pytest.raises(TypeError):
            streamkit.connect("memory://", poll=wrong)  # type: ignore[arg-type]
    for bad in ((0, 1.0), (2.0, 1.0)):
        with pytest.raises(ValueError):
            streamkit.connect("memory://", poll=bad)
    streamkit.connect("memory://", poll=(1, 1)).close()


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("call", COUNTS)
def test_counts_that_are_none_are_refused_and_huge_ones_mean_what_they_say(
    store: Store, call: str, archived: bool
) -> None:
    if archived:
        store.archive("space")
    for wrong in (True, "1", 1.0, math.inf, math.nan, [1]):
        with pytest.raises(TypeError):
            COUNTS[call](store, wrong)
    if call != "until":
        with pytest.raises((ValueError, SequenceMismatch)):
            COUNTS[call](store, -1)
    try:
        found = COUNTS[call](store, HUGE)
    except (ValueError, SequenceMismatch):
        assert call in ("expected_sequence", "sequence", "partitions")
    else:
        if isinstance(found, list):
            assert len(found) == (0 if call.startswith(("min", "after", "back")) else 2)
