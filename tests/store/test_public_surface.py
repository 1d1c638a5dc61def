"""Every public call x wrong arguments x single faults at the seam: the errors that leave are all ours.

The calls are found by reflection. A public method without arguments in CALLS fails the first test.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from fix_covered import sample

from harness.public_calls import (
    CALLS,
    ENDLESS,
    EVERY,
    EXHAUSTIVE,
    FAULTS,
    HARM,
    OF_ITS_ROOM,
    WRONG,
    World,
    assert_ours,
    public_methods,
    use,
)
from streamkit import Store
from streamkit.client import Client
from streamkit.eventsourcing import Repository
from streamkit.groups import Group, Queue
from streamkit.groups.consumer import Consumer
from streamkit.leases import Lease
from streamkit.members import Members, Membership
from streamkit.routes import Route
from streamkit.testing import FAULTS as POSSIBLE
from streamkit.testing import Call, Fault, Plan
from streamkit.transaction import Transaction
from streamkit.views.open_view import OpenView

pytestmark = pytest.mark.timeout(120)  # a call that never returns is a finding too

CLASSES = (Client, Store, Transaction, Lease, Group, Queue, Consumer, Members, Membership, Route, OpenView, Repository)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_public_method_is_in_the_table(kind: type) -> None:
    table = CALLS[kind.__name__].keys()
    assert public_methods(kind) - OF_ITS_ROOM.get(kind.__name__, set()) <= table, "add what to call it with to CALLS"


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=lambda each: each)
def test_wrong_arguments_raise_errors_of_our_own(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a wrong URL may be the name of a directory
    for place, parameter in enumerate(CALLS[kind][name]):
        wrongs = WRONG[:6] if parameter in ENDLESS else WRONG
        for wrong in wrongs if EXHAUSTIVE else [wrongs[(place + len(name) + step) % len(wrongs)] for step in (0, 2, 5)]:
            world = World(remote=False)
            try:
                subject = world.make(kind, name)
                arguments = world.arguments(kind, name, subject)
                try:
                    use(getattr(subject, name)(**{**arguments, parameter: wrong}))
                except Exception as error:
                    assert_ours(error, f"{kind}.{name}({parameter}={wrong!r})")
            finally:
                world.close()


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=lambda each: each)
def test_a_single_fault_of_the_storage_raises_an_error_of_our_own(kind: str, name: str) -> None:
    calls, at = 1, 0
    while at < calls:
        for fault in (*FAULTS, *HARM) if EXHAUSTIVE else ((*FAULTS, *HARM)[(at + len(name)) % 7],):
            world = World(Plan.at(at, fault))
            try:
                subject = world.make(kind, name)
                use(getattr(subject, name)(**world.arguments(kind, name, subject)))
            except Exception as error:
                assert_ours(error, f"{kind}.{name} with {fault.name} at call {at}")
            finally:
                assert world.faulty is not None
                calls = min(max(calls, len(world.faulty.faults.trace)), 1000 if EXHAUSTIVE else 8)
                world.close()
        at += 1


LOST = (Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.CONFLICT)


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
@pytest.mark.parametrize("name", ["archive", "compact", "delete_segment", "delete_space", "erase"])
def test_a_lost_answer_or_a_false_conflict_at_any_write_of_a_removal_is_an_error_of_our_own(
    name: str, fault: Fault, tmp_path: Path
) -> None:
    worlds = count()

    def call(plan: Plan) -> tuple[Call, ...]:
        world = World(plan, archive=tmp_path / str(next(worlds)))
        assert world.faulty is not None
        begin = len(world.faulty.faults.trace)
        try:
            use(getattr(world.store, name)(**world.arguments("Store", name, world.store)))
        except Exception as error:
            assert_ours(error, f"Store.{name} with {fault.name}: {plan}")
        finally:
            world.close()
        return world.faulty.faults.trace[begin:]

    met = [
        any(done.fault is fault for done in call(Plan.at(written.number, fault)))
        for written in call(Plan())
        if fault in POSSIBLE.get(written.kind, ())
    ]
    assert any(met) or name == "compact", "a compaction writes to the archive alone"


@pytest.mark.parametrize("remote", [True, False], ids=["remote", "local"])
@pytest.mark.parametrize("name", ["delete_space", "erase", "restore_backup"])
def test_where_no_answer_comes_any_more_the_error_is_of_our_own(name: str, remote: bool) -> None:
    def call(plan: Plan) -> tuple[Call, ...]:
        world = World(plan, remote)
        assert world.faulty is not None
        begin = 0
        try:
            subject = world.make("Store", name)
            arguments = world.arguments("Store", name, subject)
            begin = len(world.faulty.faults.trace)
            use(getattr(subject, name)(**arguments))
        except Exception as error:
            assert_ours(error, f"Store.{name}: {plan}")
        finally:
            world.close()
        return world.faulty.faults.trace[begin:]

    writes = [written.number for written in call(Plan()) if Fault.LOST_ANSWER in POSSIBLE.get(written.kind, ())]
    assert writes
    for number in sample(writes, 1 if len(writes) < 12 else 3):
        call(Plan.at(number, Fault.LOST_ANSWER, times=1 << 30))
