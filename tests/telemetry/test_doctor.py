"""doctor: findings in words, from counts and a few requests."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

import streamkit
from streamkit import Record, Statistics
from streamkit.doctor import Probe, SpaceProbe, diagnose, findings_of

NOW = 1_800_000_000_000
SOUND = Probe(
    Statistics(MappingProxyType({"put": 1000, "bytes_read": 10}), transactions=1000, cache_hits=900, cache_misses=100),
    remote=True,
    request_seconds=0.03,
    upkeep=21,
    most_runs=5,
    now=NOW,
    service_now=NOW + 900,
    spaces=(SpaceProbe("orders", unindexed=20, runs=4, newest=NOW),),
)


def _said(**changes: Any) -> list[tuple[str, str]]:
    counts = {name: value for name, value in changes.items() if name in Statistics.__struct_fields__}
    space = {name: value for name, value in changes.items() if name in SpaceProbe.__struct_fields__}
    rest = {name: value for name, value in changes.items() if name not in {*counts, *space}}
    spaces = (replace(SOUND.spaces[0], **space),)
    found = replace(SOUND, statistics=replace(SOUND.statistics, **counts), spaces=spaces, **rest)
    return [(finding.subject, finding.text) for finding in findings_of(found)]


def test_a_sound_store_has_no_findings() -> None:
    assert _said() == []


@pytest.mark.parametrize(
    ("changes", "subject", "words"),
    [
        ({"request_seconds": 0.4}, "requests", ("400 ms", "region")),
        ({"request_seconds": 0.4, "remote": False}, "requests", ("local disk",)),
        ({"conflicts": 400}, "conflicts", ("400 of 1,400 commits", "more partitions")),
        ({"taken_over": 3}, "conflicts", ("3 times", "close stores")),
        ({"retries": 100}, "retries", ("100 of 1,000 requests", "Lower the rate")),
        ({"settled": 3}, "retries", ("read back", "proxy")),
        ({"upkeep_failures": 1}, "index", ("failed 1 times", "logger")),
        ({"unindexed": 85}, "index", ("85 transactions", "streamkit maintain")),
        ({"runs": 11}, "index", ("11 files", "streamkit maintain")),
        ({"cache_misses": 1000}, "cache", ("1,000 of 1,900 lookups", "keep one client open")),
        ({"service_now": NOW + 60_000}, "clock", ("60 s behind", "NTP")),
        ({"service_now": NOW - 60_000}, "clock", ("60 s ahead of",)),
        ({"newest": NOW + 60_000}, "clock", ("60 s in the future",)),
        ({"dead": 2}, "groups", ("2 dead letters", "streamkit group dead")),
        ({"lag": 20_000}, "groups", ("20,000 entries behind",)),
        ({"error": "CorruptData: a hole"}, "damage", ("a hole", "streamkit verify")),
    ],
)
def test_each_cause_is_said_with_its_remedy(changes: dict[str, Any], subject: str, words: tuple[str, ...]) -> None:
    [(found, text)] = _said(**changes)
    assert found == subject
    assert [word for word in words if word not in text] == []


def test_a_few_events_are_no_finding() -> None:
    assert _said(conflicts=19, retries=19, cache_misses=99, cache_hits=0) == []


def test_a_real_store_is_looked_at_and_not_changed() -> None:
    with streamkit.connect("memory://") as client, client.store(uuid4()) as store:
        assert diagnose(store).probe.spaces == ()
        store.produce("orders", "a", [Record(b"1")])
        group = store.group("orders", "billing", max_deliveries=1)
        with group.consumer() as consumer:
            consumer.reject(consumer.receive()[0])
        before = store.statistics()
        found = diagnose(store)
        [space] = found.probe.spaces
        assert (space.space, space.partitions, space.unindexed, space.dead) == ("orders", 1, 1, 1)
        assert [finding.subject for finding in found.findings if finding.subject != "requests"] == ["groups"]
        after = store.statistics()
        assert (after.transactions, after.requests["put"]) == (before.transactions, before.requests["put"])
