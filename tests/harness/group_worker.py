"""A process that works off a group, until its standard input ends: the other side of test_killed_consumers.py.

python group_worker.py URL STORE SPACE GROUP NAME SEED
"""

from __future__ import annotations

import random
import sys
import threading
import time
from contextlib import suppress
from uuid import UUID

import streamkit
from streamkit import DeliveryLost
from streamkit.groups import Consumer, Delivery
from streamkit.groups.chain import Chain


def main() -> None:
    Chain._trim = lambda self, snapshot: None  # type: ignore[method-assign]  # the oracle reads all of it
    url, store_id, space, name, worker, seed = sys.argv[1:]
    chance = random.Random(int(seed))
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with streamkit.connect(url, poll=(0.01, 0.1)) as client:
        group = client.store(UUID(store_id)).group(space, name)
        with group.consumer(worker) as consumer:
            print("ready", flush=True)
            while not ended.is_set():
                for delivery in consumer.receive(chance.randrange(1, 20), wait=0.2):
                    if consumer.is_held(delivery):
                        work(consumer, delivery, chance)


def work(consumer: Consumer, delivery: Delivery, chance: random.Random) -> None:
    time.sleep(0.0005)
    with suppress(DeliveryLost):
        if chance.random() < 0.03:
            consumer.nack(delivery, delay=chance.choice([0, 0.05]))
        else:
            consumer.ack(delivery)


if __name__ == "__main__":
    main()
