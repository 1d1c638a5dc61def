"""Processes that write to one partition until they are killed: the other side of test_killed_writers.py.

    python crowd.py LIFE LOSSES

One process that has everything imported forks the others: one begins in no time. A line of standard input is answered
by a line of standard output: ["start", URL, STORE, NAME, FILE] by the process's id, ["signal", ID, SIGNAL] by null,
or after SIGKILL by how it ended, and ["wait"] by how all that are left have ended. Those end in good order when nobody
has the pipe LIFE open to write any more. After LOSSES commits that met others' one posts its request.

Each tells FILE what it asks for and what it was told, pickled: attempts, each before it is made and afterwards, and
counts of its store.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NoReturn
from uuid import UUID

import azure.data.tables
import azure.storage.blob
import boto3.session
import botocore.parsers

import streamkit
import streamkit_azure
import streamkit_s3
from streamkit import SequenceMismatch, Store
from streamkit.errors import StreamkitError
from streamkit.log import policy

sys.path.insert(0, str(Path(__file__).parent.parent))
from harness.history import Attempt, History

SPACE = "space"
SHARED = ("a", "b", "c")
COUNTED = ("posted", "combined", "handed_over", "taken_over", "transactions", "conflicts", "settled", "retries")
_IMPORTED = (streamkit_azure, streamkit_s3, azure.data.tables, azure.storage.blob, boto3.session, botocore.parsers)


class Told:
    """The reports of a process so far: `attempts` by number, `counts`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = 0
        self.attempts: dict[int, Attempt] = {}
        self.answers = 0
        """How many of them have returned."""
        self.counts: dict[str, int] = {}

    def read(self) -> None:
        """Read the reports so far; a killed process may leave half a word at the end."""
        with self._file.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        at = 0
        while at + 4 <= len(data) and (end := at + 4 + int.from_bytes(data[at : at + 4], "little")) <= len(data):
            found = pickle.loads(data[at + 4 : end])
            if isinstance(found, Attempt):
                self.attempts[found.number] = found
                self.answers += found.outcome != "invoked"
            else:
                self.counts = found
            at = end
        self._read += at


def work(store: Store, history: History, name: str, ended: threading.Event) -> None:
    """Everything that a request can carry, as fast as it goes."""
    dice, known = Random(name), dict.fromkeys((*SHARED, name), 0)
    while not ended.is_set():
        one, other = dice.sample(SHARED, 2)
        attempt: Attempt | None = None
        match dice.randrange(12):
            case 0 | 1 | 2 | 3:
                attempt = history.write(store, SPACE, {name: dice.randint(1, 3)})
            case 4:
                attempt = history.write(store, SPACE, {one: 1, name: 2})
            case 5 | 6:
                attempt = history.write(store, SPACE, {name: 1, other: 1}, expected={name: known[name]})
            case 7:
                attempt = history.write(store, SPACE, {one: 1}, expected={one: known[one]})
            case 8 | 9:
                key = f"{name} {len(history.attempts)}"
                for _ in range(2):
                    attempt = history.write(store, SPACE, {one: 1, name: 1}, key=key)
            case 10:
                # More than goes into the name of a letter, or more than is posted.
                attempt = history.write(store, SPACE, {name: 60}, size=4000 if dice.random() < 0.1 else 0)
            case _:
                with suppress(StreamkitError), store.lease("leader", ttl=2.0) as lease:
                    attempt = history.write(store, SPACE, {one: 1}, lease=lease)
        known.update(attempt.last if attempt is not None else {})
        if attempt is not None and isinstance(attempt.error, SequenceMismatch):
            for segment, expected in attempt.expected.items():
                if expected == attempt.error.expected:
                    known[segment] = attempt.error.actual


def run(url: str, store_id: str, name: str, file: str, life: int) -> None:
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(word: object) -> None:
        data = pickle.dumps(word)
        os.write(out, len(data).to_bytes(4, "little") + data)

    ended = threading.Event()
    threading.Thread(target=lambda: (os.read(life, 1), ended.set()), daemon=True).start()
    with streamkit.connect(url) as client:
        store = client.store(UUID(store_id))
        # This takes seconds on a busy machine, and no process waits for others meanwhile.
        store.peek(SPACE, name)

        def told(attempt: Attempt) -> None:
            tell(attempt)
            if attempt.outcome != "invoked":
                counts = store.statistics()
                tell({count: getattr(counts, count) for count in COUNTED})

        work(store, History(f"{name}:", now=time.monotonic_ns, tell=told), name, ended)


def begin(url: str, store_id: str, name: str, file: str, life: int) -> NoReturn:
    """Run a writer in a process that was just forked."""
    try:
        run(url, store_id, name, file, life)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _ended(id: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(id, 0)[1])


def main(life: int, losses: int) -> None:
    policy.REMOTE = policy.REMOTE._replace(losses=losses)
    living: set[int] = set()
    for line in sys.stdin:
        answer: Any = None
        match json.loads(line):
            case ["start", *given]:
                answer = os.fork()
                if not answer:
                    begin(*given, life)
                living.add(answer)
            case ["signal", id, number] if id in living:
                os.kill(id, number)
                if number == signal.SIGKILL:
                    answer = _ended(id)
                    living.remove(id)
            case ["wait"]:
                answer = [_ended(id) for id in living]
                living.clear()
        print(json.dumps(answer), flush=True)
    for id in living:
        os.kill(id, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
