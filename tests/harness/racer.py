"""A process that writes or reads among others: the other side of test_races.py and test_crash.py.

    python racer.py contend URL STORE INDEX ROUNDS MEETING    how each round ended: null, or [expected, actual]
    python racer.py write URL STORE INDEX BATCHES             what was acknowledged: [[segment, first, payloads], …]
    python racer.py page URL STORE INDEX                      what was read in pages, until standard input ends
    python racer.py watch URL STORE                           how often all was read, until standard input ends

Each prints "ready" when it has the store open, `watch` "seen" after it has read something, and then what it found.
"""

from __future__ import annotations

import json
import mmap
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import streamkit
from streamkit import Entry, Record, SequenceMismatch, Store

SPACE = "space"
PARTS = 5
"""Segments in each transaction that `watch` looks at."""


class Meeting:
    """The meeting place of processes: a file that all of them map, with a word of eight bytes for each."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")

    def wait(self, index: int, turn: int, patience: float = 120.0) -> None:
        """Return when all have come to `turn`."""
        self._words[index] = turn
        end = time.monotonic() + patience
        while min(self._words) < turn:
            time.sleep(0.0002)
            if time.monotonic() > end:
                raise TimeoutError(f"not all processes came to turn {turn}")


def contend(store: Store, index: int, rounds: int, meeting: Meeting) -> list[list[int] | None]:
    outcomes: list[list[int] | None] = []
    for turn in range(rounds):
        meeting.wait(index, turn + 1)
        try:
            store.produce(SPACE, "s", [Record(b"%d" % index)], expected_sequence=turn)
            outcomes.append(None)
        except SequenceMismatch as error:
            outcomes.append([error.expected, error.actual])
    return outcomes


def write(store: Store, index: int, batches: int) -> list[tuple[str, int, list[str]]]:
    dice = Random(index)
    acknowledged = []
    for batch in range(batches):
        segment = f"segment {dice.randrange(50)}"
        payloads = [f"{index}.{batch}.{part}" for part in range(dice.randint(1, 4))]
        status = store.produce(SPACE, segment, [Record(payload.encode()) for payload in payloads])
        acknowledged.append((segment, status.last_sequence - len(payloads) + 1, payloads))
    return acknowledged


def _until_input_ends() -> threading.Event:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    return ended


def page(store: Store, index: int) -> list[tuple[str, int, str, int, int]]:
    dice, ended, offset = Random(index), _until_input_ends(), None
    found: list[Entry] = []
    while True:
        last = ended.is_set()
        entries = list(store.consume_space(SPACE, offset=offset, limit=dice.randint(1, 40)))
        if entries:
            found += entries
            offset = entries[-1].space_offset.hex()
        elif last:
            break
        else:
            time.sleep(0.01)  # the writers are to make progress too
    return [
        (entry.segment, entry.sequence, entry.payload.decode(), entry.origin.partition, entry.trx.number)
        for entry in found
    ]


def watch(store: Store) -> int:
    """AssertionError if part of a transaction is seen without the rest."""
    ended, times, before, seen = _until_input_ends(), 0, 0, False
    while True:
        last = ended.is_set()
        parts: dict[int, list[Entry]] = {}
        for entry in store.consume_space(SPACE, min_timestamp=max(before - 50, 0)):
            parts.setdefault(entry.trx.number, []).append(entry)
            before = max(before, entry.timestamp)
        for number, entries in parts.items():
            assert len(entries) == PARTS, f"{len(entries)} of {PARTS} entries of transaction {number}"
            assert len({entry.payload for entry in entries}) == 1
            assert len({entry.segment for entry in entries}) == PARTS
        sequence = 0
        for at in range(PARTS):  # all were written at once, so what is read later is never behind
            latest = store.peek(SPACE, f"{{t}}{at}").sequence
            assert latest >= sequence, f"segment {at} is at {latest}, one that was read earlier at {sequence}"
            sequence = latest
        times += 1
        if last:
            return times
        if parts and not seen:
            seen = True
            print("seen", flush=True)


def main(what: str, url: str, store_id: str, *more: str) -> Any:
    with streamkit.connect(url) as client:
        store = client.store(UUID(store_id))
        print("ready", flush=True)
        match what:
            case "contend":
                return contend(store, int(more[0]), int(more[1]), Meeting(more[2]))
            case "write":
                return write(store, int(more[0]), int(more[1]))
            case "page":
                return page(store, int(more[0]))
            case "watch":
                return watch(store)
    raise ValueError(what)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
