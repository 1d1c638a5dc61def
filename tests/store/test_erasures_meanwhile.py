"""An erasure by another process at any moment of a read, an archive run, a backup, a publish or an upkeep."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE

from harness.deep_search import files_below, found_in, rows_in_memory
from streamkit import Record, Store
from streamkit.archive.files import TableFiles
from streamkit.archive_url import archive_place
from streamkit.backend import Backend
from streamkit.client import Client
from streamkit.errors import EntriesRemoved, LeaseLost, LeaseNotAcquired
from streamkit.testing import ManualClock
from streamkit.views import Index
from streamkit_memory import MemoryDriver

pytest.importorskip("deltalake")

SPACE = "a"
SECRET = Random(7).randbytes(24).hex().encode()
CALLS = {"get", "read", "scan", "put", "delete", "acquire", "renew", "release"}
YEAR = 365 * 86_400.0


class _Watched:
    """A backend that says before each call that it is made."""

    def __init__(self, inner: Backend, before: Callable[[], None]) -> None:
        self._inner, self._before = inner, before

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in CALLS:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._before()
            return found(*args, **kwargs)

        return call


class World:
    """A root in memory, an archive on disk, and processes."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind, self.path, self.name, self.id = kind, path, uuid4().hex, uuid4()
        self.clock = ManualClock(1_800_000_000.0)
        self.places = archive_place((path / "archive").as_uri())

    def process(
        self, before: Callable[[], None] = lambda: None, id: UUID | None = None, clock: ManualClock | None = None
    ) -> Store:
        driver = MemoryDriver(self.name, remote=self.kind == "remote", clock=self.clock, sleep=self.clock.sleep)
        opened = driver.open
        driver.open = lambda store: _Watched(opened(store), before)  # type: ignore[method-assign, assignment, return-value]
        client = Client(f"memory://{self.name}", driver, 30.0, None, 64 << 20, clock or self.clock, self.places)
        return client.store(id or self.id)

    def fill(self) -> None:
        store = self.process()
        store.create_space(SPACE, archive_grace=60.0)
        for at in range(3):
            self.write(store, at)
            if at < 2:
                store.archive(SPACE)
                self.clock.sleep(120)
                store.maintain()
        self.clock.sleep(1)  # a backup leaves out entries of its own moment

    def write(self, store: Store, turn: int) -> None:
        for at in range(3):
            with store.transaction(SPACE) as trx:
                trx.produce("user-17", [Record(SECRET + b" %d %d" % (turn, at), {"subject": "17"})])
                trx.produce("other", [Record(b"stays %d %d" % (turn, at))] * 2)

    def stored(self) -> list[str]:
        found = [*files_below(self.path / "archive", self.path / "views"), *rows_in_memory(f"memory://{self.name}")]
        return found_in(iter(found), SECRET)


def payloads(store: Store) -> list[bytes]:
    return [entry.payload for entry in store.consume_space(SPACE, gaps="skip")]


def read(world: World, store: Store) -> None:
    with suppress(EntriesRemoved):
        list(store.consume_space(SPACE))


def read_segment(world: World, store: Store) -> None:
    list(store.consume_segment(SPACE, "user-17"))
    store.peek(SPACE, "user-17")


def archive(world: World, store: Store) -> None:
    with suppress(LeaseNotAcquired, LeaseLost):
        store.archive(SPACE)


def publish(world: World, store: Store) -> None:
    view = Index(lambda entry: entry.payload.decode())
    with store.view("index", view, [SPACE], world.path / "views" / "index") as opened:
        opened.catch_up()
        opened.publish()
        opened.catch_up()


def erase_other(world: World, store: Store) -> None:
    with suppress(LeaseNotAcquired):
        store.erase(SPACE, metadata={"subject": "17"})


def backup(world: World, store: Store) -> None:
    store.backup(world.path / "backups")


def trim(world: World, store: Store) -> None:
    store.trim(SPACE, "user-17", before=3)
    store.maintain()


USES: dict[str, Callable[[World, Store], None]] = {
    "a read": read,
    "a read of the segment": read_segment,
    "an archive run": archive,
    "a compaction": lambda world, store: store.compact(SPACE) and None,
    "an upkeep": lambda world, store: store.maintain(),
    "a publish": publish,
    "another erasure": erase_other,
    "a backup": backup,
    "a trim": trim,
    "a deletion of the segment": lambda world, store: store.delete_segment(SPACE, "user-17"),
}


class Moment:
    """Runs something before the nth call of a process: to its backend, or for a file of the archive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.at, self.action = 0, -1, lambda: None
        self._counting = False
        for name in ("open_parquet", "log_of", "write"):
            call = getattr(TableFiles, name)
            monkeypatch.setattr(TableFiles, name, lambda *args, call=call, **of: (self.pass_(), call(*args, **of))[1])

    def pass_(self) -> None:
        if not self._counting:
            return
        self.count += 1
        if self.count == self.at + 1:
            self._counting = False
            self.action()
            self._counting = True

    def run(self, use: Callable[[], None], at: int = -1, action: Callable[[], None] = lambda: None) -> int:
        """Count the calls of `use`."""
        self.count, self.at, self.action, self._counting = 0, at, action, True
        try:
            use()
        finally:
            self._counting = False
        return self.count


@pytest.mark.exhaustive_only("memory")
@pytest.mark.parametrize("kind", ["memory", "remote"])
@pytest.mark.parametrize("use", USES)
def test_nothing_comes_back_wherever_another_process_erases(
    tmp_path: Path, use: str, kind: str, monkeypatch: pytest.MonkeyPatch, covered: Callable[[str, int], None]
) -> None:
    monkeypatch.setattr("streamkit.removing.erase._WAIT", 0.0)
    monkeypatch.setattr("streamkit.backup.restore.wait_for_tokens", lambda clock, point: None)
    moment = Moment(monkeypatch)

    def fresh(name: str) -> World:
        world = World(kind, tmp_path / name)
        world.fill()
        return world

    first = fresh("first")
    calls = moment.run(lambda: USES[use](first, first.process(moment.pass_)))
    chosen = range(0, calls, 1 if EXHAUSTIVE else max(1, calls // 4))
    for at in chosen:
        world, finished = fresh(str(at)), False

        def erase(world: World = world) -> None:
            nonlocal finished
            with suppress(LeaseNotAcquired):
                world.process().erase(SPACE, "user-*")
                finished = True

        store = world.process(moment.pass_)
        moment.run(lambda store=store, world=world: USES[use](world, store), at, erase)  # type: ignore[misc]
        assert not any(SECRET in payload for payload in payloads(store)), f"the process reads it, call {at}"
        others = [payload for payload in payloads(world.process()) if payload.startswith(b"stays")]
        assert len(others) == 18
        assert not any(SECRET in payload for payload in payloads(world.process()))
        world.clock.sleep(120)
        world.process().maintain()
        if not finished:  # an archive run held the space
            world.process().erase(SPACE, "user-*")
        assert world.stored() == []
        assert world.process().verify().findings == ()
        if use == "a backup":
            world.process().backup(world.path / "backups")
            for point in (1, 2):
                restored = World(kind, world.path / f"restored-{point}")
                restored.id = world.id
                restored.process().restore_backup(world.path / "backups", point=point)
                assert payloads(restored.process()) == payloads(world.process())
                assert restored.stored() == []
    assert len(chosen) >= 3
    covered("erasures within calls of other processes", len(chosen))


def write(world: World, store: Store) -> None:
    store.produce(SPACE, "user-17", [Record(b"later", {"subject": "17"})])
    store.produce(SPACE, "other", [Record(b"later")])


def upkeep(world: World, store: Store) -> None:
    with suppress(LeaseNotAcquired, LeaseLost):
        store.maintain()


def write_and_maintain(world: World, store: Store) -> None:
    write(world, store)
    upkeep(world, store)


def fail(world: World, store: Store) -> None:
    """A group and a route that keep the text of a failure."""

    def quote(payload: bytes) -> bool:
        raise ValueError(payload.decode())

    store.group(SPACE, "some", max_deliveries=1).run(lambda delivery: quote(delivery.entry.payload), drain=True)
    store.route("copies", SPACE, "copies", lambda entry: quote(entry.payload)).catch_up()


WITHIN = {
    **{name: use for name, use in USES.items() if name not in ("a backup", "a trim")},
    "a write": write,
    "writes and upkeep": write_and_maintain,
    "an upkeep": upkeep,
    "failures": fail,
}


@pytest.mark.exhaustive_only("memory", "metadata")
@pytest.mark.parametrize("kind", ["memory", "remote"])
@pytest.mark.parametrize("by", ["glob", "metadata"])
@pytest.mark.parametrize("use", WITHIN)
@pytest.mark.timeout(0 if EXHAUSTIVE else 600)
def test_nothing_is_left_wherever_another_process_acts_within_an_erasure(
    tmp_path: Path, use: str, by: str, kind: str, monkeypatch: pytest.MonkeyPatch, covered: Callable[[str, int], None]
) -> None:
    """It begins after the erasure does and ends before. So nothing is left when the erasure returns, without upkeep."""
    monkeypatch.setattr("streamkit.removing.erase._WAIT", 0.0)
    moment = Moment(monkeypatch)

    def erase(store: Store) -> None:
        for last in (False, True):
            try:
                if by == "glob":
                    store.erase(SPACE, "user-*")
                else:
                    store.erase(SPACE, metadata={"subject": "17"})
            except LeaseNotAcquired:  # one that archives is in the way only while it does
                assert not last
            else:
                return

    def fresh(name: str) -> World:
        world = World(kind, tmp_path / name)
        world.fill()
        return world

    first = fresh("first")
    calls = moment.run(lambda: erase(first.process(moment.pass_)))
    chosen = range(calls) if EXHAUSTIVE else range(calls // 4, calls, calls // 2)
    for at in chosen:
        world = fresh(str(at))
        store = world.process(moment.pass_)
        moment.run(lambda: erase(store), at, lambda: WITHIN[use](world, world.process()))  # noqa: B023
        assert not any(SECRET in payload for payload in payloads(world.process())), f"readable, call {at}"
        with world.process().view(
            "index", Index(lambda entry: entry.payload.decode()), [SPACE], world.path / "views" / "index"
        ) as view:
            view.catch_up()
        assert world.stored() == [], f"call {at} of {calls}"
        others = [payload for payload in payloads(world.process()) if payload.startswith(b"stays")]
        assert len(others) == 18
        assert world.process().verify().findings == ()
    covered("acts of other processes within an erasure", len(chosen))


@pytest.mark.parametrize("kind", ["memory", "remote"])
@pytest.mark.parametrize("ahead", [-YEAR, YEAR])
def test_a_process_with_a_wrong_clock_erases_all_and_nothing_else(tmp_path: Path, kind: str, ahead: float) -> None:
    world = World(kind, tmp_path)
    world.fill()
    other = world.process()
    before = [payload for payload in payloads(other) if payload.startswith(b"stays")]
    wrong = ManualClock(world.clock.now() / 1000 + ahead)
    assert world.process(clock=wrong).erase(SPACE, "user-*").entries == 9
    assert world.stored() == []
    assert payloads(other) == payloads(world.process()) == before
    other.produce(SPACE, "user-17", [Record(b"later")])
    for _ in range(2):
        world.process().archive(SPACE)
        world.clock.sleep(120)
    assert payloads(other) == payloads(world.process()) == [*before, b"later"]
    assert world.process().verify().findings == ()
