"""A process that still has a store open that another one deleted, and maybe made again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from uuid import uuid4

import pytest
from fix_stores import Subject

from streamkit import Client, Record, Retention, Store
from streamkit.errors import CorruptData, StoreClosed, StreamkitError
from streamkit.log.keys import HEAD, partition_key
from streamkit.log.policy import REMOTE
from streamkit.testing import ManualClock
from streamkit_memory.driver import MemoryDriver

pytestmark = [pytest.mark.sampled(8), pytest.mark.exhaustive_only("memory")]

KINDS = ("memory", "remote", "local", "s3", "azure")


@pytest.fixture(params=KINDS)
def deleted(request: pytest.FixtureRequest, make_url: Callable[[str], str]) -> Iterator[Subject]:
    """A store with five transactions, to be deleted by another process than the one of `deleted.store`."""
    match request.param:
        case "s3":
            url = request.getfixturevalue("s3_bucket").url("ghosts")
        case "azure":
            url = request.getfixturevalue("azurite").url("g" + uuid4().hex[:12])
        case kind:
            url = make_url(kind)
    found = Subject(url)
    for number in range(5):
        found.store.produce("space", f"old {number % 2}", [Record(b"old")])
    yield found
    found.close()


def calls(ghost: Store) -> list[Callable[[], object]]:
    return [
        lambda: ghost.produce("space", "old 0", [Record(b"late")]),
        lambda: ghost.produce("space", "new", [Record(b"late")], expected_sequence=0),
        lambda: list(ghost.consume_space("space")),
        lambda: ghost.segment_status("space", "old 0"),
        lambda: list(ghost.follow_space("space", timeout=0)),
    ]


def refuses(ghost: Store) -> None:
    """Nothing is acknowledged into nothing, and nothing that is gone is taken for an empty store."""
    for call in calls(ghost):
        with pytest.raises(StoreClosed, match=r"deleted|replaced"):
            call()


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
def test_who_still_has_a_deleted_store_open_is_told(deleted: Subject, again: bool) -> None:
    deleted.store.create_space("wide", partitions=3)
    deleted.store.produce("wide", "first", [Record(b"old")])
    other = deleted.connect()
    other.delete_store(deleted.id)
    assert deleted.id not in list(other.stores())
    assert list(deleted.stranger().get_spaces()) == []
    assert deleted.id not in list(deleted.connect().stores())
    if again:
        deleted.stranger().produce("space", "s", [Record(b"new")])
        assert deleted.id in list(other.stores())
    refuses(deleted.store)
    for number in range(9):
        with pytest.raises(StoreClosed):
            deleted.store.produce("wide", f"s{number}", [Record(b"late")])
    if again:
        assert [entry.payload for entry in deleted.stranger().consume_space("space")] == [b"new"]
        assert deleted.stranger().verify().findings == ()
    else:
        assert deleted.id not in list(deleted.connect().stores())


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
@pytest.mark.parametrize("what", ["space", "store"])
@pytest.mark.parametrize("first", range(5), ids=["append", "expect", "read", "status", "follow"])
def test_a_handle_that_is_opened_after_another_was_told_begins_anew(
    deleted: Subject, what: str, again: bool, first: int
) -> None:
    """Open the store anew, as the error's message says; the old handles stay open, and their calls go on to raise."""
    other = deleted.connect()
    if what == "space":
        other.store(deleted.id).delete_space("space")
    else:
        other.delete_store(deleted.id)
    if again:
        deleted.stranger().produce("space", "s", [Record(b"new")])
    with pytest.raises(StoreClosed, match=r"deleted|replaced"):
        calls(deleted.store)[first]()
    opened = deleted.client.store(deleted.id)
    assert [entry.payload for entry in opened.consume_space("space")] == [b"new"] * again
    assert opened.produce("space", "s", [Record(b"mine")], expected_sequence=int(again)).last_sequence == again + 1
    refuses(deleted.store)
    deleted.store.close()
    assert deleted.client.store(deleted.id).peek("space", "s").payload == b"mine"
    assert deleted.stranger().verify().findings == ()


@pytest.mark.parametrize("last", ["space", "store"])
def test_who_slept_while_a_space_was_deleted_twice_is_told(deleted: Subject, last: str) -> None:
    """The second deletion leaves the end of the first space's log, too."""
    assert deleted.store.peek("space", "old 0").sequence == 3
    other = deleted.connect().store(deleted.id)
    other.delete_space("space")
    other.produce("space", "old 0", [Record(b"between")])
    if last == "space":
        other.delete_space("space")
    else:
        deleted.connect().delete_store(deleted.id)
    refuses(deleted.store)
    assert list(deleted.stranger().consume_space("space")) == []
    made_again(deleted)


def test_a_handle_that_is_opened_after_the_store_was_deleted_begins_anew(deleted: Subject) -> None:
    """It does so although no call of the older handle has found the deletion yet."""
    if deleted.store._backend.limits.remote:
        pytest.skip("a service does not tell that a store was deleted: the log does, at the next call")
    deleted.connect().delete_store(deleted.id)
    opened = deleted.client.store(deleted.id)
    assert list(opened.get_spaces()) == []
    assert opened.produce("space", "s", [Record(b"new")]).last_sequence == 1
    refuses(deleted.store)


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
@pytest.mark.parametrize("missed", [1, 3, 70])
def test_who_has_not_seen_the_last_transactions_is_told(deleted: Subject, missed: int, again: bool) -> None:
    """A process whose look at the log still counts gets the error. The next number for it is one that was deleted."""
    assert deleted.store.peek("space", "old 0").sequence == 3
    other = deleted.stranger()
    for number in range(missed):
        other.produce("space", f"unseen {number % 3}", [Record(b"old")])
    if missed > 3:
        other.maintain()
    for ending in range(2):
        if ending:  # the first one got no further than the end of the logs
            deleted.connect().delete_store(deleted.id)
        else:
            half = deleted.connect()._open(deleted.id)
            half.end()
            half.close()
    if again:
        deleted.stranger().produce("space", "s", [Record(b"new")])
    refuses(deleted.store)
    if again:
        assert [entry.payload for entry in deleted.stranger().consume_space("space")] == [b"new"]
    else:
        assert deleted.id not in list(deleted.connect().stores())


def test_what_everybody_has_seen_leaves_nothing() -> None:
    """Few rows remain of a deleted store, in memory that behaves as a service with an injected clock."""
    clock = ManualClock()
    driver = MemoryDriver(uuid4().hex, remote=True, clock=clock)
    client = Client("memory://", driver, 30.0, None, 1 << 20, clock)
    store = client.store(uuid4())
    for number in range(300):
        store.produce("space", f"s{number % 7}", [Record(b"old")])
        clock.sleep(1)
    clock.sleep(3600)
    store.maintain()
    store.produce("space", "s0", [Record(b"old")])
    client.delete_store(store.id)
    assert store.id not in list(client.stores())
    left = list(driver.open(store.id).scan(bytes(partition_key("space", 0)), b"", b"\xff"))
    assert 2 <= len(left) <= 2 * REMOTE.upkeep
    assert sum(len(row.data) for row in left) < 200 * len(left)


def test_a_store_is_deleted_twice(deleted: Subject) -> None:
    """A second deletion completes a first one, also if that stopped at the end of the logs."""
    ending = deleted.connect()._open(deleted.id)
    ending.end()
    ending.close()
    limits = deleted.store._backend.limits
    if limits.remote:
        refuses(deleted.store)
    for _ in range(2):
        deleted.connect().delete_store(deleted.id)
    assert deleted.id not in list(deleted.connect().stores())
    made_again(deleted)


@pytest.mark.parametrize("behind", [False, True], ids=["up to date", "behind"])
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_deleted_space_is_told_from_a_lost_head(deleted: Subject, partitions: int, behind: bool) -> None:
    """The end of the log proves the deletion. A head that is missing without it is damage."""
    for space in ("gone", "damaged"):
        deleted.store.create_space(space, partitions=partitions)
        deleted.store.produce(space, "s", [Record(b"old")])
    readers = [deleted.stranger() for _ in range(3)]
    for reader in readers:
        assert [len(list(reader.consume_space(space))) for space in ("gone", "damaged")] == [1, 1]
    if behind:
        for space in ("gone", "damaged"):
            for _ in range(3):
                deleted.store.produce(space, "s", [Record(b"unseen")])
        deleted.store.maintain()
    deleted.connect().store(deleted.id).delete_space("gone")
    backend = deleted.store._backend
    for partition in range(partitions):
        backend.delete(bytes(partition_key("damaged", partition)), [bytes(HEAD)])
    changes = [
        lambda store, space: store.set_retention(space, Retention(max_entries=9)),
        lambda store, space: store.maintain(space),
        lambda store, space: store.erase(space, "*"),
    ]
    for reader, change in zip(readers, changes, strict=True):
        with pytest.raises(StoreClosed, match="the space, or its store, was deleted; open the store again"):
            change(reader, "gone")
    with pytest.raises(CorruptData, match="its head is gone"):
        readers[1].maintain("damaged")


def test_a_damaged_store_can_be_deleted(deleted: Subject) -> None:
    backend = deleted.store._backend
    backend.put(bytes(partition_key("space", 0)), bytes(HEAD), b"no head")
    deleted.connect().delete_store(deleted.id)
    assert deleted.id not in list(deleted.connect().stores())
    made_again(deleted)


def haunt(ghost: Store, *, upkeep: bool = False) -> None:
    """The work of a process that does not know of the deletion. It may raise StoreDeleted, and must do no harm."""
    for segment in ("old 0", "s"):
        with suppress(StreamkitError):
            ghost.produce("space", segment, [Record(b"from a ghost")])
    if upkeep:
        with suppress(StreamkitError):
            ghost.maintain("space")


def test_a_ghost_does_no_harm_to_a_partition_that_nobody_had_written_to(deleted: Subject) -> None:
    """The partition has no head that names its incarnation."""
    deleted.store.create_space("wide", partitions=4)
    deleted.store.produce("wide", "first", [Record(b"old")])
    deleted.connect().delete_store(deleted.id)
    store = deleted.stranger()
    store.create_space("wide", partitions=4)
    for number in range(16):
        with suppress(StreamkitError):
            deleted.store.produce("wide", f"s{number}", [Record(b"from a ghost")])
    with suppress(StreamkitError):
        deleted.store.maintain("wide")
    for number in range(16):
        assert store.produce("wide", f"s{number}", [Record(b"new")]).last_sequence == 1
    store.maintain()
    for reader in (store, deleted.stranger()):
        assert {entry.payload for entry in reader.consume_space("wide")} == {b"new"}
        assert reader.verify().findings == ()


def made_again(subject: Subject, each: Callable[[int], None] = lambda number: None) -> None:
    """Check that the store, made again in another process, holds only the entries that were written since."""
    store = subject.stranger()
    for number in range(12):
        assert store.produce("space", "s", [Record(b"%d" % number)]).last_sequence == number + 1
        each(number)
    for reader in (store, subject.stranger()):
        assert [entry.payload for entry in reader.consume_space("space")] == [b"%d" % number for number in range(12)]
        assert reader.verify().findings == ()
    store.maintain()
    assert [entry.sequence for entry in subject.stranger().consume_segment("space", "s")] == list(range(1, 13))
    assert subject.stranger().verify().findings == ()


@pytest.mark.parametrize("upkeep", [False, True])
def test_a_ghosts_writes_before_the_store_is_made_again_do_it_no_harm(deleted: Subject, upkeep: bool) -> None:
    deleted.connect().delete_store(deleted.id)
    haunt(deleted.store, upkeep=upkeep)
    made_again(deleted)


@pytest.mark.parametrize("upkeep", [False, True])
@pytest.mark.parametrize("after", [0, 2, 7])
def test_a_ghosts_writes_to_the_store_that_was_made_again_do_it_no_harm(
    deleted: Subject, after: int, upkeep: bool
) -> None:
    deleted.connect().delete_store(deleted.id)
    made_again(deleted, lambda number: haunt(deleted.store, upkeep=upkeep) if number == after else None)


def test_several_ghosts_of_several_incarnations_do_no_harm(deleted: Subject) -> None:
    ghosts = [deleted.store]
    for turn in range(4):
        deleted.connect().delete_store(deleted.id)
        for ghost in ghosts:
            haunt(ghost)
        ghosts.append(deleted.stranger())
        for number in range(turn):
            ghosts[-1].produce("space", f"old {number}", [Record(b"older")])
    deleted.connect().delete_store(deleted.id)
    made_again(deleted, lambda number: haunt(ghosts[number % 5], upkeep=number % 2 == 1))
