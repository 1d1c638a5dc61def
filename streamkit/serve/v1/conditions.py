"""Conditions of a write, from its headers: If-Match, If-None-Match and Idempotency-Key."""

from __future__ import annotations

import re

from ...aio import AsyncStore
from ...leases import LeaseGrant
from ..problems import Problem
from ..request import Request
from ..secret import has_tag, secret_of, tag

__all__ = ["expected_sequence", "idempotency_key", "lease_grant", "lease_token", "refuse_conditions"]

_LEASE = b"streamkit lease token"
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
            raise Problem("invalid-request", "If-None-Match of a write is '*', which expects a new segment")
        return 0
    assert match is not None
    tag = _TAG.fullmatch(match)
    if tag is None:
        raise Problem("invalid-request", 'If-Match of a write holds one last sequence, such as "7"')
    return int(tag[1])


def refuse_conditions(request: Request, remedy: str) -> None:
    """Raise a Problem if the request has a condition, which this resource would not heed."""
    for name in (b"if-match", b"if-none-match"):
        if request.joined(name) is not None:
            raise Problem("invalid-request", f"this request takes no {name.decode().title()}: {remedy}")


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


async def lease_token(store: AsyncStore, grant: LeaseGrant) -> str:
    """The grant as a text for the caller. It is signed, so that a caller cannot raise its number: a write with a higher
    number would shut out every later holder."""
    text = grant.encode()
    return f"{text}.{tag(await secret_of(store), _LEASE, text)}"


async def lease_grant(request: Request, store: AsyncStore) -> LeaseGrant | None:
    """The lease of a request, from its header Lease-Token; None if it has none. A Problem if the key is for others."""
    given = request.header(b"lease-token")
    if given is None:
        return None
    text, _, signature = given.decode("latin-1").partition(".")
    try:
        grant = LeaseGrant.decode(text)
        if not has_tag(await secret_of(store), _LEASE, text, signature):
            raise ValueError
    except ValueError:
        raise Problem(
            "invalid-request", "the Lease-Token is not valid: send the token that POST /leases/{key} returned"
        ) from None
    request.access.check_lease(grant.key)
    return grant
