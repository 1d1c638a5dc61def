"""A process whose main thread is interrupted by real signals while it and others append.

    python interrupted.py URL STORE raise SECONDS     the handler raises, as that of Ctrl-C does
    python interrupted.py URL STORE call SECONDS      the handler reads and appends itself

Prints {"interrupted": how often, "acknowledged": {thread: payloads}, "tried": {thread: how many}} as JSON.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import threading
import time
from random import Random

import streamkit
from streamkit import Record, SequenceMismatch

SPACE = "space"


class Interrupted(BaseException):
    pass


def main(url: str, store_id: str, what: str, seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds + 60, exit=True)
    store = streamkit.connect(url).store(store_id)
    store.produce(SPACE, "begun", [Record(b"begun")])
    end = time.monotonic() + seconds
    acknowledged: dict[str, list[str]] = {}
    tried: dict[str, int] = {}
    count = {"interrupted": 0, "refused": 0, "done": 0}

    def append(name: str, **options: object) -> None:
        number = tried[name] = tried.get(name, 0) + 1
        payload = f"{name} {number}"
        store.produce(SPACE, name, [Record(payload.encode())], **options)  # type: ignore[arg-type]
        acknowledged.setdefault(name, []).append(payload)

    def other(name: str) -> None:
        last = 0
        while time.monotonic() < end:
            try:
                append(name, expected_sequence=last)
                last += 1
            except SequenceMismatch as error:
                last = error.actual

    def handler(*_: object) -> None:
        count["interrupted"] += 1
        if what == "raise":
            raise Interrupted
        try:
            store.peek(SPACE, "begun")
            append("handler")
            count["done"] += 1
        except RuntimeError:
            count["refused"] += 1

    signal.signal(signal.SIGALRM, handler)
    threads = [threading.Thread(target=other, args=(f"other {at}",), daemon=True) for at in range(3)]
    for thread in threads:
        thread.start()
    dice = Random(7)
    while time.monotonic() < end:
        try:
            signal.setitimer(signal.ITIMER_REAL, dice.random() * 0.002 + 1e-5)
            append("main")
            store.peek(SPACE, "main")
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    for thread in threads:
        thread.join(30)
    stuck = [thread.name for thread in threads if thread.is_alive()]
    append("last")
    print(json.dumps({**count, "acknowledged": acknowledged, "tried": tried, "stuck": stuck}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
