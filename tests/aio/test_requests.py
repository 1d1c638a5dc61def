"""Many writers in one event loop share commits: their requests to the service, counted at the transport."""

from __future__ import annotations

import asyncio
import threading
from uuid import uuid4

import pytest
from fix_aio import in_loop
from fix_s3 import S3Bucket

import streamkit.aio
from streamkit import Record

WRITERS = 1000


@pytest.mark.s3
@pytest.mark.parametrize("segments", [1, WRITERS])
def test_a_thousand_appends_at_once_cost_less_than_a_tenth_of_a_request_each(
    s3_bucket: S3Bucket, segments: int
) -> None:
    """Requests of many writers to a new space, with few threads."""

    @in_loop
    async def run() -> None:
        async with streamkit.aio.connect(s3_bucket.url("aio")) as client:
            store = client.store(uuid4())
            before = threading.active_count()
            most = 0

            async def write(n: int) -> None:
                nonlocal most
                await store.produce("s", f"segment-{n % segments}", [Record(b"%d" % n)])
                most = max(most, threading.active_count() - before)

            await asyncio.gather(*[write(n) for n in range(WRITERS)])
            requests = (await store.statistics()).requests
            calls = sum(count for name, count in requests.items() if not name.startswith("bytes"))
            assert calls <= 0.1 * WRITERS, requests
            assert most < 60, "a thread each"
            entries = [entry async for entry in store.consume_space("s")]
            assert sorted(int(entry.payload) for entry in entries) == list(range(WRITERS))

    run()
