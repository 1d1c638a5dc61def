"""A space that has lost its head is damaged. It does not read as an empty space."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import urandom
from pathlib import Path
from uuid import UUID, uuid4

import pytest

import streamkit
from harness.archived_world import SPACE, World
from streamkit import Client, CorruptData, Record, Store
from streamkit.log.keys import CATALOG, HEAD, partition_key, space_key
from streamkit.names import partition_of
from streamkit.store import inner
from streamkit.testing import ManualClock
from streamkit_memory import MemoryDriver

ID = UUID(int=9)

READS: dict[str, Callable[[Store], object]] = {
    "consume_space": lambda store: list(store.consume_space("a")),
    "consume_segment": lambda store: list(store.consume_segment("a", "s")),
    "follow_space": lambda store: list(store.follow_space("a", timeout=0)),
    "peek": lambda store: store.peek("a", "s"),
    "segment_status": lambda store: store.segment_status("a", "s"),
    "get_segments": lambda store: list(store.get_segments("a")),
    "end_offset": lambda store: store.end_offset("a"),
    "lookup": lambda store: store.lookup("a", "key"),
    "size": lambda store: store.size("a"),
    "space_settings": lambda store: store.space_settings("a"),
    "maintain": lambda store: store.maintain("a"),
    "trim": lambda store: store.trim("a", keep_entries=1),
    "group": lambda store: store.group("a", "g"),
    "find_group": lambda store: store.find_group("a", "g0"),
}


@pytest.fixture(
    params=[
        pytest.param("memory", marks=pytest.mark.exhaustive_only("memory")),
        "remote",
        "local",
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("azure", marks=pytest.mark.azure),
    ]
)
def url(request: pytest.FixtureRequest, make_url: Callable[[str], str]) -> str:
    """The URL of an empty root of each kind."""
    if request.param in ("memory", "remote", "local"):
        return make_url(request.param)
    server = request.getfixturevalue("s3_bucket" if request.param == "s3" else "azurite")
    return server.url(f"lost{uuid4().hex[:8]}")  # type: ignore[no-any-return]


def lose_head(store: Store, space: str = "a") -> None:
    inner(store).backend.delete(bytes(partition_key(space, 0)), [bytes(HEAD)])


def test_every_read_names_the_repair_which_brings_the_space_back(url: str) -> None:
    with streamkit.connect(url) as client, client.store(ID) as store:
        for at in range(5):
            store.produce("a", "s", [Record(b"%d" % at)])
        store.group("a", "g0")
        before = list(store.consume_space("a"))
        lose_head(store)
    for call in READS.values():
        with (
            streamkit.connect(url) as client,
            client.store(ID) as store,
            pytest.raises(CorruptData, match="space 'a' has lost its head: `streamkit repair a`"),
        ):
            call(store)
    with streamkit.connect(url) as client, client.store(ID) as store:
        assert store.size().damaged == ("a",)
        assert not store.verify().ok
        assert store.repair("a") > 0
        assert list(store.consume_space("a")) == before
        assert store.verify().ok


def test_a_head_is_missed_also_where_the_log_has_no_transaction_any_more(tmp_path: Path) -> None:
    world = World("remote", tmp_path)
    store = world.process().store(world.id)
    for at in range(200):
        store.produce(SPACE, f"s{at % 3}", [Record(b"%d" % at)])
    store.trim(SPACE, keep_entries=50)
    for _ in range(3):
        store.maintain()
        world.clock.sleep(7200)
    partition = bytes(partition_key(SPACE, 0))
    backend = inner(store).backend
    backend.delete(partition, [row.key for row in backend.scan(partition, b"TXN", b"TXO")])
    lose_head(store, SPACE)
    with pytest.raises(CorruptData, match="repair"):
        list(world.process().store(world.id).consume_space(SPACE))


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with streamkit.connect(url) as client, client.store(ID) as found:
        yield found


def is_empty(store: Store) -> bool:
    return list(store.consume_space("a")) == [] and store.segment_status("a", "s").last_sequence == 0


def test_a_space_that_was_never_made_or_was_deleted_is_empty(store: Store, url: str) -> None:
    assert is_empty(store)
    for _ in range(2):
        with streamkit.connect(url) as client:
            assert client.store(ID).produce("a", "s", [Record(b"x")]).last_sequence == 1
            client.store(ID).delete_space("a")
            assert is_empty(client.store(ID))
        with streamkit.connect(url) as client:
            assert is_empty(client.store(ID))


def test_a_space_whose_creation_was_stopped_is_empty_and_the_next_write_makes_it(store: Store, url: str) -> None:
    store.create_space("a")
    lose_head(store)
    with streamkit.connect(url) as client:
        assert is_empty(client.store(ID))
        assert client.store(ID).produce("a", "s", [Record(b"x")]).last_sequence == 1
        assert client.store(ID).verify().ok


def test_while_a_store_is_deleted_its_spaces_have_lost_no_head() -> None:
    """On a service, rows go one by one, and the transaction that ends the log stays."""
    url = f"memory://{uuid4().hex}?remote=1"
    with streamkit.connect(url) as client, client.store(ID) as store:
        store.produce("a", "s", [Record(b"x")])
        inner(store).end()
        lose_head(store)
    with streamkit.connect(url) as client:
        assert is_empty(client.store(ID))


def test_a_space_that_is_made_between_two_requests_has_lost_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid4().hex}?remote=1"
    with streamkit.connect(url) as client, streamkit.connect(url) as other:
        store, backend = client.store(ID), inner(client.store(ID)).backend
        get = backend.get
        looks = 0

        def get_late(partition: bytes, keys: list[bytes]) -> object:
            nonlocal looks
            looks += 1
            if (partition, list(keys)) == (bytes(CATALOG), [bytes(space_key("a"))]) and looks == 2:
                other.store(ID).produce("a", "s", [Record(b"x")])
            return get(partition, keys)

        monkeypatch.setattr(backend, "get", get_late)
        assert list(store.consume_space("a")) == []
        assert store.peek("a", "s").payload == b"x"


def test_a_read_of_a_space_costs_no_look_at_the_list_of_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid4().hex}?remote=1"
    with streamkit.connect(url) as client:
        client.store(ID).produce("a", "s", [Record(b"x")])
    asked: list[bytes] = []
    with streamkit.connect(url) as client, client.store(ID) as store:
        backend = inner(store).backend
        get = backend.get

        def counted(partition: bytes, keys: list[bytes]) -> object:
            asked.append(partition)
            return get(partition, keys)

        monkeypatch.setattr(backend, "get", counted)
        assert len(list(store.consume_space("a"))) == 1
        assert asked
        assert bytes(CATALOG) not in asked
        store.produce("new", "s", [Record(b"x")])
        assert bytes(CATALOG) not in asked
        for _ in range(3):
            assert list(store.consume_space("other")) == []
        assert asked.count(bytes(CATALOG)) == 1


def test_a_process_that_waits_for_a_space_learns_in_ten_minutes_that_its_head_is_lost() -> None:
    name, clock = uuid4().hex, ManualClock()

    def connect() -> Client:
        driver = MemoryDriver(name, remote=True, clock=clock)
        return Client("memory://", driver, 30.0, None, 64 << 20, clock, None)

    with connect() as client, connect() as other:
        store = client.store(ID)
        assert list(store.consume_space("a")) == []
        other.store(ID).produce("a", "s", [Record(b"x")])
        lose_head(other.store(ID))
        clock.sleep(601)
        with pytest.raises(CorruptData, match="has lost its head"):
            list(store.consume_space("a"))
        with pytest.raises(CorruptData, match="has lost its head"):
            list(store.consume_space("a"))


def lose_second_head(world: World) -> None:
    """Fill a space, clear the log of its second partition, and lose that partition's head."""
    store = world.process().store(world.id)
    store.create_space("p", partitions=2)
    for at in range(200):
        store.produce("p", f"s{at % 3}", [Record(b"%d" % at)])
    for _ in range(3):
        store.maintain()
        world.clock.sleep(7200)
    backend, partition = inner(store).backend, bytes(partition_key("p", 1))
    assert next(backend.scan(partition, b"TXN", b"TXO"), None) is None
    backend.delete(partition, [bytes(HEAD)])


@pytest.mark.parametrize("call", ["consume_space", "consume_segment", "peek", "end_offset", "produce"])
def test_the_head_of_a_later_partition_is_missed_by_a_reader_and_a_writer(tmp_path: Path, call: str) -> None:
    world = World("remote", tmp_path)
    lose_second_head(world)
    store = world.process().store(world.id)
    segment = next(f"s{at}" for at in range(3) if partition_of(f"s{at}", 2) == 1)
    calls: dict[str, Callable[[], object]] = {
        "consume_space": lambda: list(store.consume_space("p")),
        "consume_segment": lambda: list(store.consume_segment("p", segment)),
        "peek": lambda: store.peek("p", segment),
        "end_offset": lambda: store.end_offset("p"),
        "produce": lambda: store.produce("p", segment, [Record(b"x")]),
    }
    for _ in range(2):
        with pytest.raises(CorruptData, match="space 'p', partition 1 has lost its head: `streamkit repair p`"):
            calls[call]()
    store.repair("p")
    with world.process() as client:
        assert len(list(client.store(world.id).consume_space("p"))) == 200


def test_a_process_that_knows_a_later_partition_as_empty_misses_its_head_in_ten_minutes(tmp_path: Path) -> None:
    world = World("remote", tmp_path)
    store = world.process().store(world.id)
    store.create_space("p", partitions=2)
    assert list(store.consume_space("p")) == []
    lose_second_head(world)
    with pytest.raises(CorruptData, match="partition 1 has lost its head"):
        list(store.consume_space("p"))


def test_a_partition_that_another_process_begins_between_two_requests_has_lost_no_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World("remote", tmp_path)
    store, other = world.process().store(world.id), world.process().store(world.id)
    store.create_space("p", partitions=2)
    backend = inner(store).backend
    scan = backend.scan
    begun = False

    def scan_late(partition: bytes, start: bytes, *rest: object, **options: object) -> object:
        nonlocal begun
        if partition == bytes(partition_key("p", 1)) and start.startswith(b"RUN") and not begun:
            begun = True
            for at in range(300):
                other.produce("p", f"s{at % 3}", [Record(urandom(500))])
            other.maintain()
            backend.delete(partition, [bytes(HEAD)])  # its upkeep is about to put it again
            assert any(scan(partition, b"RUN", b"RUO"))
        return scan(partition, start, *rest, **options)

    monkeypatch.setattr(backend, "scan", scan_late)
    list(store.consume_space("p"))
    assert begun
    assert len(list(store.consume_space("p"))) == 300
