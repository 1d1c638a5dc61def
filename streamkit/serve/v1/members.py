"""Members: presence under a lease that the client renews."""

from __future__ import annotations

import asyncio

import msgspec

from ...leases import LeaseGrant
from ...members import Member
from .. import sse
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer, no_content
from .records import optional_body_of

__all__ = ["enter", "exit_member", "list_members"]

_EVERY = 1.0
"""Seconds between two looks at the members for a stream."""


class MemberIn(msgspec.Struct, forbid_unknown_fields=True):
    """The member's metadata, which the others see. `ttl`: seconds (1 to 3600) for which it lasts without a renewal."""

    metadata: dict[str, str] | None = None
    ttl: float = 15.0


class MemberOut(msgspec.Struct):
    """A member. `token` renews and ends it: keep it like a password."""

    name: str
    token: str
    ttl: float


class MembersOut(msgspec.Struct):
    """The members, by name."""

    members: list[Member]


def _given(request: Request) -> LeaseGrant | None:
    text = request.header(b"lease-token")
    if text is None:
        return None
    try:
        return LeaseGrant.decode(text.decode("latin-1"))
    except ValueError:
        raise Problem(
            "invalid-request", "the Lease-Token is not valid: send the token that the member got when it joined"
        ) from None


async def list_members(request: Request) -> Answer | None:
    """The members of a group; as text/event-stream, now and after each change."""
    request.query(())
    request.access.check_lease(request.name(1))
    members = request.store().members(request.name(1))
    if not request.accepts(b"text/event-stream"):
        return json_answer(MembersOut(await members.list()))
    before = await members.list()
    stream = await request.stream(200, sse.HEADERS)
    await stream.write(sse.event("members", msgspec.json.encode(before)))
    loop = asyncio.get_running_loop()
    while not (request.service.is_draining or stream.is_over):
        if stream.is_silent:
            await stream.write(sse.HEARTBEAT)
        await stream.wait_until(loop.time() + _EVERY)
        present = await members.list()
        if present != before:
            before = present
            await stream.write(sse.event("members", msgspec.json.encode(before)))
    await stream.write(sse.goodbye("rotate" if stream.is_over else "drain"))
    return None


async def enter(request: Request) -> Answer:
    """Join; with `Lease-Token` stay for another ttl. 409 if someone else has the name, or the membership has ended."""
    request.query(())
    group, name = request.name(1), request.name(2)
    request.access.check_lease(group)
    grant, store = _given(request), request.store()
    members = store.members(group)
    if grant is not None:
        members.check_grant(name, grant)
        renewed = await store.renew_lease(grant)
        return json_answer(MemberOut(name, renewed.encode(), renewed.ttl))
    given = await optional_body_of(request, MemberIn)
    grant = await members.enter(name, given.metadata, given.ttl)
    return json_answer(MemberOut(name, grant.encode(), grant.ttl), 201)


async def exit_member(request: Request) -> Answer:
    """Leave at once. A membership that has ended is fine."""
    request.query(())
    request.access.check_lease(request.name(1))
    grant = _given(request)
    if grant is None:
        raise Problem("invalid-request", "the header Lease-Token holds the token of the member")
    await request.store().members(request.name(1)).exit(request.name(2), grant)
    return no_content()
