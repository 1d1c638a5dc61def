"""Requests to S3 of a lookup in an archived space and of an archive run, counted by a moto server.

python -m benchmarks.archive_requests [partitions …]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen
from uuid import UUID, uuid4

import streamkit
from streamkit import Record, Store

_SERVER = """
import json, logging, os, sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
moto, seen = DomainDispatcherApplication(create_backend_app), []
def serve(environ, start_response):
    if environ["PATH_INFO"] == "/seen":
        start_response("200 OK", [])
        answer, seen[:] = json.dumps(seen).encode(), []
        return [answer]
    seen.append(environ["REQUEST_METHOD"])
    return moto(environ, start_response)
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = make_server("127.0.0.1", 0, serve, threaded=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print(server.port, flush=True)
server.serve_forever()
"""
_COMMITS = 40

__all__ = ["Bucket", "credentials", "moto_server"]


def credentials() -> dict[str, str]:
    """Credentials for the environment; any will do."""
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    return {**keys, "AWS_EC2_METADATA_DISABLED": "true"}


class Bucket:
    """A new one of a moto server."""

    def __init__(self, endpoint: str) -> None:
        import boto3

        self.endpoint = endpoint
        name = f"b{uuid4().hex}"
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket=name)
        self.url = f"s3://{name}/p?endpoint_url={endpoint}&region=us-east-1"
        self.archive = f"s3://{name}/archive"

    def asked(self) -> Counter[str]:
        """The requests since the last call, by method. No request is in progress."""
        with urlopen(f"{self.endpoint}/seen") as answer:
            return Counter(json.load(answer))


@contextmanager
def moto_server() -> Iterator[str]:
    """The endpoint of a server that counts its requests, for `Bucket.asked`."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


def _tell(what: str, asked: Counter[str]) -> None:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(asked.items()))
    print(f"{what:<62} {asked.total():5} requests: {kinds}", flush=True)


def _fill(store: Store) -> None:
    for at in range(128):
        store.produce("s", f"segment {at}", [Record(b"x")])


def _commit(store: Store) -> None:
    """Bring the table to so many versions, with commits that only set marks."""
    table: Any = store._archive("s").table
    while (state := table.state()) is not None and state.version < _COMMITS:
        assert table.commit(state, [])


def _run(bucket: Bucket, partitions: int) -> UUID:
    with streamkit.connect(bucket.url) as client:
        store = client.store(uuid4())
        store.create_space("s", partitions)
        for which in ("the first", "a later one"):
            _fill(store)
            bucket.asked()
            assert store.archive("s").entries == 128
            _tell(f"an archive run of 128 entries, {partitions} partitions, {which}", bucket.asked())
        _fill(store)
    with streamkit.connect(bucket.url) as fresh:
        bucket.asked()
        assert fresh.store(store.id).archive("s").entries == 128
        _tell(f"an archive run of 128 entries, {partitions} partitions, a new client", bucket.asked())
        _commit(fresh.store(store.id))
    return store.id


def main(partitions: tuple[int, ...] = (1, 8, 64)) -> None:
    os.environ.update(credentials())
    with moto_server() as endpoint:
        for count in partitions:
            bucket = Bucket(endpoint)
            store = _run(bucket, count)
            with streamkit.connect(bucket.url) as stranger:
                bucket.asked()
                # Three files hold it, one of each run.
                assert len(list(stranger.store(store).consume_segment("s", "segment 1"))) == 3
                _tell(f"the first lookup, {_COMMITS} versions, {count} partitions, three files", bucket.asked())


if __name__ == "__main__":
    main(*([tuple(map(int, sys.argv[1:]))] if len(sys.argv) > 1 else []))
