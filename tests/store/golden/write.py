"""Writes the golden stores of this format version: `python tests/store/golden/write.py`. Once a version, then never.

`local-<version>` is a store on disk; `rows-<version>.json` are the rows of stores in memory: one whose index is in its
heads, and one with files of all levels. What they must read as is in `entries-<version>.json`. What older versions
wrote stays as it is.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import streamkit
from streamkit import Client, Record, Retention
from streamkit.backend import Driver
from streamkit.log import policy, record_format, rows
from streamkit.store import Store
from streamkit_memory.driver import MemoryDriver

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))
from harness.combining import CombiningDriver, posting  # noqa: E402
from harness.sweep import StillClock  # noqa: E402

VERSION = max(record_format.VERSION, rows.VERSION)
STORE = UUID("7d9f2c1e-0000-4000-8000-000000000001")


def fill(store: Store) -> None:
    """Everything that has a format of its own."""
    store.create_space("three", partitions=3)
    store.create_space("buffered", durability="buffered", idempotency_window=7.0)
    store.produce("plain", "a", [Record(b"first"), Record(b"second", {"key": "value", "ключ": "значение"})])
    with store.transaction("plain", idempotency_key="both") as both:
        both.produce("a", [Record(b"third", sequence=3)])
        both.produce("b/\\#?%", [Record(b"")])
    store.maintain()
    store.produce("plain", "a", [Record(b"packed " * 400), Record(bytes(range(256)) * 9)], idempotency_key="packed")
    for turn in range(2):
        with store.lease("leader") as lease:
            store.produce("plain", "c", [Record(b"by leader %d" % turn)], lease=lease)
    for at in range(30):
        store.produce("plain", f"many {at % 4}", [Record(b"%d" % at)])
    for at in range(9):
        store.produce("three", f"{{{at}}}/日本", [Record(b"%d" % at)])
        store.produce("buffered", "x", [Record(b"%d" % at)], expected_sequence=at)
    store.maintain("three")
    store.create_space("removed")
    for at in range(9):
        store.produce("removed", f"s{at % 3}", [Record(b"%d" % at, {"by": str(at % 2)})] * 2)
    store.trim("removed", "s0", before=3)
    store.set_retention("removed", Retention(max_entries=5, per="segment"))
    store.erase("removed", "s1", first=3, last=4)
    store.delete_segment("removed", "s2")
    store.maintain("removed")
    store.produce("plain", "a", [Record(b"not indexed")])


def share(connect: Callable[[Driver], Client], driver: Callable[[], Driver]) -> None:
    """Let several processes write to one partition, and one of them commit for all."""
    with posting(), connect(CombiningDriver(driver(), connect(driver()))) as poster:
        store = poster.store(STORE)
        for at in range(7):
            store.produce("plain", "posted", [Record(b"%d" % at)], expected_sequence=2 * at)
            with store.transaction("plain", idempotency_key=f"posted {at}") as trx:
                trx.produce("posted", [Record(b"%d" % at)])
                trx.produce("c", [Record(b"posted")] * at)
        assert store.statistics().posted > 7


def reading(store: Store) -> dict[str, list[list[object]]]:
    """Return all entries with their offsets, which other programs keep."""
    return {
        space: [
            [
                *(entry.segment, entry.sequence, entry.timestamp, str(entry.trx.id), str(entry.trx.node)),
                *(entry.trx.number, b64encode(entry.payload).decode(), entry.metadata, entry.stream_id),
                *(entry.space_offset.hex(), entry.segment_offset.hex()),
            ]
            for entry in store.consume_space(space)
        ]
        for space in store.get_spaces()
    }


def dump(driver: MemoryDriver) -> list[list[str]]:
    """All rows: partition, key, value."""
    stored = driver._service.stores[STORE]
    return [
        [partition.hex(), row.key.hex(), row.data.hex()]
        for partition, rows in sorted(stored.items())
        for row in rows.page(b"", b"\xff" * 8, 1 << 30)
    ]


def main() -> None:
    place = HERE / f"local-{VERSION}"
    if place.exists():
        sys.exit(f"{place} is there: what a version wrote is never written again")
    wanted: dict[str, object] = {}
    with streamkit.connect(place.as_uri()) as client:
        fill(client.store(STORE))
        wanted["local"] = reading(client.store(STORE))
    dumps = {}
    for kind in ("memory", "remote"):
        if kind == "remote":
            policy.REMOTE = policy.REMOTE._replace(upkeep=2, inline=0)
        clock = StillClock(1_700_000_000)

        def driver(kind: str = kind, clock: StillClock = clock) -> MemoryDriver:
            return MemoryDriver(kind, remote=kind == "remote", clock=clock, sleep=clock.sleep)

        def connect(driver: Driver, clock: StillClock = clock) -> Client:
            return Client("memory://", driver, 5.0, None, 1 << 26, clock)

        with connect(driver()) as client:
            fill(client.store(STORE))
            if kind == "remote":
                share(connect, driver)
            wanted[kind] = reading(client.store(STORE))
            dumps[kind] = dump(driver())
    (HERE / f"rows-{VERSION}.json").write_text(json.dumps(dumps, indent=0))
    (HERE / f"entries-{VERSION}.json").write_text(json.dumps(wanted, indent=0, ensure_ascii=False))


if __name__ == "__main__":
    main()
