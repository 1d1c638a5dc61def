"""An AWS Lambda function that appends an order's events: one segment an order, each event written exactly once.

Environment: STREAMKIT_URL (s3://bucket/prefix) and STREAMKIT_STORE (the tenant's UUID). Handler: handler.handler.
An event: {"order": "42", "sequence": 3, "event": {"type": "paid"}, "id": "the request's own id"}, where `sequence` is
the order's last one that the caller has seen. Being delivered again gives the same answer and writes nothing.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

import streamkit
from streamkit import Record, SequenceMismatch, Store


@cache
def store() -> Store:
    """Opened by the first invocation, used by all that the same environment serves; it holds no thread or request."""
    return streamkit.connect(timeout=10).store(os.environ["STREAMKIT_STORE"])


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    try:
        status = store().produce(
            "orders",
            f"order-{event['order']}",
            [Record(json.dumps(event["event"]).encode(), {"source": "api"})],
            expected_sequence=event["sequence"],
            idempotency_key=event["id"],
        )
    except SequenceMismatch as mismatch:
        return {"statusCode": 409, "sequence": mismatch.actual}
    return {"statusCode": 200, "sequence": status.last_sequence}
