"""Two AWS Lambda functions that work off a queue.

`drain` is called by a schedule, each minute: it works for most of its time, and hands back what it could not do.
`batch` is called by whoever has work to start, as often at once as there is: each call takes one batch.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import streamkit
from streamkit.groups import Delivery, Queue

RESERVE = 5.0
"""Seconds before the function's end at which it begins nothing new."""


@cache
def queue() -> Queue:
    return streamkit.connect(timeout=10).store(os.environ["STREAMKIT_STORE"]).queue("jobs", ack_timeout=90.0)


def work(delivery: Delivery) -> None:
    print(delivery.entry.payload.decode())


def drain(event: dict[str, Any], context: Any) -> dict[str, int]:
    rest = context.get_remaining_time_in_millis() / 1000 - RESERVE
    report = queue().run(work, context.aws_request_id, seconds=max(0.0, min(55.0, rest)), drain=True)
    return {"done": report.acked, "failed": report.failed}


def batch(event: dict[str, Any], context: Any) -> dict[str, int]:
    with queue().consumer(context.aws_request_id) as consumer:
        deliveries = consumer.receive(limit=10, wait=1.0)
        for delivery in deliveries:
            work(delivery)
            consumer.ack(delivery)
    return {"done": len(deliveries)}
