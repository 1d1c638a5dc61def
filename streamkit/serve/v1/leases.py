"""Leases: acquire, renew and release by a token that the answer holds."""

from __future__ import annotations

import msgspec

from ...aio import AsyncStore
from ...leases import LeaseGrant
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer, no_content
from .conditions import lease_grant, lease_token
from .records import optional_body_of

__all__ = ["acquire", "release", "renew"]


class LeaseIn(msgspec.Struct, forbid_unknown_fields=True):
    """The seconds that a lease lasts without a renewal."""

    ttl: float = 30.0


class LeaseOut(msgspec.Struct):
    """A lease that is held. `token` renews and releases it, and fences writes: keep it like a password.

    `fence` is greater than that of every earlier holder.
    """

    key: str
    token: str
    fence: int
    ttl: float


async def _out(store: AsyncStore, grant: LeaseGrant) -> LeaseOut:
    return LeaseOut(grant.key, await lease_token(store, grant), grant.token, grant.ttl)


async def acquire(request: Request) -> Answer:
    """Take a lease; 409 if another holder has it."""
    request.query(())
    request.access.check_lease(request.name(1))
    given = await optional_body_of(request, LeaseIn)
    store = request.store()
    return json_answer(await _out(store, await store.acquire_lease(request.name(1), given.ttl)), 201)


async def _given(request: Request) -> LeaseGrant:
    grant = await lease_grant(request, request.store())
    if grant is None:
        raise Problem("invalid-request", "the header Lease-Token holds the token of the lease")
    if grant.key != request.name(1):
        raise Problem("invalid-request", "the Lease-Token is of another lease")
    return grant


async def renew(request: Request) -> Answer:
    """Hold a lease for another ttl; 409 if it was lost."""
    request.query(())
    store = request.store()
    return json_answer(await _out(store, await store.renew_lease(await _given(request))))


async def release(request: Request) -> Answer:
    """Give a lease up. One that was lost is fine."""
    request.query(())
    await request.store().release_lease(await _given(request))
    return no_content()
