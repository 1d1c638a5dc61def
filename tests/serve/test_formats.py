"""Entries in other formats: CloudEvents, and Arrow."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest
from fix_serve import Served

from streamkit import Record

ENTRIES = "spaces/s/segments/a/entries"
BATCH = {"Accept": "application/cloudevents-batch+json"}
ARROW = {"Accept": "application/vnd.apache.arrow.stream"}
EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "placed", "sequence": "7"}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("application/json", {"data": {"a": [1, None]}}),
        ("application/vnd.shop+json", {"data": "text"}),
        ("text/plain", {"data": "text"}),
        ("image/png", {"data_base64": base64.b64encode(b"\xff\x00").decode()}),
        ("application/json", {}),
    ],
)
def test_a_cloud_event_is_read_as_it_was_written(served: Served, kind: str, data: dict[str, Any]) -> None:
    event = {**EVENT, "datacontenttype": kind, **data}
    done = served.ask("POST", ENTRIES, json.dumps(event).encode(), {"Content-Type": "application/cloudevents+json"})
    assert done.status == 201
    page = served.ask("GET", ENTRIES, headers=BATCH)
    assert page.headers["content-type"] == "application/cloudevents-batch+json"
    assert (page.headers["streamkit-next"], page.headers["streamkit-caught-up"]) == ("1", "true")
    assert page.json == [event]
    one = served.ask("GET", f"{ENTRIES}/1", headers={"Accept": "application/cloudevents+json"})
    assert one.headers["content-type"] == "application/cloudevents+json"
    assert one.json == event


def test_other_entries_and_gaps_become_cloud_events(served: Served) -> None:
    payloads = (b"0", b"gone", b'{"n":1}', b"text", b"\xff", b"")
    served.store.produce("s", "a", [Record(payload) for payload in payloads])
    served.store.trim("s", "a", before=3)
    source = f"/v1/stores/{served.id}/spaces/s/segments/a"
    (gap, *events) = served.ask("GET", f"{ENTRIES}?after=1", headers=BATCH).json
    assert (gap["type"], gap["source"], gap["data"]["last_sequence"]) == ("streamkit.gap", source, 2)
    for path in ("spaces/s/entries", "entries?space=s"):
        assert served.ask("GET", path, headers=BATCH).json[1:] == events
    assert [event["id"] for event in events] == ["3", "4", "5", "6"]
    for event in events:
        assert (event["specversion"], event["source"], event["type"]) == ("1.0", source, "streamkit.entry")
        assert (event["subject"], event["time"][-1]) == ("a", "Z")
    assert [event.get("data", event.get("data_base64")) for event in events] == [{"n": 1}, "text", "/w==", None]
    kinds = [event.get("datacontenttype") for event in events]
    assert kinds == [None, "text/plain; charset=utf-8", "application/octet-stream", None]


def test_a_page_is_read_as_arrow(served: Served) -> None:
    served.store.produce("s", "a", [Record(b"1", {"by": "web"}), Record(b"\xff")])
    served.store.produce("t", "b", [Record(b"3")])
    for path, payloads in (
        (ENTRIES, [b"1", b"\xff"]),
        (f"{ENTRIES}?after=1", [b"\xff"]),
        ("spaces/s/entries?limit=1", [b"1"]),
        ("entries?space=t", [b"3"]),
        (f"{ENTRIES}?after=2", []),
    ):
        page = served.ask("GET", path, headers=ARROW)
        assert page.headers["content-type"] == ARROW["Accept"]
        table = pa.ipc.open_stream(page.body).read_all()
        assert table["payload"].to_pylist() == payloads
        assert "streamkit-next" in page.headers
    (first, _) = pa.ipc.open_stream(served.ask("GET", ENTRIES, headers=ARROW).body).read_all().to_pylist()
    entry = next(iter(served.store.consume_segment("s", "a")))
    assert (first["space"], first["segment"], first["sequence"], dict(first["metadata"])) == (
        "s",
        "a",
        1,
        {"by": "web"},
    )
    assert (first["trx_id"], first["offset"]) == (str(entry.trx.id), entry.space_offset.hex())
    assert first["timestamp"].timestamp() == pytest.approx(entry.timestamp / 1000)


def test_arrow_tells_of_gaps_by_a_refusal(served: Served) -> None:
    served.store.produce("s", "a", [Record(b"1"), Record(b"2"), Record(b"3")])
    served.store.trim("s", "a", before=3)
    refused = served.ask("GET", f"{ENTRIES}?after=1", headers=ARROW)
    assert (refused.status, refused.json["type"]) == (410, "urn:streamkit:entries-removed")
    assert served.ask("GET", f"{ENTRIES}?after=1&gaps=yield", headers=ARROW).status == 400
    page = served.ask("GET", f"{ENTRIES}?after=1&gaps=skip", headers=ARROW)
    assert pa.ipc.open_stream(page.body).read_all()["payload"].to_pylist() == [b"3"]


def test_each_format_of_a_page_has_a_tag_of_its_own(served: Served) -> None:
    served.store.produce("s", "a", [Record(b"1"), Record(b"2")])
    path, tags = f"{ENTRIES}?limit=1", set()
    for headers in ({}, {"Accept": "application/x-ndjson"}, BATCH, ARROW):
        page = served.ask("GET", path, headers=headers)
        tags.add(page.headers["etag"])
        assert page.headers["vary"] == "accept"
        assert served.ask("GET", path, headers={**headers, "If-None-Match": page.headers["etag"]}).status == 304
    assert len(tags) == 4
