"""A queue: priorities, delays, a job that fails, dead letters. Then a worker that drains it for some seconds."""

from __future__ import annotations

import logging
import tempfile
from uuid import uuid4

import streamkit
from streamkit import Store
from streamkit.groups import Delivery, Queue


def emails(store: Store) -> Queue:
    """The queue. An email is a dead letter after two attempts that fail."""
    return store.queue("emails", max_deliveries=2, retry_delay=0.1)


def enqueue(queue: Queue) -> None:
    queue.put_many([b"newsletter 1", b"newsletter 2"])
    queue.put(b"password reset", priority=10, idempotency_key="reset-7")
    queue.put(b"password reset", priority=10, idempotency_key="reset-7")  # the same again adds nothing
    queue.put(b"reminder", delay=0.3, metadata={"to": "ann"})
    queue.put(b"nobody can read this")


def send(delivery: Delivery) -> None:
    if delivery.entry.payload.startswith(b"nobody"):
        raise ValueError("no such address")
    print("sent:", delivery.entry.payload.decode(), "attempt", delivery.attempt)


def main() -> None:
    logging.getLogger("streamkit").setLevel(logging.ERROR)  # attempts that fail are logged as warnings
    with (
        tempfile.TemporaryDirectory() as folder,
        streamkit.connect(f"file://{folder}") as client,
        client.store(uuid4()) as store,
    ):
        queue = emails(store)
        enqueue(queue)
        report = queue.run(send, "worker-1", seconds=2.0)
        print(f"{report.acked} sent, {report.failed} attempts failed")
        for letter in queue.dead_letters():
            print("dead:", letter.entry.payload.decode(), "after", letter.attempt, "attempts:", letter.reason)
        print("lag", queue.status().lag, "pending", queue.status().pending)


if __name__ == "__main__":
    main()
