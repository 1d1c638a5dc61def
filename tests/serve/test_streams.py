"""Streams of events: history, then what comes, from one ring for all."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from fix_serve import Served

from streamkit import Record
from streamkit.serve import Limits

ENTRIES = "spaces/orders/segments/42/entries"


def test_a_stream_has_the_history_and_then_what_comes(served: Served) -> None:
    served.store.produce("orders", "42", [Record(b"1"), Record(b"2")])
    events = served.events(ENTRIES)
    assert events.response.getheader("Content-Type") == "text/event-stream"
    history, caught_up = events.until("caught-up")
    assert [entry["json"] for entry in history.data] == [1, 2]
    assert caught_up.id == "2"
    served.store.produce("orders", "other", [Record(b"no")])
    served.store.produce("orders", "42", [Record(b"3")])
    live = next(events)
    assert (live.name, live.id, live.data[0]["sequence"]) == ("entries", "3", 3)


def test_a_stream_resumes_after_its_last_event(served: Served) -> None:
    served.store.produce("orders", "42", [Record(b"%d" % n) for n in range(1, 6)])
    events = served.events(ENTRIES, {"Last-Event-ID": "3"})
    assert [entry["sequence"] for entry in events.entries(2)] == [4, 5]


def test_a_process_that_ends_says_goodbye_to_its_streams(serve: Callable[..., Served]) -> None:
    served = serve()
    events = served.events("spaces/orders/segments/42/entries")
    events.until("caught-up")
    served.server.should_exit = True
    goodbye = events.until("bye")[-1]
    assert goodbye.data == {"reason": "drain"}
    assert list(events) == []


def test_a_silent_stream_has_a_heartbeat(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(heartbeat_seconds=0.05))
    events = served.events("spaces/orders/segments/42/entries")
    events.until("caught-up")
    assert next(events).name == ":"


def test_a_stream_tells_a_browser_when_to_connect_again(served: Served) -> None:
    served.store.produce("orders", "42", [Record(b"1")])
    for path in (ENTRIES, "spaces/empty/entries"):
        events, first = served.events(path), []
        while (line := events.response.readline()) != b"\n":
            first.append(line)
        (retry,) = [int(line.split()[1]) for line in first if line.startswith(b"retry: ")]
        assert 500 <= retry < 1500


def test_a_stream_of_a_client_that_does_not_read_is_cut(
    serve: Callable[..., Served], capfd: pytest.CaptureFixture[str]
) -> None:
    served = serve(limits=Limits(write_seconds=0.2))
    for _ in range(8):
        served.store.produce("orders", "42", [Record(b"x" * (4 << 20))])
    events = served.events("spaces/orders/segments/42/entries")
    read = events.response.read(10)
    assert read.startswith(b"event:")
    for _ in range(600):
        if not len(served.application.service.ticker):
            break
        time.sleep(0.01)
    assert len(served.application.service.ticker) == 0
    served.close()
    assert capfd.readouterr().err == "", "a client that does not read fills the log"


def test_a_stream_that_falls_behind_the_ring_loses_nothing(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(ring_bytes=1000))
    events = served.events("spaces/orders/segments/42/entries")
    events.until("caught-up")
    total = 300
    for number in range(total):
        served.store.produce("orders", "42", [Record(b"%d" % number + b" " * 20_000)])
    assert [entry["sequence"] for entry in events.entries(total)] == list(range(1, total + 1))
