"""Payloads: 128 bytes that no compressor shrinks, and JSON as events have it."""

from __future__ import annotations

import json
import os
import random

__all__ = ["BYTES", "json_batches", "random_batches"]

BYTES = 128


def random_batches(batches: int, records: int) -> list[list[bytes]]:
    """Distinct random payloads, in batches of `records`."""
    pool = os.urandom(batches * records * BYTES)
    payloads = [pool[at : at + BYTES] for at in range(0, len(pool), BYTES)]
    return [payloads[at : at + records] for at in range(0, len(payloads), records)]


def json_batches(batches: int, records: int) -> list[list[bytes]]:
    """Order events of about 128 bytes, the same in every run."""
    chance = random.Random(1)
    at = 1_767_225_600_000
    made = []
    for _ in range(batches):
        batch = []
        for _ in range(records):
            at += chance.randrange(2000)
            event = {
                "type": chance.choice(("placed", "paid", "packed", "shipped", "returned")),
                "order": chance.randrange(1_000_000),
                "customer": f"c-{chance.randrange(1 << 32):08x}",
                "amount": chance.randrange(100_000) / 100,
                "currency": chance.choice(("EUR", "USD", "GBP")),
                "at": at,
                "source": chance.choice(("web", "app", "shop")),
            }
            batch.append(json.dumps(event, separators=(",", ":")).encode())
        made.append(batch)
    return made
