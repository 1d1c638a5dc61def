"""The state of an aggregate is the fold of its events, whether it comes from the log, the cache or a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

import msgspec
import pytest
from fix_stores import Subject

from streamkit.eventsourcing import Aggregate, Codec, JsonCodec, MsgpackCodec, Repository, event

CODECS = [JsonCodec(), MsgpackCodec()]


class Basket(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self.items: list[str] = []
        self.prices: dict[str, int] = {}

    @event
    def fill(self, items: list[str]) -> None:
        self.items = items

    @event
    def add(self, item: str) -> None:
        self.items.append(item)

    @event
    def take_last(self, of: list[str]) -> None:
        self.items.append(of.pop())

    @event
    def price(self, prices: dict[str, int]) -> None:
        self.prices.update(prices)
        self.items += prices


def test_an_argument_is_what_it_was_when_the_event_was_called(subject: Subject) -> None:
    baskets = Repository(subject.store, "baskets", Basket)

    def command(basket: Basket) -> None:
        basket.fill(["tea"])
        basket.add("pot")
        basket.take_last(["cup", "tray"])

    baskets.execute("1", command)
    assert baskets.load("1").items == ["tea", "pot", "tray"]
    assert [arguments for _, arguments in baskets.events("1")] == [
        {"items": ["tea"]},
        {"item": "pot"},
        {"of": ["cup", "tray"]},
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_a_dict_comes_back_in_its_order(subject: Subject, codec: Codec) -> None:
    baskets = Repository(subject.store, "baskets", Basket, codec=codec, snapshot_every=2)
    baskets.execute("1", lambda basket: basket.price({"tea": 3, "cup": 2}))
    assert Repository(subject.store, "baskets", Basket, codec=codec).load("1").items == ["tea", "cup"]
    baskets.execute("1", lambda basket: basket.price({"pot": 1}))
    again = Repository(subject.stranger(), "baskets", Basket, codec=codec, snapshot_every=2).load("1")
    assert list(again.prices) == again.items == ["tea", "cup", "pot"]


@dataclass
class Tags:
    names: set[int]


class Tagged(msgspec.Struct):
    tags: Tags


@pytest.mark.parametrize("codec", CODECS)
def test_a_set_is_the_same_bytes_in_whatever_order_it_is(codec: Codec) -> None:
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)
    for make in (lambda tags: tags, lambda tags: {"a": [tags, 1]}, lambda tags: Tagged(Tags(tags))):
        assert codec.encode(make(one)) == codec.encode(make(other))


@pytest.mark.parametrize("codec", CODECS)
def test_a_dict_comes_back_in_its_order_also_beside_a_set(subject: Subject, codec: Codec) -> None:
    class Shelf(Aggregate):
        def __init__(self) -> None:
            super().__init__()
            self.order: list[str] = []

        @event
        def fill(self, items: dict[str, set[int]], tagged: Tagged) -> None:
            self.order += items

    shelves = Repository(subject.store, "shelves", Shelf, codec=codec)
    shelves.execute("1", lambda shelf: shelf.fill({"tea": {2, 1}, "cup": set()}, Tagged(Tags({3}))))
    assert Repository(subject.stranger(), "shelves", Shelf, codec=codec).load("1").order == ["tea", "cup"]
    assert codec.encode({"b": {1}, "a": Tagged(Tags({3}))}) != codec.encode({"a": Tagged(Tags({3})), "b": {1}})


class Kind(StrEnum):
    NEW = "new"


class Size(IntEnum):
    SMALL = 1


@pytest.mark.parametrize("what", [Kind.NEW, Size.SMALL])
def test_what_is_only_equal_to_what_it_was_is_not_snapshotted(subject: Subject, what: Kind | Size) -> None:
    class Seen(Aggregate):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        @event
        def see_it(self) -> None:
            self.seen = [what]

    repository = Repository(subject.store, "x", Seen, snapshot_every=1)
    repository.execute("1", lambda seen: seen.see_it())
    with pytest.raises(TypeError, match="seen would not be the same again"):
        repository.snapshot("1")
    assert Repository(subject.stranger(), "x", Seen, snapshot_every=1).load("1").seen[0] is what


def test_a_whole_number_may_come_back_as_the_float_that_it_is_annotated_with(subject: Subject) -> None:
    class Sum(Aggregate):
        total: float

        def __init__(self) -> None:
            super().__init__()
            self.total = 0

        @event
        def add(self, number: int) -> None:
            self.total += number

    repository = Repository(subject.store, "x", Sum)
    repository.execute("1", lambda total: total.add(1))
    repository.snapshot("1")
    subject.store.trim("x", "1", before=2)
    assert Repository(subject.stranger(), "x", Sum).load("1").total == 1
