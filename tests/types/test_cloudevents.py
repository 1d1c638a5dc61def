"""CloudEvents: entries as events, events as entries, and objects of both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest

import streamkit
from streamkit import Entry, InvalidRecord, Record, Store
from streamkit.causation import caused_by, entry_id
from streamkit.types import Registry, Type, from_cloudevent, to_cloudevent


class Placed(msgspec.Struct):
    n: int


EVENTS = Registry([Type(Placed, "placed")])
EVENT = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "placed", "data": {"n": 3}}


@pytest.fixture
def store() -> Iterator[Store]:
    with streamkit.connect("memory://") as client, client.store(uuid4()) as store:
        yield store


def _written(store: Store, event: Any) -> Entry:
    store.produce("orders", "a", [from_cloudevent(event)])
    return store.peek("orders", "a")


def test_a_typed_entry_becomes_an_event(store: Store) -> None:
    typed = store.typed(EVENTS)
    typed.produce("orders", "a", [Placed(1)])
    cause = store.peek("orders", "a")
    with caused_by(cause):
        typed.produce("orders", "b", [Placed(2)])
    entry = store.peek("orders", "b")
    event = to_cloudevent(entry, "/shop")
    assert event.pop("time").endswith("Z")
    assert event == {
        "specversion": "1.0",
        "id": entry_id(entry),
        "source": "/shop",
        "type": "placed",
        "subject": "b",
        "causationid": entry_id(cause),
        "correlationid": entry_id(cause),
        "datacontenttype": "application/json",
        "data": {"n": 2},
    }


def test_an_event_of_another_program_is_read_as_an_object(store: Store) -> None:
    entry = _written(store, msgspec.json.encode(EVENT))
    assert entry.metadata == {"ce-specversion": "1.0", "ce-id": "7", "ce-source": "/shop", "ce-type": "placed"}
    found = store.typed(EVENTS).peek("orders", "a")
    assert found is not None
    assert found.value == Placed(3)
    assert [event.value for event in store.typed(EVENTS).consume_space("orders")] == [Placed(3)]


@pytest.mark.parametrize(
    "given",
    [
        {"data": {"n": 3}, "datacontenttype": "application/json"},
        {"data": "plain", "datacontenttype": "text/plain"},
        {"data": "a text of JSON", "datacontenttype": "application/json"},
        {"data_base64": "AP8=", "datacontenttype": "application/octet-stream"},
        {"data": [1, None], "datacontenttype": "application/vnd.x+json", "subject": "s", "extension": "1"},
    ],
)
def test_an_event_comes_back_as_it_was(store: Store, given: dict[str, Any]) -> None:
    event = {**{name: value for name, value in EVENT.items() if name != "data"}, **given}
    assert to_cloudevent(_written(store, event), "/other") == event


@pytest.mark.parametrize(
    "wrong",
    [
        b"no JSON",
        b"[1]",
        {},
        {**EVENT, "id": ""},
        {**EVENT, "specversion": "0.3"},
        {**EVENT, "Upper": "x"},
        {**EVENT, "nested": {}},
        {**EVENT, "data_base64": "AP8="},
        {**{name: value for name, value in EVENT.items() if name != "data"}, "data_base64": "!"},
        {**EVENT, "data": object()},
    ],
)
def test_what_is_no_event_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRecord):
        from_cloudevent(wrong)


def test_a_payload_that_is_no_json_is_encoded(store: Store) -> None:
    store.produce("orders", "a", [Record(b"\xff")])
    event = to_cloudevent(store.peek("orders", "a"), "/shop")
    assert (event["data_base64"], event["datacontenttype"]) == ("/w==", "application/octet-stream")
    with pytest.raises(TypeError):
        to_cloudevent(EVENT, "/shop")  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [float("nan"), [None, float("inf")], "\ud800", {"\ud800": 1}])
def test_data_that_json_does_not_have_is_refused(data: Any) -> None:
    for kind in ("application/json", "text/plain"):
        with pytest.raises(InvalidRecord, match="the data of a CloudEvent is no text or JSON"):
            from_cloudevent({**EVENT, "datacontenttype": kind, "data": data})
    assert from_cloudevent({**EVENT, "data": [None, 0.5]}).payload == b"[null,0.5]"
