"""Append over HTTP, and follow as server-sent events: a browser that reconnects misses nothing.

    pip install starlette uvicorn
    uvicorn app:app --timeout-graceful-shutdown 1

    curl -d '{"paid": true}' localhost:8000/orders/order-42
    curl -N localhost:8000/orders

An event's id is its offset in the space. A browser's EventSource sends the last one that it saw when it reconnects, as
`Last-Event-ID`; any process that serves this app goes on behind it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import streamkit.aio
from streamkit import (
    CorruptData,
    EntriesRemoved,
    Entry,
    InvalidName,
    InvalidOffset,
    Record,
    RecordTooLarge,
    SequenceMismatch,
    StoreClosed,
    StreamkitError,
    TransactionIdMismatch,
)
from streamkit.aio import AsyncStore

STORE = os.environ.get("STREAMKIT_STORE", "7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55")
SILENCE = 15.0
"""Seconds without an event after which a comment is sent, so that proxies keep the connection open."""
REFUSALS: dict[type[StreamkitError], int] = {
    InvalidName: 400,
    InvalidOffset: 400,  # of another space, or one that was deleted since: a browser begins anew without it
    SequenceMismatch: 412,
    EntriesRemoved: 410,  # entries after Last-Event-ID were trimmed: the same
    RecordTooLarge: 413,
    TransactionIdMismatch: 422,  # the Idempotency-Key was used for something else
}
"""The errors that a client can correct, with the answer's status. All others are a 500."""


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with streamkit.aio.connect() as client:  # STREAMKIT_URL
        app.state.client, app.state.store = client, client.store(STORE)
        yield


async def append(request: Request) -> JSONResponse:
    """POST /space/segment: the body is the payload; with an Idempotency-Key it can be sent again.

    With If-Match: "sequence" it is only appended if that is the segment's last one.
    """
    match = request.headers.get("If-Match", "").strip('"')
    if match and not (match.isdecimal() and len(match) < 20):
        return JSONResponse({"error": f"If-Match is a sequence, not {match!r:.60}"}, 400)
    status = await request.app.state.store.produce(
        request.path_params["space"],
        request.path_params["segment"],
        [Record(await request.body())],
        expected_sequence=int(match) if match else None,
        idempotency_key=request.headers.get("Idempotency-Key") or None,
    )
    told = {"sequence": status.last_sequence, "offset": status.space_offset.hex()}
    return JSONResponse(told, 201, {"ETag": f'"{status.last_sequence}"'})


async def follow(request: Request) -> StreamingResponse:
    """GET /space: everything after Last-Event-ID, and then what comes."""
    store: AsyncStore = request.app.state.store
    space, after = request.path_params["space"], request.headers.get("Last-Event-ID") or None
    async for _ in store.consume_space(space, offset=after, limit=1):
        break  # InvalidOffset or EntriesRemoved now, not in the middle of the answer
    return StreamingResponse(events(store, space, after), media_type="text/event-stream")


async def events(store: AsyncStore, space: str, after: str | None) -> AsyncIterator[str]:
    """A stream of events, which is cancelled when the browser goes away."""
    while True:
        async with aclosing(store.follow_space(space, offset=after, timeout=SILENCE)) as entries:
            async for entry in entries:
                after = entry.space_offset.hex()
                yield f"id: {after}\ndata: {data_of(entry)}\n\n"
        yield ": nothing new\n\n"


def data_of(entry: Entry) -> str:
    payload = entry.payload.decode(errors="replace")
    return json.dumps({"segment": entry.segment, "sequence": entry.sequence, "payload": payload})


async def refused(request: Request, error: Exception) -> JSONResponse:
    status = next(status for kind, status in REFUSALS.items() if isinstance(error, kind))
    return JSONResponse({"error": str(error)}, status)


async def deleted(request: Request, error: Exception) -> JSONResponse:
    """The space or the store was deleted while it was open here. The next request opens it again."""
    request.app.state.store = request.app.state.client.store(STORE)
    return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})


app = Starlette(
    routes=[
        Route("/{space}/{segment}", append, methods=["POST"]),
        Route("/{space}", follow, methods=["GET"]),
    ],
    lifespan=lifespan,
    exception_handlers={**dict.fromkeys(REFUSALS, refused), StoreClosed: deleted, CorruptData: deleted},
)
