"""Entries over HTTP: append to a segment, and read it."""

from __future__ import annotations

from fix_serve import Served

ENTRIES = "spaces/orders/segments/42/entries"


def test_a_posted_record_is_read_back(served: Served) -> None:
    posted = served.ask("POST", ENTRIES, {"records": [{"json": {"a": [1, 2.50]}, "metadata": {"k": "v"}}]})
    assert posted.status == 201, posted
    assert posted.headers["etag"] == '"1"'
    assert posted.json["last_sequence"] == 1
    page = served.ask("GET", ENTRIES)
    assert page.status == 200
    (entry,) = page.json["entries"]
    assert entry["json"] == {"a": [1, 2.5]}
    assert entry["metadata"] == {"k": "v"}
    assert page.json["caught_up"] is True
    (read,) = served.store.consume_segment("orders", "42")
    assert read.space_offset.hex() == entry["offset"]


def test_json_is_kept_byte_for_byte(served: Served) -> None:
    body = b'{"records":[{"json":{"b": 1.00,  "a":"\\u00e9"}}]}'
    assert served.ask("POST", ENTRIES, body, {"Content-Type": "application/json"}).status == 201
    assert served.store.peek("orders", "42").payload == b'{"b": 1.00,  "a":"\\u00e9"}'
    assert b'"json":{"b": 1.00,  "a":"\\u00e9"}' in served.ask("GET", ENTRIES).body


def test_a_wrong_expectation_is_refused_with_the_actual_sequence(served: Served) -> None:
    assert served.ask("POST", ENTRIES, [{"text": "x"}], {"If-None-Match": "*"}).status == 201
    lost = served.ask("POST", ENTRIES, [{"text": "x"}], {"If-Match": '"7"'})
    assert lost.status == 412
    assert lost.headers["etag"] == '"1"'
    assert lost.json["type"] == "urn:streamkit:sequence-mismatch"
    assert lost.json["actual"] == 1
    assert served.ask("POST", ENTRIES, [{"text": "x"}], {"If-Match": '"1"'}).json["last_sequence"] == 2


def test_a_name_with_a_slash_is_one_part_of_the_path(served: Served) -> None:
    path = "spaces/a%2Fb/segments/~{}/entries".format("YyUvZA")  # c%/d
    posted = served.ask("POST", path, b"raw", {"Content-Type": "text/plain", "Metadata-Colour": "red"})
    assert posted.status == 201, posted
    (entry,) = served.store.consume_segment("a/b", "c%/d")
    assert (entry.payload, entry.metadata) == (b"raw", {"colour": "red"})
    assert served.ask("GET", posted.json["href"] + "/entries").json["entries"][0]["text"] == "raw"
