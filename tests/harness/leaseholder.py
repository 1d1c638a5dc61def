"""A process that takes a lease and tells what it sees: the other side of test_leases.py.

    python leaseholder.py contend URL STORE TTL SECONDS    prints its terms: [[token, from, until], …]
    python leaseholder.py hold URL STORE TTL               answers the lines "write", "lost", "until" and "leave"

Times are of the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from uuid import uuid4

import streamkit
from streamkit import Fenced, LeaseNotAcquired, Record, Store
from streamkit.errors import StreamkitError, TransientError
from streamkit.leases import Lease

PATIENCE = 120.0

Term = tuple[int, float, float]
"""Token of a holder, and from when until when it held the lease for sure."""


def contend(store: Store, ttl: float, seconds: float) -> list[Term]:
    """Take the lease again and again, for moments and for longer than its ttl, and write under it.

    For so many seconds, and then until it has had it once.
    """
    end = time.monotonic() + seconds
    terms: dict[int, tuple[float, float]] = {}
    while time.monotonic() < (end if terms else end + PATIENCE):
        with suppress(LeaseNotAcquired, TransientError, Fenced), store.lease("leader", ttl, wait=ttl) as lease:
            leave = time.monotonic() + (random.choice((0.0, 0.2, lease.ttl * 1.4)) if terms else 0.1)
            for began, until in _held(lease, min(end, leave)):
                terms[lease.token] = began, until
                store.produce("terms", "leader", [Record(b"%d" % lease.token)], lease=lease)
        time.sleep(random.random() * 0.1)
    return [(token, *held) for token, held in terms.items()]


def _held(lease: Lease, leave: float) -> Iterator[tuple[float, float]]:
    """Yield from time to time the period for which the lease was held so far."""
    began = 0.0
    while True:
        # First the time, then whether it is still held: so it was, then.
        now = time.monotonic()
        if lease.remaining() <= 0:
            return
        began = began or now
        yield began, now
        if now >= leave:
            return
        time.sleep(0.02)


def hold(store: Store, ttl: float) -> None:
    """Take the lease, then do as it is told."""
    with store.lease("leader", ttl) as lease:
        noticed: Future[float] = Future()

        def watch() -> None:
            lease.lost.wait()
            noticed.set_result(time.monotonic())

        threading.Thread(target=watch, daemon=True).start()
        _say("held", lease.token)
        for line in sys.stdin:
            match line.strip():
                case "write":
                    _say(*_write(store, lease))
                case "lost":
                    remaining = lease.remaining()
                    # The thread that notices when may not have run yet.
                    _say(noticed.result() if lease.lost.is_set() else None, remaining)
                case "until":
                    # Each of these is late by the time for which the process was held up between the two reads. The
                    # earliest hardly is.
                    _say(min(lease.remaining() + time.monotonic() for _ in range(5)))
                case "leave":
                    break
    _say("left")


def _write(store: Store, lease: Lease) -> tuple[object, ...]:
    try:
        return "written", store.produce("terms", "leader", [Record(b"%d" % lease.token)], lease=lease).last_sequence
    except StreamkitError as error:
        return type(error).__name__, str(error)


def _say(*what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    verb, url, store_id, ttl, *rest = sys.argv[1:]
    with streamkit.connect(url).store(store_id) as opened:
        if verb == "contend":
            # The slow steps of a fresh process are done before.
            opened.produce("warm", "leader", [Record(b"")])
            opened.with_lease(str(uuid4()), lambda lease: None, float(ttl))
            _say("ready")
            sys.stdin.readline()
            _say(*contend(opened, float(ttl), float(rest[0])))
        else:
            hold(opened, float(ttl))
