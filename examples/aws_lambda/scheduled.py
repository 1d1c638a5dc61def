"""A scheduled AWS Lambda function that must run once, however many of it the schedule starts: it elects a leader.

Every write carries the lease, so that one that was paused, and comes back after another has taken over, is refused.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

import streamkit
from streamkit import Fenced, Lease, LeaseNotAcquired, Record, Store


@cache
def store() -> Store:
    return streamkit.connect(timeout=10).store(os.environ["STREAMKIT_STORE"])


def count_orders(lease: Lease) -> int:
    count = sum(1 for _ in store().get_segments("orders"))
    lease.check()
    store().produce("reports", "orders", [Record(json.dumps({"orders": count}).encode())], lease=lease)
    return count


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    try:
        return {"ran": True, "orders": store().with_lease("count-orders", count_orders, ttl=30)}
    except (LeaseNotAcquired, Fenced) as error:
        return {"ran": False, "because": type(error).__name__}
