"""A store whose index or packs are harmed, merged by several, or written where there is no room."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE
from msgspec import structs

import streamkit
from harness.codecs import CODECS, using
from harness.cramped import CLEAR, cramped
from harness.sections import build_section
from streamkit import Client, CorruptData, Record, Store, StreamkitError, Unavailable, UnsupportedVersion
from streamkit.backend import Backend, Driver, Range
from streamkit.index import upkeep
from streamkit.index.run_format import decode_section
from streamkit.index.upkeep import bring_forward
from streamkit.log import policy
from streamkit.log.keys import HEAD, data_range, partition_key, run_key
from streamkit.log.partition import seed_of
from streamkit.log.rows import Head, decode_row, encode_row
from streamkit.testing import ManualClock
from streamkit.testing.fault_plan import Fault, Plan
from streamkit.testing.faults import FaultyDriver
from streamkit.testing.injector import Crash
from streamkit_local.driver import LocalDriver
from streamkit_memory import MemoryDriver

P = bytes(partition_key("sp", 0))


class World:
    """One store, and processes that use it. Time is the test's."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.clock = ManualClock()
        self.id: UUID = uuid4()
        self.driver: Driver
        if kind == "local":
            self.driver = LocalDriver(str(folder), 5.0)
        else:
            self.driver = MemoryDriver(remote=True, clock=self.clock, sleep=self.clock.sleep)
        self.backend: Backend = self.driver.open(self.id)

    def open(self, driver: Driver | None = None) -> Store:
        return Client("memory://", driver or self.driver, 5.0, None, 64 << 20, self.clock).store(self.id)

    def write(self, store: Store, count: int) -> None:
        for _ in range(count):
            last = store.produce("sp", "a", [Record(os.urandom(60))], idempotency_key=uuid4().hex)
            store.produce("sp", f"s{last.last_sequence % 7}", [Record(b"x" * 40)])

    def head(self) -> Head:
        (value,) = self.backend.get(P, [bytes(HEAD)])
        assert value is not None
        return decode_row(Head, HEAD, value.data)

    def put(self, key: bytes, data: bytes) -> None:
        self.backend.put(P, key, data)

    def read(self) -> list[tuple[str, int, int]]:
        return [(entry.segment, entry.sequence, entry.trx.number) for entry in self.open().consume_space("sp")]


@pytest.fixture(params=["remote", "local"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with cramped():
        world = World(request.param, tmp_path / "stores")
        yield world
        world.driver.close()


def look_everywhere(store: Store) -> None:
    for read in (
        lambda: list(store.consume_space("sp")),
        lambda: list(store.consume_segment("sp", "a")),
        lambda: [store.peek("sp", f"s{at}") for at in range(7)],
    ):
        read()


# -- a run that is not as it was written -----------------------------------------------------------------------------


def flipped(world: World, key: bytes, data: bytes) -> None:
    for at in range(9, len(data), 40):
        data = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
    world.put(key, data)


def cut(world: World, key: bytes, data: bytes) -> None:
    world.put(key, data[:-3])


def missing(world: World, key: bytes, data: bytes) -> None:
    world.backend.delete(P, [key])


def of_another_partition(world: World, key: bytes, data: bytes) -> None:
    """Return as many bytes of a run of another space."""
    other = world.open()
    while True:
        for number in range(20):
            other.produce("another", f"s{number % 7}", [Record(os.urandom(50))], idempotency_key=uuid4().hex)
        other.maintain("another")
        partition = bytes(partition_key("another", 0))
        for file in other._shared.spaces["another"].partitions[0].head.manifest.files():
            (value,) = world.backend.get(partition, [run_key(file.id)])
            if value is not None and len(value.data) >= len(data):
                world.put(key, value.data[: len(data)])
                return


def without_rows(world: World, lost: Callable[[bytes], bool]) -> None:
    """Make the newest run that has such rows again without them, as a writer would that forgot them."""
    head, seed = world.head(), seed_of(world.head().settings, P)
    runs = list(head.manifest.runs)
    for at, run in enumerate(runs):
        files = list(run.files)
        for place, file in enumerate(files):
            (section,) = world.backend.read(P, [Range(run_key(file.id), file.start, file.length)])
            assert section is not None
            rows = dict(zip(*decode_section(section, file, seed), strict=True))
            left = {key: row for key, row in rows.items() if not lost(key)}
            if len(left) < len(rows):
                id = os.urandom(16)
                data, files[place] = build_section(id, seed, list(left), list(left.values()))
                world.put(run_key(id), data)
                runs[at] = structs.replace(run, files=tuple(files))
                manifest = structs.replace(head.manifest, runs=tuple(runs))
                changed = structs.replace(head, manifest=manifest, version=head.version + 1)
                world.put(bytes(HEAD), encode_row(bytes(HEAD), changed))
                return
    raise AssertionError("no run has such rows")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("sizes", [[60], [1000] * 20, [100_000]], ids=["small", "several rows", "large"])
def test_a_load_or_a_peek_notices_that_the_newest_run_lacks_the_last_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, sizes: list[int]
) -> None:
    monkeypatch.setattr(policy, "LOCAL", policy.LOCAL._replace(inline=0))
    with using(codec):
        world = World("local", tmp_path / "stores")
        store = world.open()
        for written in ([60], sizes):
            for size in written:
                for number in range(3):
                    store.produce("sp", f"s{number}", [Record(os.urandom(size))])
            bring_forward(store._shared.spaces["sp"].partitions[0])
        assert len(world.head().manifest.runs) == 2
        whole = world.open()
        assert len(list(whole.consume_segment("sp", "s1"))) == whole.peek("sp", "s1").sequence == 1 + len(sizes)
        index = whole._shared.spaces["sp"].partitions[0].index
        last = [key for key, _ in index.scan(*data_range("s1", 1))][-1]
        without_rows(world, lambda key: key == last)
        with pytest.raises(CorruptData, match="'s1'"):
            list(world.open().consume_segment("sp", "s1"))
        with pytest.raises(CorruptData, match="'s1'"):
            world.open().peek("sp", "s1")
        rest = world.open()
        assert len(list(rest.consume_segment("sp", "s2"))) == rest.peek("sp", "s2").sequence == 1 + len(sizes)
        assert rest.verify("sp").findings
        world.driver.close()


@pytest.mark.parametrize("harm", [flipped, cut, missing, of_another_partition])
def test_a_run_that_is_harmed_is_an_error_and_repaired_while_the_log_has_it(
    world: World, harm: Callable[[World, bytes, bytes], None]
) -> None:
    world.write(world.open(), 30)
    whole = world.read()
    head = world.head()
    assert head.cleared == 0, "the log has all of it"
    start, end = data_range("a", 1)
    done = [file for merge in head.manifest.merges for file in merge.files]  # readers take these, and not their inputs
    files = [*done, *(file for run in head.manifest.runs for file in run.files)]
    file = max(
        (file for file in files if file.first_key < end and file.last_key > start),
        key=lambda file: (file in done, file.length),
    )
    key = run_key(file.id)
    (value,) = world.backend.get(P, [key])
    assert value is not None
    harm(world, key, value.data)
    with pytest.raises(CorruptData, match="RUN"):
        look_everywhere(world.open())
    assert any(b"RUN" in finding.key or "RUN" in finding.problem for finding in world.open().verify("sp").findings)
    assert world.open().repair("sp")
    assert world.read() == whole
    assert world.open().verify().ok


def test_a_head_that_lists_a_run_that_never_was_is_an_error_and_repaired(world: World) -> None:
    world.write(world.open(), 30)
    whole, head = world.read(), world.head()
    run = head.manifest.runs[0]
    file = upkeep.replace(run.files[0], id=os.urandom(16))
    runs = (upkeep.replace(run, files=(file, *run.files[1:])), *head.manifest.runs[1:])
    manifest = upkeep.replace(head.manifest, runs=runs)
    world.put(bytes(HEAD), encode_row(HEAD, upkeep.replace(head, manifest=manifest, version=head.version + 1)))
    with pytest.raises(CorruptData, match="repair"):
        look_everywhere(world.open())
    assert not world.open().verify().ok
    assert world.open().repair()
    assert world.read() == whole
    assert world.open().verify().ok


def test_runs_of_a_later_version_are_refused_with_the_fix(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamkit.index import run_format

    with monkeypatch.context() as later:
        later.setattr(run_format, "VERSION", run_format.VERSION + 1)
        world.write(world.open(), 30)
    with pytest.raises(UnsupportedVersion, match="Upgrade streamkit"):
        look_everywhere(world.open())
    before = world.head().manifest.runs
    with suppress(StreamkitError):
        world.open().maintain()
    with pytest.raises(UnsupportedVersion, match="Upgrade streamkit"):
        world.open().repair()
    assert world.head().manifest.runs == before, "nothing of a later release is touched"
    _, there = named_and_there(world)
    assert {run_key(file.id) for run in before for file in run.files} <= there


# -- merging ---------------------------------------------------------------------------------------------------------


def many_runs(world: World) -> Store:
    """A store with runs and packs that are to be merged, and an upkeep that only the test calls."""
    store = world.open()
    store.produce("sp", "a", [Record(b"first")])
    store._shared.spaces["sp"].committers[0].keep_index = lambda: None  # type: ignore[method-assign]
    for _ in range(5):
        world.write(store, 6)
        upkeep.bring_forward(store._shared.spaces["sp"].partitions[0])
    return store


def named_and_there(world: World) -> tuple[set[bytes], set[bytes]]:
    head = world.head()
    named = {run_key(file.id) for file in (*head.manifest.files(), *head.packs)}
    return named, {row.key for row in world.backend.scan(P, b"RUN", b"RUO", values=False)}


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("kind", ["remote", "local"])
def test_a_merge_that_is_killed_at_any_call_is_gone_on_with(kind: str, fault: Fault, tmp_path: Path) -> None:
    call, step = 0, 1 if kind == "remote" or EXHAUSTIVE else 7
    stopped = True
    while stopped:
        with cramped():
            world = World(kind, tmp_path / str(call))
            many_runs(world)
            whole = world.read()
            dying = FaultyDriver(world.driver, Plan.at(call, fault))
            try:
                world.open(dying).maintain()
                stopped = False
            except Crash:
                assert world.read() == whole, f"killed at call {call}"
            world.clock.sleep(2 * CLEAR)
            world.open().maintain()
            assert world.read() == whole, f"killed at call {call}"
            assert world.open().verify().ok
            named, there = named_and_there(world)
            assert there == named, "what was left behind is swept"
            world.driver.close()
        call += step
    assert call > 20


LOST = (Fault.LOST_REQUEST, Fault.LOST_ANSWER)


@pytest.mark.parametrize(
    ("work", "fault"),
    [
        *((work, fault) for work in ("maintain", "delete_space", "delete_store") for fault in LOST),
        *((work, Fault.PARTIAL) for work in ("maintain", "delete_space")),
    ],
)
@pytest.mark.parametrize("kind", ["remote", "local"])
def test_what_is_deleted_without_an_answer_is_deleted_again_or_an_error_says_to(
    kind: str, work: str, fault: Fault, tmp_path: Path
) -> None:
    call, met = 0, True
    while met:
        with cramped():
            world = World(kind, tmp_path / str(call))
            store = many_runs(world)
            store.trim("sp", keep_entries=3)
            kept = world.read()
            world.clock.sleep(2 * CLEAR)
            what = "delete_store" if work == "delete_store" else "delete"
            faulty = FaultyDriver(world.driver, Plan.at(call, fault, kind=what))
            for driver in (faulty, world.driver):
                with suppress(Unavailable):
                    client = Client("memory://", driver, 5.0, None, 64 << 20, world.clock)
                    match work:
                        case "maintain":
                            client.store(world.id).maintain()
                            assert world.read() == kept
                        case "delete_space":
                            client.store(world.id).delete_space("sp")
                            assert list(world.open().get_spaces()) == []
                        case _:
                            client.delete_store(world.id)
            met = any(one.fault for one in faulty.faults.trace)
            world.driver.close()
        call += 1
    assert call > 1


def test_of_two_merges_at_once_one_wins_each_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One upkeep moves the head each time that another one has made a file."""
    many_runs(world)
    whole, other = world.read(), world.open()
    store_file, busy = upkeep.store_file, []

    def meanwhile(*arguments: Any) -> str:
        etag = store_file(*arguments)
        if not busy:
            busy.append(True)
            other.produce("sp", "a", [Record(b"meanwhile")])
            other.maintain()
            busy.clear()
        return etag

    monkeypatch.setattr(upkeep, "store_file", meanwhile)
    world.open().maintain()
    monkeypatch.undo()
    assert world.read()[: len(whole)] == whole
    assert len(world.read()) > len(whole)
    with cramped():
        world.open().maintain()
    named, there = named_and_there(world)
    assert there == named
    assert world.open().verify().ok


@pytest.mark.parametrize("room", [0, 1 << 16, 1 << 18, 1 << 20])
def test_a_disk_that_fills_up_while_merging_loses_nothing(small_disk: Path, room: int) -> None:
    world = World("local", small_disk / "stores")
    store = world.open()
    store.produce("sp", "a", [Record(b"first")])
    for at in range(9):  # runs of 100 KiB; an upkeep merges four of them
        store.produce("sp", f"s{at}", [Record(os.urandom(50)) for _ in range(1000)])
        for number in range(50):
            store.produce("sp", f"s{number}", [Record(os.urandom(2000))])
        upkeep.bring_forward(store._shared.spaces["sp"].partitions[0])
        if at == 2:
            assert len(world.head().manifest.runs) == 3
    whole = world.read()
    ballast = small_disk / "ballast"
    with suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    os.truncate(ballast, ballast.stat().st_size - room)

    def fill() -> None:
        while True:
            for number in range(50):
                store.produce("sp", f"s{number}", [Record(os.urandom(2000))])
                whole.append((f"s{number}", 0, whole[-1][2] + 1))
            world.open().maintain()

    with pytest.raises(Unavailable, match="free some space"):
        fill()
    read = world.read()
    assert [number for *_, number in read] == [number for *_, number in whole]
    ballast.unlink()
    store.produce("sp", "a", [Record(b"there is room")])
    world.open().maintain()
    assert world.read()[:-1] == read
    assert world.open().verify().ok
    named, there = named_and_there(world)
    assert there == named
    world.driver.close()


# -- copies ----------------------------------------------------------------------------------------------------------

_WRITES = """
import sys
sys.path.insert(0, sys.argv[3])
import os, streamkit
from harness.cramped import cramped
with cramped(upkeep_after=16, inline=2000):
    store = streamkit.connect(sys.argv[1]).store(sys.argv[2])
    number, parent = 0, os.getppid()
    while os.getppid() == parent:  # not for longer than the test
        number += 1
        store.produce("sp", f"s{number % 50}", [streamkit.Record(b"%d" % number) for _ in range(3)])
        if number == 100:
            print("ready", flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="cp -a")
def test_a_copy_of_a_store_in_use_is_what_was_committed_at_some_moment(tmp_path: Path) -> None:
    """Unless `cp` says that a file vanished that was merged into another one: then it is to copy again."""
    root, id = tmp_path / "stores", str(uuid4())
    tests = str(Path(__file__).parent.parent)
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITES, f"file://{root}", id, tests], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == "ready\n"
        whole = 0
        for turn in range(40 if EXHAUSTIVE else 4):
            writer.send_signal(signal.SIGCONT)
            with streamkit.connect(f"file://{root}") as client:
                before = client.store(id).end_offset("sp")
            to = tmp_path / f"copy {turn}"
            done = subprocess.run(["cp", "-a", str(root), str(to)], capture_output=True, text=True)
            # a note that it writes for this copy would make the next copy longer
            writer.send_signal(signal.SIGSTOP)
            vanished = [line for line in done.stderr.splitlines() if ".new'" not in line]
            with streamkit.connect(f"file://{to}") as client:
                store = client.store(id)
                sequences: dict[str, int] = {}
                try:
                    for number, entry in enumerate(store.consume_space("sp")):
                        assert entry.trx.number == number // 3 + 1
                        assert entry.sequence == sequences.get(entry.segment, 0) + 1
                        sequences[entry.segment] = entry.sequence
                    assert store.end_offset("sp") >= before
                    assert {name: store.peek("sp", name).sequence for name in sequences} == sequences
                    store.produce("sp", "s1", [Record(b"in the copy")])
                    whole += 1
                except CorruptData:
                    assert vanished, "all that was there has been copied"
            shutil.rmtree(to)
        assert whole
    finally:
        writer.kill()
        writer.communicate()
