"""A fresh process on S3 that begins from a published view: its requests, and its work besides the download.

    python -m benchmarks.published_views [entries]
    python -m benchmarks.published_views --publishing [entries]

The second form measures what it takes to publish views, and to erase an entry from them, on a local disk.

A moto server answers each request 250 ms late, and keeps when each came and went: requests of which none overlaps with
another are counted as round trips, which is never fewer than what the process has waited for one after the other.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen
from uuid import uuid4

import streamkit
from streamkit import Record, View
from streamkit.views import Index, Reduce, Search
from streamkit.views.publish import Snapshots

from .views import fill, payloads

_SERVER = """
import json, logging, os, sys, threading, time
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
moto, seen, late = DomainDispatcherApplication(create_backend_app), [], [0.0]
def serve(environ, start_response):
    if environ["PATH_INFO"] == "/seen":
        late[0] = float(environ["QUERY_STRING"])
        start_response("200 OK", [])
        answer, seen[:] = json.dumps(seen).encode(), []
        return [answer]
    begun = time.monotonic()
    answer = list(moto(environ, start_response))
    time.sleep(late[0])
    seen.append([environ["REQUEST_METHOD"], environ["PATH_INFO"], begun, time.monotonic(), sum(map(len, answer))])
    return answer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
WSGIRequestHandler.protocol_version = "HTTP/1.1"
server = make_server("127.0.0.1", 0, serve, threaded=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print(server.port, flush=True)
server.serve_forever()
"""
_LATE = 0.25
NEW = 1000


class Request(NamedTuple):
    method: str
    path: str
    begun: float
    ended: float
    size: int


def trips(requests: list[Request]) -> int:
    """The most of which none overlaps with another."""
    count, ended = 0, float("-inf")
    for request in sorted(requests, key=lambda request: request.ended):
        if request.begun >= ended:
            count, ended = count + 1, request.ended
    return count


class Server:
    def __init__(self, endpoint: str) -> None:
        import boto3

        self.endpoint = endpoint
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="views")
        self.url = f"s3://views/root?endpoint_url={endpoint}&region=us-east-1"

    def seen(self, late: float) -> list[Request]:
        """Since the last call; from now on it answers so many seconds late."""
        with urlopen(f"{self.endpoint}/seen?{late}") as answer:
            return [Request(*one) for one in json.load(answer)]


@contextmanager
def serving() -> Iterator[Server]:
    os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing", AWS_EC2_METADATA_DISABLED="true")
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        yield Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.kill()
        process.communicate()


def _user(entry: streamkit.Entry) -> str:
    user: str = json.loads(entry.payload)["user"]
    return user


def _count(state: dict[str, int], entry: streamkit.Entry) -> dict[str, int]:
    state[entry.segment] = state.get(entry.segment, 0) + 1
    return state


def kinds() -> dict[str, View]:
    return {"Reduce": Reduce(_count, {}), "Index": Index(_user)}


def fresh(url: str, id: str, name: str, folder: str) -> None:
    """Run the work in its own process. Prints its seconds by CPU and by the clock, as JSON."""
    took = {"fetch": [0.0, 0.0]}
    fetch = Snapshots.fetch

    def timed(self: Snapshots, path: str) -> Any:
        begun = time.process_time(), time.perf_counter()
        try:
            return fetch(self, path)
        finally:
            took["fetch"] = [time.process_time() - begun[0], time.perf_counter() - begun[1]]

    Snapshots.fetch = timed  # type: ignore[method-assign]
    begun = time.process_time(), time.perf_counter()
    for module in ("boto3", "deltalake.fs", "pyarrow.fs", "streamkit_s3.driver"):
        import_module(module)
    took["imports"] = [time.process_time() - begun[0], time.perf_counter() - begun[1]]
    begun = time.process_time(), time.perf_counter()
    with streamkit.connect(url) as client:
        store = client.store(id)
        with store.view(name, kinds()[name], ["log"], Path(folder) / "view") as view:
            entries = view.catch_up().entries
            took["all"] = [time.process_time() - begun[0], time.perf_counter() - begun[1]]
            took["entries"] = [entries, view.status().bytes]
            took["memory"] = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 0]
    print(json.dumps(took))


def measure(server: Server, entries: int) -> None:
    id = uuid4()
    with tempfile.TemporaryDirectory() as folder, streamkit.connect(server.url) as client:
        store = client.store(id)
        fill(store, "log", entries, 1000)
        published = {}
        for name, kind in kinds().items():
            with store.view(name, kind, ["log"], Path(folder) / name) as view:
                view.catch_up()
                published[name] = view.publish().bytes
        store.produce("log", "new", [Record(payload) for payload in payloads(NEW)])
        for name, size in published.items():
            server.seen(_LATE)
            with tempfile.TemporaryDirectory() as nowhere:
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.published_views", "--fresh", server.url, str(id), name, nowhere],
                    capture_output=True,
                    text=True,
                    check=True,
                )
            requests = server.seen(0.0)
            took = json.loads(done.stdout)
            assert took["entries"][0] == entries + NEW
            cpu, clock = (took["all"][at] - took["fetch"][at] for at in (0, 1))
            print(
                f"{name}: {entries:,} entries published ({size / 1e6:,.1f} MB, {took['entries'][1] / 1e6:,.1f} MB "
                f"unpacked), {NEW:,} new: {trips(requests)} round trips, {len(requests)} requests; "
                f"{took['memory'][0]:,.0f} MB of memory at most\n  by CPU: imports {1000 * took['imports'][0]:.0f} ms, "
                f"fetching and unpacking {1000 * took['fetch'][0]:.0f} ms, all else {1000 * cpu:.0f} ms; by the clock "
                f"that is {1000 * clock:.0f} ms, with {1000 * _LATE:.0f} ms for each round trip",
                flush=True,
            )
            for request in requests:
                at = request.begun - requests[0].begun
                print(f"    {1000 * at:>7.0f} ms {request.method:5} {request.size:>12,} B {request.path[:90]}")


def measure_publishing(entries: int) -> None:
    """Measure on a local disk the publication of each view, and the removal of one erased entry from it."""
    with tempfile.TemporaryDirectory() as folder, streamkit.connect(f"file://{folder}/stores") as client:
        store = client.store(uuid4())
        fill(store, "log", entries, 1000)
        for name, kind in (kinds() | {"Search": Search(_user)}).items():
            with store.view(name, kind, ["log"], Path(folder) / name) as view:
                view.catch_up()
                with timed() as publishing:
                    view.publish()
                entry = next(store.consume_space("log", limit=1))
                store.erase("log", entry.segment, first=entry.sequence, last=entry.sequence)
                with timed() as erasing:
                    view.catch_up()
                size = view.status().bytes
            print(
                f"{name} of {entries:,} entries, {size / 1e6:,.1f} MB: publish {publishing[1]:.2f} s "
                f"({publishing[0]:.2f} s of CPU), catch_up after an erasure {erasing[1]:.2f} s "
                f"({erasing[0]:.2f} s of CPU)",
                flush=True,
            )


@contextmanager
def timed() -> Iterator[list[float]]:
    """Seconds of CPU, and by the clock."""
    took = [0.0, 0.0]
    begun = time.process_time(), time.perf_counter()
    yield took
    took[:] = time.process_time() - begun[0], time.perf_counter() - begun[1]


def main(entries: int = 1_000_000) -> None:
    with serving() as server:
        measure(server, entries)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fresh"]:
        fresh(*sys.argv[2:])
    elif sys.argv[1:2] == ["--publishing"]:
        for count in map(int, sys.argv[2:] or (10_000, 1_000_000)):
            measure_publishing(count)
    else:
        main(*map(int, sys.argv[1:]))
