"""Conditions of a write, from its headers: If-Match, If-None-Match and Idempotency-Key."""

from __future__ import annotations

import re

from ...leases import LeaseGrant
from ..problems import Problem
from ..request import Request

__all__ = ["expected_sequence", "idempotency_key", "lease_grant"]

_TAG = re.compile(rb'"(\d{1,19})"')


def expected_sequence(request: Request) -> int | None:
    """The sequence that the segment must have: `If-Match: "7"` is 7, `If-None-Match: *` is 0."""
    match, none_match = request.header(b"if-match"), request.header(b"if-none-match")
    if match is None and none_match is None:
        return None
    if match is not None and none_match is not None:
        raise Problem("invalid-request", "a write has either If-Match or If-None-Match")
    if none_match is not None:
        if none_match != b"*":
            raise Problem("invalid-request", "a write takes no If-None-Match but '*': the segment is new")
        return 0
    assert match is not None
    tag = _TAG.fullmatch(match)
    if tag is None:
        raise Problem("invalid-request", 'If-Match of a write holds one last sequence, such as "7"')
    return int(tag[1])


def idempotency_key(request: Request) -> str | None:
    """The key of a write; None if it has none."""
    key = request.text_header(b"idempotency-key")
    if key is None:
        return None
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not 1 <= len(key.encode()) <= 255:
        raise Problem("invalid-request", "an Idempotency-Key has 1 to 255 bytes")
    return key


def lease_grant(request: Request) -> LeaseGrant | None:
    """The lease of a request, from its header Lease-Token; None if it has none. A Problem if the key is for others."""
    text = request.header(b"lease-token")
    if text is None:
        return None
    try:
        grant = LeaseGrant.decode(text.decode("latin-1"))
    except ValueError:
        raise Problem("invalid-request", "the Lease-Token is not one that a lease was given") from None
    request.access.check_lease(grant.key)
    return grant
