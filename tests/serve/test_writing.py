"""Writes over HTTP: formats, conditions, transactions, idempotency, leases, and an outcome that is unknown."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_serve import Served

from streamkit import OutcomeUnknown, Record
from streamkit.aio import AsyncStore
from streamkit.leases import LeaseGrant

ENTRIES = "spaces/s/segments/a/entries"
NDJSON = {"Content-Type": "application/x-ndjson"}


def payloads(served: Served, segment: str = "a") -> list[bytes]:
    return [entry.payload for entry in served.store.consume_segment("s", segment)]


@pytest.mark.parametrize(
    ("body", "content_type", "wanted"),
    [
        (b'{"json": 1 }', "application/json", [b"1"]),
        (b'{"text":"caf\xc3\xa9"}', "application/json", ["café".encode()]),
        (b'{"base64":"AP8="}', "application/json; charset=utf-8", [b"\x00\xff"]),
        (b'[{"json":null},{"text":""}]', "application/json", [b"null", b""]),
        (b'{"records":[]}', "application/json", []),
        (b'{"json":1}\n\n{"text":"b"}\r\n', "application/x-ndjson", [b"1", b"b"]),
        (b"", "application/x-ndjson", []),
        (b"\x00\x01", "application/octet-stream", [b"\x00\x01"]),
        (b"", "text/plain", [b""]),
    ],
)
def test_a_body_is_taken_by_its_type(served: Served, body: bytes, content_type: str, wanted: list[bytes]) -> None:
    posted = served.ask("POST", ENTRIES, body, {"Content-Type": content_type})
    assert posted.status == (201 if wanted else 200), posted
    assert payloads(served) == wanted
    assert posted.json["last_sequence"] == len(wanted)


EVENT = {"specversion": "1.0", "id": "7", "source": "/tests", "type": "paid"}
EVENT_HEADERS = {f"Ce-{name.capitalize()}": value for name, value in EVENT.items()}


@pytest.mark.parametrize(
    ("body", "headers", "wanted"),
    [
        ({**EVENT, "data": {"a": 1}}, {"Content-Type": "application/cloudevents+json"}, b'{"a": 1}'),
        ({**EVENT, "data_base64": "AP8="}, {"Content-Type": "application/cloudevents+json"}, b"\x00\xff"),
        (
            {**EVENT, "datacontenttype": "text/plain", "data": "x"},
            {"Content-Type": "application/cloudevents+json; charset=utf-8"},
            b"x",
        ),
        ([{**EVENT, "data": 5}], {"Content-Type": "application/cloudevents-batch+json"}, b"5"),
        (b"raw", {"Content-Type": "text/plain", **EVENT_HEADERS}, b"raw"),
        (b'{"json": 1}', {"Content-Type": "application/json", **EVENT_HEADERS}, b'{"json": 1}'),
        (b'{"a": 1}\n', {"Content-Type": "application/x-ndjson", **EVENT_HEADERS}, b'{"a": 1}\n'),
        (b"", EVENT_HEADERS, b""),
    ],
)
def test_a_cloud_event_is_taken_in_each_form(served: Served, body: Any, headers: dict[str, str], wanted: bytes) -> None:
    posted = served.ask("POST", ENTRIES, body, headers)
    assert posted.status == 201, posted
    entry = served.store.peek("s", "a")
    assert entry.payload == wanted
    told = {name: value for name, value in entry.metadata.items() if name != "content-type"}
    assert told == {f"ce-{name}": value for name, value in EVENT.items()}


def test_a_key_gives_the_first_answer_again(served: Served) -> None:
    headers = {"Idempotency-Key": "k"}
    first = served.ask("POST", ENTRIES, {"text": "x"}, headers)
    assert "idempotent-replayed" not in first.headers
    served.ask("POST", ENTRIES, {"text": "y"})
    again = served.ask("POST", ENTRIES, {"text": "x"}, headers)
    assert (again.status, again.body, again.headers["idempotent-replayed"]) == (201, first.body, "true")
    other = served.ask("POST", ENTRIES, {"text": "z"}, headers)
    assert (other.status, other.json["type"]) == (422, "urn:streamkit:idempotency-key-reused")
    assert payloads(served) == [b"x", b"y"]
    found = served.ask("GET", "spaces/s/idempotency/k").json["segments"]
    assert [(status["segment"], status["last_sequence"]) for status in found] == [("a", 1)]
    assert served.ask("GET", "spaces/s/idempotency/other").status == 404


def test_a_transaction_is_written_with_all_that_it_expects(served: Served) -> None:
    parts = [
        {"segment": "a", "records": [{"json": 1}], "expected_sequence": 0},
        {"segment": "b", "records": [{"text": "x"}, {"text": "y"}]},
    ]
    done = served.ask("POST", "spaces/s/transactions", {"parts": parts})
    assert done.status == 201, done
    assert [(s["segment"], s["last_sequence"]) for s in done.json["segments"]] == [("a", 1), ("b", 2)]
    asked = served.ask("GET", done.headers["location"])
    assert asked.json == {"id": done.json["trx"]["id"], "outcome": "committed"}
    lost = served.ask("POST", "spaces/s/transactions", {"parts": parts})
    assert (lost.status, lost.json["expected"], lost.json["actual"]) == (412, 0, 1)
    assert payloads(served, "b") == [b"x", b"y"]
    guard = {"parts": [{"segment": "a", "expected_sequence": 1}]}
    assert served.ask("POST", "spaces/s/transactions", guard).status == 200
    absent = "00000000-0000-4000-8000-000000000000"
    assert served.ask("GET", f"spaces/s/transactions/{absent}").json["outcome"] == "absent"


def test_records_of_several_segments_are_one_transaction(served: Served) -> None:
    body = b'{"segment":"a","json":1}\n{"segment":"b","json":2}\n{"segment":"a","json":3}\n'
    done = served.ask("POST", "spaces/s/entries", body, NDJSON)
    assert [(s["segment"], s["last_sequence"]) for s in done.json["segments"]] == [("a", 2), ("b", 1)]
    body = b'{"who":"a","n":4}\n{"who":"b","n":5}\n'
    assert served.ask("POST", "spaces/s/entries?segment_key=who", body, NDJSON).status == 201
    assert payloads(served) == [b"1", b"3", b'{"who":"a","n":4}']
    assert len({entry.trx.number for entry in served.store.consume_space("s")}) == 2


def test_a_lease_is_held_by_its_token_and_fences_writes(served: Served) -> None:
    held = served.ask("POST", "leases/leader", {"ttl": 30})
    assert held.status == 201
    assert served.ask("POST", "leases/leader").status == 409
    token = {"Lease-Token": held.json["token"]}
    assert served.ask("PUT", "leases/leader", headers=token).json["fence"] == held.json["fence"]
    assert served.ask("POST", ENTRIES, {"text": "1"}, token).status == 201
    assert served.ask("DELETE", "leases/leader", headers=token).status == 204
    assert served.ask("PUT", "leases/leader", headers=token).json["type"] == "urn:streamkit:lease-lost"
    following = served.ask("POST", "leases/leader").json
    assert following["fence"] > held.json["fence"]
    assert served.ask("POST", ENTRIES, {"text": "2"}, {"Lease-Token": following["token"]}).status == 201
    fenced = served.ask("POST", ENTRIES, {"text": "3"}, token)
    assert (fenced.status, fenced.json["type"]) == (409, "urn:streamkit:fenced")
    assert served.ask("PUT", "leases/other", headers=token).status == 400
    assert payloads(served) == [b"1", b"2"]


def test_a_lease_token_is_not_forged(served: Served) -> None:
    token = served.ask("POST", "leases/leader", {"ttl": 30}).json["token"]
    text, _, signature = token.partition(".")
    grant = LeaseGrant.decode(text)
    higher = LeaseGrant(grant.key, (1 << 62) + 1, grant.ttl, grant.handle).encode()
    for forged in (higher, f"{higher}.{signature}", f"{higher}.", text, f"{text}.{signature}x"):
        assert served.ask("POST", ENTRIES, {"text": "x"}, {"Lease-Token": forged}).status == 400, forged
        assert served.ask("PUT", "leases/leader", None, {"Lease-Token": forged}).status == 400, forged
    # A token of another store is none here.
    other = served.ask("POST", f"/v1/stores/{uuid4()}/leases/leader", {"ttl": 30}).json["token"]
    assert served.ask("POST", ENTRIES, {"text": "x"}, {"Lease-Token": other}).status == 400
    assert served.ask("POST", ENTRIES, {"text": "x"}, {"Lease-Token": token}).status == 201


def test_an_unknown_outcome_names_where_to_ask_for_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = UUID("00000000-0000-4000-8000-000000000001")

    async def commit(self: AsyncStore, draft: Any) -> None:
        raise OutcomeUnknown("the answer was lost", lost)

    monkeypatch.setattr(AsyncStore, "commit", commit)
    answer = served.ask("POST", ENTRIES, {"text": "x"})
    assert (answer.status, answer.json["transaction"]) == (504, str(lost))
    assert answer.json["retryable"] is False
    assert served.ask("GET", answer.headers["location"]).json == {"id": str(lost), "outcome": "absent"}


def test_a_sequence_in_a_record_is_an_expectation(served: Served) -> None:
    assert served.ask("POST", ENTRIES, [{"text": "x", "sequence": 1}, {"text": "y", "sequence": 2}]).status == 201
    assert served.ask("POST", ENTRIES, [{"text": "x", "sequence": 1}]).status == 412


def test_a_write_from_outside_is_seen(served: Served) -> None:
    served.store.produce("s", "a", [Record(b"x")])
    assert served.ask("POST", ENTRIES, {"text": "y"}, {"If-Match": '"1"'}).json["last_sequence"] == 2
