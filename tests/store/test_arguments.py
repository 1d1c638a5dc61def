"""Wrong arguments of every call but a write: the right error at the call, and a message that helps."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fix_stores import Subject

import streamkit
from streamkit import Record, Retention, SpaceExists
from streamkit.groups import Settlement

ANY: Any = None


@pytest.fixture
def filled(in_memory: Subject) -> Subject:
    """A store with three entries in segment s of the space."""
    in_memory.store.produce("space", "s", [Record(b"1"), Record(b"2"), Record(b"3")])
    return in_memory


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"partitions": 0}, ValueError),
        ({"partitions": -1}, ValueError),
        ({"partitions": 1025}, ValueError),
        ({"partitions": "4"}, TypeError),
        ({"partitions": 4.0}, TypeError),
        ({"partitions": True}, TypeError),
        ({"partitions": None}, TypeError),
        ({"durability": "ephemeral"}, ValueError),
        ({"durability": ""}, ValueError),
        ({"durability": None}, TypeError),
        ({"idempotency_window": 0}, ValueError),
        ({"idempotency_window": -1.0}, ValueError),
        ({"idempotency_window": float("nan")}, ValueError),
        ({"idempotency_window": "1"}, TypeError),
        ({"idempotency_window": True}, TypeError),
    ],
    ids=str,
)
def test_a_wrong_setting_of_a_space_is_refused(
    filled: Subject, settings: dict[str, Any], error: type[Exception]
) -> None:
    with filled.nothing_written():
        with pytest.raises(error, match=next(iter(settings))):
            filled.store.create_space("new", **settings)
        with pytest.raises(error):
            filled.store.create_space("space", **settings)


def test_a_space_keeps_its_settings(filled: Subject) -> None:
    with filled.nothing_written():
        filled.store.create_space("space")
        for settings, says in (
            ({"partitions": 4}, "partitions is 1, not 4"),
            ({"durability": "buffered"}, "durability is 'committed', not 'buffered'"),
            ({"idempotency_window": 60}, "idempotency_window is 86400.0, not 60.0"),
        ):
            for store in (filled.store, filled.stranger()):
                with pytest.raises(SpaceExists, match=says) as refused:
                    store.create_space("space", **settings)  # type: ignore[arg-type]
                assert ("change_space" in str(refused.value)) == ("idempotency_window" in settings)


def test_a_retention_is_ended_by_one_without_bounds(filled: Subject) -> None:
    filled.store.set_retention("space", Retention(max_entries=1))
    with pytest.raises(TypeError, match="without bounds ends it"):
        filled.store.set_retention("space", ANY)
    assert [entry.sequence for entry in filled.store.consume_space("space")] == [3]
    filled.store.set_retention("space", Retention())
    filled.store.produce("space", "s", [Record(b"4")])
    assert [entry.sequence for entry in filled.store.consume_space("space")][-2:] == [3, 4]


# -- readers ----------------------------------------------------------------------------------------------------------

BOUNDS = ("min_timestamp", "max_timestamp", "limit")


@pytest.mark.parametrize(("wrong", "error"), [("1", TypeError), (1.5, TypeError), (True, TypeError), (-1, ValueError)])
def test_a_wrong_bound_is_refused_at_the_call(filled: Subject, wrong: Any, error: type[Exception]) -> None:
    store = filled.store
    for bound in (*BOUNDS, "min_sequence", "max_sequence"):
        with pytest.raises(error, match=f"{bound} is"):
            store.consume_segment("space", "s", **{bound: wrong})
    for bound in BOUNDS:
        with pytest.raises(error, match=f"{bound} is"):
            store.consume_space("space", **{bound: wrong})
        with pytest.raises(error, match=f"{bound} is"):
            store.consume({"space": None}, **{bound: wrong})
    with pytest.raises(error, match="after is"):
        store.follow_segment("space", "s", after=wrong)


@pytest.mark.parametrize(
    ("wrong", "error"), [("1", TypeError), (True, TypeError), (-1, ValueError), (float("nan"), ValueError)]
)
def test_a_wrong_timeout_is_refused_at_the_call(filled: Subject, wrong: Any, error: type[Exception]) -> None:
    store = filled.store
    for call in (store.follow_space, store.subscribe_to_space):
        with pytest.raises(error, match="timeout is"):
            call("space", timeout=wrong)
    for follow in (store.follow_segment, store.subscribe_to_segment):
        with pytest.raises(error, match="timeout is"):
            follow("space", "s", timeout=wrong)


def test_a_datetime_as_a_timestamp_is_refused_with_the_fix(filled: Subject) -> None:
    says = r"is an int, in milliseconds since the epoch, not datetime: write int\(moment\.timestamp\(\) \* 1000\)"
    now = datetime.now(UTC)
    for call in (
        lambda: filled.store.consume_space("space", min_timestamp=now),  # type: ignore[arg-type]
        lambda: filled.store.consume_segment("space", "s", max_timestamp=now),  # type: ignore[arg-type]
        lambda: filled.store.archive("space", until=now),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=says):
            call()


def test_a_status_in_place_of_an_offset_is_refused_with_the_fix(filled: Subject) -> None:
    status = filled.store.segment_status("space", "s")
    with pytest.raises(TypeError, match=r"not SegmentStatus: pass its \.space_offset"):
        next(filled.store.consume_space("space", offset=status), None)  # type: ignore[arg-type]


def test_bounds_that_cross_read_nothing(filled: Subject) -> None:
    stamp = filled.store.peek("space", "s").timestamp
    assert list(filled.store.consume_segment("space", "s", min_sequence=3, max_sequence=2)) == []
    crossing: dict[str, Any] = {"min_timestamp": stamp + 1, "max_timestamp": stamp}
    assert list(filled.store.consume_segment("space", "s", **crossing)) == []
    assert list(filled.store.consume_space("space", **crossing)) == []
    assert list(filled.store.consume({"space": None}, **crossing)) == []
    assert len(list(filled.store.consume_segment("space", "s", min_sequence=2, max_sequence=2))) == 1


def test_no_bound_may_be_said_as_0_or_none(filled: Subject) -> None:
    for nothing in (0, ANY):
        bounds = dict.fromkeys(BOUNDS, nothing)
        assert len(list(filled.store.consume_segment("space", "s", min_sequence=nothing, **bounds))) == 3
        assert len(list(filled.store.consume_space("space", offset=None, **bounds))) == 3
        assert len(list(filled.store.consume({"space": None}, **bounds))) == 3


@pytest.mark.parametrize("offsets", [None, "space", ["space"], {"space"}, 5], ids=repr)
def test_consume_takes_a_mapping(filled: Subject, offsets: Any) -> None:
    with pytest.raises(TypeError, match="a mapping of space to offset or None"):
        filled.store.consume(offsets)


# -- stores and URLs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, 5, b"x" * 16, object()], ids=lambda wrong: type(wrong).__name__)
def test_a_store_id_is_a_uuid_or_its_text(in_memory: Subject, wrong: Any) -> None:
    for call in (in_memory.client.store, in_memory.client.delete_store):
        with pytest.raises(TypeError, match="a store's id is a UUID or its text"):
            call(wrong)


@pytest.mark.parametrize("wrong", ["", "x", "7d9f2c1e", "../../etc", "0" * 33, "\0"], ids=repr)
def test_a_store_id_that_is_no_uuid_is_refused(in_memory: Subject, wrong: str) -> None:
    for call in (in_memory.client.store, in_memory.client.delete_store):
        with pytest.raises(ValueError, match=r"is not a UUID; make one with uuid\.uuid4\(\), once, and keep it"):
            call(wrong)


@pytest.mark.parametrize(
    ("url", "error", "says"),
    [
        (5, TypeError, "a store URL is str"),
        (b"memory://", TypeError, "a store URL is str"),
        (
            Path("/var/lib/app"),
            TypeError,
            r"a store URL is str, not \w+: for a directory pass path.absolute\(\).as_uri",
        ),
        ("", ValueError, "is not a store URL"),
        (
            "/var/lib/app",
            ValueError,
            "is not a store URL, which starts with one of .*file://.*; a directory is file:///absolute/path",
        ),
        ("nosuch://x", ValueError, "no backend for nosuch://; installed: .*memory://"),
        ("memory://x?nosuch=1", ValueError, "nosuch"),
        ("file://host/path", ValueError, "a host"),
        ("file://relative", ValueError, "file:///absolute/path"),
    ],
)
def test_a_wrong_url_is_refused_with_the_fix(
    url: Any, error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STREAMKIT_URL", raising=False)
    with pytest.raises(error, match=says):
        streamkit.connect(url)


def test_what_the_backend_of_another_package_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("far", "streamkit_far_away:connect", "streamkit.backends")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: importlib.metadata.EntryPoints([point]))
    with pytest.raises(streamkit.MissingDependency) as refused:
        streamkit.connect("far://x")
    assert "far:// needs streamkit_far_away" in str(refused.value)
    assert "streamkit-store" not in str(refused.value), "which has no such extra"


@pytest.mark.parametrize("text", ["\ud800", "user-\udfff/*"])
def test_text_that_is_not_utf8_is_refused_before_anything_is_read(filled: Subject, text: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "segment": lambda: filled.store.erase("space", text),
        "metadata": lambda: filled.store.erase("space", metadata={"subject": text}),
        "a backup's URL": lambda: filled.store.backup(text.replace("\udfff", "\ud900")),
    }
    with filled.nothing_written():
        for what, call in calls.items():
            with pytest.raises(ValueError, match=f"{what}.*lone surrogates") as refused:
                call()
            assert type(refused.value) is ValueError


@pytest.mark.parametrize("seconds", [1 << 70, 1e300])
def test_more_seconds_than_can_be_stored_are_refused(filled: Subject, seconds: float) -> None:
    queue = filled.store.queue("jobs")
    queue.put(b"job")
    with queue.consumer() as consumer:
        (delivery,) = consumer.receive()
        calls: dict[str, Callable[[], object]] = {
            "delay": lambda: consumer.nack(delivery, delay=seconds),
            "seconds": lambda: consumer.extend(delivery, seconds),
            "ack_timeout": lambda: filled.store.group("space", "g", ack_timeout=seconds),
        }
        for what, call in calls.items():
            with pytest.raises(ValueError, match=f"{what} is at most") as refused:
                call()
            assert type(refused.value) is ValueError
        consumer.ack(delivery)


def test_an_entry_is_rejected_although_the_reason_is_not_utf8(filled: Subject) -> None:
    group = filled.store.group("space", "g")
    with group.consumer() as consumer:
        first, second, _ = consumer.receive()
        consumer.reject(first, "no name: \ud800")
        settlement = Settlement(receipt=second.receipt, action="reject", reason="\udfff")
        assert [settled.lost for settled in group.settle([settlement])] == [False]
    assert [letter.reason for letter in group.dead_letters()] == ["no name: \\ud800", "\\udfff"]


def test_lists_of_a_group_check_what_they_are_asked_for_and_0_is_no_cap(in_memory: Subject) -> None:
    in_memory.store.produce("space", "a", [Record(b"1"), Record(b"2")])
    group = in_memory.store.group("space", "g")
    with group.consumer("one") as consumer:
        consumer.reject(consumer.receive(1)[0], "no")
        assert len(consumer.receive(1)) == len(group.pending("one", 0)) == len(group.dead_letters(0)) == 1
        letter = group.dead_letters()[0]
        for call in (group.pending, group.dead_letters):
            wrong: Any
            for wrong, error in ((-1, ValueError), (None, TypeError), ("1", TypeError), (True, TypeError)):
                with pytest.raises(error, match="limit is"):
                    call(limit=wrong)
        with pytest.raises(TypeError, match="consumer is the name of one, not int"):
            group.pending(5)  # type: ignore[arg-type]
        for wrong in (letter.id, letter, 5):
            with pytest.raises(TypeError, match=r"deliveries are several, as in \[letter\]"):
                group.redrive(wrong)
        assert group.redrive([letter.id]) == 1


def test_an_erasure_of_no_sequence_is_refused(subject: Subject) -> None:
    """Swapped bounds would erase nothing, without an error."""
    subject.store.produce("people", "ada", [Record(b"1"), Record(b"2")])
    with pytest.raises(ValueError, match="first is at most last: no entry has a sequence from 2 to 1"):
        subject.store.erase("people", "ada", first=2, last=1)
    assert subject.store.erase("people", "ada", first=2, last=2).entries == 1
