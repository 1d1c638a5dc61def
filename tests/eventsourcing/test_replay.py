"""Replay: an event that is acknowledged can be loaded, and a fault of stored events is named with its place."""

from __future__ import annotations

import math
import threading
from decimal import Decimal
from typing import Any, Literal

import msgspec
import pytest
from fix_stores import Subject

from streamkit import CorruptData, Record
from streamkit.eventsourcing import Aggregate, JsonCodec, MsgpackCodec, Repository, event
from streamkit.exact import same


class Meter(Aggregate):
    read: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self.read = []

    @event
    def measure(self, value: float) -> None:
        self.read.append(value)

    @event
    def note(self, text: dict, parts: list, both: tuple) -> None:  # type: ignore[type-arg]
        self.read += [text, parts, both]

    @event
    def see(self, what: Any = None, *, unit: str = "m", scale: Decimal = Decimal("1.0"), **more: Any) -> None:
        self.read.append((what, unit, scale, more))


def meters(subject: Subject, codec: Any = None) -> Repository[Meter]:
    return Repository(subject.stranger(), "meters", Meter, codec=codec)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_refuses_what_it_has_no_number_for_and_msgpack_keeps_it(subject: Subject, value: float) -> None:
    with pytest.raises(TypeError, match=r"'value'.*nothing was written.*MsgpackCodec"):
        meters(subject).execute("1", lambda meter: meter.measure(value))
    with pytest.raises(TypeError, match=r"'what'.*nothing was written.*MsgpackCodec"):
        meters(subject).execute("1", lambda meter: meter.see(value))
    for payload in (value, [None, value], {"b": (None, value)}):
        with pytest.raises(ValueError, match="MsgpackCodec"):
            JsonCodec().encode(payload)
    assert "1" not in meters(subject)
    meters(subject, MsgpackCodec()).execute("2", lambda meter: meter.measure(value))
    (again,) = meters(subject, MsgpackCodec()).load("2").read
    assert same(again, value)


LOSSY: list[tuple[Any, Any, Any]] = [({1: 2}, [], ()), ({}, [(1, 2)], ()), ({}, [Decimal(1)], ()), ({}, [], (b"x",))]


@pytest.mark.parametrize("arguments", LOSSY)
def test_a_bare_annotation_that_would_lose_the_type_is_refused(subject: Subject, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match=r"Meter.note: .* would be replayed .* nothing was written. Annotate it"):
        meters(subject).execute("1", lambda meter: meter.note(*arguments))
    assert "1" not in meters(subject)


def test_defaults_and_named_arguments_are_recorded_and_replayed(subject: Subject) -> None:
    repository = meters(subject)
    repository.execute("1", lambda meter: meter.see())
    repository.execute("1", lambda meter: meter.see([1], unit="km", scale=Decimal("2.50"), note="x", more=1))
    assert meters(subject).load("1").read == [
        (None, "m", Decimal("1.0"), {}),
        ([1], "km", Decimal("2.50"), {"note": "x", "more": 1}),
    ]


def test_events_that_earlier_releases_wrote_are_loaded_as_they_were(subject: Subject) -> None:
    """Events of earlier releases are loaded, also those that would be refused today."""
    written = b'{"text": {"1": 2}, "parts": [[1, 2], "1.5"], "both": ["eA=="]}'
    subject.store.produce("meters", "1", [Record(written, {"event": "note"})])
    assert meters(subject).load("1").read == [{"1": 2}, [[1, 2], "1.5"], ("eA==",)]


class Mended(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self.read: list[float] = []

    @event(version=2, upcast={1: lambda old: {"value": math.nan if old["value"] is None else old["value"]}})
    def measure(self, value: float) -> None:
        self.read.append(value)


def test_a_nan_that_an_earlier_release_wrote_is_named_and_can_be_upcast(subject: Subject) -> None:
    subject.store.produce("meters", "1", [Record(b'{"value":null}', {"event": "measure"})])
    with pytest.raises(CorruptData, match=r"sequence 1 of '1' .*'value'.* give the event another version"):
        meters(subject).load("1")
    (value,) = Repository(subject.stranger(), "meters", Mended).load("1").read
    assert math.isnan(value)


class Base(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    @event
    def add(self, number: int) -> None:
        self.total += number


class Doubling(Base):
    def add(self, number: int) -> None:
        super().add(number * 2)


def test_a_plain_method_may_override_an_event_and_call_it(subject: Subject) -> None:
    doubling = Repository(subject.store, "x", Doubling)
    doubling.execute("1", lambda one: one.add(4))
    assert list(doubling.events("1")) == [("add", {"number": 8})]
    assert Repository(subject.stranger(), "x", Doubling).load("1").total == 8
    assert Repository(subject.stranger(), "x", Base).load("1").total == 8


def test_an_event_whose_arguments_have_no_names_is_refused_where_it_is_defined() -> None:
    with pytest.raises(TypeError, match="by the names of its arguments, not number, /"):

        class Positional(Aggregate):
            @event
            def add(self, number: int, /) -> None: ...

    with pytest.raises(TypeError, match=r"by the names of its arguments, not \*numbers"):

        class Several(Aggregate):
            @event
            def add(self, *numbers: int) -> None: ...


@pytest.mark.parametrize(
    ("payload", "metadata", "said"),
    [
        (b'{"number": 1, "other": 2}', {}, "has the arguments number, other, and Base.add.* does not take them"),
        (b"{}", {}, "has the arguments none, and Base.add"),
        (b"[1]", {}, "the payload is list, not a dict"),
        (b"null", {}, "the payload is NoneType, not a dict"),
        (b"nonsense", {}, "the payload does not have the expected type"),
        (b'{"number": 1}', {"event-version": "x"}, "of version 'x', which is no number"),
        (b'{"number": 1}', {"event-version": "0"}, "of version '0', which is no number"),
        (b'{"number": 1}', {"event-version": "\u0663"}, "which is no number"),
    ],
)
def test_an_entry_that_is_no_event_of_the_class_is_corrupt_data(
    subject: Subject, payload: bytes, metadata: dict[str, str], said: str
) -> None:
    subject.store.produce("x", "1", [Record(payload, {"event": "add", **metadata})])
    with pytest.raises(CorruptData, match=said):
        Repository(subject.store, "x", Base).load("1")


@pytest.mark.parametrize(
    ("upcast", "said"),
    [
        (lambda old: {"number": old["missing"]}, r"sequence 1 .* upcast\[1\] .*KeyError: 'missing'"),
        (lambda old: old.update(number=1), r"upcast\[1\] of the event 'add' is NoneType, not a dict"),
        (lambda old: {"number": 1, "more": 2}, "has the arguments number, more"),
    ],
)
def test_an_upcast_that_fails_is_corrupt_data_with_the_place(subject: Subject, upcast: Any, said: str) -> None:
    class New(Aggregate):
        @event(version=2, upcast={1: upcast})
        def add(self, number: int) -> None: ...

    Repository(subject.store, "x", Base).execute("1", lambda base: base.add(1))
    with pytest.raises(CorruptData, match=said):
        Repository(subject.store, "x", New).load("1")


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (threading.Lock(), "'what', a lock, cannot be copied"),
        (nested(10_000), "nested too deeply"),
        (lambda: None, "'what' cannot be written"),
        ("\ud800", "'what' cannot be written"),
    ],
)
def test_an_argument_that_cannot_be_recorded_is_a_type_error_that_names_it(
    subject: Subject, value: Any, said: str
) -> None:
    class Open(Aggregate):
        @event
        def see(self, what: Literal["a"] | Any, other: int = 1) -> None: ...

    repository = Repository(subject.store, "x", Open)
    with pytest.raises(TypeError, match=said):
        repository.execute("1", lambda one: one.see(value))
    assert "1" not in repository


def test_an_int_that_msgpack_cannot_hold_is_refused(subject: Subject) -> None:
    repository = Repository(subject.store, "x", Base, codec=MsgpackCodec())
    with pytest.raises(TypeError, match="the argument 'number' cannot be written"):
        repository.execute("1", lambda base: base.add(2**64))
    Repository(subject.store, "x", Base).execute("1", lambda base: base.add(2**64))
    assert Repository(subject.stranger(), "x", Base).load("1").total == 2**64


class Card(msgspec.Struct, tag=True):
    digits: str


@pytest.mark.parametrize("codec", [JsonCodec(Card), MsgpackCodec(int), 5, JsonCodec])
def test_a_codec_that_reads_no_dict_of_arguments_is_refused(subject: Subject, codec: Any) -> None:
    with pytest.raises(TypeError, match="a repository's codec has encode, decode and convert"):
        Repository(subject.store, "x", Base, codec=codec)


class Rounding(Base):
    """An aggregate whose __getstate__ loses a fraction, and which cannot read the states of an earlier release."""

    def __init__(self) -> None:
        super().__init__()
        self.half = 0.0

    @event
    def halve(self) -> None:
        self.half = self.total / 2

    def __getstate__(self) -> dict[str, Any]:
        return {"total": self.total, "half": self.half}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.total, self.half = state["total"], float(int(state["half"]))


def test_a_setstate_that_loses_something_makes_no_snapshot(subject: Subject) -> None:
    repository = Repository(subject.store, "x", Rounding)
    repository.execute("1", lambda one: (one.add(6), one.halve()))
    repository.snapshot("1")
    repository.execute("1", lambda one: (one.add(1), one.halve()))
    with pytest.raises(TypeError, match="half would not be the same again"):
        repository.snapshot("1")


def test_a_snapshot_that_setstate_cannot_read_is_passed_over(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    class Old(Rounding):
        def __setstate__(self, state: dict[str, Any]) -> None:
            self.total, self.half = state["total"], state["half"]

    Old.__name__ = "Rounding"

    class New(Rounding):
        def __setstate__(self, state: dict[str, Any]) -> None:
            self.total, self.half = state["sum"], state["half"]

    New.__name__ = "Rounding"
    old = Repository(subject.store, "x", Old, snapshot_every=2)
    old.execute("1", lambda one: (one.add(6), one.halve()))
    assert Repository(subject.stranger(), "x", New, snapshot_every=2).load("1").half == 3.0
    assert any("is passed over: KeyError" in message for message in caplog.messages)
