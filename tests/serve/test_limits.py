"""Limits, health, metrics and the end of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_serve import Events, Served

from streamkit import Record
from streamkit.serve import Limits
from streamkit.serve.limits import limits_of

ENTRIES = "spaces/s/segments/a/entries"


def too_many(reply: Any) -> None:
    assert (reply.status, reply.json["type"]) == (429, "urn:streamkit:too-many-requests"), reply
    assert int(reply.headers["retry-after"]) >= 1
    assert reply.headers["ratelimit"].startswith('"default";r=0;t=')
    assert reply.json["retryable"] is True


def test_requests_that_come_too_often_are_refused(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(requests_per_second=0.001, burst=3))
    assert [served.ask("GET", "spaces").status for _ in range(3)] == [200] * 3
    too_many(served.ask("GET", "spaces"))
    assert served.ask("GET", "/healthz").status == 200


def test_too_many_requests_at_once_are_refused_and_slots_come_back(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(requests_per_key=1))
    end = threading.Event()
    waiting = threading.Thread(target=lambda: (served.ask("GET", f"{ENTRIES}?wait=30"), end.set()))
    waiting.start()
    gate = served.application.service.gate
    while not gate.requests:
        time.sleep(0.001)
    too_many(served.ask("GET", "spaces"))
    served.store.produce("s", "a", [Record(b"1")])
    waiting.join()
    assert served.ask("GET", "spaces").status == 200
    for path in ("nothing", f"{ENTRIES}?after=x", f"{ENTRIES}/9"):
        served.ask("GET", path)
    assert served.ask("GET", "spaces").status == 200


@pytest.mark.parametrize("limits", [Limits(streams=2), Limits(streams_per_key=2)])
def test_too_many_streams_are_refused_and_slots_come_back(serve: Callable[..., Served], limits: Limits) -> None:
    served = serve(limits=limits)
    first, second = served.events(ENTRIES), served.events("spaces/s/entries")
    accept = {"Accept": "text/event-stream"}
    too_many(served.ask("GET", ENTRIES, headers=accept))
    first.close()
    gate = served.application.service.gate
    deadline = time.monotonic() + 30
    while gate.streams == 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    third = served.events(ENTRIES)
    assert third.response.status == second.response.status == 200


@pytest.mark.parametrize("limits", [Limits(spaces=2), Limits(spaces_per_key=2)])
def test_too_many_followed_spaces_are_refused(serve: Callable[..., Served], limits: Limits) -> None:
    served = serve(limits=limits)
    accept = {"Accept": "text/event-stream"}
    with served.events("entries?space=s&space=t"):
        with served.events("spaces/s/entries"), served.events("spaces/t/statuses"):
            pass  # they are followed already
        too_many(served.ask("GET", "entries?space=s&space=u", headers=accept))
        too_many(served.ask("GET", "spaces/u/entries?wait=1"))
        too_many(served.ask("GET", "spaces/u/statuses", headers=accept))
        assert served.ask("GET", "spaces/u/entries").status == 200


def test_a_wake_has_limits_like_a_key(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(requests_per_second=0.001, burst=20))
    path, json = "/v1/stream/__ds/subscriptions/s", {"Content-Type": "application/json"}
    for name in ("wakes", "a"):
        served.ask("PUT", f"/v1/stream/{name}", b"", json)
    served.ask("PUT", path, {"type": "pull-wake", "streams": ["a"], "wake_stream": "wakes", "lease_ttl_ms": 60_000})
    served.ask("POST", "/v1/stream/a", b"1", json)
    wake = served.ask("POST", f"{path}/claim", {"worker": "w"}).json
    headers = {"Authorization": f"Bearer {wake['token']}"}
    body = {"wake_id": wake["wake_id"], "generation": wake["generation"]}
    assert [served.ask("POST", f"{path}/ack", body, headers).status for _ in range(20)] == [200] * 20
    too_many(served.ask("POST", f"{path}/ack", body, headers))
    assert served.ask("POST", f"{path}/ack", body, {"Authorization": "Bearer x.y"}).status == 401


def test_metrics_tell_what_was_answered(serve: Callable[..., Served]) -> None:
    served = serve()
    served.ask("POST", ENTRIES, {"text": "x"})
    served.ask("GET", f"{ENTRIES}?after=x")
    served.ask("GET", "/nothing")
    told = served.ask("GET", "/metrics").body.decode().splitlines()
    route = "/v1/stores/{st}/spaces/{sp}/segments/{sg}/entries"
    assert f'streamkit_requests_total{{method="POST",route="{route}",status="201"}} 1' in told
    assert f'streamkit_requests_total{{method="GET",route="{route}",status="400"}} 1' in told
    assert 'streamkit_requests_total{method="-",route="-",status="404"} 1' in told
    assert 'streamkit_refusals_total{code="not-found"} 1' in told
    assert "streamkit_store_transactions_total 1" in told
    for line in told:
        assert line.startswith(("# TYPE ", "streamkit_")), line


def start(url: str, *options: str) -> tuple[subprocess.Popen[str], int]:
    """`streamkit serve` as a process, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "streamkit.cli", "serve", "--port", "0", "--url", url, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "STREAMKIT_STORE": str(uuid4())},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("streamkit serves http://"), (line, process.stderr.read() if process.stderr else "")
    return process, int(line.rpartition(":")[2])


@pytest.mark.parametrize(
    ("options", "printed"), [((), "the console is at http://127.0.0.1:{}/console/\n"), (("--no-console",), "")]
)
def test_serve_prints_where_the_console_is(tmp_path: Path, options: tuple[str, ...], printed: str) -> None:
    process, port = start(f"file://{tmp_path}/root", *options)
    assert process.stdout is not None
    line = process.stdout.readline() if printed else ""
    process.send_signal(signal.SIGTERM)
    assert line + process.communicate(timeout=60)[0] == printed.format(port)


def stream(port: int) -> Events:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/v1/stores/_/{ENTRIES}", headers={"Accept": "text/event-stream"})
    return Events(connection)


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_a_process_that_is_told_to_end_says_goodbye_and_ends(tmp_path: Path, options: tuple[str, ...]) -> None:
    process, port = start(f"file://{tmp_path}/root", *options)
    try:
        streams = [stream(port) for _ in range(5)]
        for events in streams:
            events.until("caught-up")
        poll = HTTPConnection("127.0.0.1", port, timeout=60)
        poll.request("GET", f"/v1/stores/_/{ENTRIES}?wait=30")
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        for events in streams:
            assert events.until("bye")[-1].data == {"reason": "drain"}
        assert poll.getresponse().status == 200
        assert process.wait(15) == 0
        assert time.monotonic() - begun < 10
    finally:
        process.kill()
        process.communicate()


def test_a_server_that_drains_is_not_ready(serve: Callable[..., Served]) -> None:
    served = serve()
    assert served.ask("GET", "/readyz").status == 200
    served.application.service.is_draining = True
    assert served.ask("GET", "/readyz").status == 503
    assert served.ask("GET", "/healthz").status == 200


def test_limits_are_given_by_name() -> None:
    assert limits_of(["streams=7", "body_seconds=0.5", "records=0"]) == Limits(streams=7, body_seconds=0.5, records=0)
    for wrong in ("none=1", "streams", "streams=", "streams=x", "streams=-1", "body_seconds=nan", "streams=1.5"):
        with pytest.raises(ValueError, match="limit"):
            limits_of([wrong])
