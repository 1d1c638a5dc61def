"""Aggregates and typed readers: one definition of the versions of their events."""

from __future__ import annotations

from datetime import date
from typing import Any
from uuid import uuid4

import pytest

import streamkit
from streamkit.eventsourcing import Aggregate, MsgpackCodec, ProcessManager, Repository, event
from streamkit.types import types_of


class OldOrder(Aggregate):
    @event("placed")
    def place(self, item: str) -> None:
        pass


class Order(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self.items: list[str] = []

    @event("placed", version=2, upcast={1: lambda arguments: {"items": [arguments["item"]]}})
    def place(self, items: list[str], due: date | None = None, tags: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.items += items

    @event
    def close(self) -> None:
        pass


@pytest.fixture
def store() -> Any:
    with streamkit.connect(f"memory://{uuid4()}") as client:
        yield client.store(uuid4())


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_the_upcasters_of_an_aggregate_run_for_every_reader(store: Any, codec: Any) -> None:
    written: dict[str, Any] = {"codec": MsgpackCodec()} if codec == "msgpack" else {}
    Repository(store, "orders", OldOrder, **written).execute("42", lambda order: order.place("tea"))
    orders = Repository(store, "orders", Order, **written)
    orders.execute("42", lambda order: order.place(["milk"], date(2026, 1, 31), {"x"}))
    orders.execute("42", lambda order: order.close())
    assert orders.load("42").items == ["tea", "milk"]
    typed = store.typed(types_of(Order, codec=codec))
    first, second, third = [each.value for each in typed.consume_space("orders")]
    assert (first.items, first.due, first.tags) == (["tea"], None, frozenset())
    assert (second.items, second.due, second.tags) == (["milk"], date(2026, 1, 31), {"x"})
    assert type(third).__name__ == "close"
    seen: list[Any] = []
    typed.group("orders", "billing").run(lambda delivery: seen.append(delivery.value), drain=True)
    assert seen == [first, second, third]
    reacted: list[Any] = []
    manager = ProcessManager("ship", orders, {"placed": lambda event: reacted.append(event.arguments["items"])})
    manager.catch_up()
    assert reacted == [first.items, second.items]


def test_an_event_without_fixed_fields_is_refused() -> None:
    class Loose(Aggregate):
        @event
        def note(self, **more: int) -> None:
            pass

    with pytest.raises(ValueError, match=r"note takes \*\*more"):
        types_of(Loose)
    with pytest.raises(TypeError, match="subclass of Aggregate"):
        types_of(int)  # type: ignore[arg-type]
