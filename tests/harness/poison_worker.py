"""A process that works off the jobs of harness/poison.py through one door: see test_poisoned_processes.py.

python poison_worker.py URL STORE MODE DOOR ENDS
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import streamkit
import streamkit.aio

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness.poison import DOORS, Poisoned, is_poison, open_group
from streamkit.groups import Delivery
from streamkit.groups.chain import Chain


def main() -> None:
    url, store_id, mode, door, ends = sys.argv[1:]
    # The oracle judges the whole log of the group.
    Chain._trim = lambda chain, snapshot: None  # type: ignore[method-assign]

    def handle(delivery: Delivery) -> None:
        if is_poison(delivery):
            if ends == "kills":
                os.kill(os.getpid(), signal.SIGKILL)
            raise Poisoned("bad\ntotal")

    with streamkit.connect(url, poll=(0.01, 0.1)) as client:
        group = open_group(client.store(UUID(store_id)), mode)
        while group.status().lag:
            if door == "aio":
                asyncio.run(run_in_a_loop(url, UUID(store_id), mode, handle))
            else:
                with suppress(Poisoned):
                    DOORS[door](group, handle)
            time.sleep(0.05)


async def run_in_a_loop(url: str, store_id: UUID, mode: str, handle: object) -> None:
    async with streamkit.aio.connect(url, poll=(0.01, 0.1)) as client:
        store = client.store(store_id)
        found = await store.queue("orders") if mode == "queue" else await store.group("orders", "billing")
        await found.run(handle, batch=10, concurrency=3, drain=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
