"""A space of the memory backend with an archive on disk, and a clock that its processes share."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from streamkit import Client, Record
from streamkit.archive.location import path_name
from streamkit.archive_url import archive_place
from streamkit.testing import FaultyDriver, ManualClock, Plan
from streamkit_memory import MemoryDriver

__all__ = ["SPACE", "World", "filled"]

SPACE = "s"


class World:
    """One root; processes that come and go; and a clock that they share."""

    def __init__(self, kind: str, archive: Path) -> None:
        self.clock = ManualClock()
        self.kind = kind
        self.name = uuid4().hex
        self.archive = archive
        self.id = uuid4()

    def process(self, plan: Plan | None = None) -> Client:
        driver = MemoryDriver(self.name, remote=self.kind == "remote", clock=self.clock, sleep=self.clock.sleep)
        return Client(
            "memory://",
            FaultyDriver(driver, plan or Plan()),
            30.0,
            None,
            64 << 20,
            self.clock,
            archive_place(self.archive.as_uri()),
        )

    def look(self) -> Any:
        store = self.process().store(self.id)
        entries = list(store.consume_space(SPACE))
        segments = {name: list(store.consume_segment(SPACE, name)) for name in store.get_segments(SPACE)}
        last = {name: store.peek(SPACE, name) for name in segments}
        return entries, [entry.space_offset for entry in entries], segments, last

    def cold(self) -> list[tuple[str, int]]:
        from deltalake import DeltaTable

        table = DeltaTable(unquote(str(self.archive / str(self.id) / path_name(SPACE)))).to_pyarrow_table()
        return sorted(zip(table["segment"].to_pylist(), table["sequence"].to_pylist(), strict=True))

    def run(self, client: Client) -> None:
        """The work of a schedule, twice with a grace in between."""
        store = client.store(self.id)
        store.archive(SPACE, target_file_bytes=60)
        self.clock.sleep(3601)
        store.maintain()


def filled(kind: str, path: Path) -> World:
    world = World(kind, path)
    with world.process() as client:
        store = client.store(world.id)
        for at in range(12):
            with store.transaction(SPACE) as trx:
                trx.produce(f"a{at % 3}", [Record(b"%d" % at)] * 2)
                trx.produce(f"b{at % 2}", [Record(b"x" * 10)])
    return world
