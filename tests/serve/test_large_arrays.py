"""Bodies of very many small values: they are refused before the values are made, which take many times their memory."""

from __future__ import annotations

import tracemalloc

import pytest
from fix_serve import Served

from streamkit.serve.arrays import is_longer

JSON = {"Content-Type": "application/json"}
ENTRIES = "spaces/s/segments/a/entries"
COUNT = 300_000
RECORDS = b"[" + b",".join([b'{"text":""}'] * COUNT) + b"]"
NUMBERS = b"[" + b",".join([b"1"] * COUNT) + b"]"
LINES = b'{"text":""}\n' * COUNT


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        (ENTRIES, RECORDS, "application/json"),
        (ENTRIES, b'{"records":%b}' % RECORDS, "application/json"),
        (ENTRIES, b'{"records":%b,"records":1}' % RECORDS, "application/json"),
        (ENTRIES, b"[%b]" % b",".join([b"{}"] * COUNT), "application/cloudevents-batch+json"),
        (ENTRIES, LINES, "application/x-ndjson"),
        ("spaces/s/transactions", b'{"parts":[{"segment":"a","records":%b}]}' % RECORDS, "application/json"),
        ("spaces/s/transactions", b'{"parts":%b}' % RECORDS, "application/json"),
        ("/v1/stream/a", NUMBERS, "application/json"),
    ],
)
def test_too_many_small_values_are_refused_before_they_are_made(
    served: Served, path: str, body: bytes, kind: str
) -> None:
    served.ask("PUT", "/v1/stream/a", b"", JSON)
    served.ask("POST", path, body, {"Content-Type": kind})  # makes what is made once
    tracemalloc.start()
    try:
        answer = served.ask("POST", path, body, {"Content-Type": kind})
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.status == (400 if body.endswith(b":1}") else 413), answer
    assert most < 6 * len(body) + (4 << 20), most
    assert served.ask("GET", ENTRIES).json["entries"] == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("spaces/s/erase", b'{"sequences":{"a":%b}}' % NUMBERS),
        ("entries", b'{"spaces":["%b"]}' % b'","'.join([b"s"] * COUNT)),
        ("/v1/stream/__ds/subscriptions/s/streams", b'{"streams":["%b"]}' % b'","'.join([b"s"] * COUNT)),
    ],
)
def test_a_request_without_records_has_a_small_body(served: Served, path: str, body: bytes) -> None:
    assert served.ask("POST", path, body + b" " * (1 << 20), JSON).status == 413


def test_the_length_of_an_array_is_found_without_its_elements() -> None:
    for most in (1, 3):
        assert not is_longer(b"[" + b",".join([b'{"a":[1,2,3,4,5]}'] * most) + b"]", most)
        assert is_longer(b" [" + b",".join([b"[1,2]"] * (most + 1)) + b"]", most)
    assert not is_longer(b'{"a":1,"b":2,"c":3}', 1)
    assert not is_longer(b"[1,2,", 2)
    assert not is_longer(b"[" * 5_000 + b",,,", 2)
    assert not is_longer(b"[1,2,3]", 0)
