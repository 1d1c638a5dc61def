"""Streams that end at any moment: the client goes on at another process, and nothing is lost or comes twice."""

from __future__ import annotations

import json
import os
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_serve import Served

import streamkit
from harness.balanced import Balanced
from streamkit import Record, Unavailable
from streamkit.aio import AsyncStore
from streamkit.serve import Limits

EXHAUSTIVE = bool(os.environ.get("STREAMKIT_EXHAUSTIVE"))
TIMES = 100 if EXHAUSTIVE else 12
KILLS = 10 if EXHAUSTIVE else 2


class Watcher:
    """Does as an EventSource does: connects again with the id of the last event."""

    def __init__(self, address: str, path: str) -> None:
        self.url = f"{address}{path}"
        self.last = ""
        self.found: list[tuple[str, int]] = []
        self.connections = 0

    def watch(self, until: int, chances: random.Random) -> None:
        """Read until `until` entries have come. The client hangs up now and then."""
        while len(self.found) < until:
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": self.last} if self.last else {})}
            self.connections += 1
            try:
                with urllib.request.urlopen(urllib.request.Request(self.url, headers=headers), timeout=30) as stream:
                    self._read(stream, chances.randrange(1, 4), until)
            except (urllib.error.URLError, OSError, HTTPException):
                continue

    def _read(self, stream: Any, events: int, until: int) -> None:
        fields: dict[str, str] = {}
        for line in stream:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
                continue
            if fields.get("event") == "entries":
                self.found += [(entry["segment"], entry["sequence"]) for entry in json.loads(fields["data"])]
                events -= 1
            self.last = fields.get("id", self.last)
            if fields.get("event") == "bye" or events <= 0 or len(self.found) >= until:
                return
            fields = {}


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 4])
def test_processes_are_killed_and_nothing_is_lost_or_comes_twice(tmp_path: Path, partitions: int) -> None:
    url, store_id, chances = f"file://{tmp_path}/root", uuid4(), random.Random(partitions)
    with streamkit.connect(url) as client, Balanced(url, store_id) as balanced:
        store = client.store(store_id)
        store.create_space("s", partitions=partitions)
        whole = Watcher(balanced.address, "/v1/stores/_/spaces/s/entries")
        one = Watcher(balanced.address, "/v1/stores/_/spaces/s/segments/segment%201/entries")
        total = TIMES * 12
        kills = {total * number // (KILLS + 1) for number in range(1, KILLS + 1)}
        threads = [
            threading.Thread(target=whole.watch, args=(total, random.Random(1))),
            threading.Thread(target=one.watch, args=(total // 3, random.Random(2))),
        ]
        for thread in threads:
            thread.start()
        for number in range(total):
            store.produce("s", f"segment {number % 3}", [Record(b"%d" % number)])
            while len(whole.found) < number - 8:  # so that they come in many events
                threads[0].join(0.001)
            if number in kills:
                balanced.replace(chances.randrange(2))
        for thread in threads:
            thread.join(240)
        everything = [(entry.segment, entry.sequence) for entry in store.consume_space("s")]
        assert sorted(whole.found) == sorted(everything)
        assert one.found == [("segment 1", number) for number in range(1, total // 3 + 1)]
        if partitions == 1:
            assert whole.found == everything
        assert whole.connections >= TIMES // 2


def test_all_watchers_of_a_space_share_one_follower(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    follow, followers = AsyncStore.follow_space, []

    def counted(self: AsyncStore, *args: Any, **options: Any) -> Any:
        followers.append(args)
        return follow(self, *args, **options)

    monkeypatch.setattr(AsyncStore, "follow_space", counted)
    served = serve()
    watching = [
        served.events(path)
        for path in ("spaces/s/entries", "spaces/s/segments/a/entries", "spaces/s/statuses", "entries?space=s")
        for _ in range(10)
    ]
    for events in watching:
        events.until("caught-up")
    served.store.produce("s", "a", [Record(b"1")])
    for events in watching:
        assert next(events).name in ("entries", "statuses")
    assert followers == [("s",)]


def test_one_watcher_that_does_not_read_holds_up_nobody(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(ring_bytes=64 << 10))
    stalled, live = served.events("spaces/s/entries"), served.events("spaces/s/entries")
    stalled.until("caught-up")
    live.until("caught-up")
    for number in range(200):
        served.store.produce("s", "a", [Record(b"%d" % number + b" " * 50_000)])
    assert [entry["sequence"] for entry in live.entries(200)] == list(range(1, 201))
    assert [entry["sequence"] for entry in stalled.entries(200)] == list(range(1, 201))


def test_a_stream_that_cannot_begin_is_refused_and_begins_later(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(self: AsyncStore, space: str) -> Any:
        raise Unavailable("the storage is away")

    served = serve()
    accept = {"Accept": "text/event-stream"}
    with monkeypatch.context() as away:
        away.setattr(AsyncStore, "end_offset", unavailable)
        for path, headers in (("spaces/s/entries", accept), ("spaces/s/segments/a/entries?wait=5", {})):
            refused = served.ask("GET", path, headers=headers)
            assert (refused.status, refused.json["retryable"]) == (503, True)
    served.events("spaces/s/entries").until("caught-up")


def test_a_stream_goes_on_when_the_storage_is_back(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    follow, failures = AsyncStore.follow_space, [1, 1]

    def failing(self: AsyncStore, *args: Any, **options: Any) -> Any:
        if failures:
            failures.pop()
            raise Unavailable("the storage is away")
        return follow(self, *args, **options)

    monkeypatch.setattr(AsyncStore, "follow_space", failing)
    monkeypatch.setattr("streamkit.serve.ring._PAUSE", (0.01, 0.02))
    served = serve()
    events = served.events("spaces/s/entries")
    events.until("caught-up")
    served.store.produce("s", "a", [Record(b"1")])
    assert events.entries(1)[0]["sequence"] == 1


def test_a_space_that_is_deleted_ends_its_streams_with_a_reason(serve: Callable[..., Served]) -> None:
    served = serve()
    served.store.produce("s", "a", [Record(b"1")])
    events = served.events("spaces/s/entries")
    events.until("caught-up")
    assert served.ask("DELETE", "spaces/s").status == 204
    assert served.ask("POST", "spaces/s/segments/a/entries", {"json": 2}).status == 201
    goodbye = events.until("bye")[-1].data
    assert goodbye["reason"] == "error"
    assert served.events("spaces/s/entries").entries(1)[0]["json"] == 2


def test_a_space_that_another_process_deletes_is_opened_again(served: Served) -> None:
    entries = "spaces/s/segments/a/entries"
    assert served.ask("POST", entries, {"json": 1}).status == 201
    served.store.delete_space("s")
    statuses = [served.ask("POST", entries, {"json": 2}).status for _ in range(3)]
    assert statuses[-1] == 201, statuses
    assert set(statuses) <= {201, 503}
    assert [entry["json"] for entry in served.ask("GET", entries).json["entries"]][-1] == 2
