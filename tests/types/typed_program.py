"""A program that mypy and pyright check: the types of a typed store's results. It is not run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type
from uuid import uuid4

import msgspec

import streamkit
import streamkit.aio
from streamkit import Entry
from streamkit.gaps import Gap
from streamkit.types import Registry, Type, Typed, TypedDelivery, TypedView, Unknown


class Placed(msgspec.Struct):
    item: str


@dataclass
class Paid:
    amount: float


Event = Placed | Paid
events: Registry[Event] = Registry([Placed, Type(Paid, "paid", version=2, upcast={1: lambda fields: fields})])
single = Registry([Placed])
assert_type(single, Registry[Placed])

store = streamkit.connect("memory://x").store(uuid4())
typed = store.typed(events)
raw = store.typed(events, unknown="raw")

assert_type(typed.peek("orders", "42"), Typed[Placed | Paid] | None)
for event in typed.consume_space("orders", limit=10):
    assert_type(event, Typed[Placed | Paid])
    assert_type(event.value, Placed | Paid)
    assert_type(event.entry, Entry)
for known in raw.consume_segment("orders", "42"):
    assert_type(known.value, Placed | Paid | Unknown)
for found in typed.consume({"orders": None}, gaps="yield"):
    assert_type(found, Typed[Placed | Paid] | Gap)
for followed in typed.follow_space("orders", timeout=1.0):
    assert_type(followed.value, Placed | Paid)
assert_type(events.read(store.peek("orders", "42")), Placed | Paid)


def handle(delivery: TypedDelivery[Event]) -> None:
    assert_type(delivery.value, Placed | Paid)


typed.group("orders", "billing").run(handle)
with typed.group("orders", "other").consumer() as consumer:
    for delivery in consumer.receive():
        assert_type(delivery.value, Placed | Paid)
jobs = typed.queue("jobs")
jobs.put(Placed("tea"), priority=1)
jobs.run(handle)
typed.route("copies", "orders", "copies", transform=lambda event: Paid(1.0) if event.value == Paid(2.0) else None)


class Totals(TypedView[Event]):
    pass


typed.view("totals", Totals(), ["orders"])

# Checkers refuse these lines, and no others.
typed.produce("orders", "42", ["text"])  # type: ignore[list-item]
jobs.put(3)  # type: ignore[arg-type]
store.typed(events, unknown="drop")  # type: ignore[call-overload]
store.group("orders", "billing", ack_timout=10.0)  # type: ignore[call-arg]
store.queue("jobs", mode="exclusive")  # type: ignore[call-arg]
typed.group("orders", "billing").configure(lanes=4)  # type: ignore[call-arg]


async def coroutines() -> None:
    async with streamkit.aio.connect("memory://x") as client, await client.store(uuid4()) as opened:
        there = opened.typed(events)
        async for each in there.consume_space("orders"):
            assert_type(each.value, Placed | Paid)
        group = await there.group("orders", "billing")

        async def react(delivery: TypedDelivery[Event]) -> None:
            assert_type(delivery.value, Placed | Paid)

        await group.run(react)
        async with group.consumer() as consumer:
            for each_delivery in await consumer.receive():
                assert_type(each_delivery.value, Placed | Paid)
