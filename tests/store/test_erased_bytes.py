"""No stored byte holds payloads or metadata of an erasure: every file, object, entity, blob and column of a Parquet
file is searched, on every backend, with the process killed at every call."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_azurite import Azurite
from fix_covered import EXHAUSTIVE

import streamkit
from harness.deep_search import files_below, found_in
from harness.doomed import doomed, killed_at, telling_of_tables
from harness.worlds import PATIENCE, World, account_of, memory, without_leases
from streamkit import Record, Store
from streamkit.client import Client
from streamkit.clock import SYSTEM_CLOCK
from streamkit.errors import StoreClosed
from streamkit.index import upkeep
from streamkit.testing import CRASHES, FAULTS, Call, Crash, Fault, Plan
from streamkit.views import Index

CHANGES = ("put", "delete", "scrub", "acquire", "renew", "release")


class Secrets:
    """A store with payloads and metadata that nothing else has, of many sizes, among others that stay."""

    def __init__(self, world: World, archived: bool) -> None:
        self.world = world
        self.archived = archived
        self.id: UUID = uuid4()
        self.tag, self.kept = os.urandom(24), os.urandom(24)
        self.turns = 0
        with world.client() as client:
            store = client.store(self.id)
            self._write(store, 2)
            if archived:
                store.archive("a")
                self._write(store, 2)
                store.archive("a")
                store.compact("a")  # leaves older versions of the table, and their files
                view = store.view("v", Index(lambda entry: entry.segment), ["a"], world.path / str(self.id))
                view.publish()
                view.close()
            else:
                store.maintain()
            self._write(store, 2)
        stored = list(world.stored())
        assert found_in(stored, self.tag)
        assert found_in(stored, self.tag.hex().encode())

    def _write(self, store: Store, turns: int) -> None:
        for _ in range(turns):
            body = (os.urandom(10), os.urandom(40_000), b"x" * 9000, os.urandom(90_000))[self.turns % 4]
            self.turns += 1
            with store.transaction("a") as trx:
                note = {"who": "user-1", "note": self.tag.hex()}
                trx.produce("user-1", [Record(self.tag + body, note), Record(b"log in")])
                trx.produce("user-2", [Record(self.kept + body, {"note": self.kept.hex()})])

    def erase(self, store: Store) -> None:
        store.erase("a", metadata={"who": "user-1"})

    def is_said(self, store: Store) -> bool:
        """True if the log says that the entries are erased. Then no reader gets any of them."""
        given = [entry.payload.startswith(self.tag) for entry in store.consume_segment("a", "user-1")]
        assert given in ([False] * self.turns, [True, False] * self.turns), "some of them are given out, and some not"
        return len(given) == self.turns

    def check(self, store: Store) -> None:
        """Nothing of it is there, and all else is."""
        stored = list(self.world.stored())
        for needle in (self.tag, self.tag.hex().encode()):
            assert found_in(stored, needle) == []
        for needle in (self.kept, self.kept.hex().encode()):
            assert found_in(stored, needle), "the search finds nothing at all"
        own = [(entry.sequence, entry.payload) for entry in store.consume_segment("a", "user-1")]
        assert own == [(sequence, b"log in") for sequence in range(2, 2 * self.turns + 1, 2)]
        kept = list(store.consume_segment("a", "user-2"))
        assert len(kept) == self.turns
        assert all(entry.payload.startswith(self.kept) and len(entry.metadata) == 1 for entry in kept)
        report = store.verify("a")
        assert report.ok, report.findings[:3]


def erase_by(secrets: Secrets, plan: Plan) -> tuple[Call, ...]:
    """Erase in a process that follows a plan; the calls that it made."""
    world = secrets.world
    driver = doomed(world.driver(), plan)
    client = Client(world.url, driver, PATIENCE, None, 64 << 20, SYSTEM_CLOCK, world.archive)
    with telling_of_tables(driver), contextlib.suppress(Crash):
        secrets.erase(client.store(secrets.id))
    return driver.faults.trace


def completed(secrets: Secrets) -> bool:
    """The next process has it done, by upkeep if it was begun, and else by erasing. Whether it was begun."""
    with without_leases(), secrets.world.client() as client:
        store = client.store(secrets.id)
        begun = secrets.is_said(store)
        store.maintain()
        if not begun:
            secrets.erase(store)
        secrets.check(store)
        client.delete_store(secrets.id)
    return begun


def points(trace: tuple[Call, ...], world: World) -> list[tuple[int, Fault]]:
    """The places of a kill: at every call, before, amid and after its effect; or some of them.

    All that a killed process leaves is what is stored, so at a look it is as at the change that comes next, and after a
    change as before the next one. Where a call takes long those are left out that are the same.
    """
    every = [(call.number, fault) for call in trace for fault in CRASHES if fault in FAULTS[call.kind]]
    if EXHAUSTIVE and not world.is_service:
        return every
    changes = [(number, fault) for number, fault in every if trace[number].kind in CHANGES]
    if EXHAUSTIVE:
        return [point for point in changes[:-1] if point[1] is not Fault.CRASH_AFTER] + changes[-1:]
    return changes[1 :: max(1, len(changes) // 3)] if not world.is_service else changes[len(changes) // 2 :][:1]


@pytest.mark.exhaustive_only("memory", "azure")  # S3 is the service of every run
@pytest.mark.parametrize("archived", [False, True], ids=["log alone", "archived"])
def test_nothing_of_it_is_left_wherever_the_process_was_killed(
    world: World, archived: bool, covered: Callable[[str, int], None], request: pytest.FixtureRequest
) -> None:
    if archived:
        pytest.importorskip("deltalake")
    elif world.is_service and not EXHAUSTIVE:
        pytest.skip("with an archive more is killed; STREAMKIT_EXHAUSTIVE=1 does both")
    secrets = Secrets(world, archived)
    trace = erase_by(secrets, Plan())
    with world.client() as client:
        secrets.check(client.store(secrets.id))  # no process need complete it
        client.delete_store(secrets.id)
    kinds = {call.what.split()[0] for call in trace}
    assert not archived or "file" in kinds, "the archive's files are not among the calls"
    begun, chosen = [], points(trace, world)
    for number, fault in chosen:
        secrets = Secrets(world, archived)
        try:
            erase_by(secrets, Plan.at(number, fault))
            begun.append(completed(secrets))
        except BaseException as error:
            error.add_note(f"killed at call {number} of {len(trace)}, {fault.name}: {trace[number]}")
            raise
    assert not EXHAUSTIVE or {True, False} == set(begun)
    covered(f"kills of an erasure, {request.node.callspec.id}", len(chosen))


def test_nothing_of_it_is_left_on_disk_wherever_the_process_was_killed_within_a_call(
    scratch: Path, covered: Callable[[str, int], None]
) -> None:
    """The process is killed by SIGKILL before any call of the operating system that changes or syncs a file."""
    root = scratch / "root"
    world = World(root.as_uri(), scratch, lambda: files_below(root))

    def erase(secrets: Secrets) -> None:
        with world.client() as client:
            secrets.erase(client.store(secrets.id))

    number, killed = 1, 0
    while True:
        secrets = Secrets(world, False)
        if not killed_at(number, lambda: erase(secrets)):  # noqa: B023
            break
        killed += 1
        try:
            completed(secrets)
        except BaseException as error:
            error.add_note(f"killed before call {number} of the operating system")
            raise
        number += 1 if EXHAUSTIVE else 17
    assert killed >= 3
    covered("kills of an erasure, within calls of a local store", killed)


@pytest.mark.parametrize(("use", "is_killed"), [("erase", False), ("erase", True), ("delete_space", False)])
def test_an_upkeep_that_was_overtaken_leaves_nothing_on_disk(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, use: str, is_killed: bool
) -> None:
    """It read the entries before the erasure, writes its file after it, and loses. The next upkeep removes the file if
    the process was killed."""
    root, id, tag = scratch / "root", uuid4(), os.urandom(24)
    store_file = upkeep.store_file

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(upkeep, "store_file", store_file)
        with streamkit.connect(root.as_uri()) as client:
            other = client.store(id)
            if use == "erase":
                assert other.erase("a", "user-1").entries == 12
            else:
                other.delete_space("a")
        assert found_in(files_below(root), tag) == []
        etag = store_file(*arguments)
        assert found_in(files_below(root), tag), "the upkeep has not read them"
        if is_killed:
            raise Crash("killed")
        return etag

    with streamkit.connect(root.as_uri()) as client:
        store = client.store(id)
        for turn in range(60):
            store.produce("a", f"user-{turn % 5}", [Record((tag if turn % 5 == 1 else b"kept") + os.urandom(50))])
        monkeypatch.setattr(upkeep, "store_file", overtaken)
        with contextlib.suppress(Crash, StoreClosed):
            store.maintain()
    with streamkit.connect(root.as_uri()) as client:
        store = client.store(id)
        if is_killed:
            store.maintain()
        assert found_in(files_below(root), tag) == []
        assert len(list(store.consume_space("a"))) == (48 if use == "erase" else 0)


def test_a_deleted_space_leaves_nothing_on_disk_wherever_the_process_was_killed_within_a_call(
    scratch: Path, covered: Callable[[str, int], None]
) -> None:
    """Its head holds entries too, after an erasure. The next call completes the deletion."""
    root = scratch / "root"
    number, is_killed = 0, True
    while is_killed:
        tag, id = os.urandom(24), uuid4()
        with streamkit.connect(root.as_uri()) as client:
            store = client.store(id)
            for user in range(4):
                store.produce("a", f"user-{user}", [Record(tag)])
            store.erase("a", "user-1")
            assert found_in(files_below(root), tag)

        def delete(id: UUID = id) -> None:
            with streamkit.connect(root.as_uri()) as client:
                client.store(id).delete_space("a")

        is_killed = number > 0 and killed_at(number, delete)
        delete()
        assert found_in(files_below(root), tag) == [], f"killed before call {number} of the operating system"
        with streamkit.connect(root.as_uri()) as client:
            store = client.store(id)
            assert list(store.get_spaces()) == []
            store.produce("a", "user-1", [Record(b"new")])
            assert [entry.payload for entry in store.consume_space("a")] == [b"new"]
            assert store.verify().ok
            client.delete_store(id)
        is_killed = is_killed or not number
        number += 1 if EXHAUSTIVE else 5
    assert number > 10
    covered("kills of a space's deletion, within calls of a local store", number)


def test_nothing_of_it_is_left_where_the_one_that_completes_it_is_killed_too(
    scratch: Path, covered: Callable[[str, int], None]
) -> None:
    """The process is killed at every call of an upkeep that continues an erasure, which was killed after its commit."""
    world, count = memory(f"memory://{uuid4()}?remote=1", scratch), 0
    first = len(erase_by(Secrets(world, True), Plan()))
    for stopped in range(first // 3, first, 1 + first // (6 if EXHAUSTIVE else 2)):
        number = made = 0
        while number <= made:
            secrets = Secrets(world, True)
            erase_by(secrets, Plan.at(stopped, Fault.CRASH_BEFORE))
            driver = doomed(world.driver(), Plan.at(number, Fault.CRASH_BEFORE))
            client = Client(world.url, driver, PATIENCE, None, 64 << 20, SYSTEM_CLOCK, world.archive)
            with without_leases(), telling_of_tables(driver), contextlib.suppress(Crash):
                client.store(secrets.id).maintain()
            made = len(driver.faults.trace)
            completed(secrets)
            count += 1
            number += 1 if EXHAUSTIVE else 29
    covered("kills of an upkeep that completes an erasure", count)


@pytest.mark.azure
@pytest.mark.parametrize("space", ["a", None])
def test_maintain_removes_a_large_value_on_azure_whose_erasure_was_killed_after_an_hour(
    azurite: Azurite,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    space: str | None,
) -> None:
    """A blob without a row may be that of a writer for an hour. The next upkeep after that removes it."""
    from streamkit_azure.blobs import Blobs

    def killed(*_: object) -> None:
        raise Crash("killed")

    world, id, tag = account_of(azurite, scratch), uuid4(), os.urandom(24)
    with world.client() as client:
        store = client.store(id)
        store.produce("a", "s", [Record(tag + os.urandom(1_500_000)), Record(b"kept")])
        with monkeypatch.context() as patch:
            patch.setattr(Blobs, "discard", killed)
            with pytest.raises(Crash):
                store.erase("a", "s", first=1, last=1)
    with without_leases(), world.client() as client:
        store = client.store(id)
        store.maintain()
        assert "They may hold erased entries. maintain() in an hour, or later, removes them" in caplog.text
        assert len(found_in(world.stored(), tag)) == 1
        monkeypatch.setattr("streamkit_azure.leftovers.WRITING", -60.0)
        store.maintain(space)
        assert found_in(world.stored(), tag) == []
        assert [entry.payload for entry in store.consume_segment("a", "s")] == [b"kept"]


@pytest.mark.azure
def test_the_deletion_of_a_space_removes_the_large_values_of_its_last_transactions_on_azure(
    azurite: Azurite, scratch: Path
) -> None:
    """Empty rows replace the last transactions. The blobs of the replaced rows go too."""
    world, tag = account_of(azurite, scratch), os.urandom(24)
    with world.client() as client:
        store = client.store(uuid4())
        for _ in range(2):
            store.produce("a", "s", [Record(tag + os.urandom(1_500_000))])
        store.delete_space("a")
        assert found_in(world.stored(), tag) == []
        assert store.erase("a", "s").unreached == ()


@pytest.mark.azure
def test_a_large_value_on_azure_that_the_deletion_of_its_space_could_not_remove_is_erased(
    azurite: Azurite, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamkit_azure.blobs import Blobs

    world, id, tag = account_of(azurite, scratch), uuid4(), os.urandom(24)
    with world.client() as client:
        store = client.store(id)
        store.produce("a", "s", [Record(tag + os.urandom(1_500_000))])
        with monkeypatch.context() as patch:
            patch.setattr(Blobs, "discard", lambda *_: None)
            store.delete_space("a")
        assert "removes them" in store.erase("a", "s").unreached[0]
        assert len(found_in(world.stored(), tag)) == 1
        monkeypatch.setattr("streamkit_azure.leftovers.WRITING", -60.0)
        assert store.erase("a", "s").unreached == ()
        assert found_in(world.stored(), tag) == []
