"""Causation: entries that a handler writes name the entry that it handled, and the first of the chain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest

import streamkit
import streamkit.aio
from streamkit import Record, Store
from streamkit.causation import CAUSATION, CORRELATION, caused, caused_by, entry_id
from streamkit.groups import Delivery
from streamkit.types import Registry


@pytest.fixture
def store() -> Iterator[Store]:
    with streamkit.connect("memory://") as client, client.store(uuid4()) as store:
        yield store


def test_a_chain_of_handlers_keeps_the_first_id_and_names_each_cause(store: Store) -> None:
    first, second = store.queue("first"), store.queue("second")
    first.put(b"job")
    first.run(caused(lambda delivery: void(second.put(b"next", metadata={"own": "kept"}))), drain=True)
    second.run(caused(lambda delivery: void(store.produce("done", "all", [Record(b"1"), Record(b"2")]))), drain=True)
    root = next(store.consume_space("first"))
    middle = next(store.consume_space("second"))
    assert root.metadata == {}
    assert middle.metadata == {CORRELATION: entry_id(root), CAUSATION: entry_id(root), "own": "kept"}
    last = list(store.consume_space("done"))
    assert [entry.metadata for entry in last] == [{CORRELATION: entry_id(root), CAUSATION: entry_id(middle)}] * 2
    assert len({entry_id(entry) for entry in last}) == 2


def void(_: object) -> None:
    """A handler gives nothing back."""


def test_a_transaction_and_a_given_id(store: Store) -> None:
    store.produce("a", "s", [Record(b"1")])
    cause = store.peek("a", "s")
    with caused_by(cause), store.transaction("b") as transaction:
        transaction.produce("x", [Record(b"1")])
        transaction.produce("y", [Record(b"1", {CORRELATION: "mine"})])
    store.produce("b", "z", [Record(b"1")])
    assert store.peek("b", "x").metadata[CAUSATION] == entry_id(cause)
    assert store.peek("b", "y").metadata[CORRELATION] == "mine"
    assert store.peek("b", "z").metadata == {}


def test_a_typed_handler_and_writer(store: Store) -> None:
    class Placed(msgspec.Struct):
        n: int

    registry = Registry([Placed])
    typed: Any = store.typed(registry)
    typed.produce("orders", "a", [Placed(1)])
    group = typed.group("orders", "g")
    group.run(caused(lambda delivery: void(typed.produce("copies", "a", [Placed(delivery.value.n + 1)]))), drain=True)
    assert store.peek("copies", "a").metadata[CAUSATION] == entry_id(store.peek("orders", "a"))


def test_coroutines_each_have_their_own_cause() -> None:
    async def work() -> None:
        async with streamkit.aio.connect("memory://") as client:
            store = client.store(uuid4())
            await store.produce("in", "s", [Record(b"%d" % n) for n in range(8)])
            group = await store.group("in", "g")

            async def handler(delivery: Delivery) -> None:
                await asyncio.sleep(0)
                await store.produce("out", "s", [Record(delivery.entry.payload)])

            await group.run(caused(handler), concurrency=8, drain=True)
            ids = {entry.payload: entry_id(entry) async for entry in store.consume_space("in")}
            causes = {entry.payload: entry.metadata[CAUSATION] async for entry in store.consume_space("out")}
            assert causes == ids

    asyncio.run(work())


def test_a_second_attempt_is_a_replay(store: Store) -> None:
    store.produce("a", "s", [Record(b"1")])
    cause = store.peek("a", "s")
    with caused_by(cause):
        first = store.produce("b", "s", [Record(b"1")], idempotency_key="k")
    with caused_by(cause):
        assert store.produce("b", "s", [Record(b"1")], idempotency_key="k").trx == first.trx


def test_wrong_arguments_are_refused(store: Store) -> None:
    with pytest.raises(TypeError, match=r"delivery\.entry"), caused_by("entry"):  # type: ignore[arg-type]
        pass
    with pytest.raises(TypeError, match="function"):
        caused(1)  # type: ignore[arg-type]
    store.produce("a", "s", [Record(b"1")])
    with caused_by(store.peek("a", "s")):
        for wrong in (Record(b"x"), b"x", None, [b"x"], [Record(b"x", 7)]):  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                store.produce("b", "s", wrong)  # type: ignore[arg-type]
