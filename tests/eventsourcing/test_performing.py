"""Performing a command: result, offset and events, and the first answer on a replay; also for coroutines."""

from __future__ import annotations

import asyncio
import hashlib
import json
from uuid import uuid4

import pytest

import streamkit.aio
from streamkit import Record, SequenceMismatch, Store
from streamkit.eventsourcing import Aggregate, AggregateNotFound, AsyncRepository, Repository, event
from streamkit.testing.named_faults import NamedFaults


class Account(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self.balance = 0

    @event("paid in")
    def pay_in(self, cents: int) -> int:
        self.balance += cents
        return self.balance


def pay(account: Account) -> int:
    account.pay_in(1)
    return account.pay_in(2)


def test_a_command_tells_its_result_its_offset_and_its_events(streamkit_store: Store) -> None:
    accounts = Repository(streamkit_store, "accounts", Account)
    accounts.execute("a", pay)
    done = accounts.perform("a", pay)
    assert (done.result, done.version, done.replayed) == (6, 4, False)
    assert done.events == (("paid in", {"cents": 1}), ("paid in", {"cents": 2}))
    accounts.execute("b", pay)
    assert [entry.segment for entry in streamkit_store.consume_space("accounts", offset=done.offset)] == ["b", "b"]


def test_a_command_that_is_repeated_gets_the_first_answer(
    streamkit_store: Store, streamkit_faults: NamedFaults
) -> None:
    accounts = Repository(streamkit_store, "accounts", Account)
    first = accounts.perform("a", pay, idempotency_key="k")
    accounts.execute("a", pay)
    again = accounts.perform("a", pay, idempotency_key="k")
    assert again.replayed
    assert again.result is None
    assert (again.version, again.events, again.offset) == (2, first.events, first.offset)
    assert accounts.load("a").version == 4
    assert accounts.execute("a", pay, idempotency_key="k") is None


def test_a_command_without_events_tells_where_the_aggregate_is(streamkit_store: Store) -> None:
    accounts = Repository(streamkit_store, "accounts", Account)
    accounts.execute("a", pay)
    done = accounts.perform("a", lambda account: account.balance)
    assert (done.result, done.version, done.events, done.replayed) == (3, 2, (), False)


def test_an_aggregate_that_must_exist_is_missed(streamkit_store: Store) -> None:
    accounts = Repository(streamkit_store, "accounts", Account)
    with pytest.raises(AggregateNotFound, match="no Account 'a' in the space 'accounts'"):
        accounts.load("a", must_exist=True)
    assert accounts.load("a").version == 0
    accounts.execute("a", pay)
    assert accounts.load("a", must_exist=True).balance == 3
    with pytest.raises(LookupError):
        accounts.load("a", at=0, must_exist=True)
    with pytest.raises(TypeError, match="must_exist is a bool"):
        accounts.load("a", must_exist="yes")  # type: ignore[arg-type]


def test_a_repository_for_coroutines_does_the_same() -> None:
    async def work() -> None:
        async with streamkit.aio.connect(f"memory://{uuid4().hex}") as client:
            store = client.store(uuid4())
            accounts = AsyncRepository(store, "accounts", Account, snapshot_every=100)
            results = await asyncio.gather(*(accounts.execute("a", pay, retries=50) for _ in range(8)))
            assert max(results) == 24
            account = await accounts.load("a", must_exist=True)
            stale = await accounts.load("a")
            account.pay_in(1)
            await accounts.save(account)
            stale.pay_in(1)
            with pytest.raises(SequenceMismatch):
                await accounts.save(stale)
            done = await accounts.perform("b", pay, idempotency_key="k")
            assert (await accounts.perform("b", pay, idempotency_key="k")).events == done.events
            assert await accounts.exists("b")
            assert not await accounts.exists("c")
            assert await accounts.events("b") == list(done.events)
            await accounts.snapshot("b")
            with pytest.raises(AggregateNotFound):
                await accounts.load("c", must_exist=True)

    asyncio.run(work())
    with pytest.raises(TypeError, match="of an AsyncStore"):
        AsyncRepository(object(), "accounts", Account)  # type: ignore[arg-type]


def test_an_erasure_can_be_kept_as_proof(streamkit_store: Store) -> None:
    streamkit_store.produce("people", "ada", [Record(b"x", {"subject": "ada"})])
    report = streamkit_store.erase("people", metadata={"subject": "ada"})
    kept = json.loads(report.proof())
    assert (kept["store"], kept["selector"]) == (str(streamkit_store.id), {"metadata": {"subject": "ada"}})
    assert (kept["entries"], kept["started"]) == (1, 1_767_225_600_000)
    digest = kept.pop("sha256")
    document = json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()
    assert digest == report.digest == hashlib.sha256(document).hexdigest()
    missing = streamkit_store.erase("no people", "ada")
    assert (missing.entries, missing.started, missing.completed) == (0, 1_767_225_600_000, 1_767_225_600_000)
    assert streamkit_store.erase("people", "ada", first=2, last=3, dry_run=True).selector == {
        "segment": "ada",
        "first": 2,
        "last": 3,
    }
