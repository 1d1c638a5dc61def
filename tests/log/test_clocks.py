"""No two machines' clocks are compared: wrong, frozen or stopped, they lose nothing and write nothing twice.

A service has one clock, each process another. W is the one that is tried: it knows transaction 1. Others write 2 to 6,
archive them and, after the grace, remove them from the log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from fix_proxy import Fault, Proxy, Request, relabel
from fix_s3 import S3Bucket
from msgspec.structs import replace

import streamkit
from harness.cramped import CLEAR, cramped
from harness.processes import Process, Service
from streamkit import Client, OutcomeUnknown, Record, Store
from streamkit.backend import Ambiguous
from streamkit.index import runs, upkeep
from streamkit.log import segment_view
from streamkit.log.keys import RUNS, partition_key
from streamkit.log.manifest import Merge
from streamkit.log.policy import REMOTE
from streamkit.store import inner
from streamkit.testing import ManualClock

pytest.importorskip("deltalake")

GRACE = 600.0
SPACE = "space"
KINDS = ("memory", "remote")


class World:
    """One store, W's view of it, and the others."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._clients: list[Client] = []
        first = self.other()
        first.create_space(SPACE, archive_grace=GRACE)
        self.clock = ManualClock(1_000.0)
        self.process, self.writer = self.open(self.clock)

    def open(self, clock: ManualClock | None = None) -> tuple[Process, Store]:
        process, client = self.service.process(clock)
        self._clients.append(client)
        return process, client.store(self.service.id)

    def other(self, clock: ManualClock | None = None) -> Store:
        return self.open(clock)[1]

    def others_write(self, last: int = 6) -> None:
        """2 to `last`, archived at once."""
        self.others_append(last)
        self.other(ManualClock(77_000.0)).archive(SPACE)

    def others_append(self, last: int = 6) -> None:
        store = self.other(ManualClock(77_000.0))
        for number in range(2, last + 1):
            store.produce(SPACE, "s", [Record(b"%d" % number)], idempotency_key=f"key {number}")

    def others_remove(self) -> None:
        self.service.clock.sleep(GRACE + 2)
        assert self.other(ManualClock(33_000.0)).archive(SPACE).removed

    def others_archive(self) -> None:
        self.other().archive(SPACE)
        self.others_remove()

    def others(self) -> None:
        self.others_write()
        self.others_remove()

    def read(self) -> list[bytes]:
        store = self.other()
        entries = list(store.consume_segment(SPACE, "s"))
        assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))
        assert [entry.payload for entry in store.consume_space(SPACE)] == [entry.payload for entry in entries]
        assert store.verify().ok
        return [entry.payload for entry in entries]

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(Service(request.param))
    world.writer.produce(SPACE, "s", [Record(b"1")])
    yield world
    world.close()


SIX = [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize("share", [0.1, 0.5, 2.0])
def test_a_grace_that_was_changed_is_waited_for_and_who_has_not_heard_of_it_loses_nothing(
    world: World, share: float
) -> None:
    """W has looked before, and goes on as if the grace was that which the space was created with."""
    world.others_write()
    world.other().change_space(SPACE, archive_grace=share * GRACE)
    world.other().maintain()
    world.service.clock.sleep(share * GRACE - 2)
    assert world.other(ManualClock(33_000.0)).archive(SPACE).removed == 0
    world.service.clock.sleep(4)
    assert world.other(ManualClock(33_000.0)).archive(SPACE).removed == 6
    assert world.writer.produce(SPACE, "s", [Record(b"7")]).last_sequence == 7
    assert world.read() == [*SIX, b"7"]


def test_a_look_counts_for_as_long_as_any_grace_that_may_be_set(world: World) -> None:
    """A process relies on a look for less than the shortest time after which a row may be gone."""
    partition = inner(world.writer).look_up(SPACE)[0].partitions[0]  # type: ignore[union-attr]
    world.other().change_space(SPACE, archive_grace=100 * GRACE)
    for _ in range(2):
        partition.refresh()
        world.service.clock.sleep(GRACE / 10)
        world.writer.peek(SPACE, "s")  # an answer that is dated
        looked = partition.looked
        world.service.clock.sleep(GRACE / 10)
        list(world.writer.get_spaces())
        assert not partition.is_fresh(looked)
        world.other().maintain()
    with pytest.raises(ValueError, match="at least 60 seconds"):
        world.other().change_space(SPACE, archive_grace=GRACE / 10 - 1)


@pytest.mark.parametrize("window", [None, 8_640.0, 864_000.0])
def test_keys_are_forgotten_after_the_window_that_was_set_last(world: World, window: float | None) -> None:
    store = world.other()
    store.produce(SPACE, "s", [Record(b"2")], idempotency_key="once")
    store.change_space(SPACE, idempotency_window=window)
    store.maintain()
    seconds = window or 86_400.0
    partition = inner(store).look_up(SPACE)[0].partitions[0]  # type: ignore[union-attr]
    for sleep, forgotten in ((0.8 * seconds, False), (0.3 * seconds, True)):
        world.service.clock.sleep(sleep)
        store.produce(SPACE, "s", [Record(b"more")])
        store.maintain()
        assert upkeep.forgotten_up_to(partition, partition.head) >= 2 or not forgotten
        assert upkeep.forgotten_up_to(partition, partition.head) < 2 or forgotten


def test_an_archiver_whose_clock_is_ahead_removes_nothing_early(world: World) -> None:
    world.others_write()
    ahead = world.other(ManualClock(77_000.0 + 10 * GRACE))
    assert ahead.archive(SPACE).removed == 0
    status = world.writer.produce(SPACE, "s", [Record(b"7")])
    assert status.last_sequence == 7
    assert world.read() == [*SIX, b"7"]


def test_what_is_archived_is_removed_after_the_grace_of_the_service_alone(world: World) -> None:
    world.others_write()
    behind = ManualClock(1.0)
    world.service.clock.sleep(GRACE - 5)
    assert world.other(behind).archive(SPACE).removed == 0
    world.service.clock.sleep(10)
    assert world.other(behind).archive(SPACE).removed >= 5
    assert world.read() == SIX


@pytest.mark.parametrize("where", ["before_put", "after_put"])
def test_a_process_that_is_stopped_in_a_commit_gets_a_true_answer(world: World, where: str) -> None:
    setattr(world.process, where, world.others)
    status = world.writer.produce(SPACE, "s", [Record(b"mine")])
    read = world.read()
    assert len(read) == 7
    assert read[status.last_sequence - 1] == b"mine"
    assert read.count(b"mine") == 1


@pytest.mark.parametrize("where", ["before_put", "after_put"])
def test_another_threads_look_does_not_vouch_for_a_stopped_commit(world: World, where: str) -> None:
    def others() -> None:
        world.others()
        world.writer.segment_status(SPACE, "s")

    setattr(world.process, where, others)
    status = world.writer.produce(SPACE, "s", [Record(b"mine")])
    read = world.read()
    assert (len(read), read[status.last_sequence - 1]) == (7, b"mine")


def packed_and_cleared(world: World) -> None:
    """2 to 6 are written, packed, and after the grace removed from the log."""
    world.others_append()
    world.other().maintain()
    world.service.clock.sleep(2 * CLEAR)
    world.other().maintain()
    backend = world.service.process()[0].open(world.service.id)
    assert not list(backend.scan(bytes(partition_key(SPACE, 0)), b"TXN", b"TXO", values=False))


@pytest.fixture(params=KINDS)
def tight(request: pytest.FixtureRequest) -> Iterator[World]:
    """A world whose log is cleared soon, without an archive."""
    with cramped():
        world = World(Service(request.param))
        world.writer.produce(SPACE, "s", [Record(b"1")])
        yield world
        world.close()


@pytest.mark.parametrize("where", ["before_put", "after_put"])
def test_a_process_whose_number_is_packed_and_cleared_while_it_is_stopped_gets_a_true_answer(
    tight: World, where: str
) -> None:
    setattr(tight.process, where, lambda: packed_and_cleared(tight))
    status = tight.writer.produce(SPACE, "s", [Record(b"mine")])
    read = tight.read()
    assert len(read) == 7
    assert read[status.last_sequence - 1] == b"mine"
    assert read.count(b"mine") == 1
    assert tight.writer.peek(SPACE, "s") == tight.other().peek(SPACE, "s")


def trimmed_and_removed(world: World) -> None:
    """2 to 6 are written, all but the last is trimmed, and after the grace removed from the log."""
    packed_and_cleared(world)
    world.other().trim(SPACE, keep_entries=1)
    for _ in range(2):
        world.other().maintain()
        world.service.clock.sleep(2 * CLEAR)


def test_what_lands_where_others_were_trimmed_is_not_said_to_be_committed(tight: World) -> None:
    tight.process.before_put = lambda: trimmed_and_removed(tight)
    status = tight.writer.produce(SPACE, "s", [Record(b"mine")])
    assert status.last_sequence == 7
    assert [entry.payload for entry in tight.other().consume_segment(SPACE, "s")] == [b"6", b"mine"]


@pytest.mark.parametrize("answer", ["comes", "lost"])
@pytest.mark.parametrize("where", ["before_put", "after_put"])
@pytest.mark.parametrize("removed", [True, False])
def test_nobody_is_told_that_a_commit_is_there_if_what_was_there_is_trimmed(
    where: str, removed: bool, answer: str
) -> None:
    """The late write was this one, or one that was removed before it landed."""

    def others() -> None:
        if removed:
            trimmed_and_removed(world)
        else:
            world.others_append()
            world.other().trim(SPACE, keep_entries=1)
            world.other().maintain()
            world.service.clock.sleep(2 * CLEAR)
        if answer == "lost":
            raise Ambiguous("the answer was lost")

    with cramped():
        world = World(Service("remote"))
        world.writer.produce(SPACE, "s", [Record(b"1")])
        setattr(world.process, where, others)
        told: OutcomeUnknown | None = None
        try:
            status = world.writer.produce(SPACE, "s", [Record(b"mine")])
        except OutcomeUnknown as error:
            told = error
        if told is not None:
            assert where == "after_put" or answer == "lost"
            for store in (world.writer, world.other()):
                assert store.outcome(told.transaction_id) == "unknown"
        else:
            assert where == "before_put"
            assert [entry.payload for entry in world.other().consume_segment(SPACE, "s")][-1] == b"mine"
            assert status.last_sequence == world.other().segment_status(SPACE, "s").last_sequence
        assert world.other().verify().ok
        world.close()


def test_a_commit_whose_answer_is_lost_and_that_is_packed_and_cleared_counts_once(tight: World) -> None:
    def lose() -> None:
        packed_and_cleared(tight)
        raise Ambiguous("the answer was lost")

    tight.process.after_put = lose
    if tight.process.open(tight.service.id).limits.remote:
        assert tight.writer.produce(SPACE, "s", [Record(b"mine")]).last_sequence == 2
    else:
        # A backend that refuses such a number for ever does not tell whose it was.
        with pytest.raises(OutcomeUnknown) as unknown:
            tight.writer.produce(SPACE, "s", [Record(b"mine")])
        assert tight.writer.outcome(unknown.value.transaction_id) == "committed"
        assert tight.other().outcome(unknown.value.transaction_id) == "committed"
    assert tight.read() == [b"1", b"mine", b"2", b"3", b"4", b"5", b"6"]


def test_a_reader_that_slept_while_its_log_was_packed_and_cleared_misses_nothing(tight: World) -> None:
    entries = tight.writer.consume_space(SPACE)
    segment = tight.writer.consume_segment(SPACE, "s")
    packed_and_cleared(tight)
    assert [entry.payload for entry in entries] == SIX
    assert [entry.payload for entry in segment] == SIX
    assert tight.writer.peek(SPACE, "s").payload == b"6"
    assert tight.writer.produce(SPACE, "s", [Record(b"7")]).last_sequence == 7


@pytest.mark.parametrize("before", ["before_read", "before_scan"])
def test_a_reader_whose_files_are_replaced_under_it_reads_on(tight: World, before: str) -> None:
    def replace() -> None:
        tight.others_append(30)
        packed_and_cleared(tight)

    tight.others_append()
    tight.other().maintain()
    for number in range(3):
        process, store = tight.open(ManualClock(9.0))
        assert store.peek(SPACE, "s").sequence >= 6
        setattr(process, before, replace)
        entries = list(store.consume_segment(SPACE, "s") if number == 1 else store.consume_space(SPACE))
        assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))
        assert len(entries) >= 6
        assert store.verify().ok


def test_maintenance_whose_files_another_one_merges_goes_on(tight: World) -> None:
    for last in range(8, 120, 7):
        tight.others_append(last)
        process, store = tight.open()
        assert store.peek(SPACE, "s").sequence == last
        process.before_read = tight.other().maintain
        store.maintain()
    assert tight.read()


def test_a_pack_that_is_merged_while_it_is_asked_for_is_found_in_the_merged_one(tight: World) -> None:
    process, store = tight.open()
    assert store.peek(SPACE, "s").sequence == 1
    (partition,) = inner(store).spaces[SPACE].partitions
    packed_and_cleared(tight)

    def merge() -> None:
        tight.others_append(60)
        packed_and_cleared(tight)

    process.before_read = merge
    record = partition.record(3)
    assert record is not None
    assert partition.decode_header(record, 3).number == 3


def merge_everything(store: Store) -> None:
    """Merge every run into one."""
    space = store._known(SPACE)
    assert space is not None
    (partition,) = space.partitions
    head, etag = partition.head, partition.head_etag
    manifest = head.manifest
    merge = Merge(manifest.runs[-1].first, manifest.runs[0].last)
    assert upkeep._move(partition, head, etag, replace(head, manifest=replace(manifest, merges=(merge,))), ())
    upkeep._merge_all(partition)


def test_a_reader_whose_files_are_replaced_all_the_time_reads_on(tight: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((segment_view, "_PIECES"), (runs, "_FIRST_AHEAD"), (runs, "_FIRST_AHEAD_REMOTE")):
        monkeypatch.setattr(module, name, 1)
    other = tight.other()
    for number in range(2, 1000):
        other.produce(SPACE, "s", [Record(b"%d" % number + b"x" * 150)])
    sequences = []
    for entry in tight.other().consume_segment(SPACE, "s"):
        sequences.append(entry.sequence)
        if len(sequences) % 20 == 0:
            merge_everything(other)
    assert sequences == list(range(1, 1000))


def test_verifying_while_the_log_is_cleared_finds_nothing(tight: World) -> None:
    tight.others_append()
    process, store = tight.open()

    def clear() -> None:
        tight.others_append(20)
        packed_and_cleared(tight)
        tight.others_append(21)

    process.before_scan = clear  # a walk lists the log wherever it is
    assert store.verify(SPACE).findings == ()


def test_verifying_while_packs_are_merged_and_lost_comes_to_an_end(tight: World) -> None:
    tight.others_append(30)
    packed_and_cleared(tight)
    process, store = tight.open()

    def lose() -> None:
        tight.others_append(60)
        tight.other().maintain()
        backend = tight.service.process()[0].open(tight.service.id)
        key = bytes(partition_key(SPACE, 0))
        backend.delete(key, [row.key for row in backend.scan(key, *RUNS.children(), values=False)])

    process.before_read = lose
    assert not store.verify(SPACE).ok


def before_tail(world: World, process: Process, call: Callable[[], None]) -> None:
    """Call `call` when the process has seen the head, and before it reads the transactions after it, by a list or by a
    guess of their numbers."""
    remote = process.open(world.service.id).limits.remote
    setattr(process, "before_read" if remote else "before_scan", call)


class Stopped:
    """A process that stands still in an upkeep, until it is told to go on."""

    def __init__(self, world: World) -> None:
        self._reached, self._go = threading.Event(), threading.Event()
        process, store = world.open()
        process.after_put = lambda: setattr(process, "before_put", self._stop)
        records = [Record(b"2")]
        self._thread = threading.Thread(target=lambda: store.produce(SPACE, "s", records), daemon=True)
        self._thread.start()
        assert self._reached.wait(20)

    def _stop(self) -> None:
        self._reached.set()
        assert self._go.wait(20)

    def go_on(self) -> None:
        self._go.set()
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("writes", [False, True])
def test_the_grace_of_what_is_packed_begins_when_all_can_know_it(tight: World, writes: bool) -> None:
    """An upkeep is stopped for longer than the grace. A reader that sees the head before the upkeep goes on relies on
    the log."""
    stopped = Stopped(tight)
    tight.service.clock.sleep(2 * CLEAR)
    process, store = tight.open()

    went_on = []

    def go_on() -> None:
        stopped.go_on()
        tight.other().maintain()
        went_on.append(True)

    before_tail(tight, process, go_on)
    if writes:
        assert store.produce(SPACE, "s", [Record(b"3")]).last_sequence == 3
        assert tight.read() == [b"1", b"2", b"3"]
    else:
        assert [entry.payload for entry in store.consume_space(SPACE)] == [b"1", b"2"]
    assert went_on


def test_a_process_that_slept_writes_no_idempotency_key_twice(world: World) -> None:
    world.process.before_put = world.others
    status = world.writer.produce(SPACE, "s", [Record(b"4")], idempotency_key="key 4")
    assert status.last_sequence == 4
    assert world.read() == SIX


def test_an_idempotency_key_is_honoured_by_a_clock_that_is_days_ahead(world: World) -> None:
    world.others_write()
    ahead = world.other(ManualClock(77_000.0 + 30 * 86_400))
    assert ahead.produce(SPACE, "s", [Record(b"3")], idempotency_key="key 3").last_sequence == 3
    assert world.read() == SIX


def test_a_reader_whose_clock_stands_still_reads_what_was_removed_meanwhile(world: World) -> None:
    world.others()
    assert [entry.payload for entry in world.writer.consume_space(SPACE)] == SIX
    assert world.writer.peek(SPACE, "s").payload == b"6"


def test_a_reader_that_slept_reads_what_came_after_what_was_removed(world: World) -> None:
    world.others()
    world.other().produce(SPACE, "s", [Record(b"7")])
    assert [entry.payload for entry in world.writer.consume_space(SPACE)] == [*SIX, b"7"]


def test_a_process_that_is_stopped_before_it_reads_a_large_transaction_misses_nothing(world: World) -> None:
    with world.other().transaction(SPACE) as trx:
        for number in range(60):
            trx.produce(f"s{number}", [Record(b"large")])
    before_tail(world, world.process, world.others_archive)
    assert sum(1 for _ in world.writer.consume_space(SPACE)) == 61


def test_a_process_that_is_stopped_while_it_opens_a_space_misses_nothing(world: World) -> None:
    world.others_append()
    process, store = world.open(ManualClock(9.0))
    before_tail(world, process, world.others_archive)
    assert [entry.payload for entry in store.consume_space(SPACE)] == SIX
    assert store.produce(SPACE, "s", [Record(b"7")]).last_sequence == 7
    assert world.read() == [*SIX, b"7"]


def test_a_process_that_is_stopped_while_it_catches_up_misses_nothing(world: World) -> None:
    world.others_append(30)
    before_tail(world, world.process, world.others_archive)
    assert world.writer.segment_status(SPACE, "s").last_sequence == 30
    assert [entry.sequence for entry in world.writer.consume_space(SPACE)] == list(range(1, 31))


def test_a_service_that_does_not_tell_the_time_removes_nothing_and_loses_nothing() -> None:
    world = World(Service("remote", dated=False))
    world.writer.produce(SPACE, "s", [Record(b"1")])
    world.others_write()
    world.service.clock.sleep(100 * GRACE)
    assert world.other(ManualClock(1e9)).archive(SPACE).removed == 0
    assert world.writer.produce(SPACE, "s", [Record(b"7")]).last_sequence == 7
    assert world.read() == [*SIX, b"7"]
    world.close()


# -- the Date of answers, over the wire --------------------------------------------------------------------------------


class Dated:
    """An S3 whose answers carry the Date of a clock that a test moves; each process has a proxy of its own."""

    def __init__(self, bucket: S3Bucket, make_proxy: Callable[[str, int], Proxy], archive: Path) -> None:
        self.clock = ManualClock(1_900_000_000.0)
        self.id: UUID = uuid4()
        self._bucket = bucket
        self._make_proxy = make_proxy
        self._archive = archive
        self._clients: list[Client] = []

    def process(self, clock: ManualClock, before_put: Callable[[], None] | None = None) -> Store:
        """The store, as a process has it open that is stopped once before a PUT arrives, when it is `armed`."""
        proxy = self._make_proxy(self._bucket.server.host, self._bucket.server.port)
        waiting = [before_put] if before_put else []

        def plan(request: Request) -> Fault:
            if request.method == "PUT" and waiting:
                waiting.pop()()
            return relabel({"Date": formatdate(self.clock(), usegmt=True)})

        proxy.plan = plan
        url = self._bucket.url("clocks", endpoint_url=proxy.endpoint)
        self._clients.append(streamkit.connect(url, clock=clock, archive=self._archive.as_uri()))
        return self._clients[-1].store(self.id)

    def others(self, *, wait: float) -> int:
        store = self.process(ManualClock(77_000.0))
        for number in range(2, 7):
            store.produce(SPACE, "s", [Record(b"%d" % number)])
        store.archive(SPACE)
        self.clock.sleep(wait)
        return self.process(ManualClock(1e9)).archive(SPACE).removed

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def dated(s3_bucket: S3Bucket, make_proxy: Callable[[str, int], Proxy], tmp_path: Path) -> Iterator[Dated]:
    dated = Dated(s3_bucket, make_proxy, tmp_path)
    store = dated.process(ManualClock(5.0))
    store.create_space(SPACE, archive_grace=GRACE)
    store.produce(SPACE, "s", [Record(b"1")])
    yield dated
    dated.close()


def test_on_s3_an_archiver_whose_clock_is_ahead_removes_nothing_early(dated: Dated) -> None:
    writer = dated.process(ManualClock(1_000.0))
    assert writer.peek(SPACE, "s").payload == b"1"
    assert dated.others(wait=GRACE / 2) == 0
    assert writer.produce(SPACE, "s", [Record(b"7")]).last_sequence == 7
    assert [entry.payload for entry in writer.consume_space(SPACE)] == [*SIX, b"7"]


def test_on_s3_a_process_that_is_frozen_before_its_write_arrives_gets_a_true_answer(dated: Dated) -> None:
    def others() -> None:
        assert dated.others(wait=GRACE + 2) == 6

    writer = dated.process(ManualClock(1_000.0), others)
    assert writer.produce(SPACE, "s", [Record(b"7")]).last_sequence == 7
    assert [entry.payload for entry in dated.process(ManualClock(3.0)).consume_space(SPACE)] == [*SIX, b"7"]
    assert writer.verify().ok


def test_on_s3_a_reader_that_was_frozen_misses_nothing(dated: Dated) -> None:
    reader = dated.process(ManualClock(1_000.0))
    assert reader.peek(SPACE, "s").payload == b"1"
    assert dated.others(wait=GRACE + 2) == 6
    assert [entry.payload for entry in reader.consume_space(SPACE)] == SIX


def test_on_s3_a_fresh_process_relies_on_its_first_look(dated: Dated) -> None:
    writer = dated.process(ManualClock(1_000.0))
    writer.produce(SPACE, "s", [Record(b"2")])
    # Head and marker, the transactions that may be there, the write: none to see whether it still counts.
    requests = sum(count for kind, count in writer.statistics().requests.items() if "bytes" not in kind)
    assert requests == 3 + REMOTE.upkeep
