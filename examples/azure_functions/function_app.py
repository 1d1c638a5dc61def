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
from streamkit import InvalidName, LeaseNotAcquired, Record, SequenceMismatch, Store

app = func.FunctionApp(http_auth_level=func.AuthLevel.FUNCTION)


@cache
def store() -> Store:
    """Opened by the first invocation, used by all that the same worker serves."""
    return streamkit.connect(timeout=10).store(os.environ["STREAMKIT_STORE"])


class BadInput(Exception):
    """The request is wrong: the caller gets 400 and the text."""


def check(body: object) -> tuple[int, object, str]:
    """The (sequence, event, id) of a body. BadInput names its fault."""
    if not isinstance(body, dict):
        raise BadInput("the body is a JSON object")
    missing = [name for name in ("sequence", "event", "id") if name not in body]
    if missing:
        raise BadInput(f"the body lacks {', '.join(missing)}")
    sequence, id = body["sequence"], body["id"]
    if type(sequence) is not int or sequence < 0:
        raise BadInput("sequence is the order's last sequence, an integer from 0")
    if not isinstance(id, str) or not id:
        raise BadInput("id is the request's own id, a text")
    return sequence, body["event"], id


def append(order: str, body: object) -> tuple[int, int]:
    """(HTTP status, the order's sequence)"""
    sequence, event, id = check(body)
    try:
        status = store().produce(
            "orders",
            f"order-{order}",
            [Record(json.dumps(event).encode(), {"source": "api"})],
            expected_sequence=sequence,
            idempotency_key=id,
        )
    except SequenceMismatch as mismatch:
        return 409, mismatch.actual
    return 200, status.last_sequence


@app.route(route="orders/{order}", methods=["POST"])
def orders(req: func.HttpRequest) -> func.HttpResponse:
    try:
        body = req.get_json()
    except ValueError as error:
        return answer(400, {"error": f"the body is not JSON: {error}"})
    try:
        code, sequence = append(req.route_params["order"], body)
    except (BadInput, InvalidName) as error:
        return answer(400, {"error": str(error)})
    return answer(code, {"sequence": sequence})


def answer(code: int, body: dict[str, object]) -> func.HttpResponse:
    return func.HttpResponse(json.dumps(body), status_code=code, mimetype="application/json")


@app.timer_trigger(schedule="0 */5 * * * *", arg_name="timer")
def report(timer: func.TimerRequest) -> None:
    """Runs on every instance at the same time; one of them leads."""
    try:
        with store().lease("report", ttl=30) as lease:
            count = sum(1 for _ in store().get_segments("orders"))
            store().produce("reports", "orders", [Record(str(count).encode())], lease=lease)
    except LeaseNotAcquired:
        return
