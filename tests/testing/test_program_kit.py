"""The kit for tests of programs: fixtures, faults by name, scenarios, and tables for notebooks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamkit import Client, Entry, Record, Store, Unavailable
from streamkit.eventsourcing import Aggregate, DomainEvent, ProcessManager, Repository, event
from streamkit.testing import Crash, Fault, ManualClock, given, happened
from streamkit.testing.named_faults import NamedFaults

ROOT = Path(__file__).parents[2]


class Account(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self.balance = 0

    @event("paid in")
    def pay_in(self, cents: int) -> None:
        self.balance += cents

    @event("paid out")
    def pay_out(self, cents: int) -> int:
        if cents > self.balance:
            raise ValueError(f"only {self.balance} are there")
        self.balance -= cents
        return self.balance


IN = happened("paid in", cents=5)


# -- fixtures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_store_and_a_clock_of_its_own(
    streamkit_store: Store, streamkit_client: Client, streamkit_clock: ManualClock, turn: int
) -> None:
    assert list(streamkit_store.get_spaces()) == []
    streamkit_store.produce("s", "a", [Record(b"x")])
    assert streamkit_store.peek("s", "a").timestamp == 1_767_225_600_000
    streamkit_clock.sleep(60)
    assert streamkit_store.produce("s", "a", [Record(b"y")]).last_timestamp == 1_767_225_660_000
    assert list(streamkit_client.stores()) == [streamkit_store.id]


@pytest.mark.streamkit(remote=True)
def test_a_store_can_behave_as_a_remote_one(streamkit_store: Store, streamkit_faults: NamedFaults) -> None:
    streamkit_faults.next("crash_after", "put")
    with pytest.raises(Crash):
        streamkit_store.produce("s", "a", [Record(b"x")])
    assert [call.fault for call in streamkit_faults.happened] == [Fault.CRASH_AFTER]


def test_a_fault_meets_the_call_that_it_is_for(streamkit_store: Store, streamkit_faults: NamedFaults) -> None:
    streamkit_store.produce("s", "a", [Record(b"x")])
    streamkit_faults.next("lost_answer", "put")
    assert streamkit_store.produce("s", "a", [Record(b"y")]).last_sequence == 2
    assert [call.kind for call in streamkit_faults.happened] == ["put"]
    streamkit_faults.next(Fault.UNAVAILABLE, "put", times=100_000)
    with pytest.raises(Unavailable):
        streamkit_store.produce("s", "a", [Record(b"z")])
    with pytest.raises(ValueError, match="there is no fault 'lost'"):
        streamkit_faults.next("lost")
    with pytest.raises(ValueError, match="cannot happen to get"):
        streamkit_faults.next("conflict", "get")


# -- aggregates -----------------------------------------------------------------------------------------------------


def test_a_scenario_of_an_aggregate_tells_what_happened() -> None:
    outcome = given(Account, IN, IN).when(lambda account: account.pay_out(7))
    outcome.then(happened("paid out", cents=7)).then_state(balance=3)
    assert outcome.result == 3
    given(Account, IN).when(lambda account: account.balance).then()
    given(Account).when(lambda account: account.pay_out(1)).then_raises(ValueError, "only 0")


def test_a_scenario_fails_for_what_did_not_happen() -> None:
    paid = given(Account, IN).when(lambda account: account.pay_out(1))
    with pytest.raises(
        AssertionError, match=r"expected:\n    paid out\(cents=2\)\n  happened:\n    paid out\(cents=1\)"
    ):
        paid.then(happened("paid out", cents=2))
    with pytest.raises(AssertionError, match="nothing"):
        paid.then()
    with pytest.raises(AssertionError, match="raised nothing"):
        paid.then_raises(ValueError)
    with pytest.raises(AssertionError, match="expected the state"):
        paid.then_state(balance=5)
    refused = given(Account).when(lambda account: account.pay_out(1))
    with pytest.raises(AssertionError, match="the command raised ValueError"):
        refused.then()
    with pytest.raises(AssertionError, match="expected TypeError"):
        refused.then_raises(TypeError)
    with pytest.raises(AssertionError, match="not in the text"):
        refused.then_raises(ValueError, "other")


def test_events_that_an_aggregate_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="no event 'paid'; there are 'paid in', 'paid out'"):
        given(Account, happened("paid", cents=1)).when(lambda account: None)
    with pytest.raises(ValueError, match="does not take euros"):
        given(Account, happened("paid in", euros=1)).when(lambda account: None)
    with pytest.raises(TypeError, match="subclass of Aggregate"):
        given(str)  # type: ignore[type-var]


# -- process managers -----------------------------------------------------------------------------------------------


def test_a_scenario_of_a_manager_delivers_twice(streamkit_store: Store) -> None:
    accounts, bonus = (Repository(streamkit_store, space, Account) for space in ("accounts", "bonus"))

    def once(paid: DomainEvent) -> None:
        paid.execute(bonus, paid.id, lambda account: account.pay_in(1))

    manager = ProcessManager("bonus", accounts, {"paid in": once})
    outcome = given(manager).before("a", IN).when("a", IN, happened("paid out", cents=1))
    outcome.then(bonus, "a", IN.__class__("paid in", {"cents": 1})).then(bonus, "b")
    with pytest.raises(AssertionError, match="nothing"):
        outcome.then(bonus, "a")

    def again(paid: DomainEvent) -> None:
        bonus.execute("c", lambda account: account.pay_in(1))

    careless = ProcessManager("careless", accounts, {"paid in": again})
    with pytest.raises(AssertionError, match="other events"):
        given(careless).when("c", IN).then(bonus, "c", happened("paid in", cents=1))


def test_a_reaction_that_fails_fails_the_scenario(streamkit_store: Store) -> None:
    accounts = Repository(streamkit_store, "accounts", Account)

    def fail(paid: DomainEvent) -> None:
        raise ValueError("no")

    manager = ProcessManager("fails", accounts, {"paid in": fail}, max_deliveries=1)
    with pytest.raises(AssertionError, match="a reaction has failed"):
        given(manager).when("a", IN).then(accounts, "a", IN)


# -- the page -------------------------------------------------------------------------------------------------------


def test_the_page_has_a_program_of_fifty_lines_and_tests_of_twenty_that_pass(tmp_path: Path) -> None:
    program, tests = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "testing.md").read_text(), re.M | re.S)
    assert len([line for line in program.splitlines() if line.strip()]) <= 50
    assert len([line for line in tests.splitlines() if line.strip()]) <= 20
    (tmp_path / "library.py").write_text(program)
    (tmp_path / "test_library.py").write_text(tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "streamkit.pytest_plugin", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


# -- notebooks ------------------------------------------------------------------------------------------------------


def html(value: Any) -> str:
    shown: str = value._repr_html_()
    return shown


def test_notebooks_show_tables_and_nothing_is_html_that_was_data(streamkit_store: Store) -> None:
    evil = "<script>alert('x')</script>"
    streamkit_store.produce(evil, evil, [Record(evil.encode(), {evil: evil})])
    entry: Entry = streamkit_store.peek(evil, evil)
    values = [streamkit_store, entry, streamkit_store.segment_status(evil, evil), streamkit_store.space_settings(evil)]
    values += [streamkit_store.size(), streamkit_store.erase(evil, dry_run=True, metadata={evil: evil})]
    for value in values:
        assert html(value).startswith("<table>")
        assert "<script" not in html(value)
    assert "&lt;script&gt;" in html(streamkit_store)
    assert "&lt;script&gt;" in html(entry)


def test_a_notebook_shows_a_large_value_in_short(streamkit_store: Store) -> None:
    streamkit_store.produce("s", "a", [Record(b"\xff" * 1_000_000)])
    assert len(html(streamkit_store.peek("s", "a"))) < 20_000
