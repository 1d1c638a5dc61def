"""A point is one state of the whole store: it has the cause of every effect, with any clocks of the writers."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

import streamkit
from harness.processes import Service
from streamkit import Record, Store
from streamkit.backup import cut
from streamkit.log.log_end import end_log
from streamkit.log.partition import Partition
from streamkit.store import inner
from streamkit.testing import ManualClock


class World:
    """Writers with their own clocks, which write while a backup looks for the ends of the partitions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.service = Service("memory")
        self.backups = tmp_path / "backups"
        self.store = self.open(1_000.0)
        for space in ("a", "b", "c"):
            self.open(900.0).produce(space, "s", [Record(b"before")])
        self.asked: list[str] = []
        asking = cut._end

        def end(partition: Partition, moment: int, wrong: cut._Wrong) -> int:
            found = asking(partition, moment, wrong)
            self.asked.append(partition.space)
            self.meanwhile(len(self.asked))
            return found

        monkeypatch.setattr(cut, "_end", end)

    def meanwhile(self, asked: int) -> None:
        """Called after each partition."""

    def open(self, seconds: float) -> Store:
        return self.service.process(ManualClock(seconds))[1].store(self.service.id)

    def restored(self) -> dict[str, list[bytes]]:
        self.store.backup(self.backups)
        other = Service("memory")
        store = other.process(ManualClock(1_000.0))[1].store(uuid4())
        store.restore_backup(self.backups, backup_of=self.service.id)
        return {space: [entry.payload for entry in store.consume_space(space)] for space in ("a", "b", "c")}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    return World(monkeypatch, tmp_path)


def react(store: Store, source: str, target: str, payload: bytes) -> None:
    """One process: it reads the cause, and writes the effect."""
    assert store.peek(source, "s").payload == payload
    store.produce(target, "s", [Record(payload)])


@pytest.mark.parametrize("clocks", [(1_000.0, 1_000.0), (995.0, 995.0), (1_005.0, 995.0), (995.0, 1_005.0)])
def test_an_effect_does_not_come_without_its_cause(world: World, clocks: tuple[float, float]) -> None:
    cause, effect = map(world.open, clocks)

    def meanwhile(asked: int) -> None:
        if asked == 1:  # the end of "a" is known, that of "c" is not
            cause.produce("a", "s", [Record(b"x")])
            react(effect, "a", "c", b"x")

    world.meanwhile = meanwhile  # type: ignore[method-assign]
    found = world.restored()
    assert found["b"] == [b"before"]
    assert (b"x" in found["a"]) >= (b"x" in found["c"])


@pytest.mark.parametrize("slow", [990.0, 1_000.0, 1_050.0])
def test_a_process_with_a_late_clock_reacts_to_one_with_an_early_one(world: World, slow: float) -> None:
    early, late = world.open(1_000.0 + 30.0), world.open(slow)

    def meanwhile(asked: int) -> None:
        if asked == 1:
            early.produce("a", "s", [Record(b"x")])
            react(late, "a", "b", b"x")
            react(late, "b", "c", b"x")

    world.meanwhile = meanwhile  # type: ignore[method-assign]
    found = world.restored()
    assert (b"x" in found["a"]) >= (b"x" in found["b"]) >= (b"x" in found["c"])
    assert late.peek("c", "s").timestamp >= early.peek("a", "s").timestamp


def test_circles_of_causes_are_cut_at_one_moment(world: World) -> None:
    writers = [world.open(1_000.0 + at) for at in (-3.0, 0.0, 3.0)]
    steps = 0

    def meanwhile(asked: int) -> None:
        nonlocal steps
        source, target, writer = "abc"[steps % 3], "abc"[(steps + 1) % 3], writers[steps % 3]
        assert not steps or writer.peek(source, "s").payload == b"%d" % (steps - 1)
        writer.produce(target, "s", [Record(b"%d" % steps)])
        steps += 1

    world.meanwhile = meanwhile  # type: ignore[method-assign]
    found = world.restored()
    there = {payload for payloads in found.values() for payload in payloads} - {b"before"}
    assert there == {b"%d" % step for step in range(len(there))}
    assert len(there) < steps, "it ends although others write all the time"


def test_a_wrong_clock_does_not_keep_entries_out_of_backups(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.open(90_000.0).produce("b", "s", [Record(b"tomorrow")])
    world.store.produce("b", "s", [Record(b"now")])
    assert world.restored()["b"] == [b"before", b"tomorrow", b"now"]
    assert "more than a minute ahead" in caplog.text
    world.store.produce("a", "s", [Record(b"x")])
    assert world.store.peek("a", "s").timestamp < 2_000_000  # a wrong clock does not spread


def test_a_wrong_clock_hides_no_cause_in_another_space(world: World) -> None:
    world.open(90_000.0).produce("b", "s", [Record(b"tomorrow")])
    cause, effect = world.open(1_005.0), world.open(1_000.0)
    assert effect.peek("b", "s").payload == b"tomorrow"
    cause.produce("a", "s", [Record(b"x")])
    react(effect, "a", "c", b"x")
    assert effect.peek("c", "s").timestamp >= cause.peek("a", "s").timestamp
    found = world.restored()
    assert (b"x" in found["a"]) >= (b"x" in found["c"])


def test_a_write_that_lands_after_the_point_was_chosen_is_not_in_it_whatever_its_timestamp(world: World) -> None:
    late = world.open(999.5)

    def meanwhile(asked: int) -> None:
        if asked == 6:  # two rounds have agreed
            late.produce("a", "s", [Record(b"x")])
            react(late, "a", "b", b"x")

    world.meanwhile = meanwhile  # type: ignore[method-assign]
    assert world.restored() == {space: [b"before"] for space in "abc"}
    (point,) = world.store.backups(world.backups)
    assert late.peek("a", "s").timestamp < point.timestamp


@pytest.mark.parametrize("ahead", [59.0, 61.0, 300.0, 36_000.0])
def test_a_process_with_an_early_clock_that_goes_on_writing_neither_blocks_a_backup_nor_loses_entries(
    world: World, ahead: float
) -> None:
    """With a clock ahead by up to a minute, entries of the process and of its readers are in a later point."""
    early, right = world.open(999.0 + ahead), world.open(999.0)
    for at in range(3):
        right.produce("a", "s", [Record(b"a%d" % at)])
        early.produce("b", "s", [Record(b"b%d" % at)])
        react(right, "b", "c", b"b%d" % at)
    before = {space: [*world.store.consume_space(space)] for space in "abc"}

    def meanwhile(asked: int) -> None:
        early.produce("b", "s", [Record(b"%d" % asked)])
        right.produce("b", "s", [Record(b"right %d" % asked)])
        world.open(1_000.0).produce("a", "s", [Record(b"%d" % asked)])
        react(early, "a", "c", b"%d" % asked)

    world.meanwhile = meanwhile  # type: ignore[method-assign]
    found = world.restored()
    assert len(world.asked) <= 9, "three rounds"
    for space, payloads in found.items():
        written = [entry.payload for entry in world.store.consume_space(space)]
        assert payloads == written[: len(payloads)], "it has no entry without the earlier ones"
        due = [entry for entry in before[space] if ahead > 60 or entry.timestamp < 1_000_000]
        assert len(payloads) >= len(due), "it has all that was there when the backup began"


def test_a_space_whose_deletion_has_begun_is_left_out(world: World, tmp_path: Path) -> None:
    doomed = world.open(1_000.0)
    end_log(next(inner(doomed).unread_partitions("b")))  # the process that deletes it was killed
    assert world.restored() == {"a": [b"before"], "b": [], "c": [b"before"]}


def test_a_space_that_is_made_again_while_its_end_is_asked_for_is_no_damage(world: World) -> None:
    def meanwhile(asked: int) -> None:
        if asked == 2:  # the end of "b" is known
            world.store.delete_space("b")
            world.open(990.0).produce("b", "s", [Record(b"again")])

    world.meanwhile = meanwhile  # type: ignore[method-assign]
    assert world.restored() == {"a": [b"before"], "b": [b"again"], "c": [b"before"]}


def test_the_tail_of_a_partition_is_read_once_for_a_point(tmp_path: Path) -> None:
    url, id = f"memory://{uuid4().hex}?remote=1", uuid4()
    with streamkit.connect(url) as client, client.store(id) as store:
        for at in range(80):
            store.produce(f"s{at % 4}", "s", [Record(b"x")])
        with streamkit.connect(url) as other, other.store(id) as reader:
            before = dict(inner(reader).backend.requests)
            assert reader.backup(tmp_path / "backups").point.transactions == 80
            after = inner(reader).backend.requests
    asked = {kind: after[kind] - before.get(kind, 0) for kind in ("get", "read", "scan")}
    assert asked["read"] <= 4 * 30, "one batch for each partition"
    assert asked["get"] + asked["scan"] <= 4 * 10 + 3
