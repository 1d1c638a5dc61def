"""An Azure Functions app (Python programming model v2): POST /orders/{order} appends one event to the order's segment.

Settings: STREAMKIT_URL (azure://account/prefix) and STREAMKIT_STORE (the tenant's UUID); the function's managed
identity needs the data roles that infra/azure/main.bicep gives it. The body: {"sequence": 3, "event": {…}, "id": "…"}.
"""

from __future__ import annotations

import json
import os
from functools import cache

import azure.functions as func

import streamkit
from streamkit import LeaseNotAcquired, Record, SequenceMismatch, Store

app = func.FunctionApp(http_auth_level=func.AuthLevel.FUNCTION)


@cache
def store() -> Store:
    """Opened by the first invocation, used by all that the same worker serves."""
    return streamkit.connect(timeout=10).store(os.environ["STREAMKIT_STORE"])


def append(order: str, body: dict[str, object]) -> tuple[int, int]:
    """(HTTP status, the order's sequence)"""
    sequence = body["sequence"]
    if not isinstance(sequence, int):
        raise TypeError("sequence is the order's last sequence, an integer")
    try:
        status = store().produce(
            "orders",
            f"order-{order}",
            [Record(json.dumps(body["event"]).encode(), {"source": "api"})],
            expected_sequence=sequence,
            idempotency_key=str(body["id"]),
        )
    except SequenceMismatch as mismatch:
        return 409, mismatch.actual
    return 200, status.last_sequence


@app.route(route="orders/{order}", methods=["POST"])
def orders(req: func.HttpRequest) -> func.HttpResponse:
    code, sequence = append(req.route_params["order"], req.get_json())
    return func.HttpResponse(json.dumps({"sequence": sequence}), status_code=code, mimetype="application/json")


@app.timer_trigger(schedule="0 */5 * * * *", arg_name="timer")
def report(timer: func.TimerRequest) -> None:
    """Runs on every instance at the same time; one of them leads."""
    try:
        with store().lease("report", ttl=30) as lease:
            count = sum(1 for _ in store().get_segments("orders"))
            store().produce("reports", "orders", [Record(str(count).encode())], lease=lease)
    except LeaseNotAcquired:
        return
