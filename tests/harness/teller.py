"""A process that writes and reports its answers: the other side of test_unreliable_network.py.

    python teller.py URL STORE NAME

Prints attempts, pickled, each before it is made and afterwards, until standard input ends. With its own clock for
patience, so that a bad connection costs requests and not time.
"""

from __future__ import annotations

import pickle
import sys
import threading
import time
from pathlib import Path
from random import Random
from uuid import UUID

import streamkit
from streamkit import SequenceMismatch, Store
from streamkit.testing import ManualClock

sys.path.insert(0, str(Path(__file__).parent.parent))
from harness.history import Attempt, History

SPACE = "space"
SEGMENTS = ("a", "b", "c")


def tell(attempt: Attempt) -> None:
    pickle.dump(attempt, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def work(store: Store, history: History, name: str, ended: threading.Event) -> None:
    dice, known = Random(name), dict.fromkeys(SEGMENTS, 0)
    while not ended.wait(0.2):
        one, other = dice.sample(SEGMENTS, 2)
        match dice.randrange(4):
            case 0:
                attempt = history.write(store, SPACE, {one: dice.randint(1, 3)})
            case 1:
                attempt = history.write(store, SPACE, {one: 1, other: 2})
            case 2:
                attempt = history.write(store, SPACE, {one: 1}, expected={one: known[one]})
            case _:
                key = f"{name} {len(history.attempts)}"
                for _ in range(2):
                    attempt = history.write(store, SPACE, {one: 2}, key=key)
        known.update(attempt.last)
        if isinstance(attempt.error, SequenceMismatch):
            known[one] = attempt.error.actual


def main(url: str, store_id: str, name: str) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with streamkit.connect(url, clock=ManualClock(time.time())) as client:
        history = History(f"{name}:", now=time.monotonic_ns, tell=tell)
        work(client.store(UUID(store_id)), history, name, ended)


if __name__ == "__main__":
    main(*sys.argv[1:])
