"""A process that writes to a space, archives, compacts, trims, retains and erases at random until it is killed.

    restless.py URL STORE SEED

It prints each piece of work before it begins with it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from uuid import UUID

import streamkit
from streamkit import Record, Retention, Store
from streamkit.archive import Processes
from streamkit.errors import StreamkitError

SPACE = "orders/ü"
SEGMENTS = [f"s{at}" for at in range(9)]
LEASE = 2.0
"""Seconds after which the lease of a killed process ends."""


def write(store: Store, chance: random.Random, transactions: int = 6) -> None:
    for at in range(transactions):
        name = chance.choice(SEGMENTS)
        count = chance.choice((1, 2, 12))
        store.produce(SPACE, name, [Record(b'{"n":%d}' % (at * 100 + n), {"owner": name}) for n in range(count)])


def archive(store: Store, chance: random.Random, url: str) -> None:
    spread = Processes(url, 2) if chance.random() < 0.3 else None
    store.archive(SPACE, target_file_bytes=chance.choice((100, 1 << 20)), spread=spread)


def trim(store: Store, chance: random.Random) -> None:
    if chance.random() < 0.7:
        store.trim(SPACE, chance.choice(SEGMENTS), keep_entries=chance.randrange(1, 12))
    else:
        store.trim(SPACE, keep_entries=chance.randrange(40, 120))


def retain(store: Store, chance: random.Random) -> None:
    bounds = chance.choice(({"max_entries": 30}, {"max_bytes": 300}, {"max_entries": 160, "per": "space"}, {}))
    store.set_retention(SPACE, Retention(**bounds))  # type: ignore[arg-type]


def erase(store: Store, chance: random.Random) -> None:
    if chance.random() < 0.3:
        store.erase(SPACE, metadata={"owner": chance.choice(SEGMENTS)})
    else:
        first = chance.randrange(1, 60)
        store.erase(SPACE, chance.choice(SEGMENTS), first=first, last=first + chance.randrange(20))


def works(store: Store, chance: random.Random, url: str) -> dict[str, Callable[[], object]]:
    return {
        "archive": lambda: archive(store, chance, url),
        "compact": lambda: store.compact(SPACE, retention_hours=0.0),
        "trim": lambda: trim(store, chance),
        "retain": lambda: retain(store, chance),
        "erase": lambda: erase(store, chance),
        "maintain": lambda: store.maintain(SPACE),
    }


def main(url: str, id: UUID, seed: int) -> None:
    # A killed process must not hold up the next one for a minute.
    Store._archiver_lease = lambda self, name: self.lease(name, LEASE)  # type: ignore[method-assign]
    Store._eraser_lease = lambda self, name, wait: self.lease(name, LEASE, wait)  # type: ignore[method-assign]
    chance = random.Random(seed)
    with streamkit.connect(url) as client:
        store = client.store(id)
        while True:
            write(store, chance)
            name = chance.choice(("archive", "archive", "compact", "trim", "retain", "erase", "maintain"))
            print(name, flush=True)
            try:
                works(store, chance, url)[name]()
            except StreamkitError as error:
                # The lease of a process that was killed, or of this one on a machine that is busy.
                print(f"{name} refused: {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], UUID(sys.argv[2]), int(sys.argv[3]))
