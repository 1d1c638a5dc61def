"""Reads over HTTP: pages, bounds, formats, long-polls, gaps."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fix_serve import Reply, Served

from streamkit import Record
from streamkit.serve.v1 import cursors

ENTRIES = "spaces/s/segments/a/entries"


def fill(served: Served, count: int, segment: str = "a", space: str = "s") -> None:
    for number in range(1, count + 1):
        served.store.produce(space, segment, [Record(b"%d" % number)])


def sequences(page: Any) -> list[int]:
    return [entry["sequence"] for entry in page["entries"]]


def test_a_segment_is_read_in_pages(served: Served) -> None:
    fill(served, 7)
    found, after = [], 0
    while True:
        page = served.ask("GET", f"{ENTRIES}?after={after}&limit=3").json
        found += sequences(page)
        assert page["end"] == 7
        assert page["lag"] == 7 - page["next"]
        if page["caught_up"]:
            break
        after = page["next"]
    assert found == list(range(1, 8))


def test_a_space_is_read_in_pages(served: Served) -> None:
    fill(served, 3, "a")
    fill(served, 4, "b")
    found, offset = [], ""
    while True:
        page = served.ask("GET", f"spaces/s/entries?limit=2{offset}").json
        found += [(entry["segment"], entry["sequence"]) for entry in page["entries"]]
        assert page["lag"] == 7 - len(found)
        if page["caught_up"]:
            break
        offset = f"&offset={page['next']}"
    assert found == [(entry.segment, entry.sequence) for entry in served.store.consume_space("s")]


def test_several_spaces_are_read_in_pages_with_one_cursor(served: Served) -> None:
    fill(served, 3, space="s")
    fill(served, 4, space="t")
    for method in ("QUERY", "POST"):
        body: dict[str, Any] = {"spaces": ["s", "t", "none"], "limit": 2}
        found = []
        while True:
            page = served.ask(method, "entries", body).json
            found += [(entry["space"], entry["sequence"]) for entry in page["entries"]]
            if page["caught_up"]:
                break
            body = {"cursor": page["next"], "limit": 2}
        everything = served.store.consume({"s": None, "t": None})
        assert found == [(entry.space, entry.sequence) for entry in everything]
        assert served.ask("GET", f"entries?cursor={page['next']}").json["entries"] == []
    offset = list(served.store.consume_space("s"))[1].space_offset.hex()
    page = served.ask("POST", "entries", {"spaces": {"s": offset}}).json
    assert sequences(page) == [3]
    assert [e["space"] for e in served.ask("GET", "entries?space=s&space=t&limit=100").json["entries"]].count("t") == 4


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("from=beginning", [1, 2, 3, 4, 5]),
        ("from=end", []),
        ("reverse=true&limit=2", [5, 4]),
        ("reverse=true&before=4", [3, 2, 1]),
        ("reverse=true&before=1", []),
        ("after=2&before=5", [3, 4]),
        ("max_bytes=1", [1]),
        ("max_bytes=2", [1, 2]),
        ("from=9000000000000", []),
        ("from=0&until=9000000000000", [1, 2, 3, 4, 5]),
        ("until=1", []),
        ("after=99", []),
    ],
)
def test_a_read_has_bounds(served: Served, query: str, wanted: list[int]) -> None:
    fill(served, 5)
    page = served.ask("GET", f"{ENTRIES}?{query}")
    assert page.status == 200, page
    assert sequences(page.json) == wanted


def test_reading_on_from_an_empty_page_finds_what_comes(served: Served) -> None:
    fill(served, 2)
    for start in ("from=end", "from=9000000000000", "after=2"):
        segment = served.ask("GET", f"{ENTRIES}?{start}").json["next"]
        space = served.ask("GET", f"spaces/s/entries?{start if start != 'after=2' else 'from=end'}").json["next"]
        posted = served.ask("POST", ENTRIES, {"text": "new"}).json["last_sequence"]
        assert sequences(served.ask("GET", f"{ENTRIES}?after={segment}").json)[-1:] == [posted]
        assert sequences(served.ask("GET", f"spaces/s/entries?offset={space}").json)[-1:] == [posted]


def test_one_entry_is_read_by_its_sequence(served: Served) -> None:
    fill(served, 3)
    assert served.ask("GET", f"{ENTRIES}/2").json["json"] == 2
    assert served.ask("GET", f"{ENTRIES}/4").status == 404
    served.store.trim("s", "a", before=3)
    gone = served.ask("GET", f"{ENTRIES}/2")
    assert gone.status == 410
    assert gone.json["gap"]["reason"] == "trimmed"


def test_removed_entries_are_told_in_their_place(served: Served) -> None:
    fill(served, 5)
    served.store.trim("s", "a", before=3)
    served.store.erase("s", "a", first=4, last=4)
    page = served.ask("GET", f"{ENTRIES}?after=1").json["entries"]
    assert [entry.get("sequence", entry.get("gap")) for entry in page] == [
        {"space": "s", "segment": "a", "first_sequence": 2, "last_sequence": 2, "reason": "trimmed"},
        3,
        {"space": "s", "segment": "a", "first_sequence": 4, "last_sequence": 4, "reason": "erased"},
        5,
    ]
    assert sequences(served.ask("GET", f"{ENTRIES}?after=1&gaps=skip").json) == [3, 5]
    refused = served.ask("GET", f"{ENTRIES}?after=1&gaps=raise")
    assert (refused.status, refused.json["type"]) == (410, "urn:streamkit:entries-removed")


PLACES = [("spaces/s/entries?", "offset"), ("entries?space=s&", "cursor")]
"""A space, and several spaces, with the parameter that reads on."""


def _erase_five(served: Served) -> None:
    """Five segments whose one entry is erased, and then three entries."""
    for segment in "uvwxy":
        fill(served, 1, segment)
    fill(served, 3, "b")
    served.store.erase("s", "[u-y]")


@pytest.mark.parametrize(("path", "place"), PLACES)
def test_pages_lead_past_more_removed_entries_than_a_page_holds(served: Served, path: str, place: str) -> None:
    _erase_five(served)
    gone: set[str] = set()
    found: list[int] = []
    query = path
    for _ in range(4):
        page = served.ask("GET", f"{query}limit=2").json
        gone |= {item["gap"]["segment"] for item in page["entries"] if "gap" in item}
        found += [item["sequence"] for item in page["entries"] if "gap" not in item]
        if page["caught_up"]:
            break
        query = f"{path}{place}={page['next']}&" if place == "offset" else f"entries?cursor={page['next']}&"
    assert (gone, found, page["caught_up"]) == (set("uvwxy"), [1, 2, 3], True)


@pytest.mark.parametrize(("path", "place"), PLACES)
def test_removed_entries_at_the_end_are_told_once(served: Served, path: str, place: str) -> None:
    fill(served, 1)
    start = served.ask("GET", path.rstrip("?&")).json["next"]
    fill(served, 3, "b")
    served.store.erase("s", "b")
    query = path.replace("space=s&", "") + place
    page = served.ask("GET", f"{query}={start}").json
    (gap,) = [item["gap"] for item in page["entries"]]
    assert (gap["first_sequence"], gap["last_sequence"]) == (1, 3), "erased entries in a row are one gap"
    after = served.ask("GET", f"{query}={page['next']}").json
    assert (after["entries"], after["caught_up"]) == ([], True), "a long-poll waits here"
    fill(served, 1)
    assert sequences(served.ask("GET", f"{query}={after['next']}").json) == [2]


@pytest.mark.parametrize("path", ["spaces/s/entries", "entries?space=s"])
def test_a_stream_leads_past_more_removed_entries_than_a_page_holds(
    served: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "_ENTRIES", 2)
    _erase_five(served)
    events = served.events(path)
    told = events.until("caught-up")
    events.close()
    gone = [event.data["gap"]["segment"] for event in told if event.name == "gap"]
    found = [entry["sequence"] for event in told if event.name == "entries" for entry in event.data]
    assert (gone, found) == (list("uvwxy"), [1, 2, 3])


@pytest.mark.parametrize("path", ["spaces/s/entries", ENTRIES])
def test_erased_entries_in_a_row_are_one_gap_of_a_reverse_page(served: Served, path: str) -> None:
    fill(served, 5)
    served.store.erase("s", "a", first=2, last=4)
    items = served.ask("GET", f"{path}?reverse=true").json["entries"]
    assert [item["sequence"] for item in items if "gap" not in item] == [5, 1]
    gaps = [item["gap"] for item in items if "gap" in item]
    assert [(gap["first_sequence"], gap["last_sequence"]) for gap in gaps] == [(2, 4)]


@pytest.mark.parametrize("path", ["spaces/s/entries", "entries?space=s"])
def test_erased_entries_in_a_row_are_one_gap_of_a_stream(served: Served, path: str) -> None:
    fill(served, 5)
    fill(served, 1, "b")
    served.store.erase("s", "a")
    events = served.events(path)
    told = events.until("caught-up")
    events.close()
    gaps = [event.data["gap"] for event in told if event.name == "gap"]
    assert [(gap["first_sequence"], gap["last_sequence"]) for gap in gaps] == [(1, 5)]


@pytest.mark.parametrize("path", ["spaces/s/entries", "entries?space=s", ENTRIES])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_gaps_between_entries_are_told_once_on_pages_and_streams(
    served: Served, path: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page ends after an entry, so the next one begins with the gap after it."""
    monkeypatch.setattr(cursors, "_ENTRIES", limit)
    fill(served, 11)
    served.store.erase("s", "a", sequences=[2, 4, 6, 8, 10])
    events = served.events(path)
    told = events.until("caught-up")
    events.close()
    streamed = [item for event in told for item in (event.data if event.name == "entries" else [event.data])][:-1]
    paged: list[Any] = []
    name = {"spaces/s/entries": "offset", ENTRIES: "after"}.get(path, "cursor")
    query = f"{path}{'&' if '?' in path else '?'}"
    while True:
        page = served.ask("GET", f"{query}limit={limit}").json
        paged += page["entries"]
        if page["caught_up"]:
            break
        query = f"{path.partition('?')[0]}?{name}={page['next']}&"
    for items in (streamed, paged):
        assert [item["gap"]["first_sequence"] if "gap" in item else item["sequence"] for item in items] == [
            *range(1, 12)
        ]


def test_gaps_of_one_space_are_not_told_again_on_each_page_of_several(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if that space has no entry for a long time, while the other one has many."""
    monkeypatch.setattr(cursors, "_ENTRIES", 2)
    for segment in "abcde":
        served.store.produce("t", segment, [Record(b"1")])
    for segment in "abcde":
        served.store.erase("t", segment)
    fill(served, 6)
    served.store.produce("t", "f", [Record(b"1"), Record(b"2")])
    gaps, found = [], []
    query = "entries?space=s&space=t&"
    for _ in range(9):
        page = served.ask("GET", f"{query}limit=2").json
        gaps += [item["gap"]["segment"] for item in page["entries"] if "gap" in item]
        found += [(item["segment"], item["sequence"]) for item in page["entries"] if "gap" not in item]
        if page["caught_up"]:
            break
        query = f"entries?cursor={page['next']}&"
    everything = [("a", number) for number in range(1, 7)] + [("f", 1), ("f", 2)]
    assert (gaps, sorted(found), page["caught_up"]) == (list("abcde"), everything, True)
    events = served.events("entries?space=s&space=t")
    told = events.until("caught-up")
    events.close()
    assert [event.data["gap"]["segment"] for event in told if event.name == "gap"] == list("abcde")
    found = [(item["segment"], item["sequence"]) for event in told if event.name == "entries" for item in event.data]
    assert sorted(found) == everything


def test_lines_hold_an_entry_each(served: Served) -> None:
    served.ask(
        "POST", ENTRIES, b'[{"json":{"a":\n1}},{"text":"two"},{"base64":"/w=="}]', {"Content-Type": "application/json"}
    )
    answer = served.ask("GET", ENTRIES, headers={"Accept": "application/x-ndjson"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert (answer.headers["streamkit-next"], answer.headers["streamkit-caught-up"]) == ("3", "true")
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [line.get("json", line.get("text", line.get("base64"))) for line in lines] == [{"a": 1}, "two", "/w=="]
    assert served.store.peek("s", "a").payload == b"\xff"


def test_a_full_page_has_a_tag_and_is_not_sent_twice(served: Served) -> None:
    fill(served, 4)
    page = served.ask("GET", f"{ENTRIES}?limit=2")
    assert served.ask("GET", f"{ENTRIES}?limit=2", headers={"If-None-Match": page.headers["etag"]}).status == 304
    assert "etag" not in served.ask("GET", f"{ENTRIES}?after=3").headers
    served.store.erase("s", "a", first=2, last=2)
    again = served.ask("GET", f"{ENTRIES}?limit=2", headers={"If-None-Match": page.headers["etag"]})
    assert again.status == 200


@pytest.mark.parametrize(
    ("path", "place"),
    [(f"{ENTRIES}?", "after"), ("spaces/s/entries?", "offset"), ("entries?", "cursor")],
)
def test_a_long_poll_waits_for_the_next_entry(served: Served, path: str, place: str) -> None:
    fill(served, 1)
    following = served.ask("GET", path + ("space=s" if place == "cursor" else "")).json["next"]
    found: list[Reply] = []
    waiting = threading.Thread(target=lambda: found.append(served.ask("GET", f"{path}{place}={following}&wait=30")))
    waiting.start()
    while not any(ring.listeners for ring in list(served.application.service.rings)):
        waiting.join(0.005)
    served.store.produce("s", "a", [Record(b"1")])
    waiting.join(60)
    assert sequences(found[0].json) == [2]


def test_a_long_poll_ends_without_entries(served: Served) -> None:
    page = served.ask("GET", f"{ENTRIES}?wait=0.01")
    assert (page.status, page.json["entries"], page.json["caught_up"]) == (200, [], True)


def test_a_stream_of_a_space_and_of_several_resumes_without_a_hole(serve: Callable[..., Served]) -> None:
    served = serve()
    served.store.create_space("many", partitions=4)
    spaces = ["s", "many"]

    def write(number: int) -> None:
        for space in spaces:
            served.store.produce(space, f"segment {number % 5}", [Record(b"%d" % number)])

    for number in range(10):
        write(number)
    for path, count in (("spaces/many/entries", 1), ("spaces/s/entries", 1), ("entries?space=s&space=many", 2)):
        start = len(list(served.store.consume_space("s")))
        total = (start + 40) * count
        found: list[tuple[str, str, int]] = []
        headers: dict[str, str] = {}
        writer = threading.Thread(target=lambda: [write(number) for number in range(40)])
        writer.start()
        while len(found) < total:
            events = served.events(path, headers)
            for event in events:
                if event.id:
                    headers["Last-Event-ID"] = event.id
                if event.name == "entries":
                    found += [(entry.get("space", ""), entry["segment"], entry["sequence"]) for entry in event.data]
                    break  # and connect again
            events.close()
        writer.join()
        assert len(found) == total
        assert len(set(found)) == total, "an entry came twice"


def test_statuses_come_as_a_snapshot_and_then_as_they_change(served: Served) -> None:
    fill(served, 2, "a")
    fill(served, 1, "b")
    events = served.events("spaces/s/statuses")
    told = [(status["segment"], status["last_sequence"]) for status in events.until("caught-up")[0].data]
    assert told == [("a", 2), ("b", 1)]
    served.store.produce("s", "b", [Record(b"2")])
    (status,) = next(events).data
    assert (status["segment"], status["last_sequence"]) == ("b", 2)
