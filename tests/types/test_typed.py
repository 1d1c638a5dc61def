"""Typed stores: objects are written, and read as objects beside their entries."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import msgspec
import pydantic
import pytest

import streamkit
import streamkit.aio
from streamkit import Record
from streamkit.types import Registry, Type, Typed, TypedView, Unknown, UnknownType


class Placed(msgspec.Struct):
    item: str
    count: int = 1


@dataclass
class Paid:
    amount: float
    tags: set[str] = field(default_factory=set)


@attrs.define
class Packed:
    boxes: list[str]


class Shipped(pydantic.BaseModel, strict=True):
    at: datetime


Event = Placed | Paid | Packed | Shipped
EVENTS: Registry[Event] = Registry([Placed, Paid, Packed, Type(Shipped, "shipped")])
VALUES: list[Event] = [
    Placed("tea", 3),
    Paid(1.5, {"b", "a"}),
    Packed(["x"]),
    Shipped(at=datetime.fromisoformat("2026-11-24T10:00:00+00:00")),
]


class PlacedNow(msgspec.Struct):
    """The class `Placed`, two versions later."""

    items: list[str]
    count: int


def split(fields: dict[str, Any]) -> dict[str, Any]:
    return {"items": [fields["item"]], "count": fields.get("count", 1)}


def double(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "count": fields["count"] * 2}


NOW: Registry[PlacedNow] = Registry([Type(PlacedNow, "Placed", version=3, upcast={1: split, 2: double})])


@pytest.fixture
def store() -> Any:
    with streamkit.connect(f"memory://{uuid4()}") as client:
        yield client.store(uuid4())


def values(found: Any) -> list[Any]:
    return [each.value for each in found]


def test_objects_of_all_kinds_come_back_equal_beside_their_entries(subject: Any) -> None:
    typed = subject.store.typed(EVENTS)
    status = typed.produce("orders", "42", VALUES, metadata={"by": "me"}, expected_sequence=0)
    assert status.last_sequence == 4
    with typed.transaction("orders") as trx:
        trx.produce("43", VALUES[:1])
        trx.produce("42", VALUES[:1], expected_sequence=4)
    assert trx.statuses["42"].last_sequence == 5
    found = list(typed.consume_space("orders"))
    assert values(found) == [*VALUES, VALUES[0], VALUES[0]]
    assert [each.entry for each in found] == list(subject.store.consume_space("orders"))
    assert found[0].entry.metadata == {"by": "me", "event": "Placed"}
    assert values(typed.consume_segment("orders", "42", min_sequence=3)) == [*VALUES[2:], VALUES[0]]
    assert values(typed.consume_segment("orders", "42", reverse=True, limit=1)) == VALUES[:1]
    assert values(typed.consume({"orders": None}, limit=2)) == VALUES[:2]
    assert values(typed.follow_segment("orders", "42", after=1, timeout=0)) == [*VALUES[1:], VALUES[0]]
    assert values(typed.follow_space("orders", timeout=0)) == values(typed.follow({"orders": None}, timeout=0))
    assert typed.peek("orders", "43") == Typed(VALUES[0], subject.store.peek("orders", "43"))
    assert typed.peek("orders", "none") is None


def test_the_same_for_coroutines(tmp_path: Path) -> None:
    async def work() -> None:
        async with streamkit.aio.connect(tmp_path.as_uri()) as client, await client.store(uuid4()) as store:
            typed = store.typed(EVENTS)
            assert (await typed.produce("orders", "42", VALUES, metadata={"by": "me"})).last_sequence == 4
            assert [each.value async for each in typed.consume_space("orders")] == VALUES
            assert [each.value async for each in typed.consume({"orders": None})] == VALUES
            assert [each.value async for each in typed.consume_segment("orders", "42", limit=1)] == VALUES[:1]
            assert [each.value async for each in typed.follow_space("orders", timeout=0)] == VALUES
            assert [each.value async for each in typed.follow_segment("orders", "42", timeout=0)] == VALUES
            assert [each.value async for each in typed.follow({"orders": None}, timeout=0)] == VALUES
            found = await typed.peek("orders", "42")
            assert found is not None
            assert found.value == VALUES[-1]
            async with typed.transaction("orders") as trx:
                trx.produce("43", VALUES[:1])
            assert trx.statuses["43"].last_sequence == 1

    asyncio.run(work())


def test_groups_queues_views_and_routes_for_coroutines(tmp_path: Path) -> None:
    async def work() -> None:
        async with streamkit.aio.connect(tmp_path.as_uri()) as client, await client.store(uuid4()) as store:
            typed = store.typed(EVENTS, unknown="skip")
            await typed.produce("orders", "42", VALUES)
            await store.produce("orders", "42", [Record(b"?", {"event": "Lost"})])
            seen: list[Any] = []

            async def handle(delivery: Any) -> None:
                seen.append(delivery.value)

            await (await typed.group("orders", "billing")).run(handle, drain=True)
            assert seen == VALUES
            async with (await typed.group("orders", "other")).consumer("one") as consumer:
                received = await consumer.receive()
                assert [delivery.value for delivery in received] == VALUES
                for delivery in received:
                    await consumer.ack(await consumer.extend(delivery, 60.0))
            queue = await typed.queue("jobs")
            await queue.put(VALUES[0], priority=1)
            await queue.put_many(VALUES[1:2])
            await queue.run(handle, drain=True)
            assert seen[4:] == VALUES[:2]
            route = await typed.route("paid", "orders", "paid", where=lambda event: isinstance(event.value, Paid))
            await route.catch_up()
            assert [each.value async for each in typed.consume_space("paid")] == VALUES[1:2]

            class Count(TypedView[Event]):
                def setup(self, db: Any) -> None:
                    db.execute("create table kinds (name text)")

                def apply(self, db: Any, events: Any) -> None:
                    db.executemany("insert into kinds values (?)", [[type(event.value).__name__] for event in events])

            view = await typed.view("count", Count(), ["orders"], tmp_path / "count.db")
            await view.catch_up()
            assert len(view.sync.db.execute("select * from kinds").fetchall()) == 4
            await view.close()

    asyncio.run(work())


def test_upcasters_bring_an_earlier_version_to_every_reader(store: Any) -> None:
    store.typed(EVENTS).produce("orders", "42", [Placed("tea", 3)])
    store.produce("orders", "42", [Record(b'{"items":["tea"],"count":3}', {"event": "Placed", "event-version": "2"})])
    typed = store.typed(NOW)
    typed.produce("orders", "42", [PlacedNow(["tea"], 6)])
    expected = [PlacedNow(["tea"], 6)] * 3
    assert values(typed.consume_space("orders")) == expected
    assert values(typed.consume_segment("orders", "42")) == expected
    assert values(typed.follow_space("orders", timeout=0)) == expected
    assert store.peek("orders", "42").metadata == {"event": "Placed", "event-version": "3"}
    seen: list[Any] = []
    typed.group("orders", "billing").run(lambda delivery: seen.append(delivery.value), drain=True)
    assert seen == expected
    with typed.group("orders", "other").consumer("one") as consumer:
        received = consumer.receive()
        assert [delivery.value for delivery in received] == expected
        for delivery in received:
            consumer.ack(delivery)

    class Total(TypedView[PlacedNow]):
        def setup(self, db: Any) -> None:
            db.execute("create table counts (n int)")

        def apply(self, db: Any, events: Any) -> None:
            db.executemany("insert into counts values (?)", [[event.value.count] for event in events])

    with typed.view("total", Total(), ["orders"]) as view:
        view.catch_up()
        assert view.db.execute("select sum(n) from counts").fetchone() == (18,)
    route = typed.route(
        "big",
        "orders",
        "copies",
        where=lambda event: event.value.count == 6 and event.entry.sequence != 2,
        segment=lambda event: event.value.items[0],
        transform=lambda event: PlacedNow(event.value.items, event.entry.sequence),
    )
    route.catch_up()
    assert values(typed.consume_segment("copies", "tea")) == [PlacedNow(["tea"], 1), PlacedNow(["tea"], 3)]
    assert store.peek("copies", "tea").metadata["event-version"] == "3"


def test_a_queue_of_objects(store: Any) -> None:
    queue = store.typed(EVENTS).queue("jobs")
    queue.put(VALUES[0], metadata={"by": "me"}, priority=3)
    queue.put_many([VALUES[1], Paid(2.0)])
    with pytest.raises(ValueError, match="one type"):
        queue.put_many(VALUES)
    seen: list[Any] = []
    queue.run(lambda delivery: seen.append((delivery.value, delivery.attempt)), drain=True)
    assert seen == [(VALUES[0], 1), (VALUES[1], 1), (Paid(2.0), 1)]


@pytest.mark.parametrize(
    ("metadata", "error", "text"),
    [
        ({"event": "Lost"}, UnknownType, r"sequence 2 of '42' .*'Lost'; the registry has 'Packed', .*Add the type"),
        ({}, UnknownType, "names no type"),
        ({"event": "Paid", "event-version": "2"}, streamkit.UnsupportedVersion, "version 2; .* up to 1"),
    ],
)
def test_what_the_registry_lacks_is_an_error_or_follows_the_policy(
    store: Any, metadata: dict[str, str], error: type[Exception], text: str
) -> None:
    typed = store.typed(EVENTS)
    typed.produce("orders", "42", VALUES[:1])
    store.produce("orders", "42", [Record(b"{}", metadata)])
    typed.produce("orders", "42", VALUES[:1])
    entries = typed.consume_space("orders")
    assert next(entries).value == VALUES[0]
    with pytest.raises(error, match=text):
        next(entries)
    skipping, raw = store.typed(EVENTS, unknown="skip"), store.typed(EVENTS, unknown="raw")
    assert values(skipping.consume_space("orders")) == VALUES[:1] * 2
    unknown = Unknown(metadata.get("event"), metadata.get("event-version", "1"))
    assert values(raw.consume_space("orders")) == [VALUES[0], unknown, VALUES[0]]
    seen: list[Any] = []
    skipping.group("orders", "skipping").run(lambda delivery: seen.append(delivery.value), drain=True)
    assert seen == VALUES[:1] * 2
    raw.group("orders", "raw").run(lambda delivery: seen.append(delivery.value), drain=True)
    assert seen[2:] == [VALUES[0], unknown, VALUES[0]]
    with skipping.group("orders", "receiving").consumer("one") as consumer:
        assert [delivery.value for delivery in consumer.receive()] == VALUES[:1] * 2
    group = typed.group("orders", "strict", max_deliveries=1)
    group.run(lambda delivery: None, drain=True)
    [dead] = group.group.dead_letters()
    assert error.__name__ in dead.reason
    assert dead.entry.sequence == 2


def test_a_payload_that_does_not_fit_names_its_entry_under_every_policy(store: Any) -> None:
    store.produce("orders", "42", [Record(b'{"item":3}', {"event": "Placed"})])
    for unknown in ("raise", "skip", "raw"):
        typed = store.typed(EVENTS, unknown=unknown)
        with pytest.raises(streamkit.CorruptData, match=r"sequence 1 of '42' .* is no Placed, version 1"):
            list(typed.consume_space("orders"))
    store.produce("orders", "43", [Record(b"{}", {"event": "Placed"})])
    with pytest.raises(streamkit.CorruptData, match=r"upcast\[1\].*KeyError"):
        list(store.typed(NOW).consume_segment("orders", "43"))


def test_nothing_is_written_that_could_not_be_read(store: Any) -> None:
    typed = store.typed(EVENTS)
    wrong: list[Any] = [Placed(3), Paid(float("nan")), Packed([1]), Placed("tea", 1.5), PlacedNow([], 1), "text", None]  # type: ignore[arg-type, list-item]
    for value in wrong:
        with pytest.raises(TypeError):
            typed.produce("orders", "42", [VALUES[0], value])
    with pytest.raises(TypeError, match="put it into a list"):
        typed.produce("orders", "42", VALUES[0])
    assert list(store.get_spaces()) == []


def test_an_aggregate_s_events_are_read_by_a_registry(store: Any) -> None:
    from streamkit.eventsourcing import Aggregate, Repository, event

    class Order(Aggregate):
        @event("paid")
        def pay(self, amount: float) -> None:
            pass

    Repository(store, "orders", Order).execute("42", lambda order: order.pay(2.5))
    paid: Registry[Paid] = Registry([Type(Paid, "paid")])
    assert values(store.typed(paid).consume_space("orders")) == [Paid(2.5)]


class Plain:
    pass


def registry(*types: Any) -> Any:
    return Registry(types)


def made(*arguments: Any, **options: Any) -> Any:
    return Type(*arguments, **options)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Registry(Placed), TypeError, r"as in Registry\(\[Placed, Paid\]\), not <class .*Placed"),  # type: ignore[arg-type]
        (lambda: registry(), ValueError, "at least one type"),
        (lambda: registry(Placed, made(Paid, "Placed")), ValueError, "two types have the name 'Placed'"),
        (lambda: registry(Placed, made(Placed, "other")), ValueError, "Placed occurs twice"),
        (lambda: registry(Plain), TypeError, "Plain is no msgspec Struct"),
        (lambda: registry("Placed"), TypeError, "a type is a class"),
        (lambda: made(Placed, ""), ValueError, "empty"),
        (lambda: made(Placed, version=2), ValueError, r"missing: \[1\]"),
        (lambda: made(Placed, version=0), ValueError, "1 or more"),
        (lambda: made(Placed, version=2, upcast={1: split, 2: double}), ValueError, "each version before 2"),
        (lambda: made(Placed, version=2, upcast={1: "split"}), TypeError, "upcast"),
        (lambda: made(Shipped, codec="msgpack"), ValueError, "pydantic"),
        (lambda: made(Placed, codec="xml"), ValueError, "'json' or 'msgpack'"),
    ],
)
def test_a_registry_is_checked_when_it_is_made(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_a_typed_store_takes_a_registry_and_a_policy(store: Any) -> None:
    with pytest.raises(TypeError, match="Registry"):
        store.typed([Placed])
    with pytest.raises(ValueError, match="'raise', 'skip' or 'raw'"):
        store.typed(EVENTS, unknown="drop")
    with pytest.raises(TypeError, match="TypedView"):
        store.typed(EVENTS).view("total", streamkit.View(), ["orders"])


def test_gaps_are_passed_on(store: Any) -> None:
    typed = store.typed(EVENTS)
    typed.produce("orders", "42", VALUES)
    store.erase("orders", "42", first=2, last=2)
    found = list(typed.consume_segment("orders", "42", gaps="yield"))
    assert [type(each).__name__ for each in found] == ["Typed", "Gap", "Typed", "Typed"]
