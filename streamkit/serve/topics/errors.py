"""Refusals of the interface of topics: `{"error": {"code", "message", "detail"}}`, with its own codes."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from ..problems import Problem
from ..responses import Answer, Headers

__all__ = ["Refused", "error_answer"]

_STATUSES = {
    "invalid_request": 400,
    "batch_too_large": 400,
    "record_too_large": 400,
    "topic_not_found": 404,
    "router_not_found": 404,
    "not_found": 404,
    "router_cycle": 409,
    "topic_exists_incompatible": 409,
    "topic_not_empty": 409,
    "not_a_queue": 409,
    "topic_full": 422,
    "idempotency_key_reused": 422,
    "unauthorized": 401,
    "not_acceptable": 406,
}
_CODES = {
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    408: "invalid_request",
    413: "payload_too_large",
    415: "unsupported_media_type",
    421: "forbidden",
    422: "idempotency_key_reused",
    429: "throttled",
    431: "invalid_request",
    500: "internal",
    503: "not_ready",
    507: "throttled",
}
"""The code of a problem of the server, by its status."""


class Refused(Exception):
    """A refusal with a code of topics. `detail` are the members of the error's detail."""

    def __init__(self, code: str, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail

    def answer(self) -> Answer:
        """The response that reports it."""
        return _answer(_STATUSES[self.code], self.code, str(self), self.detail, ())


def error_answer(problem: Problem) -> Answer:
    """The response that reports a problem of the server as topics does."""
    if problem.code == "draining":
        code = "shutting_down"
    elif problem.status == 409:
        code = "topic_exists_incompatible"
    else:
        code = _CODES.get(problem.status, "invalid_request" if problem.status < 500 else "internal")
    headers = list(problem.headers)
    if problem.status in (429, 503) and not any(name == b"retry-after" for name, _ in headers):
        headers.append((b"retry-after", b"1"))
    return _answer(problem.status, code, problem.detail, {"problem": problem.code}, headers)


def _answer(status: int, code: str, message: str, detail: dict[str, Any], headers: Headers) -> Answer:
    error: dict[str, Any] = {"code": code, "message": message}
    if detail:
        error["detail"] = detail
    body = {"error": error, "performance": {"server_total_ms": 0.0}}
    return Answer(status, msgspec.json.encode(body), ((b"content-type", b"application/json"), *headers))


def performance(begun: float) -> dict[str, float]:
    """The `performance` of an answer that was begun at `begun`, by `time.perf_counter`."""
    return {"server_total_ms": round((time.perf_counter() - begun) * 1000, 3)}
