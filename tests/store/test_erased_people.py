"""An erasure of a person from a store in which all places hold their data: it is killed at a call, and called again."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE

from harness.deep_search import found_in
from harness.doomed import doomed, killed_at, telling_of_tables
from harness.full_worlds import FullWorld
from harness.worlds import PATIENCE, World, directory, without_leases
from streamkit import Store
from streamkit.client import Client
from streamkit.clock import SYSTEM_CLOCK
from streamkit.testing import CRASHES, FAULTS, Call, Crash, Plan

pytest.importorskip("deltalake")

CHANGES = ("put", "delete", "scrub", "acquire", "renew", "release")


def _made(world: World, archived: bool) -> FullWorld:
    full = FullWorld(world, uuid4())
    with world.client() as client:
        full.fill(client.store(full.id), archived)
    assert len(found_in(full.stored(), full.tag.encode())) > 10
    return full


def _erase_by(full: FullWorld, plan: Plan) -> tuple[Call, ...]:
    """Erase in a process that follows a plan; the calls that it made."""
    world = full.world
    driver = doomed(world.driver(), plan)
    client = Client(world.url, driver, PATIENCE, None, 64 << 20, SYSTEM_CLOCK, world.archive)
    with telling_of_tables(driver), contextlib.suppress(Crash):
        assert full.erase(client.store(full.id)) == ()
    return driver.faults.trace


def _complete(full: FullWorld, *, by_upkeep: bool) -> None:
    """By upkeep if no reader gets any of it, or by the same calls again."""

    def complete(store: Store) -> None:
        if by_upkeep and full.is_said(store):
            store.maintain()
        else:
            full.erase(store)

    with without_leases(), full.world.client() as client:
        store = client.store(full.id)
        complete(store)
        full.check(store)
        client.delete_store(full.id)


@pytest.mark.exhaustive_only("memory", "remote", "s3", "azure")
@pytest.mark.parametrize(
    "archived",
    [pytest.param(False, marks=pytest.mark.exhaustive_only, id="log alone"), pytest.param(True, id="archived")],
)
@pytest.mark.timeout(0 if EXHAUSTIVE else 600)
def test_nothing_of_a_person_is_left_wherever_the_erasure_was_killed(
    world: World, archived: bool, covered: Callable[[str, int], None], request: pytest.FixtureRequest
) -> None:
    full = _made(world, archived)
    trace = _erase_by(full, Plan())
    with world.client() as client:
        full.check(client.store(full.id))
        client.delete_store(full.id)
    every = [(call.number, fault) for call in trace for fault in CRASHES if fault in FAULTS[call.kind]]
    changes = [point for point in every if trace[point[0]].kind in CHANGES]
    step = (29 if world.is_service else 1) if EXHAUSTIVE else len(changes) // 2
    for turn, (number, fault) in enumerate(changes[step // 2 :: step]):
        full = _made(world, archived)
        try:
            _erase_by(full, Plan.at(number, fault))
            _complete(full, by_upkeep=bool(turn % 2))
        except BaseException as error:
            error.add_note(f"killed at call {number} of {len(trace)}, {fault.name}: {trace[number]}")
            raise
    covered(f"kills of a person's erasure, {request.node.callspec.id}", len(changes[step // 2 :: step]))


@pytest.mark.exhaustive_only
@pytest.mark.timeout(0)
def test_nothing_of_a_person_is_left_on_disk_wherever_the_erasure_was_killed_within_a_call(
    scratch: Path, covered: Callable[[str, int], None]
) -> None:
    """The process is killed by SIGKILL before any call of the operating system that changes or syncs a file."""
    work = scratch / "work"
    first = _made(directory(work), False)
    shutil.copytree(work / "root", scratch / "before")
    number, killed = 1, 0
    while True:
        shutil.rmtree(work)
        shutil.copytree(scratch / "before", work / "root")
        full = FullWorld(directory(work), first.id, first.tag, first.kept)

        def erase(full: FullWorld = full) -> None:
            with full.world.client() as client:
                full.erase(client.store(full.id))

        if not killed_at(number, erase):
            break
        try:
            _complete(full, by_upkeep=bool(killed % 2))
        except BaseException as error:
            error.add_note(f"killed before call {number} of the operating system")
            raise
        killed += 1
        number += 1
    assert killed > 3
    covered("kills of a person's erasure, within calls of a local store", killed)
