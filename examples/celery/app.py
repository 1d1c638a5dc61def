"""Celery without a broker: `celery --app app worker`, and `python app.py` to send tasks. Its queues are in a store."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

FOLDER = Path(__file__).parent / "streamkit-data"

app = Celery(
    "app",
    broker_transport="streamkit.adapters.kombu:Transport",
    broker_transport_options={
        "url": os.environ.get("STREAMKIT_URL", FOLDER.as_uri()),  # or s3://bucket/prefix
        "store": os.environ.get("STREAMKIT_STORE", "7d9f2c1e-3b1f-4c57-9d0e-3b6f0a3f5a10"),
        "ack_timeout": float(os.environ.get("ACK_TIMEOUT", "60")),
    },
    result_backend="rpc://",
    # A task is acknowledged when it has run: if its worker is killed, another one runs it again.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
    worker_send_task_events=False,
)


@app.task
def add(x: int, y: int) -> int:
    """Return the sum."""
    return x + y


@app.task
def note(number: int, path: str) -> None:
    """Add a line to a file."""
    with open(path, "a") as file:
        file.write(f"{number}\n")


if __name__ == "__main__":
    print(add.delay(2, 3).get(timeout=60))
