"""Problems: every refusal of the server, as RFC 9457 has it. This file holds the one table of codes and statuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .. import errors
from .responses import Answer, Headers

__all__ = ["CODES", "ERRORS", "Problem", "problem_of"]

ERRORS: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.SequenceMismatch, 412, "sequence-mismatch"),
    (errors.TransactionIdMismatch, 422, "idempotency-key-reused"),
    (errors.Fenced, 409, "fenced"),
    (errors.LeaseNotAcquired, 409, "lease-held"),
    (errors.LeaseLost, 409, "lease-lost"),
    (errors.InvalidName, 400, "invalid-name"),
    (errors.InvalidOffset, 400, "invalid-offset"),
    (errors.InvalidRecord, 400, "invalid-record"),
    (errors.RecordTooLarge, 413, "record-too-large"),
    (errors.TransactionTooLarge, 413, "transaction-too-large"),
    (errors.CrossPartition, 400, "cross-partition"),
    (errors.SpaceExists, 409, "space-exists"),
    (errors.EntriesRemoved, 410, "entries-removed"),
    (errors.SpaceFull, 507, "space-full"),
    (errors.GroupExists, 409, "group-exists"),
    (errors.DeliveryLost, 409, "delivery-lost"),
    (errors.CorruptData, 502, "corrupt-data"),
    (errors.AccessDenied, 502, "storage-access-denied"),
    (errors.StoreClosed, 503, "store-closed"),
    (errors.UnsupportedVersion, 501, "unsupported-version"),
    (errors.MissingDependency, 501, "missing-dependency"),
    (errors.OutcomeUnknown, 504, "outcome-unknown"),
    (errors.Throttled, 503, "storage-throttled"),
    (errors.TransientError, 503, "storage-unavailable"),
    (errors.StreamkitError, 502, "storage-error"),
    (ValueError, 400, "invalid-argument"),
    (TypeError, 400, "invalid-argument"),
    (Exception, 500, "internal"),
)
"""Errors of the library, the most exact first."""

_OWN = {
    "invalid-request": 400,
    "invalid-body": 400,
    "invalid-argument": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "conflict": 409,
    "not-found": 404,
    "method-not-allowed": 405,
    "not-acceptable": 406,
    "body-timeout": 408,
    "entries-removed": 410,
    "length-required": 411,
    "precondition-failed": 412,
    "body-too-large": 413,
    "unsupported-media-type": 415,
    "misdirected-host": 421,
    "idempotency-key-reused": 422,
    "upgrade-required": 426,
    "too-many-requests": 429,
    "headers-too-large": 431,
    "draining": 503,
    "token-keys-unavailable": 503,
    "view-behind": 503,
}
"""Refusals of the server itself."""

CODES: Mapping[str, int] = {**{code: status for _, status, code in ERRORS}, **_OWN}
"""The status of each code."""

_RETRYABLE = frozenset(
    {"too-many-requests", "draining", "body-timeout", "store-closed", "token-keys-unavailable", "view-behind"}
)
_TITLES = {
    400: "the request is not valid",
    401: "no valid key was given",
    403: "the key does not allow this",
    404: "there is no such resource",
    405: "the resource has no such method",
    406: "no acceptable format",
    408: "the body came too slowly",
    409: "the state does not allow this",
    410: "the entries were removed",
    411: "the length of the body is required",
    412: "the precondition does not hold",
    413: "the request is too large",
    415: "the format of the body is not supported",
    421: "the host is not served here",
    422: "the idempotency key was used with other content",
    426: "another protocol is required",
    429: "too many requests",
    431: "the headers are too large",
    500: "the server failed",
    501: "the server lacks a feature",
    502: "the storage failed",
    503: "not available now",
    504: "the outcome is unknown",
    507: "the space is full",
}


class Problem(Exception):
    """A refusal: `code` is one of CODES, `detail` says what was refused, what was expected, and what to do.

    `fields` are further members of the problem's object.
    """

    def __init__(
        self, code: str, detail: str, *, headers: Headers = (), retryable: bool | None = None, **fields: Any
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.status = CODES[code]
        self.detail = detail
        self.headers = headers
        self.retryable = code in _RETRYABLE if retryable is None else retryable
        self.fields = fields

    def answer(self) -> Answer:
        """The response that reports it."""
        body = {
            "type": f"urn:streamkit:{self.code}",
            "title": _TITLES.get(self.status, "refused"),
            "status": self.status,
            "detail": self.detail,
            "retryable": self.retryable,
            **self.fields,
        }
        data = msgspec.json.encode(body)
        return Answer(self.status, data, (_TYPE, _NO_STORE, *self.headers))


_TYPE = (b"content-type", b"application/problem+json")
_NO_STORE = (b"cache-control", b"no-store")


def problem_of(error: Exception) -> Problem:
    """The problem that reports an error of the library, or of the server itself."""
    if isinstance(error, Problem):
        return error
    code = next(code for kind, _, code in ERRORS if isinstance(error, kind))
    if code == "internal":
        return Problem(code, "the server met an error of its own; its log has more")
    retryable = getattr(error, "retryable", False) or None
    match error:
        case errors.SequenceMismatch():
            tag = (b"etag", b'"%d"' % error.actual)
            return Problem(code, str(error), headers=(tag,), expected=error.expected, actual=error.actual)
        case errors.EntriesRemoved():
            return Problem(code, str(error), gap=msgspec.to_builtins(error.gap))
        case errors.OutcomeUnknown():
            return Problem(code, str(error), transaction=str(error.transaction_id))
        case errors.StoreClosed():  # its text may have a path of this machine
            return Problem(code, "the store, or the space, was closed or deleted meanwhile: ask again")
    return Problem(code, str(error), retryable=retryable)
