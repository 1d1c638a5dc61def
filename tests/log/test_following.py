"""Followers and subscribers with a clock that only moves while they wait: their entries, their looks and their ends."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import KINDS

import streamkit
from harness.posted import partition_of
from streamkit import Client, Entry, Record, SegmentStatus, Store
from streamkit.errors import StoreClosed
from streamkit.store import inner
from streamkit.testing import ManualClock

LEAST, MOST = 1.0, 8.0
DEADLINE = 60.0


class Silence(Exception):
    """The script has ended, and the follower still waits."""


class Scripted(ManualClock):
    """A wait of a follower runs the next line of a script; None does nothing, and lets the time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.script: list[Callable[[], object] | None] = []
        self.waits: list[float] = []
        self.endless = False

    def wait(self, condition: threading.Condition, seconds: float) -> bool:
        self.waits.append(seconds)
        if not self.script and not self.endless:
            raise Silence
        action = self.script.pop(0) if self.script else None
        if action is None or not action():
            self.sleep(seconds)
            return False
        return True


class Setting:
    """One store: `here` is the process that follows, `there` another one."""

    def __init__(self, url: str) -> None:
        self.clock = Scripted()
        self.url, self.id = url, uuid4()
        self.clients: list[Client] = []
        self.here = self.open(clock=self.clock, poll=(LEAST, MOST))
        self.there = self.open()

    def open(self, **options: Any) -> Store:
        client = streamkit.connect(self.url, **options)
        self.clients.append(client)
        return client.store(self.id)

    def write_here(self, *names: str) -> Callable[[], bool]:
        """Written by the following process itself: it need not wait until its pause is over."""

        def write() -> bool:
            for name in names:
                put(self.here, name)
            return True

        return write

    def write_there(self, *names: str) -> Callable[[], bool]:
        """Written by another process: it is seen at the next look."""

        def write() -> bool:
            for name in names:
                put(self.there, name)
            return False

        return write


def put(store: Store, name: str, space: str = "space") -> None:
    """`segment:payload`"""
    segment, _, payload = name.partition(":")
    store.produce(space, segment, [Record(payload.encode())])


def names(entries: Iterator[Entry]) -> list[str]:
    """Collect all entries until the script or the follower ends."""
    found = []
    with contextlib.suppress(Silence):
        for entry in entries:
            found.append(f"{entry.segment}:{entry.payload.decode()}")
    return found


def statuses(subscriber: Iterator[SegmentStatus]) -> list[tuple[str, int]]:
    """Collect the events of a subscriber until the script ends."""
    told = []
    with contextlib.suppress(Silence):
        for status in subscriber:
            told.append((status.segment, status.last_sequence))
    return told


@pytest.fixture(params=KINDS)
def setting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setting]:
    kind = request.param
    url = f"file://{tmp_path}/root" if kind == "local" else f"memory://{uuid4().hex}?remote={int(kind == 'remote')}"
    found = Setting(url)
    yield found
    for client in found.clients:
        client.close()


# -- what is seen -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_follower_of_a_space_sees_what_was_there_and_what_comes_in_order(setting: Setting, partitions: int) -> None:
    setting.here.create_space("space", partitions=partitions)
    for number in range(5):
        put(setting.there, f"{number % 2}:before {number}")
    setting.clock.script = [
        setting.write_here("0:here"),
        setting.write_there("1:there", "0:there"),
        None,
        setting.write_here("2:new", "0:both"),
        setting.write_there("2:last"),
    ]
    found = names(setting.here.follow_space("space"))
    stored = [f"{entry.segment}:{entry.payload.decode()}" for entry in setting.there.consume_space("space")]
    assert len(stored) == 11
    assert Counter(found) == Counter(stored)
    for segment in "012":
        assert [name for name in found if name[0] == segment] == [name for name in stored if name[0] == segment]
    if partitions == 1:
        assert found == stored


def test_a_follower_of_a_segment_sees_what_was_there_and_what_comes_in_order(setting: Setting) -> None:
    for number in range(3):
        put(setting.there, f"s:{number}")
    setting.clock.script = [
        setting.write_here("t:other", "s:3"),
        setting.write_there("s:4", "t:other"),
        setting.write_there("t:other"),
        setting.write_here("s:5"),
    ]
    assert names(setting.here.follow_segment("space", "s", after=1)) == ["s:1", "s:2", "s:3", "s:4", "s:5"]


def test_what_is_written_while_history_is_handed_out_is_seen_without_a_wait(setting: Setting) -> None:
    for number in range(3):
        put(setting.here, f"s:{number}")
    for follower in (setting.here.follow_space("space"), setting.here.follow_segment("space", "s")):
        assert next(follower).sequence == 1
        put(setting.here, "s:meanwhile")
        last = setting.here.segment_status("space", "s").last_sequence
        assert [entry.sequence for entry in islice(follower, last - 1)] == list(range(2, last + 1))
        assert setting.clock.waits == []


def test_a_transaction_is_seen_whole(setting: Setting) -> None:
    def write() -> bool:
        with setting.there.transaction("space") as trx:
            for segment in "abc":
                trx.produce(segment, [Record(b"1"), Record(b"2")])
        return False

    setting.clock.script = [write]
    assert names(setting.here.follow_space("space")) == ["a:1", "a:2", "b:1", "b:2", "c:1", "c:2"]


def test_following_begins_before_the_space_does(setting: Setting) -> None:
    followers = {
        "space": lambda: setting.here.follow_space("space"),
        "segment": lambda: setting.here.follow_segment("space", "s"),
    }
    for name, follow in followers.items():
        setting.id = uuid4()
        setting.here, setting.there = setting.open(clock=setting.clock, poll=(LEAST, MOST)), setting.open()
        setting.clock.script = [None, setting.write_there("s:1"), setting.write_here("s:2")]
        assert names(follow()) == ["s:1", "s:2"], name


def test_following_goes_on_where_it_was_left(setting: Setting) -> None:
    """A follower continues in another process, from the offset that the program has kept."""
    offset, after, seen = None, 0, []
    for turn in range(4):
        put(setting.there, f"s:{turn}")
        put(setting.there, f"t:{turn}")
        process = setting.open(clock=setting.clock, poll=(LEAST, MOST))
        entry = next(process.follow_space("space", offset=offset))
        offset = entry.space_offset.hex()  # as text
        seen.append(f"{entry.segment}:{entry.payload.decode()}")
        entry = next(process.follow_segment("space", "s", after=after))
        after = entry.sequence
        assert after == turn + 1
    seen += names(setting.here.follow_space("space", offset=offset))
    assert seen == [f"{segment}:{turn}" for turn in range(4) for segment in "st"]


# -- when it looks ----------------------------------------------------------------------------------------------------


def follow(setting: Setting, how: str, timeout: float | None = None) -> Iterator[Any]:
    store = setting.here
    ways: dict[str, Callable[[], Iterator[Any]]] = {
        "follow_space": lambda: store.follow_space("space", timeout=timeout),
        "follow_segment": lambda: store.follow_segment("space", "s", timeout=timeout),
        "subscribe_to_space": lambda: store.subscribe_to_space("space", timeout=timeout),
        "subscribe_to_segment": lambda: store.subscribe_to_segment("space", "s", timeout=timeout),
    }
    return ways[how]()


every_way = pytest.mark.parametrize(
    "how", ["follow_space", "follow_segment", "subscribe_to_space", "subscribe_to_segment"]
)


@every_way
def test_an_idle_follower_looks_less_and_less_often_and_at_once_again_after_news(setting: Setting, how: str) -> None:
    put(setting.there, "s:1")
    follower = follow(setting, how)
    assert next(follower)
    for quiet in (6, 3):
        setting.clock.script = [*[None] * quiet, setting.write_there("s:more")]
        assert next(follower)
        waits = setting.clock.waits
        assert len(waits) == quiet + 1
        assert waits[0] <= 2 * LEAST
        assert waits[1:] == [min(2 * wait, MOST) for wait in waits[:-1]]
        waits.clear()


@every_way
def test_news_of_this_process_does_not_wait_for_the_pause_to_end(setting: Setting, how: str) -> None:
    put(setting.here, "s:1")
    follower = follow(setting, how)
    assert next(follower)
    setting.clock.script = [None, None, None, setting.write_here("s:2")]
    assert next(follower)
    assert setting.clock.monotonic() == 1000 + sum(setting.clock.waits[:3])


@every_way
def test_a_writer_wakes_a_follower_that_waits_in_another_thread(setting: Setting, how: str) -> None:
    waiting = threading.Event()

    class Asleep(ManualClock):
        def wait(self, condition: threading.Condition, seconds: float) -> bool:
            waiting.set()  # the condition is held, so a notice comes after the wait has begun
            return condition.wait(DEADLINE)

    setting.here = setting.open(clock=Asleep(), poll=(LEAST, MOST))
    put(setting.here, "s:1")
    follower, woken = follow(setting, how), threading.Event()
    assert next(follower)

    def read() -> None:
        next(follower)
        woken.set()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert waiting.wait(DEADLINE)
    put(setting.here, "s:2")
    assert woken.wait(DEADLINE / 2)
    thread.join(DEADLINE)


# -- when it ends -----------------------------------------------------------------------------------------------------


@every_way
def test_a_follower_ends_after_as_much_silence_as_it_was_given(setting: Setting, how: str) -> None:
    put(setting.there, "s:1")
    setting.clock.endless = True
    setting.clock.script = [None, setting.write_there("s:2"), None, None, setting.write_here("s:3")]
    heard = [setting.clock.monotonic() for _ in follow(setting, how, timeout=10.5)]
    assert len(heard) == 3
    assert setting.clock.monotonic() == heard[-1] + 10.5
    assert max(setting.clock.waits) <= MOST


@every_way
def test_a_follower_without_patience_takes_what_is_there(setting: Setting, how: str) -> None:
    put(setting.there, "s:1")
    assert len(list(follow(setting, how, timeout=0))) == 1
    assert setting.clock.waits == []


@every_way
def test_a_follower_without_a_timeout_never_ends_by_itself(setting: Setting, how: str) -> None:
    put(setting.there, "s:1")
    setting.clock.script = [*[None] * 100, setting.write_there("s:2")]
    follower = follow(setting, how)
    next(follower)
    next(follower)
    assert setting.clock.monotonic() > 1000 + 95 * MOST


@every_way
def test_a_follower_can_be_closed_and_writers_go_on(setting: Setting, how: str) -> None:
    put(setting.here, "s:1")
    follower = follow(setting, how)
    next(follower)
    follower.close()  # type: ignore[attr-defined]
    assert list(follower) == []
    put(setting.here, "s:2")
    put(setting.there, "s:3")
    assert setting.here.segment_status("space", "s").last_sequence == 3


@every_way
def test_a_follower_of_a_store_that_is_closed_is_told(setting: Setting, how: str) -> None:
    put(setting.here, "s:1")
    follower = follow(setting, how)
    next(follower)
    setting.clock.script = [lambda: bool(setting.here.close())]
    with pytest.raises(StoreClosed):
        next(follower)


# -- subscriptions ----------------------------------------------------------------------------------------------------


def test_a_subscriber_of_a_space_is_told_the_latest_of_each_segment(setting: Setting) -> None:
    for name in ("a:1", "b:1", "b:2"):
        put(setting.there, name)
    setting.clock.script = [
        setting.write_there("a:2", "c:1", "a:3"),
        None,
        setting.write_here("b:3"),
    ]
    told = statuses(setting.here.subscribe_to_space("space"))
    assert sorted(told[:2]) == [("a", 1), ("b", 2)]
    assert sorted(told[2:4]) == [("a", 3), ("c", 1)]
    assert told[4:] == [("b", 3)]


def test_a_subscriber_of_a_space_is_told_of_what_is_removed(setting: Setting) -> None:
    for name in ("a:1", "a:2", "b:1"):
        put(setting.there, name)
    setting.clock.script = [
        lambda: not setting.there.trim("space", "a", keep_entries=1),
        None,
        lambda: setting.there.delete_segment("space", "b"),
        None,
        setting.write_there("b:2"),
        None,
    ]
    told: list[tuple[str, int, int]] = []
    with contextlib.suppress(Silence):
        for status in setting.here.subscribe_to_space("space"):
            told.append((status.segment, status.first_sequence, status.last_sequence))
    assert told == [("a", 1, 2), ("b", 1, 1), ("a", 2, 2), ("b", 2, 1), ("b", 2, 2)]


def test_a_subscriber_of_a_segment_is_told_its_latest_and_nothing_of_others(setting: Setting) -> None:
    put(setting.there, "s:1")
    setting.clock.script = [
        setting.write_there("t:1"),
        setting.write_here("t:2"),
        setting.write_there("s:2", "s:3"),
        setting.write_here("s:4"),
    ]
    assert statuses(setting.here.subscribe_to_segment("space", "s")) == [("s", 1), ("s", 3), ("s", 4)]


def test_a_subscriber_that_is_slow_is_told_less_and_holds_nobody_up(setting: Setting) -> None:
    put(setting.here, "s:1")
    subscribers = [setting.here.subscribe_to_space("space"), setting.here.subscribe_to_segment("space", "s")]
    assert [next(subscriber).last_sequence for subscriber in subscribers] == [1, 1]
    for number in range(2, 51):
        put(setting.here if number % 2 else setting.there, f"s:{number}")
    put(setting.here, "s:51")
    assert [next(subscriber).last_sequence for subscriber in subscribers] == [51, 51]
    assert setting.clock.waits == []


@pytest.mark.parametrize("read", [lambda store: store.peek("s", "a"), lambda store: store.produce("s", "b", [])])
def test_a_catch_up_wakes_the_waiting_a_few_times_and_holds_no_lock_then(
    read: Callable[[Store], object], setting: Setting
) -> None:
    here, there = setting.here, setting.there
    put(here, "a:", "s")
    for _ in range(100):
        put(there, "a:", "s")
    partition, notifier, woken = partition_of(here), inner(here).notifier, list[bool]()
    notifier.listen(lambda: woken.append(partition._lock._is_owned()))
    read(here)
    assert here.peek("s", "a").sequence == 101
    assert 0 < len(woken) < 20
    put(here, "a:", "s")
    assert not any(woken)
